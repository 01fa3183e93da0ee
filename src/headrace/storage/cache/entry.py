"""The shards of a cache, each with its files, and the requests to fetch them."""

from __future__ import annotations

import contextlib
import enum
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from headrace.errors import ConfigError
from headrace.storage.cache.locks import cannot_use, held, lock_file, open_to_lock
from headrace.storage.protocol import check_key
from headrace.storage.transfer.download import DEFAULT, Transfer

OWN_NAMES: Final = '.headrace'  # Prefix of the names of the cache's own files in its folder.


@dataclass(frozen=True, slots=True)
class CachePart:
    """One file of a shard.

    Raises:
        ConfigError: a name could leave the cache folder, or belongs to the cache itself.
    """

    name: str
    """The file that readers map, relative to the cache folder and, unless packed, the key in the store."""
    size: int
    """Bytes of that file; an estimate if the file itself tells its size."""
    packed_name: str | None = None
    """The compressed file, relative to the folder and the key in the store; None if the store holds it unpacked."""
    packed_size: int | None = None
    """Bytes of the compressed file; None if the index does not say."""
    verify: Callable[[Path], None] | None = None
    """Raises FormatError if the file is not what the index says. Its size has been checked before."""
    verify_copy: Callable[[Path], None] | None = None
    """The same for a file that comes from a peer, which is trusted less than the store."""
    verify_packed: Callable[[Path], None] | None = None
    """The same for the compressed file."""
    unpack: Callable[[Path, Path, int], None] | None = None
    """(compressed file, file to write, most bytes to write); raises FormatError."""
    size_at: int | None = None
    """Offset of the file's own size in the file, a little-endian u32; None: `size` is exact."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.packed_name is not None:
            _check_name(self.packed_name)
            if self.unpack is None or self.packed_name == self.name:
                raise ConfigError(
                    f'A packed part needs `unpack` and a packed name that differs from its name; got {self!r}.'
                )
        if self.size_at is not None and self.packed_name is None:
            raise ConfigError(f'Only a packed part may tell its own size; got {self!r}.')
        if self.size < 0 or (self.packed_size is not None and self.packed_size < 0):
            raise ConfigError(f'Sizes of a part are >= 0; got {self!r}.')

    def has_size(self, size: int, read: Callable[[int, int], bytes]) -> bool:
        """Whether a file has the size that it should have.

        Args:
            size: bytes of the file.
            read: (offset, count) -> these bytes of it, or fewer at its end.
        """
        if self.size_at is None:
            return size == self.size
        return size > 0 and int.from_bytes(read(self.size_at, 4), 'little') == size

    def is_in(self, folder: str) -> bool:
        """Whether a folder holds the file, with the right size."""
        path = f'{folder}/{self.name}'
        try:
            if self.size_at is None:
                return os.stat(path).st_size == self.size  # noqa: PTH116 - a Path costs more than the stat
            with open(path, 'rb', buffering=0) as file:
                handle = file.fileno()
                return self.has_size(os.fstat(handle).st_size, lambda at, count: os.pread(handle, count, at))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError as error:
            raise cannot_use(path, error) from error


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One shard: its parts appear and disappear together."""

    parts: tuple[CachePart, ...]
    id: int = -1
    """The caller's own number for the shard, for its ``next_use``: from 0 on, another for each; -1: it has none."""

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError('A cache entry has at least one part; got none.')

    @property
    def key(self) -> str:
        """Names the entry within its cache: the name of its first part."""
        return self.parts[0].name

    @property
    def size(self) -> int:
        """Bytes on disk once the entry is present and its compressed files are gone."""
        return sum(part.size for part in self.parts)

    def absent(self, folder: str) -> list[CachePart]:
        """The parts whose files are not in a folder, or are not of the right size."""
        return [part for part in self.parts if not part.is_in(folder)]


NextUse: TypeAlias = 'Callable[[CacheEntry], float]'
"""The time of an entry's next use, in any unit, infinite for never; valid for all processes of the machine."""


class LazyEntry(CacheEntry):
    """An entry that keeps only name and number, to save memory for large cache folders."""

    __slots__ = ('_key', '_make')

    def __init__(self, entry: CacheEntry, make: Callable[[int], CacheEntry]) -> None:
        """Take an entry with a number, and a function that makes the entry from that number."""
        object.__setattr__(self, 'id', entry.id)
        object.__setattr__(self, '_key', entry.key)
        object.__setattr__(self, '_make', make)

    @property
    def key(self) -> str:
        return self._key

    @property
    def parts(self) -> tuple[CachePart, ...]:  # pyright: ignore[reportIncompatibleVariableOverride] - read-only, too
        return self._make(self.id).parts


def _check_name(name: str) -> None:
    if f'/{OWN_NAMES}' in f'/{check_key(name)}'.lower():
        raise ConfigError(
            f"No part of a shard's name begins with `{OWN_NAMES}`, which is for the files of the cache itself; got "
            f'{name!r}. Write the shard under another name.'
        )


def space_needed(folder: Path, parts: list[CachePart], *, keep_packed: bool) -> int:
    """The most bytes that fetching these parts adds to the folder at one time."""
    packed = [
        part.packed_size or part.size
        for part in parts
        if part.packed_name is not None and not os.path.exists(folder / part.packed_name)  # noqa: PTH110 - never raises
    ]
    return sum(part.size for part in parts) + (sum(packed) if keep_packed else max(packed, default=0))


@dataclass(frozen=True, slots=True)
class FetchRequest:
    entry: CacheEntry
    next_use: NextUse | None = None  # See `ShardCache.fetch`, as for the next two.
    wait: bool = True
    how: Transfer = DEFAULT
    ahead: bool = True  # The shard is not needed yet: nothing that is needed sooner is evicted for it.


class FetchStatus(enum.Enum):
    PRESENT = 'present'
    ELSEWHERE = 'elsewhere'
    """Another process is fetching the shard."""
    BLOCKED = 'blocked'
    """Under the limit, it waits until a file is released."""
    NO_ROOM = 'no room'
    """Under the limit, all other shards are needed sooner."""


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
