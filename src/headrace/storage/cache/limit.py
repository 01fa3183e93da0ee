"""Room on the disk: a limit in bytes over one or several cache folders, kept by all processes of the machine.

A fetcher asks `CacheLimit.admit` first. Under the folders' locks it adds up the files and the reservations of fetches
in progress, evicts unmapped shards, those needed latest first, and reserves.

Every wait ends. The folders' locks are held only to count, delete and rename, which wait for nothing. A
fetcher reserves all it needs at once and then never waits for room, so fetches in progress end. A process without room
releases all leases and locks, then waits for one reader or one fetch; neither waits for room. Then it asks again. A
limit that can never hold the shard is an error, not a wait.

The bytes in a folder are counted if that is cheap, else remembered between counts in a ledger. A count looks at every
file, 3 ms for a thousand. If it takes longer than `CHEAP`, ``.headrace/ledger`` keeps the result for a hundred times as
long. Each process adds its published and evicted files to the ledger. After a crash, or if another program deletes
files, the ledger may be too high until the next count: files are added before they appear, and subtracted after they
are gone.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
import os
import stat
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from headrace.errors import CacheError, ConfigError
from headrace.storage.cache.entry import (
    CacheEntry,
    CachePart,
    FetchRequest,
    FetchResult,
    FetchStatus,
    NextUse,
    space_needed,
)
from headrace.storage.cache.fetch_lock import (
    FETCHES,
    LEDGER,
    FetchLock,
    fetch_folder,
    read_reservation,
    reclaim_fetches,
    write_text,
)
from headrace.storage.cache.locks import cannot_write, held, locked_folders, open_to_lock, try_lock_file
from headrace.storage.cache.mapped_file import delete_file
from headrace.storage.cache.ownership import KEPT, Duty
from headrace.storage.stats import CacheCounts, CacheStats

CHEAP: Final = 0.002  # Seconds that a count may take each time.
SHARE: Final = 100  # How long a count that is not cheap stays valid, in multiples of its duration.
SURE: Final = 25  # The same factor, where older counts show too little that could be evicted.


USE_COUNTS: Final = 1.5
"""A shard whose last use is later than known by these seconds is ranked again; uses are noted once a second."""


@dataclass(slots=True)
class Present:
    """An entry with files on disk."""

    limited: LimitedFolder
    entry: CacheEntry
    size: int = 0
    used: float = 0.0  # Seconds since the epoch.

    def next_use(self, of_entry: Callable[[CacheEntry], float]) -> float:
        """The time at which any stream of its folder needs it next."""
        entries = (other.found.get(self.entry.key) for other in self.limited.others)
        return min(of_entry(self.entry), *(of_entry(entry) for entry in entries if entry is not None), math.inf)


@dataclass(slots=True, eq=False)
class LimitedFolder:
    """One cache folder under a limit."""

    folder: Path
    find: Callable[[str], CacheEntry | None]  # The entry of a file, by its name in the folder; None for other files.
    stats: CacheStats
    other_files: set[str] = field(default_factory=set[str])
    """Files that count but are never evicted, such as index.json."""
    present: list[Present] = field(default_factory=list[Present])
    """The entries that the last count of this process found."""
    counted_at: float = -math.inf  # The time of that count, by ``time.monotonic``.
    cost: float = 0.0  # Seconds that it took; 0 before the first.
    found: dict[str, CacheEntry] = field(default_factory=dict[str, 'CacheEntry'])
    """Results of ``find`` from the last count, since ``find`` may have to build an entry."""
    duty: Callable[[str], Duty] | None = None
    """The part of this node in sharing a shard, by its key; None if there are no peers."""
    others: list[LimitedFolder] = field(default_factory=list['LimitedFolder'])
    """The same folder for other streams, whose entries have other numbers; counts set only their ``found``."""

    def entry_of(self, name: str) -> CacheEntry | None:
        """As ``find``, but reuses the entries of the last count."""
        return self.found.get(name) or self.find(name)

    def is_old(self, age: float) -> bool:
        """Whether the last count is older than that many times its cost."""
        return time.monotonic() >= self.counted_at + _good_for(self.cost, age)

    def fixed(self) -> int:
        total = 0
        for name in self.other_files:
            with contextlib.suppress(OSError):
                total += (self.folder / name).stat().st_size
        return total


def count_files(limited: LimitedFolder) -> tuple[int, float]:
    """Count a folder's shards into ``limited.present``; returns bytes and seconds, at most twice the last count's."""
    begin = time.monotonic()
    present: dict[str, Present] = {}
    found: dict[str, CacheEntry] = {}
    folders = ['']
    while folders:
        prefix = folders.pop()
        try:
            items = os.scandir(limited.folder / prefix)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with items:
            for item in items:
                name = prefix + item.name
                if item.is_dir(follow_symlinks=False):
                    if name != FETCHES:
                        folders.append(f'{name}/')
                    continue
                entry = limited.entry_of(name)
                if entry is None:
                    continue
                try:
                    info = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found[entry.key if entry.key == name else name] = entry  # so that there is one copy of it
                there = present.get(entry.key)
                if there is None:
                    there = present[entry.key] = Present(limited, entry)
                there.size += info.st_size
                there.used = max(there.used, info.st_atime, info.st_mtime)
    limited.found, limited.present = found, list(present.values())
    for other in limited.others:
        other.found = {name: entry for name in present if (entry := other.entry_of(name)) is not None}
    now = time.monotonic()
    # A count that waited for a processor must not stay valid for a hundred times that wait.
    limited.cost = min(now - begin, 2 * limited.cost or math.inf)
    limited.counted_at = now
    return sum(item.size for item in limited.present), limited.cost


def _good_for(seconds: float, times: float) -> float:
    return 0.0 if seconds < CHEAP else times * seconds


def count_fetches(folder: Path) -> tuple[int, list[Path]]:
    """Bytes that fetches in progress have reserved or written, and their lock files."""
    sizes: dict[str, int] = {}
    locks: list[Path] = []
    with contextlib.suppress(FileNotFoundError, PermissionError), fetch_folder(folder).opened(only_read=True) as state:
        for item in state.names():
            name, _, rest = item.partition('.')
            if name == LEDGER:
                continue
            size = sizes.setdefault(name, 0)
            with contextlib.suppress(FileNotFoundError):
                info = state.stat(item)
                if not stat.S_ISREG(info.st_mode):
                    continue
                if rest == 'lock':
                    locks.append(state.path / item)
                else:
                    sizes[name] = size + info.st_size
        return sum(max(size, read_reservation(state, f'{name}.lock')) for name, size in sizes.items()), locks
    return 0, []


def _read(folder: Path) -> tuple[int, float] | None:
    """The bytes in a ledger, and the end of their validity; None without valid text."""
    try:
        with fetch_folder(folder).opened(only_read=True) as state:
            record = json.loads(state.read(LEDGER, 1024))
        return int(record['bytes']), float(record['until'])
    except (OSError, CacheError, ValueError, KeyError, TypeError):
        return None


def read_ledger(folder: Path) -> int | None:
    """Bytes of a folder's shards, if a recent count exists. Needs the folder's lock."""
    size, until = _read(folder) or (-1, 0.0)
    # The far future is a clock that was set back.
    return size if 0 <= until - time.time() < 3600 and size >= 0 else None


def write_ledger(folder: Path, size: int, seconds: float) -> None:
    """Keep a count, unless its seconds show that counting again is cheap. Needs the folder's lock."""
    if seconds >= CHEAP:
        _replace(folder, size, time.time() + min(_good_for(seconds, SHARE), 1800.0))
    else:
        drop_ledger(folder)


