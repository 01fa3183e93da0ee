"""The files of a shard, under temporary names: download, verify, unpack, verify."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import ChecksumError, FormatError
from headrace.storage.cache.fetch_lock import FetchLock
from headrace.storage.cache.locks import lock_file
from headrace.storage.cache.mapped_file import check_inside, delete_file
from headrace.storage.cache.presence import missing
from headrace.storage.transfer.download import Transfer, download
from headrace.storage.transfer.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.storage.cache.entry import CachePart
    from headrace.storage.protocol import Store
    from headrace.storage.stats import CacheStats

__all__ = ['Fetcher', 'pinned', 'same_folder']


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
        """Make the parts' files under temporary names; returns (temporary, final), for `FetchLock.publish`."""
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


def pinned(final: Path, made: list[tuple[Path, Path]]) -> int | None:
    """Open and lock a file under its temporary name, if it is among those made, (temporary, final).

    So nobody evicts it between its final name and its mapping.
    """
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
