"""Room on the disk: a limit in bytes over one or several cache folders, kept by all processes of the machine.

Who wants to fetch asks `CacheLimit.admit` first. Under the folders' locks it counts what is there, fetches in progress
with what they have reserved, evicts what is needed latest and mapped by nobody, and reserves. What it counts is the
disk itself, so that a killed process leaves nothing to repair.

Why nobody waits for ever. The folders' locks are held only while counting and deleting, which waits for nothing. A
fetcher reserves all it needs at once and then never waits for room, so fetches in progress end. Who finds no room
waits for one thing, with every lock put down, those of its own thread's leases included: either for a shard that
somebody has mapped, who is thus not waiting for room, but reading; or for a fetch, which ends. Then it counts again.
A limit that can never hold the shard is an error, not a wait.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.storage.locks import (
    FETCHES,
    FetchLock,
    cannot_write,
    held,
    lock_file,
    locked_folders,
    open_to_lock,
    read_reservation,
    reclaim_fetches,
    try_lock_file,
)
from headrace.storage.mapped import suspend_leases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.storage.entry import CacheEntry
    from headrace.storage.stats import CacheStats

__all__ = ['Blocked', 'CacheLimit', 'NoRoom', 'Shelf', 'delete_entry']


@dataclass(frozen=True, slots=True)
class Shelf:
    """One cache folder under a limit."""

    folder: Path
    find: Callable[[str], CacheEntry | None]
    """The entry that a file belongs to, by its name in the folder; None for a file that is none of the cache's."""
    stats: CacheStats
    other_files: set[str] = field(default_factory=set[str])
    """Files that count but are never evicted, such as index.json."""
    found: dict[str, CacheEntry] = field(default_factory=dict[str, 'CacheEntry'])
    """What ``find`` gave for the files that were there at the last count: it may have to build the entry."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """There is no room until somebody is done with a file."""

    path: Path

    def wait(self) -> float:
        """Wait in the kernel until the file is unlocked; returns the seconds it took."""
        suspend_leases()
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
class _Present:
    """An entry of which files are on disk."""

    shelf: Shelf
    entry: CacheEntry
    size: int = 0
    used: float = 0.0
    """Seconds since the epoch."""


@dataclass(slots=True)
class _Contents:
    """What the folders hold."""

    total: int
    fixed: int
    """The part of it that is never evicted."""
    present: dict[tuple[Path, str], _Present]
    fetching: list[Path]
    """Lock files of the fetches in progress."""


class CacheLimit:
    """Bytes that the caches of a machine may take together. Pass one to several `ShardCache` objects to share it."""

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ConfigError(f'A cache limit is a positive number of bytes, or None for no limit; got {size}.')
        self.size = size
        self._shelves: dict[Path, Shelf] = {}

    def __repr__(self) -> str:
        return f'CacheLimit({self.size})'

    def __getstate__(self) -> dict[str, int]:
        return {'size': self.size}  # caches join again when they are unpickled

    def __setstate__(self, state: dict[str, int]) -> None:
        self.size = state['size']
        self._shelves = {}

    def join(self, shelf: Shelf) -> None:
        """Count a folder. All processes that share it should share the whole group of folders."""
        self._shelves[shelf.folder] = shelf

    def require(self, minimum: int) -> None:
        """Raise ``ConfigError`` unless the limit is larger than what must always be there, in bytes."""
        if minimum >= self.size:
            raise ConfigError(
                f'Minimum cache usage ({minimum} bytes) is larger than the cache limit ({self.size} bytes). Raise '
                f'`cache_limit`, as far as the disk allows: a shard that fell out of the cache is downloaded again.'
            )

    def used(self) -> int:
        """Bytes that count now, reservations included; a fetch that ends just now may count twice."""
        return self._count().total

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
        own = (shelf.folder, entry.key)
        with locked_folders([folder for folder in self._shelves if folder.is_dir()]):
            contents = self._count()
            if contents.total + needed > self.size:
                # Only now: a killed fetch that is in nobody's way costs nothing.
                for folder in self._shelves:
                    reclaim_fetches(folder)
                contents = self._count()
            if contents.fixed + needed > self.size:
                raise self._too_low(entry, contents.fixed + needed)
            order = self._victims(contents, own, next_use, entry if ahead else None)
            busy: list[Path] = []
            for victim in order:
                if contents.total + needed <= self.size:
                    break
                blocker = delete_entry(victim.shelf.folder, victim.entry)
                if blocker is None:
                    contents.total -= victim.size
                    victim.shelf.stats.add(evictions=1)
                else:
                    busy.append(blocker)
            if contents.total + needed <= self.size:
                lock.reserve(needed)
                return None
        busy += [path for path in contents.fetching if path != lock.path]
        if busy:
            return Blocked(busy[0])
        if ahead:
            return NoRoom()
        raise self._too_low(entry, contents.total + needed)

    def _too_low(self, entry: CacheEntry, needed: int) -> ConfigError:
        return ConfigError(
            f'Cache limit of {self.size} bytes is too low. Increase the `cache_limit` to at least {needed} bytes: '
            f'fetching {entry.key} takes that much, with its compressed file and what must stay.'
        )

    @staticmethod
    def _victims(
        contents: _Contents,
        own: tuple[Path, str],
        next_use: Callable[[CacheEntry], float] | None,
        ahead_of: CacheEntry | None,
    ) -> list[_Present]:
        """What may go, in the order in which it should: needed latest first, then unused for longest."""
        present = [item for key, item in contents.present.items() if key != own]
        if next_use is None:
            return sorted(present, key=lambda item: item.used)
        bound = -math.inf if ahead_of is None else next_use(ahead_of)
        ranked = [(-when, item.used, item) for item in present if (when := next_use(item.entry)) > bound]
        ranked.sort(key=lambda row: row[:2])
        return [item for _, _, item in ranked]

    def _count(self) -> _Contents:
        contents = _Contents(0, 0, {}, [])
        # Fetches first: one that ends in between is counted twice, in the other order it would not be counted at all.
        for shelf in self._shelves.values():
            _count_fetches(shelf.folder / FETCHES, contents)
        for shelf in self._shelves.values():
            _count_files(shelf, contents)
        return contents


def _count_files(shelf: Shelf, contents: _Contents) -> None:
    folders = ['']
    found: dict[str, CacheEntry] = {}
    while folders:
        prefix = folders.pop()
        try:
            items = os.scandir(shelf.folder / prefix)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with items:
            for item in items:
                name = prefix + item.name
                if item.is_dir(follow_symlinks=False):
                    if name != FETCHES:
                        folders.append(f'{name}/')
                    continue
                entry = shelf.found.get(name) or shelf.find(name)
                if entry is None and name not in shelf.other_files:
                    continue
                try:
                    info = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                contents.total += info.st_size
                if entry is None:
                    contents.fixed += info.st_size
                    continue
                found[name] = entry
                present = contents.present.setdefault((shelf.folder, entry.key), _Present(shelf, entry))
                present.size += info.st_size
                present.used = max(present.used, info.st_atime, info.st_mtime)
    shelf.found.clear()
    shelf.found.update(found)


def _count_fetches(state: Path, contents: _Contents) -> None:
    sizes: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(state) as items:
        for item in items:
            name, _, rest = item.name.partition('.')
            size = sizes.setdefault(name, 0)
            if rest == 'lock':
                contents.fetching.append(state / item.name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    sizes[name] = size + item.stat(follow_symlinks=False).st_size
    contents.total += sum(max(size, read_reservation(state / f'{name}.lock')) for name, size in sizes.items())


def delete_entry(folder: Path, entry: CacheEntry) -> Path | None:
    """Delete an entry's files, if any; returns the file that somebody has locked if that prevents it."""
    path = folder / entry.key
    try:
        handle = open_to_lock(path)
    except (FileNotFoundError, NotADirectoryError):
        # Without its first part an entry is not present. What else is there may be somebody's work in progress.
        if not _files(folder, entry):
            return None
        lock = FetchLock(folder, entry.key)
        if not lock.acquire(wait=False):
            return lock.path
        try:
            _unlink(folder, entry)
        finally:
            lock.release()
        return None
    with held(handle):
        if not try_lock_file(handle, path):
            return path
        _unlink(folder, entry)
    return None


def _files(folder: Path, entry: CacheEntry) -> list[Path]:
    names = (name for part in entry.parts for name in (part.name, part.packed_name) if name is not None)
    return [path for path in map(folder.joinpath, names) if os.path.lexists(path)]


def _unlink(folder: Path, entry: CacheEntry) -> None:
    for path in _files(folder, entry):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # noqa: PERF203
            raise cannot_write(folder, error) from error