def add_to_ledger(folder: Path, change: int) -> None:
    """Note that bytes are about to come, or have gone. Needs the folder's lock."""
    record = _read(folder)
    if record is None:
        drop_ledger(folder)
    else:
        _replace(folder, max(0, record[0] + change), record[1])


def _replace(folder: Path, size: int, until: float) -> None:
    try:
        with fetch_folder(folder).opened(make=True) as state:
            handle = state.open_file(LEDGER, os.O_WRONLY | os.O_CREAT)
            try:
                # A process killed in here leaves an invalid ledger: then the next one counts.
                write_text(handle, json.dumps({'bytes': size, 'until': until}))
            finally:
                os.close(handle)
    except OSError:  # a full disk, another user's file: count each time
        drop_ledger(folder)


def drop_ledger(folder: Path) -> None:
    """Forget a count, so that the folder is counted again. Needs its lock."""
    try:
        with fetch_folder(folder).opened() as state:
            state.delete(LEDGER)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise cannot_write(folder, error) from error


_Ranked: TypeAlias = 'tuple[float, float, int, Present]'  # (-next use, last use, tie-breaker, entry)


@dataclass(frozen=True, slots=True)
class _RoomRequest:
    """The room that one fetch needs."""

    into: LimitedFolder  # The folder that the entry goes to.
    needed: Callable[[], int]
    """The most bytes that the fetch adds to the folder. Needs the folder's lock: an eviction may be under way."""
    lock: FetchLock  # The fetch, which carries the reservation.
    fetch: FetchRequest

    @property
    def bound(self) -> float:
        """Entries that are needed at this time or sooner stay."""
        next_use = self.fetch.next_use
        return next_use(self.fetch.entry) if self.fetch.ahead and next_use is not None else -math.inf


