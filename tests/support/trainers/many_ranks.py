"""Runs of `ranks_run.py`, and the comparison of many ranks with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamingDataset
from headrace.dataset import sequence
from headrace.order import lengths
from headrace.order.lengths import BucketedOrder
from tests.support.servers.process import free_port
from tests.support.trainers.ranks import run_ranks

each_world = pytest.mark.parametrize(
    'worlds',
    [
        [(3, 'pad')],
        pytest.param([(n, how) for n in (3, 5, 6, 7) for how in ('pad', 'ragged')], marks=pytest.mark.slow, id='all'),
    ],
)


def trained(
    trainer: str,
    data: Path,
    folder: Path,
    ranks: int,
    uneven: str | None,
    loss_weight: str | None = 'samples',
    *,
    how: dict[str, Any] | None = None,
    **train: Any,
) -> Any:
    """What the ranks saw: ids of each global batch, and what is the same on all of them.

    `how`: see `ranks_run.py`, with `train` beside.
    """
    out, program = folder / f'{len([*folder.iterdir()])}', Path(__file__).with_name('ranks_run.py')
    how = {**(how or {}), 'train': {'uneven': uneven, 'loss_weight': loss_weight, **train}}
    run_ranks(trainer, ranks, program, trainer, data, out, json.dumps(how), folder=folder)
    seen = [json.loads(Path(f'{out}.{rank}.json').read_text()) for rank in range(ranks)]
    ids = [sorted(sum(batches, [])) for batches in zip(*(one.pop('ids') for one in seen), strict=True)]
    for one in seen:
        for name, value in seen[0].items():
            assert one[name] == pytest.approx(value), name
    return ids, seen[0]


def compare(trainer: str, data: Path, folder: Path, worlds: list[tuple[int, str]]) -> None:
    """Check that worlds of ranks train and evaluate as one rank does."""
    ids, one = trained(trainer, data, folder, 1, 'pad')
    assert len(ids) == 4
    for ranks, uneven in worlds:
        found, many = trained(trainer, data, folder, ranks, uneven)
        assert found == ids, (ranks, uneven)
        for name, value in one.items():
            assert many[name] == pytest.approx(value, rel=1e-6), (ranks, uneven, name)


def share_caches(trainer: str, data: Path, folder: Path) -> None:
    """Check that ranks on two nodes, without a list of them, train all samples, and that both serve."""
    ids, seen = trained(trainer, data, folder, 2, 'pad', peers={'port': free_port()})
    assert sorted(sum(ids, [])) == list(range(1636))
    assert seen['servers'] == 1


def compare_resumed(trainer: str, data: Path, folder: Path, first: dict[str, Any]) -> None:
    """Check that 7 ranks go on with the checkpoint of 8 as one rank does. `first`: two steps, for the trainer."""
    ids, one = trained(trainer, data, folder, 1, 'pad')
    path = str(folder / 'state.pt')
    before, begun = trained(trainer, data, folder, 8, 'pad', how={'trainer': first, 'save': path})
    after, many = trained(trainer, data, folder, 7, 'pad', how={'load': path})
    assert (before, after) == (ids[:2], ids[2:])
    assert begun['losses'] + many['losses'] == pytest.approx(one['losses'], rel=1e-6)
    for name in 'weight', 'metric':
        assert many[name] == pytest.approx(one[name], rel=1e-6)


COST: dict[str, Any] = {
    'cost': 'id',
    'bucket': 2,
    'batch_cost': {'budget': 14_000, 'multiple': 4},
    'global_batch_size': 64,
}
"""Arguments of a training dataset, with 500 samples in each epoch."""


def batches_of_epochs(data: Path, epochs: int) -> list[list[list[int]]]:
    """By epoch the samples of each of its batches, sorted, under `COST`."""
    dataset = StreamingDataset(local=str(data), shuffle=True, **COST)
    plans = [dataset.plan(epoch=epoch) for epoch in range(epochs)]
    found = [[sorted(plan.ids(k).tolist()) for k in range(plan.num_batches)] for plan in plans]
    assert len({*map(len, found)}) == len(found)
    return found


def compare_batches_of_cost(
    trainer: str, data: Path, folder: Path, worlds: tuple[int, int], first: Any, whole: Any, **train: Any
) -> None:
    """Check that batches cut by cost train ranks as one rank, and others that go on in the middle of an epoch.

    Args:
        trainer: `lightning` or `composer`.
        data: a dataset of 500 samples.
        folder: where programs run.
        worlds: ranks that begin, and those that go on.
        first: arguments of the trainer for a part of the second epoch.
        whole: the same for two epochs.
        train: further arguments of the dataset.
    """
    options = {**COST, 'uneven': None, **train}
    expected = sum(batches_of_epochs(data, 2), [])
    ids, one = trained(trainer, data, folder, 1, **options, how={'trainer': whole})
    assert ids == expected
    path = str(folder / 'state.pt')
    before, begun = trained(trainer, data, folder, worlds[0], **options, how={'trainer': first, 'save': path})
    after, many = trained(trainer, data, folder, worlds[1], **options, how={'trainer': whole, 'load': path})
    assert before + after == expected
    assert begun['losses'] + many['losses'] == pytest.approx(one['losses'], rel=1e-6)
    assert many['weight'] == pytest.approx(one['weight'], rel=1e-6)


def count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have epochs under `batch_cost` no length, as those of more than 100 million samples; a count of all fails."""

    def fail(order: BucketedOrder) -> None:
        raise AssertionError(f'The batches of epoch {order.epoch} are counted.')

    monkeypatch.setattr(sequence, 'MOST_COUNTED', 10)
    monkeypatch.setattr(lengths, '_NEAR', 1)
    monkeypatch.setattr(BucketedOrder, 'window_batches', property(fail))
