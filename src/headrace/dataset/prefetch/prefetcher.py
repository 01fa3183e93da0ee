"""Shards are fetched ahead of the reader, in the order in which the plan first uses them."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from headrace.dataset.prefetch.concurrency import Concurrency, Starvation
from headrace.dataset.prefetch.distance import LookAhead
from headrace.dataset.prefetch.horizon import Horizon
from headrace.dataset.prefetch.schedule import Fetch, FetchSchedule
from headrace.dataset.prefetch.upcoming_batch import Upcoming
from headrace.storage import FetchResult, Transfer

__all__ = ['Fetchable', 'Prefetcher']

# Shards that are fetched, verified and unpacked at the same time; `storage.transfer.download` bounds the requests.
_THREADS = 8


class Fetchable(Protocol):
    """Shards that can be fetched, by their numbers."""

    def fetch_ahead(self, shard: int, how: Transfer, next_use: Callable[[int], float]) -> FetchResult:
        """Make one shard present, if it can be without waiting for anybody; may raise."""
        ...

    def is_ready(self, shard: int) -> bool:
        """Whether a shard needs no fetching."""
        ...

    def size_of(self, shard: int) -> int:
        """Bytes that a shard takes in the cache."""
        ...


class Prefetcher:
    """Fetches, in one process, the shards of the batches that come next.

    `Horizon` knows the batches and `FetchSchedule` chooses the next shard; here are the lock and the threads. A shard
    that another process is fetching is left to it.

    Single reader: `follow`, `advance`, `wait` and `close` are called by the thread that reads batches. The threads that
    fetch are daemons, started at the first missing shard, so that a process can end while the network hangs.

    Args:
        shards: What is fetched.
        ahead: How far to look.
        room: Bytes of the shards that a cache with a limit holds ahead of the reader; inf: it has none.
        concurrency: How many fetches may be under way; None: as many as prove to be worth it.
        threads: How many may fetch at the same time; 0: the caller fetches, by `take` and `ended`.
        clock: Seconds.
    """

    def __init__(
        self,
        shards: Fetchable,
        ahead: LookAhead,
        *,
        room: float = math.inf,
        concurrency: Concurrency | None = None,
        threads: int = _THREADS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shards = shards
        self._horizon = Horizon(ahead, shards.size_of, room)
        self._schedule = FetchSchedule(self._horizon, concurrency, clock)
        self._starvation = Starvation(clock)
        self._lock = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._most_threads = threads
        self._closed = False

    # -- the reader ------------------------------------------------------------------------------------------------

    def follow(self, upcoming: Upcoming, *, first: int, starved: Callable[[], float] | None = None) -> None:
        """Look ahead along another sequence of batches.

        Args:
            upcoming: The batches.
            first: Number of the first one.
            starved: How many seconds batches came late, in all; None: as long as the reader waited for shards.
        """
        self.rest()
        self._horizon.follow(upcoming, first=first)
        self._starvation.source = starved
        self._schedule.slots.concurrency.begin(self._starvation.seconds)

    def rest(self) -> None:
        """Begin no more fetches until there is another sequence to `follow`; those under way end by themselves."""
        with self._lock:
            self._schedule.begin_pass()
            self._horizon.clear()

    def advance(self, batch: int) -> list[int]:
        """Say that the reader is at `batch`, and look further ahead.

        Returns:
            Shards that earlier batches used, and none in sight uses again.
        """
        with self._lock:
            used = self._horizon.advance(batch)
            self._schedule.advance()
            self._lock.notify_all()
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
            self._lock.notify_all()
        return [shard for shard in used if shard not in self._horizon]

    def wait(self, shard: int) -> None:
        """Wait until a shard that is being fetched is there. If it is not, the caller fetches it at once.

        To be followed by `has_shard`.

        Raises:
            Exception: what fetching it raised, if that had begun when it was already waited for, or if it is its data
                that are bad. The next call tries again.
        """
        with self._lock:
            self._starvation.begin()
            self._schedule.leave(shard)
            while shard in self._schedule.slots:
                self._lock.wait()
            # The reader gets it now, or ends the run; after that it may be fetched ahead again.
            failure = self._schedule.take_failure(shard)
            self._lock.notify_all()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame: a cycle, which would hold the reader's dataset, too

    def has_shard(self) -> None:
        """Say that the reader has the shard of its last `wait`, or cannot have it."""
        with self._lock:
            self._starvation.end()
            if self._schedule.slots.reader_fetches:
                self._schedule.slots.reader_fetches = False
                self._lock.notify_all()

    @property
    def fits(self) -> bool:
        """Whether the cache has room for more than what the next batches read."""
        return self._horizon.fits

    def next_use(self, shard: int) -> float:
        """Number of the next batch that uses a shard, of this rank or another of its node; inf: none in sight."""
        return self._horizon.next_use(shard)

    def close(self) -> None:
        """Take no more shards, for good. Fetches under way end by themselves."""
        with self._lock:
            self._closed = True
            self._schedule.close()
            self._starvation.source = None  # it has a file open
            self._lock.notify_all()

    # -- the threads -----------------------------------------------------------------------------------------------

    def _start_threads(self) -> None:
        """Start as many as could have something to do. Needs the lock."""
        if len(self._threads) == self._most_threads:
            return
        wanted = self._schedule.wanted_threads(self._most_threads)
        while len(self._threads) < wanted:
            thread = threading.Thread(target=self._work, name='headrace-fetch', daemon=True)
            try:
                thread.start()
            except RuntimeError:  # this process may have no more of them: the reader fetches by itself
                return
            self._threads.append(thread)

    def _work(self) -> None:
        # No error of a fetch stays here while the thread waits for the next one. It holds the frames in which it was
        # raised, the reader's too: its dataset would never be deleted, and never end this thread.
        while (fetch := self.take()) is not None:
            self._run(fetch)

    def take(self, *, wait: bool = True) -> Fetch | None:
        """The next fetch, once one may begin; None: the prefetcher is closed, or not `wait` and none may begin now."""
        while True:
            self._look_elsewhere()
            with self._lock:
                fetch = None if self._closed else self._schedule.take()
                if fetch is not None or self._closed or not wait:
                    return fetch
                self._lock.wait(self._schedule.seconds_to_wait())

    def _look_elsewhere(self) -> None:
        """See which shards other processes have fetched."""
        with self._lock:
            shards = self._schedule.elsewhere.to_look_at()
        for shard in shards:
            with contextlib.suppress(OSError):  # raised to the reader, once it needs the shard
                if self._shards.is_ready(shard):
                    with self._lock:
                        size = self._shards.size_of(shard)
                        self._schedule.came_elsewhere(shard, size, self._starvation.seconds)

    def _run(self, fetch: Fetch) -> None:
        how = Transfer(urgent=fetch.is_urgent, almost_done=partial(self.almost_done, fetch.shard))
        try:
            was_there = self._shards.is_ready(fetch.shard)
            result = self._shards.fetch_ahead(fetch.shard, how, self.next_use)
        except Exception as error:
            self.ended(fetch, error)
        else:
            self.ended(fetch, result, came=not was_there)

    def almost_done(self, shard: int) -> None:
        """Say that the last bytes of a shard are about to come."""
        with self._lock:
            if self._schedule.slots.almost_done(shard):
                self._lock.notify_all()

    def ended(self, fetch: Fetch, result: FetchResult | Exception, *, came: bool = False) -> None:
        """Note the end of a fetch: what it returned or raised, and whether the shard `came` by it."""
        with self._lock:
            size = self._shards.size_of(fetch.shard) if came else 0
            self._schedule.ended(fetch, result, size=size, starved=self._starvation.seconds)
            self._lock.notify_all()