@dataclass(slots=True)
class _Totals:
    fixed: int = 0  # Those that are never evicted.
    reserved: int = 0  # Those of fetches in progress.
    fetching: list[Path] = field(default_factory=list[Path])  # The lock files of these fetches.
    shards: dict[Path, int] = field(default_factory=dict[Path, int])  # Those of shards, by folder.
    counted: list[LimitedFolder] = field(default_factory=list[LimitedFolder])
    """Folders that were counted for this, so that their ledgers did not have to be believed."""

    @property
    def size(self) -> int:
        return self.fixed + self.reserved + sum(self.shards.values())


class CacheLimit:
    """Bytes that the caches of a machine may take together. Pass one to several `ShardCache` objects to share it."""

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ConfigError(f'A cache limit is a positive number of bytes, or None for no limit; got {size}.')
        self.size = size
        self._start()

    def _start(self) -> None:
        self._folders: dict[Path, LimitedFolder] = {}
        # Eviction candidates, the next victim first. Made after a count, and updated as victims are taken.
        self._heap: list[_Ranked] = []
        self._tie = itertools.count()

    def __repr__(self) -> str:
        return f'CacheLimit({self.size})'

    def __getstate__(self) -> dict[str, int]:
        return {'size': self.size}  # caches join again when they are unpickled

    def __setstate__(self, state: dict[str, int]) -> None:
        self.size = state['size']
        self._start()

    @property
    def room(self) -> int:
        """Bytes for shards, beside what is never evicted."""
        return self.size - sum(limited.fixed() for limited in self._folders.values())

    def join(self, limited: LimitedFolder) -> None:
        """Count a folder, once. All processes that share it should share the whole group of folders."""
        first = self._folders.setdefault(limited.folder, limited)
        if first is not limited:
            first.others.append(limited)

    def admit(self, request: _RoomRequest) -> FetchResult | None:
        """Reserve the bytes of a fetch and evict for it; None if that succeeded.

        Each turn looks closer: at remembered counts, at the files without the folders' locks, at last with the locks.
        """
        fetch, busy = request.fetch, list[Path]()
        for age in (SHARE, SURE, SURE, 0.0):
            with locked_folders(list(self._folders)):
                totals, needed = self._add_up(exactly=not age), request.needed()
                if totals.fixed + needed > self.size:
                    raise self._too_low(fetch.entry, totals.fixed + needed)
                if totals.size + needed > self.size:
                    # Files of killed fetches are harmless before room is short.
                    found = [reclaim_fetches(folder) for folder in self._folders]
                    totals = self._add_up(exactly=not age) if any(found) else totals
                stale: list[LimitedFolder] = []
                if totals.size + needed > self.size:
                    stale = [one for one in self._folders.values() if one not in totals.counted and one.is_old(age)]
                    if totals.counted and not stale:
                        self._rank(fetch.next_use)
                if not stale:
                    busy = self._evict(totals, totals.size + needed - self.size, request)
                    if totals.size + needed <= self.size:
                        request.lock.reserve(needed)
                        return None
            if stale:
                for one in stale:
                    count_files(one)
                self._rank(fetch.next_use)
                continue
            others_are_sooner = fetch.ahead and self._heap and not busy
            if len(totals.counted) == len(self._folders) or (others_are_sooner and age != SHARE):
                break
        if not (busy or (fetch.ahead and self._heap)):
            busy = [path for path in totals.fetching if path != request.lock.path]
        if busy:
            return FetchResult(FetchStatus.BLOCKED, blocker=busy[0])
        if fetch.ahead:
            return FetchResult(FetchStatus.NO_ROOM)
        raise self._too_low(fetch.entry, totals.size + needed)

    def _too_low(self, entry: CacheEntry, needed: int) -> ConfigError:
        return ConfigError(
            f'Cache limit of {self.size} bytes is too low. Increase the `cache_limit` to at least {needed} bytes: '
            f'fetching {entry.key} takes that much, with its compressed file and what must stay.'
        )

    def _add_up(self, *, exactly: bool) -> _Totals:
        """Add up all folders, with their locks held; each is counted if its ledger is too old, or ``exactly``."""
        totals = _Totals()
        # Fetches first: one that ends in between is counted twice, in the other order it would not be counted at all.
        for folder in self._folders:
            size, locks = count_fetches(folder)
            totals.reserved += size
            totals.fetching += locks
        for limited in self._folders.values():
            totals.fixed += limited.fixed()
            size = None if exactly else read_ledger(limited.folder)
            if size is None:
                size, seconds = count_files(limited)
                write_ledger(limited.folder, size, seconds)
                totals.counted.append(limited)
            totals.shards[limited.folder] = size
        return totals

    def _rank(self, next_use: NextUse | None) -> None:
        """Order the entries of the last counts: needed latest first, then unused for longest."""
        heap: list[_Ranked] = []
        kept = self._kept()
        for limited in self._folders.values():
            for item in limited.present:
                rank = -item.next_use(next_use) if next_use else 0.0
                rank = kept.get((limited.folder, item.entry.key), rank)
                heap.append((rank, item.used, next(self._tie), item))
        heapq.heapify(heap)
        self._heap = heap

    def _kept(self) -> dict[tuple[Path, str], float]:
        """The ranks of shards that go last, since this node has them for all; they leave room for those that it reads.

        They are above those of all others, which are negative, or 0.

        Of those that it keeps, always the same: by turns, each would be gone when it is asked for. They may be more
        than their index says, which then estimates their sizes. Of those that it only fetches, the last ones, in half
        of the room that is left.
        """
        items = [
            (duty, item)
            for limited in self._folders.values()
            if limited.duty is not None
            for item in limited.present
            if (duty := limited.duty(item.entry.key))
        ]
        kept = sorted((item for duty, item in items if duty is Duty.KEEP), key=lambda item: item.entry.key)
        fetched = sorted((item for duty, item in items if duty is Duty.FETCH), key=lambda item: -item.used)
        kept = _that_fit(kept, KEPT * self.size)
        fetched = _that_fit(fetched, (self.room - sum(item.size for item in kept)) / 2)
        ranked = [*((Duty.KEEP, item) for item in kept), *((Duty.FETCH, item) for item in fetched)]
        return {(item.limited.folder, item.entry.key): float(duty) for duty, item in ranked}

    def _evict(self, totals: _Totals, room: int, request: _RoomRequest) -> list[Path]:
        """Delete until ``room`` more bytes are free; returns the files that were in use.

        The ranking may be older than the folders: an entry that is needed sooner, or was used since, is ranked anew
        at its turn.
        """
        busy, kept = list[Path](), list[_Ranked]()
        heap, next_use, bound = self._heap, request.fetch.next_use, request.bound
        own = request.into.folder, request.fetch.entry.key
        while room > 0 and heap:
            rank, used, _, item = heapq.heappop(heap)
            if (item.limited.folder, item.entry.key) == own:
                kept.append((rank, used, next(self._tie), item))
                continue
            when = item.next_use(next_use) if next_use else 0.0
            now_used = _last_use(item.limited.folder / item.entry.key)
            if -when > rank or now_used > used + USE_COUNTS:
                heapq.heappush(heap, (max(-when, rank), max(used, now_used), next(self._tie), item))
                continue
            if (next_use is not None and when <= bound) or (rank > 0 and (busy or request.fetch.ahead)):
                kept.append((rank, used, next(self._tie), item))
                break
            outcome = delete_entry(item.limited.folder, item.entry)
            if isinstance(outcome, Path):
                busy.append(outcome)
                kept.append((rank, used, next(self._tie), item))
            elif outcome:
                room -= outcome
                totals.shards[item.limited.folder] -= outcome
                add_to_ledger(item.limited.folder, -outcome)
                item.limited.stats.add(CacheCounts(evictions=1))
        for ranked in kept:
            heapq.heappush(heap, ranked)
        return busy


