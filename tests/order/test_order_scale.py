"""Set-up and memory in proportion to shards; calls that cost what their positions cost."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from headrace.order import Mixture, Plan, StreamSize, Topology
from tests.support.orders.order_cases import mixture, shuffled


def cpu_seconds(call) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def test_ten_million_samples_start_anywhere_at_once() -> None:
    mix = mixture([4000] * 2000, [1500] * 1400, choose=[8_000_000, 2_000_000])
    order = shuffled(mix, 3, nodes=8)
    plan = Plan(order, Topology(rank=5, world_size=8, num_nodes=2), 512, 6_000_000)
    assert cpu_seconds(lambda: plan.ids(0)) < 2
    assert cpu_seconds(lambda: [plan.ids(k) for k in range(1, 101)]) < 1
    positions = np.arange(7_000_000, 7_400_000)
    assert cpu_seconds(lambda: order.at(positions)) < 2
    assert (
        len(np.unique(order.at(positions))) > 399_000
    )  # a sample of the second stream may end one pass and begin the next


@pytest.mark.slow
@pytest.mark.parametrize('nodes', [1, 64])
def test_a_billion_samples_start_anywhere_within_a_second(nodes: int) -> None:
    mix = mixture([4000] * 250_000)
    tracemalloc.start()
    order = shuffled(mix, 1, nodes=nodes)
    assert cpu_seconds(lambda: order.at(np.arange(600_000_000, 600_000_064))) < 2  # tracemalloc doubles it
    assert tracemalloc.get_traced_memory()[1] < 300e6
    tracemalloc.stop()
    positions = np.arange(600_000_000, 602_000_000)
    assert cpu_seconds(lambda: order.at(positions)) < 4
    assert len(np.unique(order.at(positions))) == len(positions)


def test_many_passes_do_not_pile_up() -> None:
    mix = mixture([50] * 20, [7] * 30, choose=[1000, 50_000])
    order = shuffled(mix, nodes=4)
    order._max_units = 500
    seen = []
    for begin in range(0, 51_000, 1000):
        seen.append(order.at(np.arange(begin, begin + 1000)))
        assert order._table.units.used < 1000
    assert (np.concatenate(seen) == shuffled(mix, nodes=4).at(np.arange(51_000))).all()


def peak_of_first_batches(streams: int) -> int:
    """Bytes that the order of so many streams takes for three batches, an explained one, and their streams' counts."""
    mix = Mixture.resolve([StreamSize(name=f's{i}', shard_sizes=np.full(250, 4000)) for i in range(streams)])
    tracemalloc.start()
    plan = Plan(shuffled(mix, nodes=4), Topology(), 256)
    for number in range(3):
        plan.ids(number)
    plan.explain(plan.num_batches // 3)
    plan.stream_counts(0, 3)
    plan.find(mix.num_samples // 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_grows_with_the_number_of_streams_and_no_faster() -> None:
    assert peak_of_first_batches(1000) < 15 * peak_of_first_batches(100)


def test_streams_that_end_one_after_another_cost_their_counts_in_each_stage() -> None:
    """Each of these streams ends a stage of its own. The run holds each stream's node draws before each stage."""
    streams, nodes = 200, 64
    tracemalloc.start()
    Plan(shuffled(dropping(streams), nodes=nodes), Topology(), 256).ids(0)
    assert tracemalloc.get_traced_memory()[1] < 1.5 * streams**2 * nodes * 8 + 20e6
    tracemalloc.stop()
    thousand = dropping(1000)
    assert cpu_seconds(lambda: shuffled(thousand, nodes=1)) < 4


def dropping(streams: int) -> Mixture:
    sizes = [StreamSize(name=f's{i}', proportion=1, shard_sizes=np.full(5, 400 + i)) for i in range(streams)]
    return Mixture.resolve(sizes, when_exhausted='drop_stream')
