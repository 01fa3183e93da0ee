"""The prefetcher: fetches shards in the order of their first use in the plan."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

from headrace.dataset.prefetch.horizon import Horizon, Upcoming
from headrace.dataset.prefetch.limits import PrefetchLimits
from headrace.dataset.prefetch.schedule import Concurrency, Fetch, FetchSchedule, Starvation
from headrace.errors.redaction import logger_of
from headrace.storage import FetchResult, Transfer

_log = logger_of(__name__)

FetchAhead: TypeAlias = Callable[..., FetchResult]
"""Makes a shard present, without waiting for another process or for room: `CachedShards.fetch_ahead`."""


class SizedShards(Protocol):
    def is_ready(self, shard: int) -> bool: ...

    def size_of(self, shard: int) -> int: ...


class Prefetcher:
    """Fetches, in one process, the shards of the next batches.

    `Horizon` knows the batches, and `FetchSchedule` chooses the next shard. This class has the lock and the threads.
    Each of them takes a fetch, makes the shard present, and notes how it `ended`. Without `fetch` it starts no threads,
    and the caller works with `take` and `ended`.

    Only the thread that reads batches calls `follow`, `advance`, `wait` and `close`. The fetching threads are daemons,
    started at the first missing shard, so that a process can end while the network hangs.
    """

    def __init__(
        self,
        shards: SizedShards,
        limits: PrefetchLimits,
        fetch: FetchAhead | None = None,
        *,
        concurrency: Concurrency | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shards, self._fetch = shards, fetch
        self._horizon = Horizon(limits, shards.size_of)
        self._schedule = FetchSchedule(self._horizon, concurrency, clock)
        self._starvation = Starvation(clock)
        self._lock = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._logged: set[str] = set()  # the limits that this pass has reached

    # -- the reader ------------------------------------------------------------------------------------------------

    def follow(
        self,
        upcoming: Upcoming,
        *,
        first: int,
        limits: PrefetchLimits | None = None,
        starved: Callable[[], float] | None = None,
    ) -> None:
        """Look ahead along another sequence of batches, from number `first` on.

        `limits`: those in batches, and in bytes of the cache, which a new pass may change; by default as before.
        `starved`: gives the total seconds that batches were late; None: the reader's waits for shards count.
        """
        self.pause()
        self._horizon.follow(upcoming, first=first, limits=limits)
        self._starvation.source = starved
        self._logged.clear()
        self._schedule.concurrency.begin(self._starvation.seconds)

    def pause(self) -> None:
        """Begin no fetches until the next `follow`; running ones end by themselves."""
        with self._lock:
            self._schedule.begin_pass()
            self._horizon.clear()

    def advance(self, batch: int) -> list[int]:
        """Move the reader to `batch`; returns the shards that earlier batches used, and no batch in sight uses."""
        with self._lock:
            used = self._horizon.advance(batch)
            self._schedule.advance()
            self._wake()
        for first, shard in self._horizon.scan():
            if self._shards.is_ready(shard):  # a look at the disk, so not under the lock
                continue
            with self._lock:
                if self._schedule.add(first, shard):
                    self._horizon.count(first, shard)
                    self._start_threads()
                    self._lock.notify()
        with self._lock:
            self._start_threads()
            self._wake()
        self._log_limit(self._horizon.reached)
        return [shard for shard in used if shard not in self._horizon]

    def _wake(self) -> None:
        """Wake the threads if they may have work: in a full cache they would only take the interpreter's lock."""
        if self._schedule.has_queue:
            self._lock.notify_all()

    def _log_limit(self, reached: str) -> None:
        """Log that a limit holds the prefetch, once a pass: to find the reason for a prefetch that is too shallow."""
        if reached and reached not in self._logged:
            self._logged.add(reached)
            limits, width = self._horizon.limits, self._schedule.concurrency.width
            _log.debug(
                'At batch %d the prefetch has reached its limit of %s. It is %s, fetched or queued, with %d concurrent '
                'fetches: %s.',
                self._horizon.at,
                reached,
                self._horizon.ahead,
                width,
                limits,
            )

    def wait(self, shard: int) -> None:
        """Wait for the running fetch of a shard. If the shard is still missing, the caller fetches it at once.

        The caller then calls `finish_wait`. An error of an urgent fetch, or of bad data, is raised; the next call tries
        again.
        """
        with self._lock:
            self._starvation.begin()
            self._schedule.leave(shard)
            while self._schedule.is_running(shard):
                self._lock.wait()
            # The reader gets it now, or ends the run; later it may be prefetched again.
            failure = self._schedule.take_failure(shard)
            self._lock.notify_all()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame: a cycle, which would hold the reader's dataset, too

    def finish_wait(self) -> None:
        """Note that the reader has the shard of its last `wait`, or cannot have it."""
        with self._lock:
            self._starvation.end()
            if self._schedule.reader_fetches:
                self._schedule.reader_fetches = False
                self._lock.notify_all()

    @property
    def fits(self) -> bool:
        return self._horizon.fits

    def next_use(self, shard: int) -> float:
        return self._horizon.next_use(shard)

    def close(self) -> None:
        """Begin no fetches any more; running ones end by themselves."""
        with self._lock:
            self._closed = True
            self._schedule.close()
            self._starvation.source = None  # it has a file open
            self._lock.notify_all()

    # -- the threads -----------------------------------------------------------------------------------------------

    def _start_threads(self) -> None:
        """Start the threads that have work. Needs the lock."""
        if self._fetch is None or len(self._threads) == self._horizon.limits.threads:
            return
        wanted = self._schedule.wanted_threads(self._horizon.limits.threads)
        while len(self._threads) < wanted:
            thread = threading.Thread(target=self._work, args=(self._fetch,), name='headrace-fetch', daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached: the reader fetches
                return
            self._threads.append(thread)

    def _work(self, fetch: FetchAhead) -> None:
        # An error holds the frames that raised it, the reader's too. If it stayed in this frame, the dataset would
        # never be deleted, and never end this thread.
        while (chosen := self.take()) is not None:
            self._run(chosen, fetch)

    def _run(self, chosen: Fetch, fetch: FetchAhead) -> None:
        how = Transfer(urgent=chosen.is_urgent, almost_done=partial(self.almost_done, chosen.shard))
        try:
            result = fetch(chosen.shard, next_use=self.next_use, how=how)
        except Exception as error:
            self.ended(chosen, error)
        else:
            self.ended(chosen, result)

    def take(self, *, wait: bool = True) -> Fetch | None:
        """The next fetch, once one may begin; None if closed, or if none may begin yet and `wait` is False."""
        while True:
            self._check_other_fetches()
            with self._lock:
                fetch = None if self._closed else self._schedule.take()
                if fetch is not None or self._closed or not wait:
                    return fetch
                self._lock.wait(self._schedule.seconds_to_wait())

    def _check_other_fetches(self) -> None:
        with self._lock:
            shards = self._schedule.others_to_look_at()
        for shard in shards:
            with contextlib.suppress(OSError):  # raised to the reader, once it needs the shard
                if self._shards.is_ready(shard):
                    with self._lock:
                        size = self._shards.size_of(shard)
                        self._schedule.came_from_others(shard, size, self._starvation.seconds)

    def almost_done(self, shard: int) -> None:
        with self._lock:
            if self._schedule.almost_done(shard):
                self._lock.notify_all()

    def ended(self, fetch: Fetch, result: FetchResult | Exception) -> None:
        with self._lock:
            self._schedule.ended(fetch, result, starved=self._starvation.seconds)
            self._lock.notify_all()
