"""Schedules: what is refused, the staircase, and how near the sequence stays to it."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, StreamError
from headrace.order import Mixture, OrderConfig, Schedule, StreamSize, make_order
from headrace.order.mixture.schedule import allocate, apportion
from tests.support.orders.order_cases import relaxed, whole

NAMES = ('a', 'b', 'c')
CURRICULUM = Schedule.of(
    [
        {'at': 0, 'proportions': {'a': 1}},
        {'at': 3_000, 'proportions': {'a': 2, 'b': 1}},
        {'at': 20_000, 'proportions': {'a': 0.2, 'b': 0.5, 'c': 0.3}, 'change': 'linear'},
        {'at': 30_000, 'proportions': {'b': 1}},
    ]
)


def share_of_a(position: float) -> float:
    """The draws of stream a before a position: the integral of the curriculum, by hand."""
    ramp = min(max(position - 3_000, 0), 17_000)
    return (
        min(position, 3_000)
        + ramp * 2 / 3
        - (2 / 3 - 0.2) * ramp * ramp / 17_000 / 2
        + 0.2 * min(max(position - 20_000, 0), 10_000)
    )


def scheduled(schedule: Schedule = CURRICULUM, epoch_size: int | None = 12_346) -> Mixture:
    streams = [StreamSize(name=name, shard_sizes=[100] * n) for name, n in zip(NAMES, (30, 50, 7), strict=True)]
    return Mixture.resolve(streams, epoch_size=epoch_size, schedule=schedule)


def streams_of(mix: Mixture, config: OrderConfig, epochs: int) -> np.ndarray:
    config = config.resolve_defaults(mix)
    ids = np.concatenate([whole(make_order(mix, config, epoch)) for epoch in range(epochs)])
    return np.searchsorted(mix.sample_offsets, ids, 'right') - 1


@pytest.mark.parametrize(
    ('batching', 'nodes', 'lag'), [('random', 1, 60), ('random', 4, 60), ('stratified', 4, 24), ('stratified', 8, 24)]
)
def test_the_sequence_follows_the_schedule(batching: str, nodes: int, lag: int) -> None:
    config = OrderConfig(
        shuffle=True, batching=batching, global_batch_size=32 if batching == 'stratified' else None,
        num_canonical_nodes=nodes,
    )  # fmt: skip
    drawn = (streams_of(scheduled(), config, 4) == 0).cumsum()
    for position in range(500, len(drawn), 500):
        assert abs(drawn[position - 1] - share_of_a(position)) < lag, position


def test_each_stream_is_passes_whatever_the_schedule() -> None:
    mix = scheduled()
    counts = np.zeros(mix.num_samples, int)
    config = OrderConfig(shuffle=True, num_canonical_nodes=4, block_size=500).resolve_defaults(mix)
    for epoch in range(5):
        counts += np.bincount(whole(make_order(mix, config, epoch)), minlength=mix.num_samples)
        for begin, end in itertools.pairwise(mix.sample_offsets.tolist()):
            assert counts[begin:end].max() - counts[begin:end].min() <= 1


def test_after_the_schedule_all_epochs_are_alike() -> None:
    mix = scheduled()
    assert mix.choose == (0, 12_346, 0)
    of_epoch = [streams_of(mix, OrderConfig(shuffle=True), epoch + 1)[-12_346:] for epoch in (3, 5)]
    assert all((streams == 1).all() for streams in of_epoch)


def test_stratified_steps_begin_with_batches_so_that_each_batch_has_one_mixture() -> None:
    steps = Schedule.of([{'at': 0, 'proportions': {'a': 1}}, {'at': 1_000, 'proportions': {'a': 1, 'b': 3}}])
    config = OrderConfig(shuffle=True, batching='stratified', global_batch_size=64)
    streams = streams_of(scheduled(steps, 6_400), config, 1).reshape(100, 64)
    of_a = (streams == 0).sum(1)
    assert of_a.tolist() == [64] * 16 + [16] * 84  # 1,000 is nearest to the begin of batch 16


@pytest.mark.parametrize(
    ('points', 'named'),
    [
        ([], 'first point is at 0'),
        ([{'at': 5, 'proportions': {'a': 1}}], r'is at 0, and no ramp; got points \[\(5,'),
        ([{'at': 0, 'proportions': {'a': 1}, 'change': 'linear'}], 'no ramp'),
        (
            [{'at': 0, 'proportions': {'a': 1}}, {'at': 0, 'proportions': {'a': 1}}],
            r'rising `at`;.* at \[0, 0\]',
        ),
        ([{'at': 0, 'proportions': {'a': 0}}], "with a finite sum; got .*{'a': 0}"),
        ([{'at': 0, 'proportions': {'a': math.nan}}], 'finite'),
        ([{'at': -1, 'proportions': {'a': 1}}], 'at least 0 and at most .*; got at=-1,'),
        ([{'at': 10**19, 'proportions': {'a': 1}}], 'at most 1,000,000,000,000,000,000; got at=10000000000000000000,'),
        ([{'at': 0, 'proportions': {'a': 1e308, 'b': 1e308}}], 'with a finite sum'),
        ([{'at': 0, 'proportions': None}], "got .*'proportions': None.*has no attribute 'values'"),
        ([{'at': 0, 'proportions': {'a': 1}, 'change': 'cubic'}], "got 'cubic'"),
        ([{'at': 0, 'weights': {'a': 1}}], 'has `at`, `proportions` and `change`'),
        ([{'at': 0, 'proportions': {'z': 1}}], 'do not exist: z; there are: a, b, c'),
    ],
)
def test_a_wrong_schedule_is_refused_with_what_was_given(points: list, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        scheduled(Schedule.of(points))


def test_a_schedule_and_weights_exclude_each_other() -> None:
    with pytest.raises(StreamError, match='weights, which are given by: a'):
        Mixture.resolve([StreamSize(name='a', shard_sizes=[9], repeat=2)], schedule=Schedule.of(CURRICULUM.points[:1]))


def test_a_mosaicml_order_has_no_schedule() -> None:
    with pytest.raises(ConfigError, match="needs the native order, got 'py1e'"):
        make_order(scheduled(), OrderConfig(shuffle=True, algorithm='py1e'), 0)


def test_a_schedule_goes_through_json() -> None:
    assert Schedule.of(CURRICULUM.to_json()) == CURRICULUM


@relaxed
@given(st.integers(0, 500), st.lists(st.integers(0, 50), min_size=1).filter(any))
def test_apportioned_are_shares_rounded_down_or_up(total: int, weights: list[int]) -> None:
    shares = apportion(total, weights)
    assert sum(shares) == total
    assert all(abs(share - total * w / sum(weights)) < 1 for share, w in zip(shares, weights, strict=True))


@relaxed
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), min_size=1, max_size=30))
def test_what_is_owed_is_carried_so_that_shares_stay_near(rows: list[list[int]]) -> None:
    owed, given_so_far, due = [0] * 3, np.zeros(3), np.zeros(3)
    for i, weights in enumerate(rows):
        length = i % 4 + 1
        owed = [o + length * w * 5040 // sum(weights) for o, w in zip(owed, weights, strict=True)]
        shares = allocate(length, owed, 5040)
        assert sum(shares) == length
        assert min(shares) >= 0
        owed = [o - s * 5040 for o, s in zip(owed, shares, strict=True)]
        given_so_far, due = given_so_far + shares, due + length * np.array(weights) / sum(weights)
        assert np.abs(given_so_far - due).max() < 2


def test_numbers_of_any_kind_go_through_json() -> None:
    steps = Schedule.of([{'at': 0, 'proportions': {'a': np.int64(1), 'b': np.float32(0.5)}}])
    assert Schedule.of(json.loads(json.dumps(steps.to_json()))) == steps


def test_a_schedule_may_end_as_late_as_can_be() -> None:
    points = [{'at': 0, 'proportions': {'a': 1}}, {'at': 10**18, 'proportions': {'b': 1}}]
    mix = scheduled(Schedule.of(points))
    for epoch, share in ((10**6, 1), (10**18 // 12_346 + 5, 0)):
        order = make_order(mix, OrderConfig(shuffle=True, num_canonical_nodes=4), epoch)
        assert (whole(order) < 3_000).mean() == share
