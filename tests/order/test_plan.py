from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.errors import ConfigError, TopologyError
from headrace.order import Plan, Topology
from tests.support.orders.order_cases import mixture, relaxed, shuffled, whole


def world(nodes: int, ranks_per_node: int, replication: int = 1) -> list[Topology]:
    size = nodes * ranks_per_node
    return [Topology(rank=rank, world_size=size, num_nodes=nodes, replication=replication) for rank in range(size)]


worlds = st.sampled_from([(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (3, 2, 1), (2, 3, 2), (2, 4, 2), (4, 2, 8)]).map(
    lambda shape: world(*shape)
)
batch_sizes = st.sampled_from([12, 24, 36])


@relaxed
@given(worlds, batch_sizes, st.integers(1, 130), st.integers(0, 130), st.sampled_from(['repeat', 'exact', 'drop']))
def test_the_ranks_share_each_global_batch(ranks: list[Topology], size: int, samples: int, start: int, how) -> None:
    assume(start <= samples and size % ranks[0].replicas == 0)
    order = shuffled(mixture([7] * 20, choose=[samples]), nodes=4, block=30)
    sequence = whole(order)
    plans = [Plan(order, t, size, start, how) for t in ranks]
    left = samples - start
    assert {plan.num_batches for plan in plans} == {left // size if how == 'drop' else -(-left // size)}
    position = start
    for k in range(plans[0].num_batches):
        expected = sequence[position : position + size]
        position += len(expected)
        assert {plan.end(k) for plan in plans} == {position}
        rows = [plan.ids(k) for plan in plans]
        assert len({len(r) for r in rows}) == 1, 'ranks differ in rows'
        distinct = {t.replica: plan.own_samples(k) for t, plan in zip(ranks, plans, strict=True)}
        assert sum(distinct.values()) == len(expected)
        replicas = {t.replica: r.tolist() for t, r in zip(ranks, rows, strict=True)}
        for t, r in zip(ranks, rows, strict=True):
            assert r.tolist() == replicas[t.replica], 'ranks of a replica differ'
        given_out = sum(replicas.values(), [])
        padding = -len(expected) % ranks[0].replicas
        repeated = [int(sequence[samples - 1 - i % samples]) for i in range(padding)]
        assert sorted(given_out) == sorted([*expected.tolist(), *repeated])
        assert sorted(order.at(plans[0].global_positions(k)).tolist()) == sorted(given_out)
        own = {t.replica: plan.ids(k)[: plan.own_samples(k)].tolist() for t, plan in zip(ranks, plans, strict=True)}
        assert sorted(sum(own.values(), [])) == sorted(expected.tolist()), 'what counts is each sample once'
    assert {plan.stop for plan in plans} == {position}
    if how != 'drop':
        assert position == samples
    else:
        assert samples - position < size


@relaxed
@given(worlds, st.integers(0, 130), st.integers(0, 40), st.sampled_from(['repeat', 'drop']), st.data())
def test_positions_of_many_batches_are_those_of_each(ranks: list[Topology], start: int, gap: int, how, data) -> None:
    order = shuffled(mixture([7] * 20, choose=[130]), nodes=4, block=30)
    begin = data.draw(st.integers(0, 130 - gap))
    skip = ((begin, begin + gap),) if gap else ()
    rank = data.draw(st.sampled_from(ranks))
    plan = Plan(order, rank, 24, start, how, skip)
    first = data.draw(st.integers(0, plan.num_batches))
    batches = range(first, data.draw(st.integers(first, plan.num_batches)))
    each = [plan.positions(k).tolist() for k in batches]
    assert plan.positions_of(batches).tolist() == sum(each, [])
    assert plan.ids_of(batches).tolist() == sum((plan.ids(k).tolist() for k in batches), [])


@relaxed
@given(worlds, worlds, batch_sizes, st.integers(0, 5))
def test_resuming_on_another_world_continues_the_sequence(
    first: list[Topology], second: list[Topology], size: int, batches: int
) -> None:
    """Also with another global batch size: the rest of the sequence is cut anew."""
    assume(size % first[0].replicas == 0)
    order = shuffled(mixture([7] * 20, [5] * 9, choose=[140, 90]), 1, nodes=4, block=30)
    plan = Plan(order, first[0], size)
    position = plan.end(batches - 1) if batches else 0
    resumed = [Plan(order, t, 48, position, 'drop') for t in second]
    for k in range(resumed[0].num_batches):
        rows = {plan.topology.replica: plan.ids(k).tolist() for plan in resumed}
        expected = whole(order)[position + 48 * k : position + 48 * (k + 1)]
        assert sorted(sum(rows.values(), [])) == sorted(expected.tolist())
    assert resumed[0].num_batches == (230 - position) // 48


@pytest.mark.parametrize('start', [0, 1, 17, 90])
def test_a_node_reads_only_its_canonical_nodes_wherever_the_pass_begins(start: int) -> None:
    order = shuffled(mixture([7] * 40), nodes=8)
    for t in world(4, 2):
        plan = Plan(order, t, 16, start, 'drop')
        for k in range(plan.num_batches):
            assert set(plan.positions(k) % 8 % 4) == {t.node}
            assert set(plan.node_positions(k) % 4) == {t.node}


def test_a_node_reads_what_its_ranks_read() -> None:
    order = shuffled(mixture([7] * 40), nodes=8)
    plans = [Plan(order, t, 12, 5) for t in world(2, 2)]
    for node in (0, 1):
        ranks = plans[2 * node : 2 * node + 2]
        for k in range(plans[0].num_batches):
            expected = np.concatenate([plan.positions(k) for plan in ranks])
            assert sorted(ranks[0].node_positions(k).tolist()) == sorted(expected.tolist())


def test_numbers_of_a_whole_epoch_do_not_depend_on_the_start() -> None:
    order = shuffled(mixture([100]))
    for how, batches, samples in (('repeat', 13, 100), ('drop', 12, 96)):
        for start in (0, 8, 99):
            plan = Plan(order, Topology(), 8, start, how)
            assert (plan.total_batches, plan.epoch_samples) == (batches, samples)


@pytest.mark.parametrize(('size', 'near'), [(7, '6 and 9'), (1, '3'), (0, '3'), (-4, '3')])
def test_a_batch_that_replicas_cannot_share_is_refused(size: int, near: str) -> None:
    with pytest.raises(TopologyError, match=rf'make 3 replicas, .* it is {size}\. .*: {near}\.'):
        Plan(shuffled(mixture([10])), Topology(world_size=6, replication=2), size)


def test_positions_and_policies_out_of_range_are_refused() -> None:
    order = shuffled(mixture([10]))
    with pytest.raises(ConfigError, match='11'):
        Plan(order, Topology(), 2, 11)
    with pytest.raises(ConfigError, match='pad'):
        Plan(order, Topology(), 2, 0, 'pad')  # pyright: ignore[reportArgumentType]
    plan = Plan(order, Topology(), 4, 10)
    assert (plan.num_batches, plan.stop) == (0, 10)
    for k in (-1, 0):
        with pytest.raises(IndexError):
            plan.positions(k)


def slow_deal(begin: int, rows: int, nodes: int, replicas: int, uneven: str) -> dict[tuple[int, int], list[int]]:
    """Rows by node and replica there, one after another: (number in the batch, or of the row that padding repeats)."""
    dealt: dict[tuple[int, int], list[int]] = {(n, r): [] for n in range(nodes) for r in range(replicas // nodes)}
    for row in range(rows):
        position = begin + row
        dealt[position % nodes, position // nodes % (replicas // nodes)].append(row)
    most = max(map(len, dealt.values()))
    left = list(range(rows))
    for row in range(rows, rows + replicas):  # the replicas' turns go on
        own = dealt[(begin + row) % nodes, (begin + row) // nodes % (replicas // nodes)]
        if not own:
            own.append(left[rows - 1 - (row - rows) % rows])
        elif uneven == 'pad' and len(own) < most:
            own.append(own[-1])
    return dealt


@relaxed
@given(
    st.sampled_from([(1, 3), (1, 5), (1, 7), (2, 3), (3, 1), (7, 1), (1, 4), (2, 7)]),
    st.sampled_from([16, 17, 64]),
    st.integers(1, 300),
    st.integers(0, 300),
    st.sampled_from(['repeat', 'exact', 'drop']),
    st.sampled_from(['pad', 'ragged']),
)
def test_replicas_share_a_batch_that_they_do_not_divide(
    shape, size: int, samples: int, start: int, how, uneven
) -> None:
    assume(start <= samples)
    order = shuffled(mixture([7] * 45, choose=[samples]), nodes=4, block=30)
    nodes, local = shape
    plans = [Plan(order, t, size, start, how, uneven=uneven) for t in world(nodes, local)]
    alone = Plan(order, Topology(), size, start, how)
    assert {plan.num_batches for plan in plans} == {alone.num_batches}, 'steps differ'
    for k in range(alone.num_batches):
        batch = alone.positions(k)
        expected = slow_deal(int(batch[0]), len(batch), nodes, nodes * local, uneven)
        own = 0
        for plan in plans:
            rows = expected[plan.topology.node, plan.topology.local_replica]
            assert plan.positions(k).tolist() == batch[rows].tolist()
            assert plan.rows_of(range(k, k + 1)).tolist() == [len(rows)]
            assert plan.end(k) == alone.end(k)
            own += plan.own_samples(k)
            counted = plan.positions(k)[: plan.own_samples(k)]
            assert len(plan.positions(k)) - len(counted) in (0, 1), 'a replica has two rows of padding'
            assert set(counted % nodes) <= {plan.topology.node}
            in_node = [p.positions(k) for p in plans if p.topology.node == plan.topology.node]
            assert sorted(plan.node_positions(k).tolist()) == sorted(np.concatenate(in_node).tolist())
        assert own == len(batch), 'what counts is each sample once'
    for plan in plans:
        whole_pass = range(plan.num_batches)
        each = [plan.positions(k).tolist() for k in whole_pass]
        assert plan.positions_of(whole_pass).tolist() == sum(each, [])


@pytest.mark.parametrize('uneven', ['pad', 'ragged'])
def test_replicas_that_divide_the_batch_share_it_as_without_uneven(uneven) -> None:
    order = shuffled(mixture([7] * 20), nodes=4, block=30)
    for t in world(2, 2):
        plain, now = Plan(order, t, 12, 3), Plan(order, t, 12, 3, uneven=uneven)
        for k in range(plain.num_batches - 1):
            assert now.positions(k).tolist() == plain.positions(k).tolist()


@pytest.mark.parametrize(('replicas', 'uneven', 'message'), [(9, 'pad', 'divide: 9'), (3, 'fill', "'ragged'")])
def test_uneven_batches_have_a_row_for_each_replica(replicas: int, uneven, message: str) -> None:
    with pytest.raises((TopologyError, ConfigError), match=message):
        Plan(shuffled(mixture([10])), Topology(world_size=replicas), 8, uneven=uneven)
