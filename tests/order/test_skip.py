"""Skipped ranges of the sequence, against the obvious model: a list of the other positions, cut into batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order import OrderConfig, Plan, Topology, make_order, make_plan, parse_skip
from headrace.order.mixture.takeover import Takeover
from headrace.order.skip import Ranges, Skip, UnskippedPositions, merged, skipped_in_epoch, skipped_in_run, without
from tests.support.orders.order_cases import mixture, relaxed, shuffled, whole

shapes = st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 2, 1), (6, 3, 2), (8, 2, 2), (12, 4, 1)])
ranges = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), max_size=5).map(
    lambda found: merged((begin, min(begin + length, 90)) for begin, length in found)
)
remainders = st.sampled_from(['repeat', 'exact', 'drop'])


def world(ranks: int, nodes: int, replication: int) -> list[Topology]:
    return [Topology(rank=r, world_size=ranks, num_nodes=nodes, replication=replication) for r in range(ranks)]


@relaxed
@given(shapes, ranges, st.integers(0, 90), remainders)
def test_batches_are_those_of_the_obvious_model(
    shape: tuple[int, int, int], skip: tuple[tuple[int, int], ...], start: int, remainder
) -> None:
    size = 12
    order = shuffled(mixture([7] * 20, choose=[90]), nodes=4, block=30)
    sequence = whole(order)
    kept = [p for p in range(90) if not any(begin <= p < end for begin, end in skip)]
    left = [p for p in kept if p >= start]
    cut = [left[k : k + size] for k in range(0, len(left), size)]
    if remainder == 'drop':
        cut = [batch for batch in cut if len(batch) == size]
    plans = [Plan(order, t, size, start, remainder, skip) for t in world(*shape)]
    replicas = {plan.topology.replica: plan for plan in plans}.values()
    assert {plan.num_batches for plan in plans} == {len(cut)}
    whole_epoch = len(kept) // size if remainder == 'drop' else -(-len(kept) // size)
    assert {plan.total_batches for plan in plans} == {whole_epoch}
    assert plans[0].epoch_samples == min(whole_epoch * size, len(kept))
    assert plans[0].batches_before == (len(kept) - len(left)) // size
    assert plans[0].is_skipped == (bool(skip) and whole_epoch == 0)
    position = start
    for k, batch in enumerate(cut):
        # The position after a batch is that of the next unskipped one, behind a skipped range that follows directly.
        after = [p for p in kept if p > batch[-1]]
        end = after[0] if after else 90
        assert {plan.end(k) for plan in plans} == {end}
        assert {plan.skipped(k) for plan in plans} == {end - position - len(batch)}
        position = end
        rows = [plan.positions(k).tolist() for plan in replicas]
        assert len({len(r) for r in rows}) == 1
        assert len(rows[0]) == -(-len(batch) // len(rows))
        own = [r[: plan.own_samples(k)] for r, plan in zip(rows, replicas, strict=True)]
        assert sorted(sum(own, [])) == batch
        padding = [p for r, o in zip(rows, own, strict=True) for p in r[len(o) :]]
        assert sorted(padding) == sorted(kept[-1 - i % len(kept)] for i in range(len(padding)))
        assert sorted(plans[0].global_positions(k).tolist()) == sorted(sum(rows, []))
        for plan in plans:
            assert plan.ids(k).tolist() == sequence[plan.positions(k)].tolist()
            assert set(plan.positions(k)) <= set(plan.node_positions(k))
    assert {plan.stop for plan in plans} == {position}


@relaxed
@given(shapes, shapes, ranges, ranges, st.integers(0, 7))
def test_a_position_means_the_same_whatever_is_skipped(
    first: tuple[int, int, int], second: tuple[int, int, int], before, after, done: int
) -> None:
    order = shuffled(mixture([7] * 20, choose=[90]), nodes=4, block=30)
    plan = Plan(order, world(*first)[0], 12, skip=before)
    assume(done <= plan.num_batches)
    position = plan.end(done - 1) if done else 0
    resumed = [Plan(order, t, 12, position, 'exact', after) for t in world(*second)]
    got: list[int] = []
    for plan in {plan.topology.replica: plan for plan in resumed}.values():
        for k in range(plan.num_batches):
            got += plan.positions(k)[: plan.own_samples(k)].tolist()
    expected = [p for p in range(position, 90) if not any(begin <= p < end for begin, end in after)]
    assert sorted(got) == expected


@pytest.mark.parametrize('start', [0, 5, 48])
def test_a_node_reads_its_canonical_nodes_where_a_batch_is_one_run(start: int) -> None:
    order = shuffled(mixture([7] * 40), nodes=8)
    for t in world(8, 4, 1):
        plan = Plan(order, t, 16, start, 'drop', ((50, 67), (130, 131)))
        for k in range(plan.num_batches):
            together = np.sort(plan.global_positions(k))
            if together[-1] - together[0] == 15:
                assert set(plan.positions(k) % 8 % 4) == {t.node}


def test_kept_positions_are_numbered() -> None:
    kept = UnskippedPositions(10, ((0, 2), (4, 7)))
    assert kept.size == 5
    assert kept.at(np.arange(5)).tolist() == [kept.position(i) for i in range(5)] == [2, 3, 7, 8, 9]
    assert [kept.before(p) for p in range(11)] == [0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 5]
    assert UnskippedPositions(10, ((0, 10),)).size == 0


def in_epoch(skip: Skip, epoch: int, *, epoch_size: int, global_batch_size: int, batches: int) -> Ranges:
    ranges = skipped_in_run(skip, epoch_size=epoch_size, global_batch_size=global_batch_size, batches=batches)
    return skipped_in_epoch(ranges, epoch * epoch_size, epoch_size)


def test_ranges_of_a_run_become_those_of_its_epochs() -> None:
    skip = parse_skip([[250, 320], ['9ba', '11ba'], [90, '95sp'], (93, 97), [0, '1ba']])

    def of(epoch: int, size: int = 16, batches: int = 7) -> object:
        return in_epoch(skip, epoch, epoch_size=100, global_batch_size=size, batches=batches)

    # Epochs of 7 batches: batch 9 is the third of epoch 1.
    assert of(0) == ((0, 16), (90, 97))
    assert of(1) == ((32, 64),)
    assert of(2) == ((50, 100),)
    assert of(3) == ((0, 20),)
    assert of(4) == ()
    # The last batch of an epoch is a smaller one, and the next begins the next epoch; a dropped one is none.
    late = parse_skip([['6ba', '8ba']])
    assert in_epoch(late, 0, epoch_size=100, global_batch_size=16, batches=7) == ((96, 100),)
    assert in_epoch(late, 1, epoch_size=100, global_batch_size=16, batches=7) == ((0, 16),)
    assert in_epoch(late, 1, epoch_size=100, global_batch_size=16, batches=6) == ((0, 32),)
    assert of(1, size=20, batches=5) == ((80, 100),)


PAIR = r'a range of skip must be a pair \[begin, end\]'
BOUND = r'a range of skip must have bounds that are numbers of samples'
EMPTY = 'a range of skip must end after it begins'


@pytest.mark.parametrize(
    ('skip', 'message'),
    [
        ('4:8', r'skip must be a list of ranges'),
        (3, r'skip must be a list of ranges'),
        ([4, 8], PAIR),
        ([[4]], PAIR),
        ([[1, 2, 3]], PAIR),
        (['48'], PAIR),
        ([[-1, 4]], BOUND + r'.*got \[-1, 4\]'),
        ([[0, 4.5]], BOUND),
        ([[False, True]], BOUND),
        ([['1ep', '2ep']], BOUND),
        ([['ba', '2ba']], BOUND),
        ([['-1ba', '2ba']], BOUND),
        ([[4, 4]], EMPTY),
        ([['8ba', '4ba']], EMPTY + r'.*got \[.8ba., .4ba.\]'),
        ([[8, '8sp']], EMPTY),
    ],
)
def test_what_is_no_range_is_refused(skip, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_skip(skip)


def test_mixed_units_are_compared_when_the_batch_is_known() -> None:
    order = shuffled(mixture([100]))
    skip = parse_skip([['4ba', 40]])
    assert make_plan(order, Topology(), global_batch_size=8, skip=skip).total_batches == 12
    with pytest.raises(ConfigError, match=r'got \[4ba, 40sp\], which is samples \[40, 40\] in global batches of 10'):
        make_plan(order, Topology(), global_batch_size=10, skip=skip)


METHODS = ['random', 'stratified', 'per_stream', 'device_per_stream']


@pytest.mark.parametrize('batching', METHODS)
@pytest.mark.parametrize('shape', [(1, 1, 1), (4, 2, 1), (6, 3, 2)])
def test_mosaicmls_orders_leave_out_whole_batches(batching: str, shape: tuple[int, int, int]) -> None:
    """Against a list of all batches, without those that a range touches; from the start, and from any state."""
    mix = mixture([40] * 4, [7] * 12)
    config = OrderConfig(algorithm='py1e', shuffle=True, num_canonical_nodes=6, block_size=30, batching=batching)
    size, epoch, of_epoch = 12, 2, 244
    bounds = [[2 * of_epoch + 30, 2 * of_epoch + 49], [2 * of_epoch + 220, 3 * of_epoch + 5], [0, 100]]
    order = make_order(mix, config, epoch)
    for t in world(*shape):
        options = {'global_batch_size': size, 'remainder': 'repeat', 'epoch': epoch}
        every = make_plan(order, t, **options)
        plan = make_plan(order, t, **options, skip=parse_skip(bounds))
        assert (plan.epoch_batches, plan.epoch_rows) == (every.num_batches, every.epoch_rows)
        kept = [k for k in range(every.num_batches) if not (24 <= 12 * k < 60 or 12 * k >= 216)]
        assert plan.num_batches == plan.total_batches == len(kept)
        position = 0
        for k, row in enumerate(kept):
            assert plan.positions(k).tolist() == every.positions(row).tolist()
            assert plan.node_positions(k).tolist() == every.node_positions(row).tolist()
            after = 12 * kept[k + 1] if k + 1 < len(kept) else every.stop
            assert (plan.end(k), plan.skipped(k)) == (after, after - position - 12)
            position = after
            if k % 4 != t.rank % 4:
                continue
            rest = make_plan(order, t, **options, start=position, skip=parse_skip(bounds))
            later = [rest.positions(i).tolist() for i in range(rest.num_batches)]
            assert later == [plan.positions(i).tolist() for i in range(k + 1, len(kept))]
            assert rest.batches_before == k + 1
        assert plan.stop == position
        assert (
            plan.positions_of(range(len(kept))).tolist()
            == np.concatenate([plan.positions(k) for k in range(len(kept))]).tolist()
        )
        assert plan.ids_of(range(3, 5)).tolist() == np.concatenate([plan.ids(k) for k in (3, 4)]).tolist()
        assert sum(end - begin for begin, end in plan.spans(0, len(kept))) == plan.epoch_samples == 12 * len(kept)
        assert plan.stream_counts(0, len(kept)).sum() == 12 * len(kept)
        sample = int(plan.ids(3)[0])
        assert plan.find(sample) == (3, int(plan.positions(3)[0]))
        assert plan.find(int(every.ids(3)[0])) is None


def test_an_epoch_of_mosaicmls_may_be_skipped_as_a_whole() -> None:
    order = make_order(mixture([20]), OrderConfig(algorithm='py1e', shuffle=True), 1)
    plan = make_plan(order, Topology(), global_batch_size=4, skip=parse_skip([['5ba', '10ba']]), epoch=1)
    assert (plan.num_batches, plan.is_skipped, plan.stop) == (0, True, 0)
    assert make_plan(order, Topology(), global_batch_size=4, start=20, skip=parse_skip([[20, 40]]), epoch=1).stop == 20
    assert (
        make_plan(order, Topology(), global_batch_size=4, skip=parse_skip([['6ba', '9ba']]), epoch=1).num_batches == 2
    )


def test_a_plan_takes_merged_ranges_only() -> None:
    for skip in (((5, 3),), ((0, 4), (4, 8)), ((5, 6), (1, 2)), ((8, 11),), ((-1, 2),)):
        with pytest.raises(ConfigError, match='skip must be merged ranges'):
            Plan(shuffled(mixture([10])), Topology(), 2, skip=skip)


def test_ranges_without_others() -> None:
    ranges = ((0, 10), (20, 30), (40, 50))
    assert without(ranges, ()) == ranges
    assert without(ranges, ranges) == ()
    assert without(ranges, ((0, 100),)) == ()
    assert without(ranges, ((5, 22), (25, 27), (49, 90))) == ((0, 5), (22, 25), (27, 30), (40, 49))


def test_ranges_are_of_the_run_also_where_the_epochs_size_changed() -> None:
    mix = replace(mixture([100]), takeover=Takeover(epoch=3, sample=0, begin=730))
    order, later = (make_order(mix, OrderConfig(shuffle=True), epoch) for epoch in (3, 5))
    skip = parse_skip([[740, 750], [0, 5], [900, 935]])
    assert make_plan(order, Topology(), global_batch_size=8, skip=skip, epoch=3).skip == ((10, 20),)
    assert make_plan(later, Topology(), global_batch_size=8, skip=skip, epoch=5).skip == ((0, 5),)
    with pytest.raises(ConfigError, match=r'must count samples .* got \[90ba, 91ba\]: epoch 3 begins at sample 730'):
        make_plan(order, Topology(), global_batch_size=8, skip=parse_skip([['90ba', '91ba']]), epoch=3)
