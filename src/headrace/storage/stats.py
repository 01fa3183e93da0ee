"""What a cache did in this process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

__all__ = ['CacheStats']


@dataclass(slots=True)
class CacheStats:
    """Counters of one `ShardCache` in one process, since it was made (or unpickled, or forked with it)."""

    hits: int = 0
    """Shards that were present when asked for."""
    fetches: int = 0
    """Shards made present by this process."""
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
        bytes_downloaded: int = 0,
        bytes_unpacked: int = 0,
        evictions: int = 0,
        retries: int = 0,
        seconds_waiting: float = 0.0,
    ) -> None:
        """Count; hits are counted without this lock, where a lost one does not matter."""
        with self._lock:
            self.fetches += fetches
            self.bytes_downloaded += bytes_downloaded
            self.bytes_unpacked += bytes_unpacked
            self.evictions += evictions
            self.retries += retries
            self.seconds_waiting += seconds_waiting
