"""Batches cut by cost under Lightning: epochs of different lengths, which a run continues after any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.trainers.lightning_oracle import records
from tests.support.trainers.lightning_run import Crash, Run, dataset, train
from tests.support.trainers.many_ranks import COST as COST_OF_RANKS
from tests.support.trainers.many_ranks import batches_of_epochs, compare_batches_of_cost, count_nothing
from tests.support.trainers.many_ranks import trained as trained_by


@pytest.fixture(params=[True, False], ids=['counted', 'uncounted'])
def is_counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether epochs have a length; those of more than 100 million samples have none."""
    if not request.param:
        count_nothing(monkeypatch)


COST = {'cost': 'id', 'bucket': 2, 'batch_cost': {'budget': 300, 'multiple': 2}}


@pytest.fixture
def make(mixes: Any, tmp_path: Path, is_counted: None) -> Any:
    def make(name: str, **fields: Any) -> Run:
        options: dict[str, Any] = {
            'out': str(tmp_path),
            'streams': mixes['even'],
            'dataset': COST,
            'validate': True,
            **fields,
        }
        return Run(name=name, **options)

    return make


def expected(run: Run) -> list[list[list[int]]]:
    plans = [dataset(run, batch_size=8).plan(epoch=epoch) for epoch in range(4)]
    return [[sorted(plan.ids(k).tolist()) for k in plan.batches(0, 1000)] for plan in plans]


def trained(run: Run) -> list[list[int]]:
    return [sorted(record['ids']) for record in records(run)[0]]


@pytest.mark.parametrize('workers', [0, 1])
def test_epochs_end_where_their_data_does(make: Any, workers: int) -> None:
    run = make('whole', workers=workers, trainer={'max_epochs': 4})
    train(run)
    epochs = expected(run)
    assert len({len(batches) for batches in epochs}) > 1
    assert trained(run) == sum(epochs, [])
    assert [record['epoch'] for record in records(run)[0]] == [e for e, part in enumerate(epochs) for _ in part]
    assert [record['epoch'] for record in records(run, 'validation')[0] if not record['validation']] == [0, 1, 2, 3]


@pytest.mark.parametrize('at', [1, 13, 24, 30])
def test_it_continues_after_any_batch(make: Any, at: int) -> None:
    first = make('first', crash_at=at, on_exception=True, trainer={'max_epochs': 4})
    with pytest.raises(Crash):
        train(first)
    second = make('second', checkpoint=str(first.checkpoints / 'exception.ckpt'), trainer={'max_epochs': 4})
    train(second)
    assert trained(first) + trained(second) == sum(expected(first), [])


def test_a_limit_is_that_of_each_epoch(make: Any) -> None:
    run = make('half', trainer={'max_epochs': 3, 'limit_train_batches': 5})
    train(run)
    assert trained(run) == sum((batches[:5] for batches in expected(run)[:3]), [])


@pytest.mark.parametrize(
    ('worlds', 'train'),
    [
        ((2, 4), {'loss_weight': 'cost'}),
        pytest.param((4, 2), {'loss_weight': 'samples', 'balance': 1}, marks=pytest.mark.slow),
        pytest.param((3, 5), {'loss_weight': 'cost', 'uneven': 'pad'}, marks=pytest.mark.slow),
        pytest.param((3, 2), {'loss_weight': 'samples', 'uneven': 'ragged'}, marks=pytest.mark.slow),
    ],
)
def test_ranks_train_as_one_and_others_go_on(
    make_dataset: Any, tmp_path: Path, worlds: tuple[int, int], train: Any
) -> None:
    whole = {'max_epochs': 2}
    data = make_dataset(samples=500, per_shard=50)
    compare_batches_of_cost('lightning', data, tmp_path, worlds, {**whole, 'max_steps': 13}, whole, **train)


def test_ranks_keep_limits_and_intervals_of_each_epoch(make_dataset: Any, tmp_path: Path) -> None:
    data = make_dataset(samples=500, per_shard=50)
    how = {'trainer': {'max_epochs': 2, 'limit_train_batches': 0.7, 'val_check_interval': 0.5}}
    ids, seen = trained_by('lightning', data, tmp_path, 2, None, how=how, **COST_OF_RANKS)
    taken = [batches[: int(0.7 * len(batches))] for batches in batches_of_epochs(data, 2)]
    assert ids == sum(taken, [])
    halves = [len(batches) // 2 for batches in taken]
    first = len(taken[0])
    assert seen['evaluated_at'] == [halves[0], 2 * halves[0], first + halves[1], first + 2 * halves[1]]
