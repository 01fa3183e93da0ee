"""Another mixture takes over in a resumed training: Composer's epochs and samples go with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.dataset import StreamingDataset
from tests.support.trainers.composer_legs import Leg, run
from tests.support.trainers.composer_runs import lines, trained

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]


def expected(data: str, epoch: int, sample: int, epoch_size: int, epochs: int) -> list[list[int]]:
    """The batches of a run that continues with epochs of another size, without a trainer."""
    options = {'local': data, 'shuffle': True, 'batch_size': 8, 'shuffle_seed': 7}
    dataset = StreamingDataset(**options, epoch_size=epoch_size, on_mixture_change='continue')
    dataset.take(dataset.continued(StreamingDataset(**options).resume_state(epoch, sample)))
    epoch, sample = dataset.progress.next(rank=0)
    plans = [dataset.plan(epoch=epoch + i, start=0 if i else sample) for i in range(epochs)]
    return [sorted(plan.ids(k).tolist()) for plan in plans for k in range(plan.num_batches)]


@pytest.mark.parametrize('skip', [(), ((400, 408),)], ids=['all', 'skip'])
@pytest.mark.parametrize(
    ('kind', 'behind', 'size', 'epochs'),
    [
        ('eighth', 8, 48, [1] * 6 + [2] * 6),  # beyond the new epoch, so that the next begins
        ('mid', 5, 48, [0] + [1] * 6 + [2] * 6),
        ('second', 17, 32, [2] * 4),  # 40 samples of epoch 1
        ('mid', 5, 128, [0] * 11 + [1] * 16 + [2] * 16),
    ],
)
def test_epochs_of_another_size(
    data: str, tmp_path: Path, kind: str, behind: int, size: int, epochs: list[int], skip: tuple
) -> None:
    first = Leg('first', data, str(tmp_path), save=True)
    new = {'epoch_size': size, 'skip': skip, 'duration': '3ep', 'on_mixture_change': 'continue'}
    run(first)
    rest = Leg('rest', data, str(tmp_path), load=f'{tmp_path}/first-{kind}.pt', save=True, **new)
    run(rest)
    batches = list(trained(rest, 1).values())
    assert batches == expected(data, behind // 12, behind % 12 * 8, size, len(set(epochs)))
    assert [line['epoch'] for line in lines(rest)] == epochs
    # Checkpoints of the rest continue without a word on the change.
    later = {8: ('thirteenth', 13), 5: ('eighth', 8), 17: None}[behind]
    if later is not None:
        again = Leg(
            'again',
            data,
            str(tmp_path),
            load=f'{tmp_path}/rest-{later[0]}.pt',
            **{**new, 'on_mixture_change': 'refuse'},
        )
        run(again)
        assert list(trained(again, 1).values()) == batches[later[1] - behind :]
