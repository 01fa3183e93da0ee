"""Stratified batches whose size the canonical nodes do not divide: the grid against counting."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.order import Mixture, OrderConfig, ResumeState, Schedule, StreamSize, Topology, make_order, make_plan
from headrace.order.native.special.stratified_free import FreeStratifiedInterleave, free_grid_quotas
from headrace.order.resume import resume
from tests.support.orders.order_cases import examples, whole


@st.composite
def segments(draw: st.DrawFn) -> tuple[np.ndarray, int, int, int]:
    """Draws of streams that fill whole batches, the batch size, the number of nodes, and the first position."""
    nodes, size, batches = draw(st.integers(2, 12)), draw(st.integers(1, 24)), draw(st.integers(1, 50))
    assume(size % nodes)
    cuts = sorted(draw(st.lists(st.integers(0, size * batches), max_size=5)))
    return np.diff([0, *cuts, size * batches]), size, nodes, draw(st.integers(0, 50))


@examples(0.2)
@given(segments(), st.integers(1, 5))
def test_each_batch_has_a_streams_share_rounded_down_or_up_and_draws_are_counted(segment, per_window: int) -> None:
    counts, size, nodes, begin = segment
    batches = int(counts.sum()) // size
    interleave = FreeStratifiedInterleave(counts, size, nodes, begin=begin, key=7)
    interleave._per_window = min(per_window, batches)
    quotas = free_grid_quotas(counts, size, nodes, begin)
    assert (quotas.sum(1) == counts).all()
    of_batch = np.zeros((len(counts), batches), int)
    for node in range(nodes):
        offsets = np.arange((node - begin) % nodes, batches * size, nodes)
        slots = np.arange(len(offsets))
        assert quotas[:, node].sum() == len(slots)
        streams, draws = interleave.at(np.full(len(slots), node), slots)
        for stream in range(len(counts)):
            of_stream = (streams == stream).nonzero()[0]
            assert draws[of_stream].tolist() == list(range(quotas[stream, node]))
            for draw in {0, len(of_stream) // 2, len(of_stream) - 1} if len(of_stream) else ():
                assert interleave.slot_of(node, stream, draw) == of_stream[draw]
        np.add.at(of_batch, (streams, offsets // size), 1)
        for slot in {0, per_window, len(slots) // 2, len(slots)}:
            before = np.bincount(streams[:slot], minlength=len(counts))
            assert interleave.draws_before(node, min(slot, len(slots))).tolist() == before.tolist()
    assert (np.abs(of_batch - counts[:, None] / batches) < 1).all()
    behind = of_batch.cumsum(1) - counts[:, None] / batches * np.arange(1, batches + 1)
    assert np.abs(behind).max() < 8


@pytest.mark.parametrize(('size', 'nodes'), [(96, 64), (1000, 64), (7, 64), (96, 5)])
def test_nodes_get_nearly_equal_numbers_of_every_stream(size: int, nodes: int) -> None:
    counts = np.array([5000 * size * share // 100 for share in (1, 4, 15, 30, 50)])
    quotas = free_grid_quotas(counts, size, nodes, 3)
    assert (quotas.max(1) - quotas.min(1)).max() < 16


def test_numbers_beyond_64_bits_are_exact() -> None:
    """Batches so many that the sums need Python's integers: a part of the nodes against a smaller segment's rule."""
    counts = np.array([3 << 36, (1 << 36) * 7 + 10])
    quotas = free_grid_quotas(np.append(counts, -counts.sum() % 10), 10, 4, 0)
    total = int(counts.sum()) + -int(counts.sum()) % 10
    assert quotas.sum() == total
    assert (quotas.sum(0) == total // 4 + (np.arange(4) < total % 4)).all()
    assert (quotas >= 0).all()


@st.composite
def runs(draw: st.DrawFn) -> tuple[Mixture, OrderConfig]:
    size, nodes = draw(st.sampled_from([(10, 4), (24, 64), (9, 6), (35, 8), (16, 3)]))
    weights = draw(st.lists(st.sampled_from([1, 2, 0.3]), min_size=2, max_size=4))
    ramp = [{'at': 0, 'proportions': {'s0': 1}}, {'at': draw(st.integers(1, 900)), 'proportions': {'s1': 1, 's0': 2},
            'change': 'linear'}]  # fmt: skip
    is_scheduled = draw(st.booleans())
    streams = [
        StreamSize(
            name=f's{i}',
            shard_sizes=draw(st.lists(st.integers(1, 40), min_size=1, max_size=5)),
            proportion=None if is_scheduled else weight,
        )
        for i, weight in enumerate(weights)
    ]
    options = {'schedule': Schedule.of(ramp)} if is_scheduled else {}
    mix = Mixture.resolve(streams, epoch_size=draw(st.integers(30, 400)), **options)
    config = OrderConfig(
        shuffle=draw(st.booleans()), num_canonical_nodes=nodes, block_size=30, batching='stratified',
        global_batch_size=size,
    )  # fmt: skip
    return mix, config


@examples(0.3)
@given(runs(), st.data())
def test_streams_are_passes_and_every_position_and_draw_is_found(run, data: st.DataObject) -> None:
    mix, config = run
    nodes = config.num_canonical_nodes or 1
    counts, draws = np.zeros(mix.num_samples, int), np.zeros((len(mix.streams), nodes), int)
    for epoch in range(3):
        order = make_order(mix, config, epoch)
        ids = whole(order)
        assert (order.node_draws_before(0) == draws).all()
        counts += np.bincount(ids, minlength=mix.num_samples)
        np.add.at(draws, (mix.streams_of(ids), np.arange(len(ids)) % nodes), 1)
        for first, last in zip(mix.sample_offsets, mix.sample_offsets[1:], strict=False):
            assert counts[first:last].max() - counts[first:last].min() <= 1
        some = np.array(data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=9)))
        assert (make_order(mix, config, epoch).at(some) == ids[some]).all()
        sample = data.draw(st.integers(0, mix.num_samples - 1))
        assert list(order.find(sample)) == (ids == sample).nonzero()[0].tolist()


@examples(0.3)
@given(runs(), st.integers(0, 9), st.sampled_from([10, 24, 35]))
def test_another_mixture_takes_over_in_the_middle_of_an_epoch(run, batches: int, size: int) -> None:
    mix, config = run
    at = min(batches * (config.global_batch_size or 1), mix.epoch_size)
    state = ResumeState.of(config, mix, epoch=1, sample_in_epoch=at)
    state = ResumeState.from_dict(json.loads(json.dumps(state.to_dict())))
    bare = [StreamSize(name=s.name, shard_sizes=s.shard_sizes, proportion=i + 1) for i, s in enumerate(mix.streams)]
    to, now = Mixture.resolve(bare, epoch_size=mix.epoch_size), replace(config, global_batch_size=size)
    changed, state = resume(state, now, to, may_change_mixture=True)
    begin, draws = state.sample_in_epoch, make_order(mix, config, 1).node_draws_before(at)
    for epoch in range(state.epoch, state.epoch + 3):
        order = make_order(changed, now, epoch)
        assert (order.node_draws_before(begin) == draws).all()
        ids = order.at(np.arange(begin, len(order)))
        np.add.at(draws, (changed.streams_of(ids), np.arange(begin, len(order)) % order.num_canonical_nodes), 1)
        of_batches = changed.streams_of(ids)[: len(ids) // size * size].reshape(-1, size)
        shares = np.bincount(of_batches.reshape(-1), minlength=len(to.streams)) / max(len(of_batches), 1)
        for batch in of_batches:
            assert (np.abs(np.bincount(batch, minlength=len(shares)) - shares) < 1).all()
        begin = 0


def test_seven_topologies_have_the_same_batches_from_the_middle_of_an_epoch_on() -> None:
    mix = Mixture.resolve([StreamSize(name=f's{i}', shard_sizes=[20] * 9, proportion=i + 1) for i in range(3)])
    config = OrderConfig(shuffle=True, num_canonical_nodes=9, batching='stratified', global_batch_size=24)
    order = make_order(mix, config, 1)
    expected = [set(order.at(np.arange(k, min(k + 24, len(order)))).tolist()) for k in range(240, len(order), 24)]
    for ranks, nodes, copies in [(1, 1, 1), (2, 1, 1), (4, 2, 1), (6, 3, 2), (8, 4, 1), (12, 3, 1), (16, 2, 2)]:
        topologies = [Topology(rank=r, world_size=ranks, num_nodes=nodes, replication=copies) for r in range(ranks)]
        plans = [make_plan(order, t, global_batch_size=24, start=240) for t in topologies]
        found = [
            set(np.concatenate([p.ids(k)[: p.own_samples(k)] for p in plans]).tolist()) for k in range(len(expected))
        ]
        assert found == expected
