"""Stratified batches: the grid against counting, and every batch within one sample of each stream's share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import Mixture, OrderConfig, StreamSize, make_order
from headrace.order.native import stratified
from headrace.order.native.stratified import StratifiedInterleave, grid_quotas
from tests.support.orders.order_cases import relaxed


@st.composite
def segments(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Draws of streams that fill whole batches, the batch size, and the number of nodes."""
    nodes, rows, batches = draw(st.integers(1, 9)), draw(st.integers(1, 8)), draw(st.integers(1, 90))
    total = nodes * rows * batches
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
    return np.diff([0, *cuts, total]), nodes * rows, nodes


@relaxed
@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 90), st.lists(st.integers(0, 90), max_size=5))
def test_floor_sums_are_the_sums(n: int, m: int, a: int, b: list[int]) -> None:
    expected = [sum((a * i + c) // m for i in range(n)) for c in b]
    assert stratified.floor_sums(n, m, a, np.array(b, np.int64)).tolist() == expected


@relaxed
@given(segments(), st.integers(1, 5))
def test_each_batch_and_each_node_of_it_has_a_streams_share_rounded_down_or_up(segment, per_window: int) -> None:
    counts, batch_size, nodes = segment
    batches, rows = int(counts.sum()) // batch_size, batch_size // nodes
    interleave = StratifiedInterleave(counts, batch_size, nodes, 7)
    quotas = grid_quotas(counts, batch_size, nodes)
    assert (quotas.sum(1) == counts).all()
    assert (quotas.sum(0) == batches * rows).all()
    seen = np.zeros((len(counts), batches, nodes), int)
    for node in range(nodes):
        slots = np.arange(batches * rows)
        streams, draws = interleave.at(np.full(len(slots), node), slots)
        for stream in range(len(counts)):
            assert draws[streams == stream].tolist() == list(range(quotas[stream, node]))
        np.add.at(seen, (streams, slots // rows, node), 1)
        for slot in {0, per_window, len(slots) // 2, len(slots)}:
            before = np.bincount(streams[:slot], minlength=len(counts))
            assert interleave.draws_before(node, min(slot, len(slots))).tolist() == before.tolist()
    of_batch = seen.sum(2)
    assert (np.abs(of_batch - counts[:, None] / batches) < 1).all()
    assert (np.abs(seen - counts[:, None, None] / batches / nodes) < 1).all()
    # Not only each batch: what came until any batch is near the share, too.
    behind = of_batch.cumsum(1) - counts[:, None] / batches * np.arange(1, batches + 1)
    assert np.abs(behind).max() < 6


def test_windows_are_what_the_whole_is() -> None:
    """A node's batches over many windows, evaluated far apart, against one call."""
    counts, batch_size, nodes = np.array([70_001, 29_999, 20_000]), 40, 2
    slots = np.arange(60_000)
    streams, draws = StratifiedInterleave(counts, batch_size, nodes, 1).at(np.ones(60_000, int), slots)
    scattered = np.random.default_rng(0).integers(0, 60_000, 300)
    fresh = StratifiedInterleave(counts, batch_size, nodes, 1)
    for slot in scattered:
        found = fresh.at(np.array([1]), np.array([slot]))
        assert (int(found[0][0]), int(found[1][0])) == (streams[slot], draws[slot])


def test_an_epochs_batches_hold_the_weights_within_one_sample_also_the_last_smaller_one() -> None:
    weights = (0.5, 0.3, 0.15, 0.05)
    streams = [StreamSize(name=f's{i}', shard_sizes=[50] * 20, proportion=weight) for i, weight in enumerate(weights)]
    mix = Mixture.resolve(streams, epoch_size=10_007)
    for size in (32, 96, 512):
        config = OrderConfig(
            shuffle=True, batching='stratified', global_batch_size=size, num_canonical_nodes=8
        ).resolve_defaults(mix)
        for epoch in range(2):
            ids = make_order(mix, config, epoch).at(np.arange(10_007))
            streams_of = np.searchsorted(mix.sample_offsets, ids, 'right') - 1
            for begin in range(0, 10_007, size):
                batch = streams_of[begin : begin + size]
                counts = np.bincount(batch, minlength=4)
                assert (np.abs(counts - np.array(weights) * len(batch)) <= 1 + 1e-9).all()
