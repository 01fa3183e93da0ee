"""The waste of samples of different costs, against slow models, and against runs with the settings that it proposes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.order import OrderConfig, StreamSize, Topology
from headrace.order.length_waste import LengthWaste, padding_share, slowest_share
from headrace.order.run import Run
from headrace.order.topology import BatchSpec
from tests.support.suite.example_counts import scaled


class Costs:
    """Log-normal costs of ids."""

    digest = 'made up'

    def __init__(self, samples: int, spread: float = 1.0) -> None:
        self.values = np.exp(np.random.default_rng(0).normal(5, spread, samples)).astype(np.int64)
        self.largest = int(self.values.max())

    def __call__(self, ids: Any) -> Any:
        return self.values[ids]

    def kept(self, key: str, size: int, fill: Any) -> Any:
        raise NotImplementedError


def run_of(costs: Costs, balance: float | None = None, **how: Any) -> Run:
    streams = [StreamSize(name=name, shard_sizes=np.full(len(costs.values) // 64, 32)) for name in 'ab']
    return Run.of(streams, OrderConfig(shuffle=True, **how), costs=costs, balance=balance)


def waste_of(run: Run, size: int, topology: Topology, **how: Any) -> LengthWaste:
    found = run.length_waste(run.plan(0, 0, BatchSpec(size, topology, how.get('remainder', 'drop'))))
    assert found is not None
    return found


def rows_of(run: Run, costs: Costs, size: int, topology: Topology) -> list[list[Any]]:
    """By batch and rank, the costs of the rows."""
    plans = [
        run.plan(0, 0, BatchSpec(size, replace(topology, rank=rank), 'drop')) for rank in range(topology.world_size)
    ]
    return [[costs(plan.ids(k)) for plan in plans] for k in range(plans[0].num_batches)]


@given(
    rows=st.lists(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4), min_size=1),
    power=st.sampled_from([0.5, 1, 2]),
)
@settings(max_examples=scaled(60))
def test_shares_agree_with_slow_models(rows: list[list[list[int]]], power: float) -> None:
    batches = [[np.array(of_rank) for of_rank in batch] for batch in rows]
    padding = places = 0
    for part in (part for batch in rows for part in batch):
        for cost in part:
            padding += max(part) - cost
            places += max(part)
    assert padding_share([part for batch in batches for part in batch]) == pytest.approx(padding / max(places, 1))
    ratios: list[float] = []
    for batch in rows:
        work = [sum(cost**power for cost in part) for part in batch]
        mean = sum(work) / len(work)
        ratios.append(max(work) / mean if mean else 1)
    assert slowest_share(batches, power) == pytest.approx(sum(ratios) / len(ratios))


@pytest.mark.parametrize(('ranks', 'nodes'), [(4, 1), (8, 2), (1, 1)])
@pytest.mark.parametrize('batching', ['random', 'stratified'])
@pytest.mark.parametrize('spread', [0.3, 1.0])
def test_what_is_proposed_is_what_its_run_has(ranks: int, nodes: int, batching: str, spread: float) -> None:
    costs, size = Costs(64 * 32, spread), 64
    topology = Topology(world_size=ranks, num_nodes=nodes)
    how: dict[str, Any] = {'batching': batching, 'num_canonical_nodes': 4}
    found = waste_of(run_of(costs, **how), size, topology)
    assert found.bucket == 64
    plain = rows_of(run_of(costs, **how), costs, size, topology)
    bucketed = rows_of(run_of(costs, bucket=64, **how), costs, size, topology)
    balanced = rows_of(run_of(costs, balance=1, **how), costs, size, topology)
    assert len(plain) == 32  # all are looked at

    def padding(batches: list[list[Any]]) -> float:
        return padding_share([batch[number % ranks] for number, batch in enumerate(batches)])

    assert found.padding == pytest.approx(padding(plain))
    assert found.slowest == pytest.approx(slowest_share(plain))
    assert found.bucketed == pytest.approx(padding(bucketed))
    assert found.balanced == pytest.approx(slowest_share(balanced[: 64 // ranks]))
    set_already = waste_of(run_of(costs, bucket=64, balance=2, **how), size, topology)
    assert set_already.bucketed is set_already.balanced is None
    assert set_already.notes() == []
    both = rows_of(run_of(costs, bucket=64, balance=2, **how), costs, size, topology)
    assert set_already.padding == pytest.approx(padding(both))
    assert set_already.slowest == pytest.approx(slowest_share(both[: 64 // ranks], 2))


def test_only_changes_that_pay_are_noted() -> None:
    padding, slowest = LengthWaste(0.314, 1.372, 64, 0.042, 1.008).notes()
    assert padding == 'batches that are padded to their longest row are 31% padding; `bucket: 64` would make it 4%.'
    assert slowest == 'the rank with the most work has 1.37 times the mean; `balance: 1` would make it 1.01.'
    little = [(0.09, 1.04, 0.0, 1.0), (0.6, 2.0, 0.5, 1.7), (0.6, 2.0, None, None)]
    assert [LengthWaste(now, most, 8, *then).notes() for now, most, *then in little] == [[], [], []]


@pytest.mark.parametrize('how', [{'algorithm': 'py1e'}, {'batching': 'per_stream'}])
def test_orders_that_know_neither_setting_have_waste_all_the_same(how: dict[str, Any]) -> None:
    found = waste_of(run_of(Costs(64 * 32), **how), 64, Topology(world_size=4))
    assert (found.bucketed, found.balanced) == (None, None)
    assert found.padding > 0.5
    assert found.slowest > 1.1


def test_there_may_be_no_costs_and_no_batch() -> None:
    costs = Costs(64)
    plan = run_of(costs).plan(0, 0, BatchSpec(128, Topology(), 'drop'))
    assert run_of(costs).length_waste(plan) is None
    for ranks in (2, 128):
        topology = Topology(world_size=ranks)
        assert (waste_of(run_of(costs), 128, topology, remainder='repeat').padding > 0.5) == (ranks == 2)
    run = Run.of([StreamSize(name='a', shard_sizes=np.array([64]))], OrderConfig())
    assert run.length_waste(run.plan(0, 0, BatchSpec(8, Topology(), 'drop'))) is None


def test_a_large_batch_has_a_smaller_window() -> None:
    assert waste_of(run_of(Costs(1 << 17)), 1 << 14, Topology(world_size=512, num_nodes=64)).bucket == 8
