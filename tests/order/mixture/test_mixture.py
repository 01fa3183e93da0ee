from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, EmptyDatasetError, StreamError
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

CASES = json.loads((Path(__file__).parents[2] / 'data/order/apply_weights.json').read_text())['cases']


def streams_of(sizes: list[int], weights: list[dict]) -> list[StreamSize]:
    return [
        StreamSize(name=f's{i}', shard_sizes=np.array([size]), **weight)
        for i, (size, weight) in enumerate(zip(sizes, weights, strict=True))
    ]


@pytest.mark.parametrize('case', CASES, ids=lambda case: case['id'])
def test_numbers_are_mosaicmls(case: dict) -> None:
    args = case['args']
    streams = streams_of(args['samples_per_stream'], args['streams'])
    if 'raises' in case:
        with pytest.raises(ValueError):
            Mixture.resolve(streams, args['epoch_size'], args['seed'])
        return
    mixture = Mixture.resolve(streams, args['epoch_size'], args['seed'])
    assert list(mixture.choose) == case['choose']
    assert mixture.epoch_size == case['epoch_size']
    assert [p.hex() for p in mixture.proportions] == case['proportion_hex']
    assert [r.hex() for r in mixture.repeats] == case['repeat_hex']


@pytest.mark.parametrize(
    ('weights', 'epoch_size', 'named'),
    [
        ([{'proportion': 1}, {}], None, 'without it: s1'),
        ([{'proportion': 1}, {'repeat': 1}], None, 'without it: s1'),
        ([{'repeat': 1}, {}], 7, 'epoch_size 7'),
        ([{'choose': 1}, {'choose': 0}], 7, 'epoch_size 7'),
        ([{'proportion': 0}, {'proportion': 0}], None, 'proportions are 0'),
        ([{'choose': 0}, {'repeat': 0}], None, 'at least one sample'),
        ([{}, {}], -3, '-3'),
    ],
)
def test_contradicting_weights_are_refused(weights: list[dict], epoch_size: int | None, named: str) -> None:
    with pytest.raises(StreamError, match=named):
        Mixture.resolve(streams_of([5, 6], weights), epoch_size)


@pytest.mark.parametrize(
    'weight', [{'proportion': -0.5}, {'repeat': float('nan')}, {'choose': -1}, {'repeat': 'twice'}]
)
def test_bad_weight_is_refused_with_its_value(weight: dict) -> None:
    with pytest.raises(StreamError, match=str(next(iter(weight.values())))):
        StreamSize(name='web', shard_sizes=np.array([5]), **weight)


def test_two_weights_on_a_stream_are_refused() -> None:
    with pytest.raises(StreamError, match='web'):
        StreamSize(name='web', shard_sizes=np.array([5]), repeat=1, choose=5)


def test_streams_without_samples_are_refused() -> None:
    with pytest.raises(EmptyDatasetError, match='web'):
        StreamSize(name='web', shard_sizes=np.array([0, 0]))
    with pytest.raises(EmptyDatasetError):
        Mixture.resolve([])


def test_equal_names_are_refused() -> None:
    with pytest.raises(StreamError, match='web'):
        Mixture.resolve([StreamSize(name='web', shard_sizes=np.array([5]))] * 2)


def test_offsets_run_stream_after_stream() -> None:
    mixture = Mixture.resolve(
        [
            StreamSize(name='a', shard_sizes=np.array([3, 0, 4])),
            StreamSize(name='b', shard_sizes=np.array([5])),
        ]
    )
    assert mixture.sample_offsets.tolist() == [0, 7, 12]
    assert mixture.shard_offsets.tolist() == [0, 3, 4]
    assert mixture.shard_sizes.tolist() == [3, 0, 4, 5]
    assert pickle.loads(pickle.dumps(mixture)).choose == mixture.choose


def test_fingerprint_tells_shard_sizes_apart() -> None:
    prints = {StreamSize(name='a', shard_sizes=np.array(s)).fingerprint for s in ([3, 4], [4, 3], [7])}
    assert len(prints) == 3
    assert StreamSize(name='a', shard_sizes=np.array([7]), fingerprint='index').fingerprint == 'index'


THREE = (('a', 3000), ('b', 5000), ('c', 700))


