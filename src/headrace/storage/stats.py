"""Counters of the caches in this process."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from operator import add, sub
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

_counting = threading.Lock()


def _count_anew() -> None:
    """In a forked child: another thread of its parent may have been counting."""
    global _counting  # noqa: PLW0603 - no process has more than this one
    _counting = threading.Lock()


os.register_at_fork(after_in_child=_count_anew)


class CacheCounts(NamedTuple):
    """Counters of the reads through caches; those of time in whole nanoseconds, so that sums are exact.

    `dataset.statistics.StreamStats` has the same fields in the same order, with seconds.
    """

    bytes_downloaded: int = 0
    bytes_unpacked: int = 0
    requests: int = 0
    """Requests for objects to a store, failed ones included."""
    shards_fetched: int = 0
    """Shards that were made present."""
    cache_hits: int = 0
    """Shards that were present when asked for."""
    evictions: int = 0
    """Shards deleted to make room."""
    retries: int = 0
    """Transfers begun again, and files fetched again because they were bad."""
    shards_waited_for: int = 0
    """Shards for which a reader had to wait, as it says itself."""
    nanoseconds_waited: int = 0
    """How long it waited for these."""
    nanoseconds_unpacking: int = 0
    """How long threads decompressed shards."""
    bytes_from_peers: int = 0
    """Unpacked bytes of shards that came from other nodes' caches."""


Counters = TypeVar('Counters', bound=NamedTuple)


def sum_of(first: Counters, other: Counters) -> Counters:
    return first._make(map(add, first, other))


def difference_of(first: Counters, other: Counters) -> Counters:
    return first._make(map(sub, first, other))


CountTable: TypeAlias = 'npt.NDArray[np.int64]'
"""int64[caches, counters], a row of `CacheCounts` for each cache."""


class CacheStats:
    """Counts for one `ShardCache`, or for several that share it, in one process, since it was made there.

    A copy in another process begins at 0; one that came there by fork continues from its parent's.
    """

    def __init__(self) -> None:
        self.counts = CacheCounts()
        """The counts until now."""
        self.seconds_waiting = 0.0
        """Waiting for another fetcher of the same shard, or for room."""
        self._told: tuple[tuple[weakref.ref[set[int]], int], ...] = ()

    def add(self, change: CacheCounts) -> None:
        with _counting:
            self.counts = sum_of(self.counts, change)
        for reference, number in self._told:
            changed = reference()
            if changed is not None:
                changed.add(number)

    def add_wait(self, seconds: float) -> None:
        with _counting:
            self.seconds_waiting += seconds

    def tell(self, changed: set[int], number: int) -> None:
        """Put a number into a set after each change from now on, as long as the set lives."""
        others = tuple(told for told in self._told if told[0]() is not None)
        self._told = (*others, (weakref.ref(changed), number))

    def __reduce__(self) -> tuple[Any, ...]:
        # Caches that share one keep sharing one: pickle makes it once.
        return CacheStats, ()


class CacheCounters:
    """The counters of several caches in one process as a table, brought up to date where something changed."""

    def __init__(self, stats: Sequence[CacheStats]) -> None:
        """Take the counters of each cache, each a different one."""
        self._stats = list(stats)
        self._changed = set[int]()
        for number, cache in enumerate(self._stats):
            cache.tell(self._changed, number)
        self._table = np.array([cache.counts for cache in self._stats], np.int64).reshape(len(stats), -1)

    def update(self) -> list[int]:
        """Bring the table up to date; returns the numbers of the caches that changed since the last time."""
        numbers: list[int] = []
        # Counters change first, and say so then: what changes after its number was taken here is in the set again.
        with contextlib.suppress(KeyError):
            while True:
                number = self._changed.pop()
                self._table[number] = self._stats[number].counts
                numbers.append(number)
        return numbers

    def table(self) -> CountTable:
        """The counts of each cache until now; a copy."""
        self.update()
        return self._table.copy()

    def rows(self, numbers: Sequence[int]) -> CountTable:
        """The counts of some caches, as they were at the last `update`."""
        return self._table[numbers]
