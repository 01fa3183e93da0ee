"""The uses of shards by the batches in sight, and the window of a cache, against slow models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dataset.prefetch.horizon import CacheWindow, Horizon, NextUse, UpcomingBatch
from headrace.dataset.prefetch.limits import prefetch_limits

pytestmark = pytest.mark.once

BATCHES = st.lists(st.lists(st.integers(0, 8), max_size=5, unique=True), min_size=1, max_size=30)


@given(BATCHES, st.data())
def test_uses_are_those_of_the_batches_in_sight(batches, data):
    uses = NextUse()
    in_sight: dict[int, list[int]] = {}
    number = 0
    for shards in batches:
        known = {shard for batch in in_sight.values() for shard in batch}
        assert uses.add(number, shards) == [shard for shard in shards if shard not in known]
        in_sight[number] = shards
        number += data.draw(st.integers(1, 3))
        if data.draw(st.booleans()):
            before = data.draw(st.integers(0, number + 2))
            dropped = {shard for batch, shards in in_sight.items() if batch < before for shard in shards}
            in_sight = {batch: shards for batch, shards in in_sight.items() if batch >= before}
            left = {shard for shards in in_sight.values() for shard in shards}
            assert sorted(uses.drop_before(before)) == sorted(dropped - left)
        after, until, count = (data.draw(st.integers(0, number + 2)) for _ in range(3))
        between = [shards for batch, shards in in_sight.items() if after < batch <= until]
        assert uses.soonest(count, after=after, until=until) == list(dict.fromkeys(sum(between, [])))[:count]
        for shard in range(9):
            expected = min((batch for batch, shards in in_sight.items() if shard in shards), default=math.inf)
            assert uses.next_of(shard) == expected
            assert (shard in uses) == (expected < math.inf)
    uses.clear()
    assert uses.next_of(batches[-1][-1] if batches[-1] else 0) == math.inf


@given(BATCHES, st.integers(0, 40), st.integers(0, 3), st.data())
def test_the_frontier_is_the_last_batch_whose_shards_fit(batches, room, lag, data):
    sizes = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    frontier = CacheWindow(sizes.__getitem__, room)
    at = seen = 0
    expected = -1
    while at < len(batches):
        for shards in batches[seen : seen + data.draw(st.integers(0, 8))]:
            frontier.add(seen, shards)
            seen += 1
        begin = max(0, at - lag)
        frontier.move(begin, at)
        while expected + 1 < seen:
            together = {shard for batch in batches[begin : expected + 2] for shard in batch}
            fits = len(together) <= 2 or sum(sizes[shard] for shard in together) <= room
            if expected + 1 > at + 1 and not fits:
                break
            expected += 1
        assert frontier.batch == expected
        at += data.draw(st.integers(1, 4))


def test_the_batch_at_hand_and_the_next_one_are_within_however_small_the_room():
    frontier = CacheWindow(lambda _: 100, 50)
    for number, shards in enumerate([[0, 1], [2, 4], [3, 5], [3, 6]]):
        frontier.add(number, shards)
    reached = []
    for at in range(4):
        frontier.move(at, at)
        reached.append(frontier.batch)
    assert reached == [1, 2, 3, 3]


def test_what_is_used_again_takes_room_once():
    asked = []
    frontier = CacheWindow(lambda shard: asked.append(shard) or 10, 20)
    for number in range(50):
        frontier.add(number, [0, 1])
    frontier.add(50, [2])
    frontier.move(0, 0)
    assert frontier.batch == 49
    assert asked == [0, 1, 2]
    frontier.move(49, 49)
    assert frontier.batch == 50
    frontier.clear()
    assert frontier.batch == -1
    frontier.add(7, [5])
    frontier.move(7, 7)
    assert frontier.batch == 7


@pytest.mark.parametrize('are_fetched', [True, False])
def test_batches_of_many_small_shards_are_looked_at_a_few_at_a_time(are_fetched):
    """With 64 new shards a batch, the default look-ahead would plan 65,536 of them before the reader gets far."""
    horizon = Horizon(prefetch_limits(None, 64), lambda _: 1000)
    batches = (UpcomingBatch(number, np.arange(64 * number, 64 * number + 64)) for number in range(2000))
    horizon.follow(batches, first=0)
    looked_at = []
    for at in range(10):
        horizon.advance(at)
        before = len(looked_at)
        for first, shard in horizon.scan():
            looked_at.append(shard)
            if are_fetched:
                horizon.count(first, shard)
        assert len(looked_at) - before <= 640
    assert looked_at == list(range(len(looked_at)))
    assert len(looked_at) > 1000
    if are_fetched:
        assert len(looked_at) < 2500
