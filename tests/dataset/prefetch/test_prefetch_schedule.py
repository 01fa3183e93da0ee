"""The schedule: its queue of shards, and when it lets a fetch begin."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.dataset.prefetch.concurrency import Concurrency
from headrace.dataset.prefetch.distance import LookAhead
from headrace.dataset.prefetch.horizon import Horizon
from headrace.dataset.prefetch.schedule import NO_ROOM_PAUSE, PATIENCE, POLL, FetchSchedule
from headrace.dataset.prefetch.upcoming_batch import UpcomingBatch
from headrace.storage import FetchResult, FetchStatus

pytestmark = pytest.mark.once

SIZE = 100


def horizon_of(batches, max_bytes=math.inf, lag=8):
    horizon = Horizon(LookAhead(1000, math.inf, lag), lambda _: SIZE, max_bytes)
    horizon.follow((UpcomingBatch(n, np.array(shards)) for n, shards in enumerate(batches)), first=0)
    return horizon


def advance(schedule, horizon, batch):
    horizon.advance(batch)
    schedule.advance()
    for first, shard in horizon.scan():
        if schedule.add(first, shard):
            horizon.count(first, shard)


def test_a_shard_that_another_process_fetched_and_nobody_needs_any_more_is_not_looked_for():
    horizon = horizon_of([[0], [1], [2]])
    now = 0.0
    schedule = FetchSchedule(horizon, Concurrency(8, width=8), clock=lambda: now)
    advance(schedule, horizon, 0)
    for _ in range(2):
        schedule.ended(schedule.take(), FetchResult(FetchStatus.ELSEWHERE))
    assert schedule.others_to_look_at() == [0, 1]
    schedule.leave(0)  # the reader has it, from a cache that evicts it before anybody looks
    advance(schedule, horizon, 1)
    assert schedule.others_to_look_at() == []  # too soon
    now += POLL
    assert schedule.others_to_look_at() == [1]
    assert schedule.take().shard == 1


def test_a_thread_waits_as_long_as_nothing_can_begin():
    horizon = horizon_of([[0], [1], [2], [3]])
    now = 0.0
    schedule = FetchSchedule(horizon, clock=lambda: now)
    assert schedule.seconds_to_wait() is None
    advance(schedule, horizon, 0)
    own = schedule.take()
    assert (own.shard, schedule.take(), schedule.seconds_to_wait()) == (0, None, PATIENCE)
    schedule.ended(own, FetchResult(FetchStatus.PRESENT))
    ahead = schedule.take()
    schedule.ended(ahead, FetchResult(FetchStatus.ELSEWHERE))
    assert (ahead.shard, schedule.take(), schedule.seconds_to_wait()) == (1, None, POLL)
    schedule.came_from_others(1, SIZE, 0.0)
    ahead = schedule.take()
    schedule.ended(ahead, FetchResult(FetchStatus.NO_ROOM))
    assert (ahead.shard, schedule.take(), schedule.seconds_to_wait()) == (2, None, NO_ROOM_PAUSE)
    now += NO_ROOM_PAUSE
    assert schedule.take().shard == 2


def test_a_blocked_fetch_is_one_without_room():
    horizon = horizon_of([[0], [1]])
    schedule = FetchSchedule(horizon, clock=lambda: 0.0)
    advance(schedule, horizon, 0)
    schedule.ended(schedule.take(), FetchResult(FetchStatus.BLOCKED))
    assert schedule.seconds_to_wait() == NO_ROOM_PAUSE


def test_bytes_ahead_are_those_of_shards_not_yet_used():
    horizon = horizon_of([[0], [1], [2], [3], [4]], max_bytes=4 * SIZE)
    schedule = FetchSchedule(horizon, clock=lambda: 0.0)
    advance(schedule, horizon, 0)
    assert horizon.bytes_ahead == 4 * SIZE
    horizon.advance(1)
    horizon.count(2, 2)  # it was evicted, and is fetched again
    assert horizon.bytes_ahead == 3 * SIZE
    horizon.advance(2)
    assert horizon.bytes_ahead == SIZE
