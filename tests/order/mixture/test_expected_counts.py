"""Samples by stream: what batches hold, against a count of their ids; and what the mixture promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import (
    ExpectedCounts,
    Mixture,
    OrderConfig,
    Schedule,
    StreamSize,
    Topology,
    make_order,
    make_plan,
    parse_skip,
)


def mixture(weights: list[int], **options) -> Mixture:
    streams = [
        StreamSize(name=f's{i}', shard_sizes=np.array([7, 5, 8]), proportion=weight) for i, weight in enumerate(weights)
    ]
    return Mixture.resolve(streams, **options)


@given(data=st.data())
def test_counts_of_batches_are_those_of_their_ids(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), 'weights')
    replicas = data.draw(st.sampled_from([1, 2, 4]), 'replicas')
    size = data.draw(st.integers(20, 90), 'epoch')
    exhausted = data.draw(st.sampled_from(['repeat', 'drop_stream']), 'when_exhausted')
    mix = mixture(weights, epoch_size=size, when_exhausted=exhausted)
    config = OrderConfig(
        shuffle=True,
        num_canonical_nodes=data.draw(st.sampled_from([1, 4]), 'nodes'),
        batching=data.draw(st.sampled_from(['random', 'stratified']), 'batching'),
        global_batch_size=8,
    )
    epoch = data.draw(st.integers(0, 2), 'epoch number')
    skip = data.draw(st.sampled_from([(), ((5, 12),), ((0, 3), (9, 18))]), 'skip')
    plan = make_plan(
        make_order(mix, config, epoch),
        Topology(world_size=replicas),
        global_batch_size=8,
        start=data.draw(st.integers(0, min(size, mix.epoch_size) // 2), 'start'),
        remainder=data.draw(st.sampled_from(['repeat', 'exact', 'drop']), 'remainder'),
        skip=parse_skip([list(pair) for pair in skip]),
        epoch=epoch,
    )
    for first, last in [(0, plan.num_batches), (0, 1), (1, 3), (3, 2), (2, plan.num_batches + 5)]:
        ids = [
            rank_plan.ids(k)[: rank_plan.own_samples(k)]
            for rank_plan in (plan.of_rank(rank) for rank in range(replicas))
            for k in range(first, min(last, plan.num_batches))
        ]
        expected = mix.count_streams(np.concatenate([np.zeros(0, np.int64), *ids]))
        assert plan.stream_counts(first, last).tolist() == expected.tolist()
        assert sum(end - begin for begin, end in plan.spans(first, last)) == expected.sum()


def test_counts_do_not_depend_on_what_was_counted_before() -> None:
    mix = mixture([1, 2, 3], epoch_size=100_000)
    config = OrderConfig(shuffle=True, num_canonical_nodes=2)
    order, rng = make_order(mix, config, 1), np.random.default_rng(0)
    streams = mix.streams_of(make_order(mix, config, 1).at(np.arange(100_000)))
    for _ in range(50):
        begin, end = np.sort(rng.integers(0, 100_001, 2)).tolist()
        order.at(rng.integers(0, 100_000, 5))
        assert order.stream_counts(begin, end).tolist() == np.bincount(streams[begin:end], minlength=3).tolist()


def test_a_mixture_promises_its_proportions() -> None:
    expected = ExpectedCounts(mixture([1, 3], epoch_size=100))
    assert expected.between(5, 10, 50).tolist() == pytest.approx([10, 30])


def test_a_ramp_promises_what_lies_under_it() -> None:
    schedule = Schedule.of(
        [{'at': 0, 'proportions': {'s0': 1}}, {'at': 64_000, 'proportions': {'s1': 1}, 'change': 'linear'}]
    )
    streams = [StreamSize(name=name, shard_sizes=np.array([50])) for name in ('s0', 's1')]
    mix = Mixture.resolve(streams, epoch_size=16_000, schedule=schedule)
    expected = ExpectedCounts(mix)
    # The second quarter of the ramp, and what follows it.
    assert expected.between(1, 0, 16_000).tolist() == pytest.approx([16_000 * 0.625, 16_000 * 0.375], rel=1e-3)
    assert expected.between(7, 0, 100).tolist() == pytest.approx([0, 100])
    order = make_order(mix, OrderConfig(shuffle=True), 1)
    assert order.stream_counts(0, 16_000).tolist() == pytest.approx(expected.between(1, 0, 16_000).tolist(), abs=2)


def test_stages_promise_what_is_left_of_the_streams() -> None:
    streams = [
        StreamSize(name='small', shard_sizes=np.array([10]), proportion=1),
        StreamSize(name='large', shard_sizes=np.array([90]), proportion=1),
    ]
    expected = ExpectedCounts(Mixture.resolve(streams, when_exhausted='drop_stream'))
    assert expected.between(0, 0, 20).tolist() == [10, 10]
    assert expected.between(3, 10, 30).tolist() == [5, 15]
