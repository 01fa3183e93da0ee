"""One fetch of a shard: lock, room, download, verify, unpack, verify, rename.

Files have temporary names until all parts are verified.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import ChecksumError, FormatError
from headrace.storage.cache.entry import space_needed
from headrace.storage.cache.fetch_failures import despite_deletion, disk_errors
from headrace.storage.cache.fetch_lock import FetchLock
from headrace.storage.cache.fetch_result import FetchResult, FetchStatus
from headrace.storage.cache.limit import CacheLimit, LimitedFolder, NextUse, RoomRequest, publishing
from headrace.storage.cache.locks import cannot_write, lock_file
from headrace.storage.cache.mapped_file import check_inside, delete_file, suspend_leases
from headrace.storage.cache.presence import missing
from headrace.storage.transfer.download import Transfer, download
from headrace.storage.transfer.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.storage.cache.entry import CacheEntry, CachePart
    from headrace.storage.cache.presence import PresentFiles
    from headrace.storage.protocol import Store
    from headrace.storage.stats import CacheStats

__all__ = ['FetchRoom', 'Fetcher', 'ShardFetch', 'same_folder']


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Makes parts of shards present in a folder. The caller holds the entry's `FetchLock`."""

    folder: Path
    store: Store | None
    """None if the folder is all there is."""
    keep_packed: bool
    retry: Retry
    stats: CacheStats
    how: Transfer

    def produce(self, parts: list[CachePart], lock: FetchLock) -> list[tuple[Path, Path]]:
        """Make the parts' files under temporary names; returns (temporary, final), for `publish`."""
        made: list[tuple[Path, Path]] = []
        for number, part in enumerate(parts):
            raw = lock.temporary(number, 'raw')
            if part.packed_name is None:
                self._twice(part, lambda part=part, raw=raw: self._download_raw(part, raw, lock))
            else:
                packed = lock.temporary(number, 'packed')
                self._produce_packed(part, raw, packed, lock)
                if packed.exists():
                    if self.keep_packed:
                        made.append((packed, self.folder / part.packed_name))
                    else:
                        lock.delete(packed)
            made.append((raw, self.folder / part.name))
        return made

    def publish(self, made: list[tuple[Path, Path]], lock: FetchLock) -> None:
        """Give the files their final names, the entry's first part last: it stands for the whole entry."""
        for temporary, final in reversed(made):
            if final.parent != self.folder:
                try:
                    final.parent.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    is_race = isinstance(error, (FileExistsError, FileNotFoundError))
                    if is_race and not os.path.lexists(error.filename):  # it, or the folder above, was deleted
                        raise FileNotFoundError(errno.ENOENT, 'No such folder', error.filename) from error
                    raise cannot_write(final.parent, error) from error
                check_inside(str(self.folder), os.path.relpath(final.parent, self.folder))
            lock.publish(temporary, final)
        self.stats.add(fetches=1)

    def _download(self, key: str, target: Path, size: int | None, lock: FetchLock) -> None:
        """Download an object of that size."""
        if self.store is None:
            raise missing(self.folder / key)
        with lock.create(target) as out:
            download(self.store, key, out, self.retry, size=size, how=self.how, stats=self.stats)

    def _download_raw(self, part: CachePart, raw: Path, lock: FetchLock) -> None:
        self._download(part.name, raw, part.size, lock)
        if part.verify:
            part.verify(raw)

    def _produce_packed(self, part: CachePart, raw: Path, packed: Path, lock: FetchLock) -> None:
        assert part.packed_name is not None
        local = self.folder / part.packed_name
        if local.exists():
            check_inside(str(self.folder), part.packed_name)
            try:
                self._unpack(part, local, raw, lock)
            except FormatError as error:
                if self.store is None:
                    raise self._explained(part, error, times=1) from error
                # A good one is in the store.
                self.stats.add(retries=1)
                delete_file(self.folder, part.packed_name)
            else:
                if self.store is not None and not self.keep_packed:
                    delete_file(self.folder, part.packed_name)
                return
        self._twice(part, lambda: self._download_packed(part, raw, packed, lock))

    def _download_packed(self, part: CachePart, raw: Path, packed: Path, lock: FetchLock) -> None:
        assert part.packed_name is not None
        self._download(part.packed_name, packed, part.packed_size, lock)
        self._unpack(part, packed, raw, lock)

    def _unpack(self, part: CachePart, packed: Path, raw: Path, lock: FetchLock) -> None:
        assert part.unpack is not None
        size = packed.stat().st_size
        if part.packed_size is not None and size != part.packed_size:
            raise ChecksumError(f'The compressed file has {size} bytes, the index gives {part.packed_size}.')
        if part.verify_packed:
            part.verify_packed(packed)
        lock.delete(raw)
        begun = time.perf_counter_ns()
        part.unpack(packed, raw, part.size)
        taken = time.perf_counter_ns() - begun
        size = raw.stat().st_size
        if part.size_at is None and size != part.size:
            raise ChecksumError(f'It unpacks to {size} bytes, the index gives {part.size}.')
        if part.verify:
            part.verify(raw)
        self.stats.add(bytes_unpacked=size, nanoseconds_unpacking=taken)

    def _twice(self, part: CachePart, attempt: Callable[[], None]) -> None:
        """A bad file is fetched again once: the fault may lie in the transfer."""
        try:
            attempt()
        except FormatError:
            self.stats.add(retries=1)
            try:
                attempt()
            except FormatError as error:
                raise self._explained(part, error, times=2) from error

    def _explained(self, part: CachePart, error: FormatError, *, times: int) -> FormatError:
        key = part.packed_name or part.name
        if self.store is None:
            origin, fix = f'the local file {self.folder / key}', 'Restore it, or write the dataset again.'
        else:
            origin = f'{self.store.url.rstrip("/")}/{key}'
            fix = 'The object in the store is bad, or the index is of another version: write the dataset again.'
        kind = type(error) if isinstance(error, ChecksumError) else ChecksumError
        return kind(
            f'{origin} is not what its index says ({"fetched twice" if times == 2 else "read once"}, for '
            f'{self.folder / part.name}): {error} {fix}'
        )


