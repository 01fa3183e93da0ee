"""Batches of one stream: per_stream and device_per_stream in the native order."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.errors import ConfigError, TopologyError
from headrace.order import (
    Mixture,
    OrderConfig,
    ResumeState,
    Schedule,
    StreamSize,
    Topology,
    make_order,
    make_plan,
    parse_skip,
)
from headrace.order.native.node_quotas import NodeQuotas
from headrace.order.resume import resume
from tests.support.orders.order_cases import examples, whole

NAMES = 'abcd'
WORLDS = [(1, 1, 1), (2, 1, 1), (2, 2, 1), (4, 2, 1), (8, 2, 2), (12, 3, 1), (4, 4, 1)]
"""Ranks, nodes and replication of seven topologies."""


def world(ranks: int, nodes: int, replication: int) -> list[Topology]:
    return [Topology(rank=r, world_size=ranks, num_nodes=nodes, replication=replication) for r in range(ranks)]


def configured(
    batch: int, units: int, nodes: int, *, shuffle: bool = True, batching: str = 'device_per_stream'
) -> OrderConfig:
    if units == 1 and batching != 'stratified':
        batching = 'per_stream'
    return OrderConfig(
        shuffle=shuffle, num_canonical_nodes=nodes, block_size=40, batching=batching, global_batch_size=batch,
        device_batches=units if batching == 'device_per_stream' else None,
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> tuple[Mixture, OrderConfig]:
    """Mixtures of every kind, with units that divide the batch, and canonical nodes that do."""
    units = draw(st.sampled_from([1, 1, 2, 3, 4, 6, 8]))
    batch = 24 * draw(st.integers(1, 2))
    nodes = draw(st.sampled_from([1, 2, 3, 4, 8, 12, 24]))
    names = NAMES[: draw(st.integers(1, 4))]
    sizes = {name: [*draw(st.lists(st.integers(0, 30), min_size=1, max_size=6)), 1] for name in names}
    epoch_size = batch * draw(st.integers(5, 14)) + draw(st.integers(0, batch - 1))
    options = {'epoch_size': epoch_size}
    weights = {name: draw(st.sampled_from([1, 2, 3.5])) for name in names}
    kind = draw(st.sampled_from(['proportion', 'schedule', 'drop_stream']))
    if kind == 'schedule':
        ends = sorted(draw(st.sets(st.integers(1, 4 * epoch_size), max_size=2)))
        changes = [
            {
                'at': at,
                'proportions': weights if not at else {name: draw(st.sampled_from([1, 2.5])) for name in names},
                'change': draw(st.sampled_from(['step', 'linear'])) if at else 'step',
            }
            for at in [0, *ends]
        ]
        options['schedule'] = Schedule.of(changes)
    elif kind == 'drop_stream':
        options['when_exhausted'] = kind
        sizes = {name: [40 * batch // len(names), 5 * batch] for name in names}
    streams = [
        StreamSize(name=n, shard_sizes=sizes[n], **({} if kind == 'schedule' else {'proportion': weights[n]}))
        for n in names
    ]
    return Mixture.resolve(streams, **options), configured(batch, units, nodes, shuffle=draw(st.booleans()))


def order_of(mix: Mixture, config: OrderConfig, epoch: int):
    try:
        return make_order(mix, config, epoch)
    except ConfigError as error:
        assume('one stream gives all' not in str(error))
        raise


@examples(0.3)
@given(runs(), st.integers(0, 3))
def test_every_unit_of_every_batch_is_of_one_stream(run, epoch: int) -> None:
    mix, config = run
    order = order_of(mix, config, epoch)
    ids = whole(order)
    streams, size, units = mix.streams_of(ids), config.global_batch_size or 0, config.units
    for begin in range(0, len(ids), size):
        positions = np.arange(begin, min(begin + size, len(ids)))
        for unit in range(units):
            assert len(set(streams[positions[positions % units == unit]].tolist())) <= 1


@examples(0.3)
@given(runs(), st.integers(0, 2))
def test_draws_are_counted_as_they_come(run, epoch: int) -> None:
    """Against counting: a stream's draws on each node before any position, over several epochs."""
    mix, config = run
    nodes = config.num_canonical_nodes or 1
    counted = np.zeros((len(mix.streams), nodes), int)
    for e in range(epoch + 1):
        order = order_of(mix, config, e)
        ids = whole(order)
        streams = mix.streams_of(ids)
        assert (order.node_draws_before(0) == counted).all()
        for position in {0, 1, len(ids) // 2, len(ids) // 2 + 1, len(ids) - 1}:
            more = np.zeros_like(counted)
            np.add.at(more, (streams[:position], np.arange(position) % nodes), 1)
            assert (order.node_draws_before(position) == counted + more).all()
        np.add.at(counted, (streams, np.arange(len(ids)) % nodes), 1)


@examples(0.3)
@given(runs())
def test_streams_are_passes_through_all_epochs(run) -> None:
    mix, config = run
    counts = np.zeros(mix.num_samples, int)
    for epoch in range(4):
        counts += np.bincount(whole(order_of(mix, config, epoch)), minlength=mix.num_samples)
        for first, last in zip(mix.sample_offsets, mix.sample_offsets[1:], strict=False):
            assert counts[first:last].max() - counts[first:last].min() <= 1


@examples(0.3)
@given(runs(), st.integers(0, 3), st.data())
def test_any_positions_give_what_the_epoch_has_there_and_samples_are_found(run, epoch: int, data) -> None:
    mix, config = run
    expected, order = whole(order_of(mix, config, epoch)), order_of(mix, config, epoch)
    positions = np.array(data.draw(st.lists(st.integers(0, len(order) - 1), min_size=1, max_size=20)))
    assert (order.at(positions) == expected[positions]).all()
    sample = data.draw(st.integers(0, mix.num_samples - 1))
    assert list(order.find(sample)) == (expected == sample).nonzero()[0].tolist()


@examples(0.3)
@given(runs())
def test_an_epoch_keeps_the_shares_within_one_unit(run) -> None:
    mix, config = run
    assume(mix.schedule is None and len(mix.stages) == 1)
    order = order_of(mix, config, 2)
    drawn = mix.count_streams(whole(order))
    assert (np.abs(drawn - np.array(mix.choose)) <= (config.global_batch_size or 0) // config.units).all()


def test_shares_hold_at_any_batch_not_only_at_the_end() -> None:
    weights = (0.5, 0.3, 0.15, 0.05)
    streams = [StreamSize(name=f's{i}', shard_sizes=[500] * 20, proportion=w) for i, w in enumerate(weights)]
    mix = Mixture.resolve(streams, epoch_size=64 * 1000 + 7)
    for units, nodes in ((1, 8), (8, 8), (16, 4)):
        order = make_order(mix, configured(64, units, nodes), 1)
        streams_at = mix.streams_of(whole(order))[: 64 * 1000]
        for s, weight in enumerate(weights):
            until = (streams_at == s).reshape(1000, 64).sum(1).cumsum()
            lag = np.abs(until - weight * 64 * np.arange(1, 1001)) / (64 // units)
            assert lag.max() < 5
            if units > 1:  # and in each batch
                in_batch = (streams_at == s).reshape(1000, 64).sum(1) / (64 // units)
                assert (np.abs(in_batch - weight * units) <= 1.01).all()


@pytest.mark.parametrize('units', [1, 4])
@pytest.mark.parametrize('samples', [24 * 20, 24 * 20 + 1, 24 * 20 + 15])
def test_on_seven_topologies_each_batch_is_of_one_stream_and_of_the_same_samples(units: int, samples: int) -> None:
    """From the middle of an epoch on, padding included."""
    streams = [StreamSize(name=n, shard_sizes=[60] * 9, proportion=w) for n, w in zip('abc', (3, 2, 1), strict=True)]
    mix = Mixture.resolve(streams, epoch_size=samples)
    order = make_order(mix, configured(24, units, 4), 1)
    expected: list[set[int]] = []
    for shape in WORLDS:
        plans = [make_plan(order, t, global_batch_size=24, start=24 * 7) for t in world(*shape)]
        batches: list[set[int]] = []
        for k in range(plans[0].num_batches):
            rows = [plan.ids(k) for plan in plans]
            own = [plan.ids(k)[: plan.own_samples(k)] for plan in plans]
            batches.append(set(np.concatenate(own).tolist()))
            replicas = plans[0].topology.replicas
            if units == 1:
                assert len(set(mix.streams_of(np.concatenate(rows)).tolist())) == 1
            elif replicas % units == 0:
                assert {len(set(mix.streams_of(row).tolist())) for row in rows} == {1}
            else:  # a replica's batch is whole units
                assert all(len(set(mix.streams_of(row).tolist())) <= units // replicas for row in rows)
        expected = expected or batches
        assert batches == expected


def test_ranks_that_would_get_parts_of_several_device_batches_are_refused_with_the_possible_numbers() -> None:
    mix = Mixture.resolve([StreamSize(name=n, shard_sizes=[60] * 9) for n in 'ab'])
    order = make_order(mix, configured(24, 4, 4), 0)
    with pytest.raises(TopologyError, match=r'must divide the 4 device batches .*got 3\. Possible are \[1, 2, 4, 8'):
        make_plan(order, world(3, 1, 1)[0], global_batch_size=24)


@pytest.mark.parametrize('units', [1, 4])
def test_skipped_ranges_are_widened_to_whole_batches(units: int) -> None:
    mix = Mixture.resolve([StreamSize(name=n, shard_sizes=[60] * 9) for n in 'ab'])
    order = make_order(mix, configured(24, units, 4), 1)
    plans = [
        make_plan(order, t, global_batch_size=24, skip=parse_skip([[1080 + 30, 1080 + 31], [1080 + 95, 1080 + 97]]),
                  epoch=1) for t in world(4, 2, 1)
    ]  # fmt: skip
    kept = [*range(24), *range(48, 72), *range(120, 1080)]
    for k in range(plans[0].num_batches):
        rows = np.concatenate([plan.positions(k) for plan in plans])
        assert sorted(rows.tolist()) == kept[24 * k : 24 * k + 24]
        for plan in plans:
            assert len(set(mix.streams_of(plan.ids(k)).tolist())) == 1


@examples(0.3)
@given(runs(), runs(), st.integers(0, 2), st.data())
def test_another_mixture_takes_over_and_no_stream_loses_a_sample(run, other, epoch: int, data: st.DataObject) -> None:
    """Also with another batch size; each stream's draws continue with the next one."""
    (mix, config), (to, batches) = run, other
    sizes = {stream.name: stream for stream in mix.streams}
    same = [sizes.get(s.name, s) for s in to.streams]
    weights = [StreamSize(name=s.name, shard_sizes=s.shard_sizes, proportion=n + 1) for n, s in enumerate(same)]
    to = Mixture.resolve(weights, epoch_size=to.epoch_size)
    counts = {s.name: np.zeros(s.size, int) for s in [*mix.streams, *to.streams]}
    names = [s.name for s in mix.streams]

    def draw(order, begin: int, end: int, names: list[str], mix: Mixture) -> None:
        ids = order.at(np.arange(begin, end))
        for s, name in enumerate(names):
            first, last = mix.sample_offsets[s : s + 2]
            np.add.at(counts[name], ids[(ids >= first) & (ids < last)] - first, 1)

    for e in range(epoch):
        draw(order_of(mix, config, e), 0, mix.epoch_size, names, mix)
    order = order_of(mix, config, epoch)
    at = data.draw(st.integers(0, mix.epoch_size // config.global_batch_size)) * config.global_batch_size
    draw(order, 0, at, names, mix)
    state = ResumeState.of(config, mix, epoch=epoch, sample_in_epoch=at)
    state = ResumeState.from_dict(json.loads(json.dumps(state.to_dict())))
    now = replace(config, global_batch_size=batches.global_batch_size)
    if config.units > 1:
        now = replace(config, device_batches=None).for_batches(batches.global_batch_size or 0, 2)
    changed, state = resume(state, now, to, may_change_mixture=True)
    names, before = [s.name for s in changed.streams], state.sample_in_epoch
    for e in range(state.epoch, state.epoch + 8):
        order = order_of(changed, now, e)
        ids = order.at(np.arange(before, changed.epoch_size))
        streams, size = changed.streams_of(ids), now.global_batch_size or 0
        positions = np.arange(before, changed.epoch_size)
        for begin in range(0, len(ids), size):
            for unit in range(now.units):
                of_unit = positions[begin : begin + size] % now.units == unit
                assert len(set(streams[begin : begin + size][of_unit].tolist())) <= 1
        draw(order, before, changed.epoch_size, names, changed)
        before = 0
    for s, name in enumerate(names):
        passes = order.streams[s].passes
        assert passes.first_regular < 10**9  # nodes that will have no more of a stream leave theirs to others
        if passes.first_regular <= counts[name].sum() // len(counts[name]):
            assert counts[name].max() - counts[name].min() <= 1


@examples(0.3)
@given(runs(), st.integers(0, 20))
def test_an_epoch_far_on_is_as_if_those_before_were_added_up(run, epochs: int) -> None:
    mix, config = run
    order_of(mix, config, 0)
    quotas = NodeQuotas(mix, config.resolve_defaults(mix))
    draws = np.zeros(len(mix.streams), int)
    for epoch in range(epochs):
        for number, segment in enumerate(quotas.segments(epoch)):
            assert quotas.before(epoch, number)[0].tolist() == draws.tolist()
            assert quotas.quotas(epoch, number).sum(1).tolist() == segment.counts.tolist()
            draws = draws + segment.counts


def test_a_stream_that_fills_no_batch_of_an_epoch_is_refused() -> None:
    streams = [StreamSize(name='web', shard_sizes=[100] * 20), StreamSize(name='tiny', shard_sizes=[20])]
    mix = Mixture.resolve(streams)
    with pytest.raises(ConfigError, match=r"all 64 samples .*only 20 samples of stream 'tiny'"):
        make_order(mix, configured(64, 1, 4), 0)
    make_order(mix, configured(64, 4, 4), 0)  # a device's batch is smaller


def test_no_evaluation_has_each_sample_once_where_batches_are_of_one_stream() -> None:
    def order(streams: str):
        mix = Mixture.resolve([StreamSize(name=name, shard_sizes=[60]) for name in streams])
        return make_order(mix, configured(24, 1, 1), 0)

    with pytest.raises(ConfigError, match="Remainder 'exact' needs batching_method 'random' or 'stratified'"):
        make_plan(order('ab'), Topology(), global_batch_size=24, remainder='exact')
    plan = make_plan(order('a'), Topology(), global_batch_size=24, remainder='exact')
    assert sorted(np.concatenate([plan.ids(k) for k in range(plan.num_batches)]).tolist()) == list(range(60))


def test_canonical_nodes_divide_the_batch() -> None:
    mix = Mixture.resolve([StreamSize(name='a', shard_sizes=[100])])
    with pytest.raises(ConfigError, match=r'with per_stream batching num_canonical_nodes must divide .*got 7 for'):
        make_order(mix, configured(24, 1, 7), 0)
    for batching in ('per_stream', 'device_per_stream'):
        with pytest.raises(ConfigError, match=f'{batching} batching depends on the batch size'):
            make_order(mix, OrderConfig(batching=batching), 0)
