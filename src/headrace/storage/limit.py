"""Room on the disk: a limit in bytes over one or several cache folders, kept by all processes of the machine.

Who wants to fetch asks `CacheLimit.admit` first. Under the folders' locks it adds up what is there and what fetches in
progress have reserved, evicts what is needed latest and mapped by nobody, and reserves.

Why nobody waits for ever. The folders' locks are held only while counting, deleting and renaming, which wait for
nothing. A fetcher reserves all it needs at once and then never waits for room, so fetches in progress end. Who finds
no room waits for one thing, with every lock put down, those of its own thread's leases and of all that its process
keeps (`keeping`) included: either for a shard that somebody has mapped, who is thus not waiting for room, but reading,
or keeps it for a bounded time; or for a fetch, which ends. Then it asks again. A limit that can never hold the shard is
an error, not a wait.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.errors import ConfigError
from headrace.storage.counting import (
    Present,
    Shelf,
    add_to_ledger,
    count_fetches,
    count_files,
    read_ledger,
    write_ledger,
)
from headrace.storage.fetch_lock import FetchLock, changing_files, reclaim_fetches
from headrace.storage.locks import cannot_write, held, lock_file, locked_folders, open_to_lock, try_lock_file
from headrace.storage.mapped import delete_file

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from headrace.storage.entry import CacheEntry

__all__ = ['Blocked', 'CacheLimit', 'NoRoom', 'Shelf', 'delete_entry', 'evict', 'publishing']


USE_COUNTS: Final = 1.5
"""Seconds that a shard must have been used later than was thought to be ranked anew; uses are noted once a second."""

_Ranked: TypeAlias = 'tuple[float, float, int, Present]'
"""(-next use, last use, tie-breaker, entry)"""


@dataclass(frozen=True, slots=True)
class Blocked:
    """There is no room until somebody is done with a file."""

    path: Path

    def wait(self) -> float:
        """Wait in the kernel until the file is unlocked; returns the seconds it took."""
        begin = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            handle = open_to_lock(self.path)
            with held(handle):
                lock_file(handle, self.path)
        return time.monotonic() - begin


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no room but that of shards which are needed sooner."""


@dataclass(slots=True)
class _Totals:
    """What counts against the limit."""

    size: int
    fixed: int
    """The part of it that is never evicted."""
    fetching: list[Path]
    """Lock files of the fetches in progress."""
    counted: list[Shelf]
    """Folders that were counted for this, so that ledgers did not have to be believed."""