def exhausting(when: str, proportions=(1, 1, 1), epoch_size: int | None = None) -> Mixture:
    streams = [
        StreamSize(name=name, shard_sizes=[100] * (size // 100), proportion=p)
        for (name, size), p in zip(THREE, proportions, strict=True)
    ]
    return Mixture.resolve(streams, epoch_size=epoch_size, when_exhausted=when)


def test_an_epoch_that_stops_draws_no_stream_beyond_its_size_and_one_nearly_to_it() -> None:
    assert exhausting('stop').choose == (700, 700, 700)
    uneven = exhausting('stop', (0.5, 0.1, 0.4))
    assert sum(uneven.choose) == uneven.epoch_size == 1750
    assert uneven.choose == (875, 175, 700)
    assert exhausting('stop', epoch_size=300).choose == exhausting('repeat', epoch_size=300).choose


def test_a_stream_that_is_dropped_leaves_the_others_their_proportions() -> None:
    mix = exhausting('drop_stream', (2, 1, 1))
    assert mix.stages == ((1400, 700, 700), (1600, 800, 0), (0, 3500, 0))
    assert mix.choose == (3000, 5000, 700)
    assert exhausting('drop_stream', (2, 1, 1), 2000).stages == ((1000, 500, 500),)
    assert exhausting('drop_stream', (2, 0, 1)).choose == (3000, 0, 700)


@pytest.mark.parametrize('when', ['stop', 'drop_stream'])
def test_an_epoch_longer_than_all_streams_ends_with_them(when: str) -> None:
    assert exhausting(when, epoch_size=10**6).epoch_size == {'stop': 2099, 'drop_stream': 8700}[when]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"one of \['repeat', 'stop', 'drop_stream'\], got 'cycle'"):
        exhausting('cycle')


@pytest.mark.parametrize(
    ('options', 'of_stream', 'named'),
    [
        ({'epoch_size': 2 * 10**12}, {'proportion': 1}, 'at most 1,000,000,000,000 samples, got 2,000,000,000,000'),
        ({}, {'choose': 10**30}, 'at most 1,000,000,000,000 samples'),
        ({}, {'repeat': 1e300}, 'at most 1,000,000,000,000 samples'),
        ({'epoch_size': 9}, {'proportion': 1e308}, 'a finite sum.*; got .*1e\\+308.*1e\\+308'),
    ],
)
def test_numbers_beyond_what_an_order_counts_are_refused(options: dict, of_stream: dict, named: str) -> None:
    with pytest.raises(StreamError, match=named):
        Mixture.resolve([StreamSize(name=name, shard_sizes=[10], **of_stream) for name in 'ab'], **options)


@pytest.mark.parametrize('number', [np.float32, np.array, Decimal, torch.tensor])
def test_numbers_of_arrays_and_tensors_are_weights(number: Callable[[float], Any]) -> None:
    streams = [StreamSize(name=str(share), shard_sizes=[10], proportion=number(share)) for share in (0.25, 0.75)]
    assert list(Mixture.resolve(streams, epoch_size=8).choose) == [2, 6]
    schedule = Schedule.of([{'at': 0, 'proportions': {'a': number(0.25), 'b': number(0.75)}}])
    low, high = schedule.steps('ab')[0].weights
    assert high == 3 * low


@pytest.mark.parametrize('value', ['1', [1], np.ones(2), torch.ones(2), 10**400, -1, math.nan])
def test_weights_that_are_no_amounts_are_refused(value: Any) -> None:
    with pytest.raises(StreamError, match='`repeat` of a stream must be a finite number'):
        StreamSize(name='a', shard_sizes=[10], repeat=value)
    with pytest.raises(ConfigError, match='numbers of at least 0'):
        Schedule.of([{'at': 0, 'proportions': {'a': value}}])


@pytest.mark.parametrize('nodes', [1, 2, 64])
@pytest.mark.parametrize('batch', [None, 4096])
def test_the_longest_epoch_is_read_at_any_place(nodes: int, batch: int | None) -> None:
    size = 10**12
    mix = Mixture.resolve(
        [StreamSize(name=name, shard_sizes=[1000] * 20, proportion=p) for name, p in (('a', 1), ('b', 3))],
        epoch_size=size,
    )
    batching = 'stratified' if batch else 'random'
    config = OrderConfig(shuffle=True, num_canonical_nodes=nodes, batching=batching, global_batch_size=batch)
    order = make_order(mix, config.resolve_defaults(mix), 3)
    for begin in (0, size // 3, size - 4096):
        ids = order.at(np.arange(begin, begin + 4096))
        assert abs((ids < 20_000).mean() - 0.25) < 0.05
        before = order.node_draws_before(begin) - order.node_draws_before(0)
        assert np.abs(before.sum(1) - [begin / 4, begin * 3 / 4]).max() < 10_000


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
