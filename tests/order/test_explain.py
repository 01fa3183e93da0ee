"""Explanations of the order, against the obvious model: make everything, and look."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, TopologyError
from headrace.order import (
    BatchPlan,
    Mixture,
    Order,
    OrderConfig,
    ResumeState,
    SampleUse,
    Schedule,
    StreamSize,
    Topology,
    make_order,
    make_plan,
    next_use,
    parse_skip,
)
from headrace.order.resume import resume
from tests.support.orders.order_cases import examples, mixture, mixtures, relaxed, shard_lists, shuffled

PlanOf = Callable[[int], BatchPlan]
shapes = st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 2, 1), (6, 3, 2), (8, 2, 2), (12, 4, 1)])


skips = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 90)), max_size=3).map(
    lambda found: parse_skip([[begin, begin + length] for begin, length in found])
)


BATCH = 24


@st.composite
def any_mixture(draw: st.DrawFn) -> Mixture:
    """Streams of a few shards, with weights, stages or a schedule; some are never drawn."""
    kind = draw(st.sampled_from(['choose', 'repeat', 'stop', 'drop_stream', 'schedule', 'tiny']))
    if kind == 'choose':
        return draw(mixtures())
    shards = draw(st.lists(shard_lists, min_size=1, max_size=4))
    if kind == 'tiny':
        shards[0] = [1]
    share = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])
    proportions = [draw(share) if i else 1.0 for i in range(len(shards))]
    size = draw(st.integers(1, 2 * sum(map(sum, shards))))
    streams = [
        StreamSize(name=f's{i}', shard_sizes=s, proportion=None if kind == 'schedule' else p)
        for i, (s, p) in enumerate(zip(shards, proportions, strict=True))
    ]
    if kind != 'schedule':
        when = kind if kind in ('stop', 'drop_stream') else 'repeat'
        return Mixture.resolve(streams, epoch_size=size, when_exhausted=when)
    at = sorted(draw(st.sets(st.integers(1, 3 * size), max_size=2)))
    points = [
        {
            'at': begin,
            'proportions': {'s0': 1.0, **{f's{i}': draw(share) for i in range(1, len(shards))}},
            'change': draw(st.sampled_from(['step', 'linear'])) if begin else 'step',
        }
        for begin in [0, *at]
    ]
    return Mixture.resolve(streams, epoch_size=size, schedule=Schedule.of(points))


@st.composite
def native_cases(draw: st.DrawFn) -> tuple[Mixture, OrderConfig]:
    batching = draw(st.sampled_from(['random', 'stratified']))
    config = OrderConfig(
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        num_canonical_nodes=draw(st.sampled_from([1, 2, 8, 24] if batching == 'stratified' else [1, 2, 5, 8, 32])),
        block_size=draw(st.integers(1, 80)),
        batching=batching,
        global_batch_size=BATCH if batching == 'stratified' else None,
    )
    return draw(any_mixture()), config


@st.composite
def changed_cases(draw: st.DrawFn) -> tuple[Mixture, OrderConfig, int]:
    """As `native_cases`, after up to two changes of the mixture; and the epoch of the last."""
    mix, config = draw(native_cases())
    epoch, sample = 0, 0
    for _ in range(draw(st.integers(0, 2))):
        epoch += draw(st.integers(0, 2))
        start = sample if mix.takeover.epoch == epoch else 0
        sample = draw(st.integers(start, mix.epoch_size))
        state = ResumeState.of(config, mix, epoch=epoch, sample_in_epoch=sample)
        state = ResumeState.from_dict(json.loads(json.dumps(state.to_dict())))
        mix, state = resume(state, config, draw(any_mixture()), may_change_mixture=True)
        epoch, sample = state.epoch, state.sample_in_epoch
    return mix, config, epoch


MOSAICML = ('random', 'stratified', 'per_stream', 'device_per_stream')


def mosaicml_plans(
    algorithm: str, batching: str, shape: tuple[int, int, int], remainder, choose: list[int], start: int = 0
) -> PlanOf:
    ranks, nodes, replication = shape
    config = OrderConfig(shuffle=True, algorithm=algorithm, batching=batching, num_canonical_nodes=4, block_size=20)
    mix = mixture([30, 20, 10, 40], [7, 33, 20], [9], choose=choose)
    topology = Topology(world_size=ranks, num_nodes=nodes, replication=replication)

    def plan_of(epoch: int) -> BatchPlan:
        order = make_order(mix, config, epoch)
        return make_plan(
            order,
            topology,
            global_batch_size=BATCH,
            remainder=remainder,
            start=0 if epoch else start,
            initial_nodes=nodes,
        )

    return plan_of


def check_explanations(plan: BatchPlan) -> None:
    """Every batch, against what each rank's own plan gives."""
    mix, topology = plan.order.mixture, plan.topology
    sizes = [int(n) for n in mix.shard_sizes]
    places = [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    of_shard = [(s, i) for s, stream in enumerate(mix.streams) for i in range(len(stream.shard_sizes))]
    for k in range(plan.num_batches):
        explained = plan.explain(k)
        assert (explained.epoch, explained.number, explained.end) == (plan.order.epoch, k, plan.end(k))
        expected = []
        for rank in range(0, topology.world_size, topology.replication):
            own = plan.of_rank(rank)
            ids = own.ids(k).tolist() if k < own.num_batches else []
            for row, (position, sample) in enumerate(zip(own.positions(k).tolist(), ids, strict=True)):
                shard, shard_row = places[sample]
                expected.append((rank, row, position, sample, *of_shard[shard], shard_row, row >= own.own_samples(k)))
        arrays = ('ranks', 'rows', 'positions', 'ids', 'streams', 'shards', 'shard_rows', 'is_padding')
        assert list(zip(*(getattr(explained, name).tolist() for name in arrays), strict=True)) == expected
        assert sum(explained.stream_counts().values()) == sum(not row[-1] for row in expected)
        for rank in range(topology.world_size):
            found = explained.of_rank(rank)
            assert found.ids.tolist() == plan.order.at(plan.of_rank(rank).positions(k)).tolist()
            assert set(found.ranks.tolist()) <= {rank // topology.replication * topology.replication}
        listed = explained.to_json()
        assert json.loads(json.dumps(listed)) == listed
        assert [(row['rank'], row['row'], row['id']) for row in listed['rows']] == [
            (row[0], row[1], row[3]) for row in expected
        ]
        assert len(str(explained).splitlines()) == 1 + len(expected)


def uses_of_all(plan: BatchPlan) -> dict[int, list[SampleUse]]:
    """The uses of each sample, found by looking at all batches."""
    found: dict[int, list[SampleUse]] = defaultdict(list)
    # Ranks of MosaicML's orders may have unequally many batches.
    ranks = range(0, plan.topology.world_size, plan.topology.replication)
    plans = [plan.of_rank(rank) for rank in ranks]
    for k in range(max(each.num_batches for each in plans)):
        for rank, each in zip(ranks, plans, strict=True):
            if k < each.num_batches:
                rows = zip(each.positions(k).tolist(), each.ids(k).tolist(), strict=True)
                for row, (at, sample) in enumerate(rows):
                    if row < each.own_samples(k):
                        use = SampleUse(epoch=plan.order.epoch, position=at, batch=k, rank=rank, row=row)
                        found[sample].append(use)
    return found


def check_next_uses(plan_of: PlanOf, samples: list[int], *, epoch: int, batch: int, epochs: int = 3) -> None:
    uses = {number: uses_of_all(plan_of(number)) for number in range(epoch, epoch + epochs)}
    for sample in samples:
        expected = [
            use for number in uses for use in uses[number][sample] if use.batch >= (batch if number == epoch else 0)
        ]
        got = next_use(plan_of, sample, epoch=epoch, batch=batch, epochs=epochs)
        if not expected:
            assert got is None
            continue
        # In one batch a sample may be twice, of two passes or as a repeat of a MosaicML order.
        first = [use for use in expected if (use.epoch, use.batch) == (expected[0].epoch, expected[0].batch)]
        assert got in first


def check_found(order: Order, samples: list[int], starts: list[int]) -> None:
    ids = order.at(np.arange(order.first, len(order)))
    for sample in samples:
        at = (order.first + (ids == sample).nonzero()[0]).tolist()
        assert list(order.find(sample)) == at
        for start in starts:
            assert list(order.find(sample, start)) == [p for p in at if p >= start]


def some_samples(mix: Mixture, draw: Callable[..., int]) -> list[int]:
    ends = [int(e) for o in mix.sample_offsets for e in (o - 1, o) if 0 <= e < mix.num_samples]
    return sorted({*ends, *(draw(st.integers(0, mix.num_samples - 1)) for _ in range(4))})


@examples(0.6)
@given(changed_cases(), shapes, skips, st.sampled_from(['repeat', 'exact', 'drop']), st.data())
def test_a_batch_is_what_the_plans_of_all_ranks_say(case, shape, skip, remainder, data: st.DataObject) -> None:
    mix, config, epoch = case
    epoch += data.draw(st.integers(0, 1))
    order = make_order(mix, config, epoch)
    ranks, nodes, replication = shape
    plan = make_plan(
        order,
        Topology(rank=data.draw(st.integers(0, ranks - 1)), world_size=ranks, num_nodes=nodes, replication=replication),
        global_batch_size=BATCH,
        start=data.draw(st.integers(order.first, len(order))),
        remainder=remainder,
        skip=skip,
        epoch=epoch,
    )
    check_explanations(plan)


@examples(1.5)
@given(changed_cases(), st.integers(0, 2), st.data())
def test_a_sample_is_found_where_it_stands(case, later: int, data: st.DataObject) -> None:
    mix, config, epoch = case
    order = make_order(mix, config, epoch + later)
    starts = [data.draw(st.integers(0, len(order))) for _ in range(3)]
    check_found(order, some_samples(mix, data.draw), starts)


@relaxed
@given(changed_cases(), shapes, skips, st.sampled_from(['repeat', 'exact', 'drop']), st.data())
def test_the_next_use_is_the_first_that_a_scan_finds(case, shape, skip, remainder, data: st.DataObject) -> None:
    mix, config, first = case
    ranks, nodes, replication = shape
    topology = Topology(world_size=ranks, num_nodes=nodes, replication=replication)
    start = data.draw(st.integers(make_order(mix, config, first).first, mix.epoch_size))

    def plan_of(epoch: int) -> BatchPlan:
        order = make_order(mix, config, epoch)
        at = start if epoch == first else 0
        return make_plan(
            order, topology, global_batch_size=BATCH, start=at, remainder=remainder, skip=skip, epoch=epoch
        )

    batch = data.draw(st.integers(0, plan_of(first).num_batches))
    check_next_uses(plan_of, some_samples(mix, data.draw), epoch=first, batch=batch)


@pytest.mark.parametrize('batching', MOSAICML)
@pytest.mark.parametrize('algorithm', ['py1e', 'naive'])
@examples(0.1)
@given(shapes, st.sampled_from(['repeat', 'drop']), st.sampled_from([[100, 60, 50], [150, 130, 60]]), st.data())
def test_mosaicml_orders_are_explained_too(
    algorithm: str, batching: str, shape, remainder, choose: list[int], data: st.DataObject
) -> None:
    start = data.draw(st.sampled_from([0, 48]))
    plan_of = mosaicml_plans(algorithm, batching, shape, remainder, choose, start)
    try:
        plan = plan_of(0)
    except HeadraceError:  # a topology that the order does not have
        return
    check_explanations(plan)
    samples = some_samples(plan.order.mixture, data.draw)
    check_found(plan_of(1).order, samples, [0, 17, len(plan.order)])
    batch = data.draw(st.integers(0, plan.num_batches))
    check_next_uses(plan_of, samples, epoch=0, batch=batch, epochs=2)


def test_a_stream_that_is_never_drawn_is_never_seen_and_nothing_is_computed_for_it() -> None:
    for algorithm in ('native', 'py1e'):
        config = OrderConfig(shuffle=True, algorithm=algorithm)
        mix = mixture([20], [5], choose=[20, 0])

        def load(*_) -> np.ndarray:
            raise AssertionError

        def plan_of(epoch: int, mix=mix, config=config, load=load) -> BatchPlan:
            return make_plan(make_order(mix, config, epoch, load), Topology(), global_batch_size=4)

        assert next_use(plan_of, 22) is None


def test_what_a_range_leaves_out_for_several_epochs_is_seen_after_it() -> None:
    mix = mixture([50, 50])
    config = OrderConfig(shuffle=True, num_canonical_nodes=2)

    def plan_of(epoch: int) -> BatchPlan:
        order = make_order(mix, config, epoch)
        return make_plan(order, Topology(), global_batch_size=10, skip=parse_skip([[0, 300]]), epoch=epoch)

    use = next_use(plan_of, 77)
    assert use is not None
    assert (use.epoch, use.batch) == (3, use.position // 10)
    assert next_use(plan_of, 77, epochs=3) is None


def test_wrong_numbers_are_refused() -> None:
    for order in (shuffled(mixture([20])), make_order(mixture([20]), OrderConfig(algorithm='py1e'), 0)):
        plan = make_plan(order, Topology(), global_batch_size=4)
        for wrong in (-1, 20):
            with pytest.raises(IndexError, match=r'sample ids must be in \[0, 20\)'):
                order.find(wrong)
            with pytest.raises(IndexError, match='sample ids must be'):
                next_use(lambda _, plan=plan: plan, wrong)
        for wrong in (-1, 21):
            with pytest.raises(IndexError, match=r'positions must be in \[0, 20\]'):
                order.find(3, wrong)
        for wrong in (-1, 5):
            with pytest.raises(IndexError, match='batches are numbered from 0 to 4'):
                plan.explain(wrong)
        for wrong in (-1, 1):
            with pytest.raises(TopologyError, match='rank must be in'):
                plan.explain(0).of_rank(wrong)


def test_a_rank_without_rows_has_none_of_its_neighbours() -> None:
    """MosaicML's orders may end with a batch that some ranks have nothing of."""
    unequal = 0
    for batching in MOSAICML:
        plan = mosaicml_plans('py1e', batching, (8, 2, 2), 'repeat', [100, 61, 50])(0)
        for rank in range(8):
            own = plan.of_rank(rank)
            k = max(plan.of_rank(r).num_batches for r in range(8)) - 1
            assert plan.explain(k).of_rank(rank).positions.tolist() == own.positions(k).tolist()
            unequal += not len(own.positions(k))
    assert unequal


@pytest.mark.parametrize('nodes', [None, 1])
def test_the_next_use_takes_no_longer_for_many_shards_or_passes(nodes: int | None) -> None:
    streams = [
        StreamSize(name='large', shard_sizes=np.full(50_000, 4000), proportion=0.98),
        StreamSize(name='small', shard_sizes=[100], proportion=0.01),  # 20,000 passes an epoch
        StreamSize(name='one', shard_sizes=[1], proportion=0.01),
    ]
    mix = Mixture.resolve(streams, epoch_size=200_000_000)
    config = OrderConfig(shuffle=True, num_canonical_nodes=nodes).resolve_defaults(mix)

    def plan_of(epoch: int) -> BatchPlan:
        order = make_order(mix, config, epoch)
        skip = parse_skip([[110_000_000, 120_000_000]])
        return make_plan(order, Topology(world_size=8), global_batch_size=4096, skip=skip, epoch=epoch)

    began = time.process_time()
    for sample in (123_456_789, 200_000_000, 200_000_100):
        for batch in (0, 26_855):  # the second begins right before a skipped range
            use = next_use(plan_of, sample, batch=batch)
            assert use is not None
            order = make_order(mix, config, use.epoch)
            assert order.at(np.array([use.position])).tolist() == [sample]
            assert sample == 123_456_789 or use.batch - batch < 400
    # A hundred times less where all is well; enumerating passes would take minutes.
    assert time.process_time() - began < 60
