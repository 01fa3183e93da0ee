"""One attempt to fetch a shard: the request, and the outcome."""

from __future__ import annotations

import contextlib
import enum
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.storage.cache.locks import held, lock_file, open_to_lock
from headrace.storage.transfer.download import DEFAULT, Transfer

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.storage.cache.entry import CacheEntry, NextUse

__all__ = ['FetchRequest', 'FetchResult', 'FetchStatus']


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A shard to be made present."""

    entry: CacheEntry
    next_use: NextUse | None = None
    """See `ShardCache.fetch`, as for the next two."""
    wait: bool = True
    how: Transfer = DEFAULT
    ahead: bool = True
    """The shard is not needed yet: nothing that is needed sooner is evicted for it."""


class FetchStatus(enum.Enum):
    """The end of an attempt."""

    PRESENT = 'present'
    ELSEWHERE = 'elsewhere'
    """Another process is fetching the shard."""
    BLOCKED = 'blocked'
    """Under the limit there is no room until somebody releases a file."""
    NO_ROOM = 'no room'
    """Under the limit there is no room: all other shards are needed sooner."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The outcome of one attempt to fetch a shard; true if the shard is present."""

    status: FetchStatus
    blocker: Path | None = None
    """The locked file, if the status is BLOCKED."""
    size: int = 0
    """Bytes of the shard in the cache, if this attempt fetched it; 0: it was there."""
    handle: int | None = None
    """The first part, open and locked, if a reader fetched it under a limit. The receiver closes it."""

    def __bool__(self) -> bool:
        return self.status is FetchStatus.PRESENT

    def wait(self) -> float:
        """Wait in the kernel until the blocking file is unlocked; returns the seconds it took."""
        begin = time.monotonic()
        if self.blocker is not None:
            with contextlib.suppress(FileNotFoundError):
                handle = open_to_lock(self.blocker)
                with held(handle):
                    lock_file(handle, self.blocker)
        return time.monotonic() - begin
