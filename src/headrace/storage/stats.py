"""What caches did in this process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ['CacheCounts', 'CacheStats']


class CacheCounts(NamedTuple):
    """The counters of `CacheStats` at one moment, without those of time."""

    bytes_downloaded: int = 0
    bytes_unpacked: int = 0
    requests: int = 0
    fetches: int = 0
    hits: int = 0
    evictions: int = 0
    retries: int = 0

    def plus(self, other: CacheCounts) -> CacheCounts:
        """The sums."""
        return CacheCounts(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: CacheCounts) -> CacheCounts:
        """What was counted since `other`."""
        return CacheCounts(*(a - b for a, b in zip(self, other, strict=True)))


@dataclass(slots=True)
class CacheStats:
    """Counters of one `ShardCache`, or of several that share them, in one process, since they were made there.

    A copy in another process begins at 0; one that came there by fork goes on from its parent's.
    """

    hits: int = 0
    """Shards that were present when asked for."""
    fetches: int = 0
    """Shards made present by this process."""
    requests: int = 0
    """Times that an object was asked of a store, also in vain."""
    bytes_downloaded: int = 0
    bytes_unpacked: int = 0
    evictions: int = 0
    """Shards deleted by this process to make room."""
    retries: int = 0
    """Transfers begun again, and files fetched again because they were bad."""
    seconds_waiting: float = 0.0
    """Waiting for another fetcher of the same shard, or for room."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(
        self,
        *,
        fetches: int = 0,
        requests: int = 0,
        bytes_downloaded: int = 0,
        bytes_unpacked: int = 0,
        evictions: int = 0,
        retries: int = 0,
        seconds_waiting: float = 0.0,
    ) -> None:
        """Count; hits are counted without this lock, where a lost one does not matter."""
        with self._lock:
            self.fetches += fetches
            self.requests += requests
            self.bytes_downloaded += bytes_downloaded
            self.bytes_unpacked += bytes_unpacked
            self.evictions += evictions
            self.retries += retries
            self.seconds_waiting += seconds_waiting

    def counts(self) -> CacheCounts:
        """What was counted until now."""
        return CacheCounts(
            self.bytes_downloaded,
            self.bytes_unpacked,
            self.requests,
            self.fetches,
            self.hits,
            self.evictions,
            self.retries,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Caches that share one keep sharing one: pickle makes it once.
        return CacheStats, ()
