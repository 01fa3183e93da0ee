"""The index of a cache folder, watched while shards are read. `index_fetch` fetches it.

A running process has read one index, and another process may replace it. So a process looks at index.json when it
opens a shard, and before a shard that it fetched gets its final name. With another index in the folder it stops with an
error. A shard that was written before the last look is of the index that was there: for those, one look a second is
enough.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import xxhash

from headrace.errors import CacheError
from headrace.storage.cache.locks import held, lock_file, open_to_lock
from headrace.storage.protocol import check_key

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ['CachedIndex', 'FileIdentity', 'digest_of', 'identity_of', 'locked_index']

_BLOCK: Final = 1 << 20  # Bytes of an index that a comparison reads at once.
_LOOK_AGAIN: Final = 1.0  # Seconds between two looks at index.json for old shards.
_CLOCK_STEP: Final = 1.0  # Seconds that the time of a file may be behind the clock.

FileIdentity: TypeAlias = 'tuple[int, int]'
"""Differs between a file and its replacement. FUSE may give a file a new inode at each look."""


class CachedIndex:
    """The index of one folder, as one process has read it."""

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        """Touches no disk; nothing is compared with the index until it `was_read`."""
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 - Path.resolve would follow the user's links
        self.path = self.folder / check_key(name)
        self._read: tuple[FileIdentity, str] | None = None  # identity and digest of the index that was read
        self._looked = 0.0  # the last time that `require_same` found it in the folder, by `time.time`

    def was_read(self, identity: FileIdentity | None, digest: str) -> None:
        """Say which file was read, under its final name or just before it gets that; None: it is gone."""
        self._read = None if identity is None else (identity, digest)

    def require_same(self, written: float = math.inf) -> None:
        """See that the folder's index is still the one that was read. One that was deleted is no other.

        Args:
            written: when the shard that is about to be read was written, in seconds of `time.time`.

        Raises:
            CacheError: it is another.
        """
        if self._read is None:
            return
        now = time.time()
        if written + _CLOCK_STEP < self._looked <= now < self._looked + _LOOK_AGAIN:
            return
        identity = identity_of(self.path)
        if identity is None or identity == self._read[0]:
            self._looked = now
            return
        digest = digest_of(self.path)
        if digest in {'', self._read[1]}:
            self._read, self._looked = (identity, self._read[1]), now
            return
        raise CacheError(
            f'{self.path} is no longer the index that this process has read: the data have changed, and another '
            f'process has refreshed the cache. Start this one again. Runs on different versions of the data need '
            f'different `local` folders.'
        )

    @contextlib.contextmanager
    def unchanged(self) -> Generator[None]:
        """Publish a shard inside the block: nobody replaces the index meanwhile.

        Raises:
            CacheError: it has been replaced.
        """
        if self._read is None:
            yield
            return
        # Of one that was deleted, every shard that is fetched anew is of the index that was read.
        with locked_index(self.path, shared=True):
            self.require_same()
            yield


@contextlib.contextmanager
def locked_index(path: Path, *, shared: bool = False) -> Generator[None]:
    """Lock an index: exclusively to replace it, shared to publish a shard of it. One that is absent needs no lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) if shared else open_to_lock(path)
    except OSError:
        yield
        return
    with held(handle):
        lock_file(handle, path, shared=shared)
        yield


def identity_of(path: Path) -> FileIdentity | None:
    """The identity of a file; None if there is none."""
    try:
        info = os.stat(path)  # noqa: PTH116 - a Path costs more than the stat
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size


def digest_of(path: Path) -> str:
    """Of a file's bytes; empty if it cannot be read."""
    digest, block = xxhash.xxh3_128(), memoryview(bytearray(_BLOCK))
    try:
        with open(path, 'rb', buffering=0) as file:
            while count := file.readinto(block):
                digest.update(block[:count])
    except OSError:
        return ''
    return digest.hexdigest()
