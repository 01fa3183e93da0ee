"""Counters of the caches in this process."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ['CacheCounters', 'CacheCounts', 'CacheStats', 'CountTable']


_counting = threading.Lock()


def _count_anew() -> None:
    """In a forked child: another thread of its parent may have been counting."""
    global _counting  # noqa: PLW0603 - no process has more than this one
    _counting = threading.Lock()


os.register_at_fork(after_in_child=_count_anew)


class CacheCounts(NamedTuple):
    """The counters of `CacheStats` at one moment; those of time in whole nanoseconds, so that sums are exact."""

    bytes_downloaded: int = 0
    bytes_unpacked: int = 0
    requests: int = 0
    fetches: int = 0
    hits: int = 0
    evictions: int = 0
    retries: int = 0
    waits: int = 0
    nanoseconds_waited: int = 0
    nanoseconds_unpacking: int = 0


CountTable: TypeAlias = 'npt.NDArray[np.int64]'
"""int64[caches, counters], a row of `CacheCounts` for each cache."""


@dataclass(slots=True)
class CacheStats:
    """Counters of one `ShardCache`, or of several that share them, in one process, since they were made there.

    A copy in another process begins at 0; one that came there by fork continues from its parent's.
    """

    hits: int = 0
    """Shards that were present when asked for."""
    fetches: int = 0
    """Shards made present by this process."""
    requests: int = 0
    """Requests for objects to a store, failed ones included."""
    bytes_downloaded: int = 0
    bytes_unpacked: int = 0
    evictions: int = 0
    """Shards deleted by this process to make room."""
    retries: int = 0
    """Transfers begun again, and files fetched again because they were bad."""
    waits: int = 0
    """Shards for which a reader of this process had to wait, as it says itself."""
    nanoseconds_waited: int = 0
    """How long it waited for these."""
    nanoseconds_unpacking: int = 0
    """How long threads of this process decompressed shards."""
    seconds_waiting: float = 0.0
    """Waiting for another fetcher of the same shard, or for room."""
    _told: tuple[tuple[weakref.ref[set[int]], int], ...] = field(default=(), repr=False, compare=False)
    """Sets to which each change adds a number; see `tell`."""

    def add(
        self,
        *,
        fetches: int = 0,
        requests: int = 0,
        bytes_downloaded: int = 0,
        bytes_unpacked: int = 0,
        evictions: int = 0,
        retries: int = 0,
        waits: int = 0,
        nanoseconds_waited: int = 0,
        nanoseconds_unpacking: int = 0,
        seconds_waiting: float = 0.0,
    ) -> None:
        """Count; hits are counted without this lock, where a lost one does not matter."""
        with _counting:
            self.fetches += fetches
            self.requests += requests
            self.bytes_downloaded += bytes_downloaded
            self.bytes_unpacked += bytes_unpacked
            self.evictions += evictions
            self.retries += retries
            self.waits += waits
            self.nanoseconds_waited += nanoseconds_waited
            self.nanoseconds_unpacking += nanoseconds_unpacking
            self.seconds_waiting += seconds_waiting
        self._tell()

    def hit(self) -> None:
        """Count a shard that was present."""
        self.hits += 1
        self._tell()

    def _tell(self) -> None:
        for reference, number in self._told:
            changed = reference()
            if changed is not None:
                changed.add(number)

    def tell(self, changed: set[int], number: int) -> None:
        """Put a number into a set after each change from now on, as long as the set lives."""
        others = tuple(told for told in self._told if told[0]() is not None)
        self._told = (*others, (weakref.ref(changed), number))

    def counts(self) -> CacheCounts:
        """The counts until now."""
        return CacheCounts(
            self.bytes_downloaded,
            self.bytes_unpacked,
            self.requests,
            self.fetches,
            self.hits,
            self.evictions,
            self.retries,
            self.waits,
            self.nanoseconds_waited,
            self.nanoseconds_unpacking,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Caches that share one keep sharing one: pickle makes it once.
        return CacheStats, ()


class CacheCounters:
    """The counters of several caches in one process as a table, brought up to date where something changed."""

    def __init__(self, stats: Sequence[CacheStats]) -> None:
        """Take the counters of each cache, each a different one."""
        self._stats = list(stats)
        self._changed = set[int]()
        for number, one in enumerate(self._stats):
            one.tell(self._changed, number)
        self._table = np.array([one.counts() for one in self._stats], np.int64).reshape(len(stats), -1)

    def update(self) -> list[int]:
        """Bring the table up to date; returns the numbers of the caches that changed since the last time."""
        numbers: list[int] = []
        # Counters change first, and say so then: what changes after its number was taken here is in the set again.
        with contextlib.suppress(KeyError):
            while True:
                number = self._changed.pop()
                self._table[number] = self._stats[number].counts()
                numbers.append(number)
        return numbers

    def table(self) -> CountTable:
        """The counts of each cache until now; a copy."""
        self.update()
        return self._table.copy()

    def rows(self, numbers: Sequence[int]) -> CountTable:
        """The counts of some caches, as they were at the last `update`."""
        return self._table[numbers]