class WatchedIndex(Protocol):
    """The index that a process has read, which another process may replace."""

    def require_same(self) -> None:
        """See that it is still in the folder."""
        ...

    def unchanged(self) -> contextlib.AbstractContextManager[None]:
        """Publish a shard inside the block: nobody replaces the index meanwhile."""
        ...


class FetchRoom(NamedTuple):
    """The room for shards under a limit."""

    limit: CacheLimit
    folder: LimitedFolder
    grown: dict[str, int]
    """Bytes of entries that turned out larger than estimated."""


@dataclass(frozen=True, slots=True)
class ShardFetch:
    """A fetch of a shard, by one process of the machine at a time."""

    fetcher: Fetcher
    files: PresentFiles
    index: WatchedIndex
    room: FetchRoom | None
    """None: there is no limit."""

    def run(
        self,
        entry: CacheEntry,
        new_lock: Callable[[], FetchLock],
        next_use: NextUse | None,
        *,
        ahead: bool,
        wait: bool,
    ) -> FetchResult:
        """Fetch the absent parts of a shard, once there is room for them.

        A reader's fetch under a limit (not ``ahead``) returns the first part, too. It was locked before it got its
        final name, so that nobody evicts it before it is mapped.

        Args:
            entry: The shard.
            new_lock: Makes the lock of an attempt.
            next_use: As `ShardCache.fetch`'s.
            ahead: The shard is not needed yet.
            wait: As `ShardCache.fetch`'s.
        """
        fetcher = self.fetcher
        if self.room is not None:
            suspend_leases()  # a waiting thread holds no lease

        def attempt() -> FetchResult:
            lock = new_lock()
            try:
                if not lock.acquire(wait=wait):
                    return FetchResult(FetchStatus.ELSEWHERE)
                with lock:
                    return self._fetch_locked(entry, lock, next_use, ahead=ahead)
            finally:
                fetcher.stats.add(seconds_waiting=lock.waited)

        with disk_errors(fetcher.folder, entry, keep_packed=fetcher.keep_packed):
            return despite_deletion(fetcher.folder, entry.key, attempt)

    def _fetch_locked(
        self,
        entry: CacheEntry,
        lock: FetchLock,
        next_use: NextUse | None,
        *,
        ahead: bool,
    ) -> FetchResult:
        fetcher, room = self.fetcher, self.room
        absent = self.files.absent(entry)
        if not absent:
            return FetchResult(FetchStatus.PRESENT)
        needed = space_needed(fetcher.folder, absent, keep_packed=fetcher.keep_packed)
        if room is not None:
            for part in absent:  # of the wrong size, if it is there at all
                delete_file(fetcher.folder, part.name)
            lock.clear()
            needed = max(needed, room.grown.get(entry.key, 0))
            refusal = room.limit.admit(RoomRequest(room.folder, entry, needed, lock, next_use, ahead))
            if refusal is not None:
                return refusal
        self.index.require_same()
        made = fetcher.produce(absent, lock)
        handle = None
        if room is None:
            with self.index.unchanged():
                fetcher.publish(made, lock)
        else:
            size = sum(temporary.stat().st_size for temporary, _ in made)
            if size > needed:  # it was an estimate; the files count already
                room.grown[entry.key] = size
                refusal = room.limit.admit(RoomRequest(room.folder, entry, 0, lock, next_use, ahead))
                if refusal is not None:
                    return refusal
            handle = None if ahead else self._pin(entry, made)
            try:
                with self.index.unchanged(), publishing(room.folder, size):
                    fetcher.publish(made, lock)
            except BaseException:
                if handle is not None:
                    os.close(handle)
                raise
        self.files.verified(entry)
        return FetchResult(FetchStatus.PRESENT, size=entry.size, handle=handle)

    def _pin(self, entry: CacheEntry, made: list[tuple[Path, Path]]) -> int | None:
        """Lock the entry's first part under its temporary name, if that is among what was made."""
        final = self.fetcher.folder / entry.key
        for temporary, target in made:
            if target == final:
                handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    lock_file(handle, temporary, shared=True)
                except BaseException:
                    os.close(handle)
                    raise
                return handle
        return None


def same_folder(store: Store | None, folder: Path) -> bool:
    """Whether a store is the cache folder itself, so that there is nothing to fetch and nothing to delete."""
    root = getattr(store, 'root', None)
    if root is None:
        return False
    with contextlib.suppress(OSError):
        return os.path.realpath(root) == os.path.realpath(folder)
    return False