def _that_fit(items: list[Present], room: float) -> list[Present]:
    """The first of these, as many as have room together."""
    ends = itertools.accumulate(item.size for item in items)
    return [item for item, end in zip(items, ends, strict=True) if end <= room]


def _last_use(path: Path) -> float:
    try:
        info = path.stat()
    except OSError:
        return 0.0
    return max(info.st_atime, info.st_mtime)


class FolderRoom:
    """The room for the shards of one cache folder under a limit."""

    def __init__(self, limit: CacheLimit, folder: LimitedFolder) -> None:
        self._limit, self._folder = limit, folder
        self._grown: dict[str, int] = {}  # bytes of entries that turned out larger than estimated

    def reserve(
        self, request: FetchRequest, absent: list[CachePart], lock: FetchLock, *, keep_packed: bool
    ) -> FetchResult | None:
        """Reserve the room for the absent parts of a shard, and evict for it; None if that succeeded."""
        folder, entry = self._folder.folder, request.entry
        for part in absent:  # of the wrong size, if it is there at all
            delete_file(folder, part.name)
        lock.clear()

        def needed() -> int:
            return max(space_needed(folder, absent, keep_packed=keep_packed), self._grown.get(entry.key, 0))

        return self._limit.admit(_RoomRequest(self._folder, needed, lock, request))

    def reserve_more(self, request: FetchRequest, size: int, lock: FetchLock) -> FetchResult | None:
        """Reserve room for a shard of `size` bytes, which count already; None if that succeeded.

        Its reservation may have been an estimate.
        """
        if size <= lock.reserved:
            return None
        self._grown[request.entry.key] = size
        return self._limit.admit(_RoomRequest(self._folder, lambda: 0, lock, request))

    @contextlib.contextmanager
    def publishing(self, size: int) -> Generator[None]:
        """Note ``size`` bytes that get their final names inside the block."""
        with locked_folders([self._folder.folder]):
            # Before, so that a process which is killed in between has noted too much rather than too little.
            add_to_ledger(self._folder.folder, size)
            yield


def evict(folder: Path, entry: CacheEntry) -> int | Path:
    """Delete an entry, unless it is in use; see `delete_entry`. The folder's count stays right."""
    with locked_folders([folder]):
        outcome = delete_entry(folder, entry)
        if not isinstance(outcome, Path):
            add_to_ledger(folder, -outcome)
    return outcome


def delete_entry(folder: Path, entry: CacheEntry) -> int | Path:
    """Delete an entry's files, if any; returns their bytes, or the locked file that prevents it."""
    path = folder / entry.key
    try:
        handle = open_to_lock(path)
    except (FileNotFoundError, NotADirectoryError):
        # Without its first part an entry is not present. Other files may be work in progress.
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
