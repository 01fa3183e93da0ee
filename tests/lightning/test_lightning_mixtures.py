"""Another mixture takes over in a resumed training: Lightning's epochs go with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.trainers.lightning_oracle import records
from tests.support.trainers.lightning_run import Crash, Run, dataset, train


def expected(run: Run, first: Run, at: int, epochs: int) -> list[list[int]]:
    """The batches of a run that continues with epochs of another size, without a trainer."""
    data = dataset(run)
    data.take(data.continued(dataset(first).resume_state(at // 12, at % 12 * 8)))
    epoch, sample = data.progress.next(rank=0)
    plans = [data.plan(epoch=epoch + i, start=0 if i else sample, global_batch_size=8) for i in range(epochs)]
    return [sorted(plan.ids(k).tolist()) for plan in plans for k in range(plan.num_batches)]


@pytest.mark.parametrize(
    ('at', 'size', 'epochs'),
    [
        (8, 48, [1] * 6 + [2] * 6),  # beyond the new epoch, so that the next begins
        (5, 48, [0] + [1] * 6 + [2] * 6),
        (17, 32, [2] * 4),  # 40 samples of epoch 1
        (5, 128, [0] * 11 + [1] * 16 + [2] * 16),
        (12, 128, [1] * 16 + [2] * 16),
        (6, 48, [1] * 6 + [2] * 6),  # at the end of the new epoch
    ],
)
def test_epochs_of_another_size(mixes, tmp_path: Path, at: int, size: int, epochs: list[int]) -> None:
    options = {'out': str(tmp_path), 'streams': mixes['even'], 'on_exception': True}
    first = Run(name='first', crash_at=at, **options)
    with pytest.raises(Crash):
        train(first)
    new = {'epoch_size': size, 'on_mixture_change': 'continue'}
    rest = Run(
        name='rest',
        checkpoint=str(first.checkpoints / 'exception.ckpt'),
        dataset=new,
        trainer={'max_epochs': 3},
        **options,
    )
    train(rest)
    found = records(rest)[0]
    batches = [sorted(record['ids']) for record in found]
    assert batches == expected(rest, first, at, len(set(epochs)) + (at == 6))
    assert [record['epoch'] for record in found] == epochs