class CacheLimit:
    """Bytes that the caches of a machine may take together. Pass one to several `ShardCache` objects to share it."""

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ConfigError(f'A cache limit is a positive number of bytes, or None for no limit; got {size}.')
        self.size = size
        self._start()

    def _start(self) -> None:
        self._shelves: dict[Path, Shelf] = {}
        # What may go, the next victim first. Made after a count, and mended as victims are taken.
        self._heap: list[_Ranked] = []
        self._tie = itertools.count()

    def __repr__(self) -> str:
        return f'CacheLimit({self.size})'

    def __getstate__(self) -> dict[str, int]:
        return {'size': self.size}  # caches join again when they are unpickled

    def __setstate__(self, state: dict[str, int]) -> None:
        self.size = state['size']
        self._start()

    def join(self, shelf: Shelf) -> None:
        """Count a folder, once. All processes that share it should share the whole group of folders."""
        first = self._shelves.setdefault(shelf.folder, shelf)
        if first is not shelf:
            first.others.append(shelf)

    def admit(
        self,
        shelf: Shelf,
        entry: CacheEntry,
        needed: int,
        lock: FetchLock,
        *,
        next_use: Callable[[CacheEntry], float] | None,
        ahead: bool,
    ) -> Blocked | NoRoom | None:
        """Reserve ``needed`` bytes for a fetch, evicting what has to go; None if that succeeded.

        Args:
            shelf: Where the entry goes.
            entry: What will be fetched.
            needed: The most bytes that it takes while being fetched.
            lock: The fetch, which carries the reservation.
            next_use: When an entry is needed next, in any unit, infinite if never; speaks for the whole machine.
            ahead: The entry is fetched before it is needed, so that nothing which is needed sooner has to go.
        """
        own = shelf.folder, entry.key
        bound = next_use(entry) if ahead and next_use is not None else -math.inf
        exactly = looked = False
        busy: list[Path] = []
        while True:
            with self._locked():
                totals = self._add_up(exactly=exactly)
                if totals.fixed + needed > self.size:
                    raise self._too_low(entry, totals.fixed + needed)
                if totals.size + needed > self.size and self._reclaim():
                    totals = self._add_up(exactly=exactly)
                over = totals.size + needed - self.size
                stale = [] if over <= 0 or looked else self._stale(totals, surely=False)
                if not stale:
                    if over > 0 and totals.counted:
                        self._rank(next_use)
                    freed, busy = self._evict(over, own, next_use, bound)
                    over -= freed
                    if over <= 0:
                        lock.reserve(needed)
                        return None
                    stale = self._stale(totals, surely=True) if ahead and not looked else []
            if stale:
                # This looks at every file, so not under the lock.
                for item in stale:
                    count_files(item)
                self._rank(next_use)
                looked = True
            elif ahead and self._heap and not busy:
                return NoRoom()
            elif len(totals.counted) == len(self._shelves):
                break
            else:
                exactly = True
        busy += [path for path in totals.fetching if path != lock.path]
        if busy:
            return Blocked(busy[0])
        if ahead:
            return NoRoom()
        raise self._too_low(entry, totals.size + needed)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locked_folders(list(self._shelves))

    def _too_low(self, entry: CacheEntry, needed: int) -> ConfigError:
        return ConfigError(
            f'Cache limit of {self.size} bytes is too low. Increase the `cache_limit` to at least {needed} bytes: '
            f'fetching {entry.key} takes that much, with its compressed file and what must stay.'
        )

    def _reclaim(self) -> bool:
        """Remove what killed fetches left. Only when room is short: before, it is in nobody's way."""
        return any(reclaim_fetches(folder) for folder in self._shelves)

    def _add_up(self, *, exactly: bool) -> _Totals:
        """Add up all folders; with their locks held, and each counted if its ledger is too old, or ``exactly``."""
        totals = _Totals(0, 0, [], [])
        # Fetches first: one that ends in between is counted twice, in the other order it would not be counted at all.
        for folder in self._shelves:
            size, locks = count_fetches(folder)
            totals.size += size
            totals.fetching += locks
        for shelf in self._shelves.values():
            size = None if exactly else read_ledger(shelf.folder)
            if size is None:
                size, seconds = count_files(shelf)
                write_ledger(shelf.folder, size, seconds)
                totals.counted.append(shelf)
            fixed = shelf.fixed()
            totals.fixed += fixed
            totals.size += size + fixed
        return totals

    def _stale(self, totals: _Totals, *, surely: bool) -> list[Shelf]:
        """Folders of which this process does not know well enough what is there."""
        return [
            shelf
            for shelf in self._shelves.values()
            if shelf not in totals.counted and not shelf.is_counted(surely=surely)
        ]

    def _rank(self, next_use: Callable[[CacheEntry], float] | None) -> None:
        """Order what the last counts found: needed latest first, then unused for longest."""
        heap: list[_Ranked] = []
        for shelf in self._shelves.values():
            for item in shelf.present:
                heap.append((-item.next_use(next_use) if next_use else 0.0, item.used, next(self._tie), item))  # noqa: PERF401
        heapq.heapify(heap)
        self._heap = heap

    def _evict(
        self, room: int, own: tuple[Path, str], next_use: Callable[[CacheEntry], float] | None, bound: float
    ) -> tuple[int, list[Path]]:
        """Delete until ``room`` bytes are free; returns what was freed, and the files that were in use.

        The ranking may be older than the folders: what has turned out to be needed sooner, or was used since, is
        ranked anew when its turn comes.
        """
        freed, busy, kept = 0, list[Path](), list[_Ranked]()
        heap = self._heap
        while freed < room and heap:
            rank, used, _, item = heapq.heappop(heap)
            if (item.shelf.folder, item.entry.key) == own:
                kept.append((rank, used, next(self._tie), item))
                continue
            when = item.next_use(next_use) if next_use else 0.0
            now_used = _last_use(item.shelf.folder / item.entry.key)
            if -when > rank or now_used > used + USE_COUNTS:
                heapq.heappush(heap, (max(-when, rank), max(used, now_used), next(self._tie), item))
                continue
            if next_use is not None and when <= bound:
                kept.append((rank, used, next(self._tie), item))
                break
            with changing_files():
                outcome = delete_entry(item.shelf.folder, item.entry)
                if isinstance(outcome, Path):
                    busy.append(outcome)
                    kept.append((rank, used, next(self._tie), item))
                elif outcome:
                    freed += outcome
                    add_to_ledger(item.shelf.folder, -outcome)
                    item.shelf.stats.add(evictions=1)
        for ranked in kept:
            heapq.heappush(heap, ranked)
        return freed, busy


def _last_use(path: Path) -> float:
    try:
        info = path.stat()
    except OSError:
        return 0.0
    return max(info.st_atime, info.st_mtime)


@contextlib.contextmanager
def publishing(shelf: Shelf, size: int) -> Generator[None]:
    """Note ``size`` bytes that get their final names inside the block."""
    with locked_folders([shelf.folder]), changing_files():
        # Before, so that a process which is killed in between has noted too much rather than too little.
        add_to_ledger(shelf.folder, size)
        yield


def evict(shelf: Shelf, entry: CacheEntry) -> bool:
    """Delete an entry, unless somebody has it in use."""
    with locked_folders([shelf.folder]), changing_files():
        outcome = delete_entry(shelf.folder, entry)
        if isinstance(outcome, Path):
            return False
        add_to_ledger(shelf.folder, -outcome)
    return True


def delete_entry(folder: Path, entry: CacheEntry) -> int | Path:
    """Delete an entry's files, if any.

    Returns:
        Their bytes; or the file which somebody has locked, if that prevents it.
    """
    path = folder / entry.key
    try:
        handle = open_to_lock(path)
    except (FileNotFoundError, NotADirectoryError):
        # Without its first part an entry is not present. What else is there may be somebody's work in progress.
        if not _files(folder, entry):
            return 0
        lock = FetchLock(folder, entry.key)
        if not lock.acquire(wait=False):
            return lock.path
        try:
            return _unlink(folder, entry)
        finally:
            lock.release()
    with held(handle):
        return _unlink(folder, entry) if try_lock_file(handle, path) else path


def _files(folder: Path, entry: CacheEntry) -> list[str]:
    names = (name for part in entry.parts for name in (part.name, part.packed_name) if name is not None)
    return [name for name in names if os.path.lexists(folder / name)]


def _unlink(folder: Path, entry: CacheEntry) -> int:
    size = 0
    for name in _files(folder, entry):
        try:
            size += delete_file(folder, name)
        except OSError as error:  # noqa: PERF203
            raise cannot_write(folder, error) from error
    return size
