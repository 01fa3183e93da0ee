"""The schedule: its queue of shards, and when it lets a fetch begin."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from headrace.dataset.prefetch.horizon import Horizon, UpcomingBatch
from headrace.dataset.prefetch.limits import PrefetchLimits
from headrace.dataset.prefetch.schedule import NO_ROOM_PAUSE, PATIENCE, POLL, Concurrency, FetchSchedule
from headrace.storage import FetchResult, FetchStatus

pytestmark = pytest.mark.once

SIZE = 100


def horizon_of(batches, max_bytes=math.inf, lag=8):
    horizon = Horizon(PrefetchLimits(1000, lag=lag, cache_bytes=max_bytes), lambda _: SIZE)
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
    assert horizon.ahead.endswith(f' {4 * SIZE} bytes ahead')
    horizon.advance(1)
    horizon.count(2, 2)  # it was evicted, and is fetched again
    assert horizon.ahead.endswith(f' {3 * SIZE} bytes ahead')
    horizon.advance(2)
    assert horizon.ahead.endswith(f' {SIZE} bytes ahead')


SHARD_BYTES = 1_000_000


class Run:
    """A trainer that needs `demand` bytes a second, of a network that gives some for each width.

    Its batches are of some shards each; that one came late is known when it is handed out.
    """

    def __init__(self, rate, *, demand, most=8, shards_of_batch=1, size=SHARD_BYTES):
        self._size = size
        self.now = self.late = self._unsaid = 0.0
        self._shards_of_batch = shards_of_batch
        self.width_at: list[tuple[float, int]] = []
        self.widened_at: list[float] = []
        self._rate, self._demand = rate, demand
        self.concurrency = Concurrency(most, lambda: self.now)

    def seconds(self, seconds):
        end = self.now + seconds
        while self.now < end:
            rate = min(self._demand, self._rate(self.concurrency.width))
            elapsed = self._size / rate
            self.now += elapsed
            self._unsaid += elapsed - self._size / self._demand
            if len(self.width_at) % self._shards_of_batch == 0:
                self.late, self._unsaid = self.late + self._unsaid, 0.0
            self.concurrency.arrived(self._size, self.late)
            if self.width_at and self.concurrency.width > self.width_at[-1][1]:
                self.widened_at.append(self.now)
            self.width_at.append((self.now, self.concurrency.width))
        return self

    @property
    def share_widened(self):
        """Of the shards, those that came while more than one request was allowed."""
        return sum(width > 1 for _, width in self.width_at) / len(self.width_at)


def test_it_begins_with_one():
    assert Concurrency(8).width == 1


@pytest.mark.parametrize(('connection', 'width'), [(20e6, 8), (60e6, 4), (90e6, 4), (250e6, 1)])
def test_where_connections_are_the_limit_it_takes_as_many_as_are_needed(connection, width):
    run = Run(lambda width: connection * width, demand=220e6).seconds(30)
    assert run.concurrency.width == width
    assert run.width_at[-1][1] == run.concurrency.width


def test_never_more_than_the_most():
    assert Run(lambda width: 1e6 * width, demand=1e9, most=5).seconds(100).concurrency.width == 4


@pytest.mark.parametrize('shards_of_batch', [1, 20, 40, 80])
def test_where_the_network_is_the_limit_trials_are_rare_and_rarer(shards_of_batch):
    run = Run(lambda _: 25e6, demand=100e6, shards_of_batch=shards_of_batch).seconds(600)
    assert run.concurrency.width == 1
    assert max(width for _, width in run.width_at) == 2
    assert 0 < run.share_widened < 0.03
    pauses = [after - before for before, after in pairwise(run.widened_at)]
    assert pauses[0] > 29
    assert all(after > 1.5 * before for before, after in pairwise(pauses))


@pytest.mark.parametrize('demand', [27e6, 30e6, 100e6])
@pytest.mark.parametrize('size', [1e6, 16e6, 64e6, 256e6])
def test_a_trial_begins_when_as_much_was_lost_as_it_may_cost(size, demand):
    seconds = size / 25e6  # of a shard, by which a trial delays the one that is needed next
    run = Run(lambda _: 25e6, demand=demand, size=size)
    while not run.widened_at:
        run.seconds(seconds)
    assert seconds < run.late < 3 * seconds + 1


def test_there_is_always_another_trial():
    run = Run(lambda _: 25e6, demand=100e6).seconds(4 * 3600)
    assert 590 < run.widened_at[-1] - run.widened_at[-2] < 620


def test_a_trial_that_nobody_will_judge_is_taken_back():
    run = Run(lambda width: 25e6 * width, demand=200e6)
    while run.concurrency.width == 1:
        run.seconds(0.04)
    run.concurrency.begin(run.late)
    assert run.concurrency.width == 1


def test_where_nobody_waits_nothing_is_tried():
    run = Run(lambda width: 30e6 * width, demand=25e6).seconds(600)
    assert run.share_widened == 0
    # A stall now and then, such as of a server, is no reason either.
    run.late += 0.09
    assert run.seconds(60).share_widened == 0


def test_a_little_more_is_enough_if_batches_are_in_time_with_it():
    run = Run(lambda width: 20e6 * width, demand=25e6).seconds(60)
    assert run.concurrency.width == 2


def test_a_new_beginning_does_not_count_the_time_before():
    run = Run(lambda width: 20e6 * width, demand=100e6)
    run.now, run.late = 1000.0, 900.0
    run.concurrency.begin(run.late)
    run.concurrency.arrived(SHARD_BYTES, run.late)
    assert run.concurrency.width == 1
    assert run.seconds(10).concurrency.width == 8


def test_a_network_that_became_faster_is_found_out():
    fast = False
    run = Run(lambda width: 25e6 * width if fast else 25e6, demand=100e6).seconds(20)
    assert run.concurrency.width == 1
    fast = True
    assert run.seconds(60).concurrency.width == 4
