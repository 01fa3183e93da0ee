"""Batches cut by cost under Composer: its position counts their samples, and epochs end where the data does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.dataset import StreamingDataset
from tests.support.trainers.composer_legs import Leg, run
from tests.support.trainers.composer_runs import lines, trained
from tests.support.trainers.many_ranks import COST as COST_OF_RANKS
from tests.support.trainers.many_ranks import batches_of_epochs, compare_batches_of_cost, count_nothing
from tests.support.trainers.many_ranks import trained as trained_by

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]

COST: dict[str, Any] = {'cost': 'id', 'bucket': 2, 'batch_cost': {'budget': 300, 'multiple': 2}}


def expected(data: str) -> list[list[list[int]]]:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=8, shuffle_seed=7, **COST)
    plans = [dataset.plan(epoch=epoch) for epoch in range(3)]
    return [[sorted(plan.ids(k).tolist()) for k in plan.batches(0, 1000)] for plan in plans]


@pytest.mark.parametrize('is_counted', [True, False])
def test_epochs_end_where_their_data_does_and_resume(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_counted: bool
) -> None:
    if not is_counted:
        count_nothing(monkeypatch)
    epochs = expected(data)
    # Composer takes no epochs without a length.
    duration = '3ep' if is_counted else f'{sum(map(len, sum(epochs, [])))}sp'
    first = Leg('first', data, str(tmp_path), duration=duration, dataset=COST, save=True)
    run(first)
    found = lines(first)
    assert len({len(batches) for batches in epochs}) > 1
    assert list(trained(first, 1).values()) == sum(epochs, [])
    lengths = [len(batches) if is_counted else None for batches in epochs for _ in batches]
    assert [line['len'] for line in found] == lengths
    before = [sum(map(len, batches[:k])) for batches in epochs for k in range(len(batches))]
    assert [line['sample_in_epoch'] for line in found] == before
    for kind, behind in ('mid', 5), ('boundary', len(epochs[0])), ('second', 17):
        rest = replace(first, name=f'rest-{kind}', save=False, load=f'{tmp_path}/first-{kind}.pt', workers=1)
        run(rest)
        assert list(trained(rest, 1).values()) == sum(epochs, [])[behind:]
        assert [line['len'] for line in lines(rest)] == lengths[behind:]
        assert [line['batch_in_epoch'] for line in lines(rest)] == [line['batch_in_epoch'] for line in found][behind:]


@pytest.mark.parametrize('is_counted', [True, False])
def test_samples_and_subsets_are_counted(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_counted: bool
) -> None:
    if not is_counted:
        count_nothing(monkeypatch)
    epochs = expected(data)
    samples = sum(map(len, epochs[0])) + sum(map(len, epochs[1][:3]))
    run(leg := Leg('samples', data, str(tmp_path), duration=f'{samples}sp', dataset=COST))
    assert list(trained(leg, 1).values()) == epochs[0] + epochs[1][:3]
    run(leg := Leg('subset', data, str(tmp_path), duration='2ep', subset=9, dataset=COST))
    assert list(trained(leg, 1).values()) == epochs[0][:9] + epochs[1][:9]


@pytest.mark.parametrize(
    ('worlds', 'train'),
    [
        ((2, 4), {'loss_weight': 'cost'}),
        pytest.param((4, 2), {'loss_weight': 'samples', 'balance': 1}, marks=pytest.mark.slow),
        pytest.param((3, 5), {'loss_weight': 'cost', 'uneven': 'pad'}, marks=pytest.mark.slow),
    ],
)
def test_ranks_train_as_one_and_others_go_on(
    make_dataset: Any, tmp_path: Path, worlds: tuple[int, int], train: Any
) -> None:
    data = make_dataset(samples=500, per_shard=50)
    first, whole = {'max_duration': '13ba'}, {'max_duration': '2ep'}
    compare_batches_of_cost('composer', data, tmp_path, worlds, first, whole, **train)


@pytest.mark.parametrize('ranks', [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_end_after_samples(make_dataset: Any, tmp_path: Path, ranks: int) -> None:
    data = make_dataset(samples=500, per_shard=50)
    epochs = batches_of_epochs(data, 2)
    expected = [*epochs[0], *epochs[1][:3]]
    how = {'trainer': {'max_duration': f'{sum(map(len, expected))}sp'}}
    ids, seen = trained_by('composer', data, tmp_path, ranks, None, how=how, **COST_OF_RANKS)
    assert ids == expected
    assert (seen['epoch'], seen['samples']) == (1, sum(map(len, expected)))
