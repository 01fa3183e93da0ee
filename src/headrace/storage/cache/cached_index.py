"""The index of a cache folder, watched while shards are read, and the marker of its remote. `index_fetch` fetches both.

A running process has read one index, and another process may replace it. So a process looks at index.json when it
opens a shard, and before a shard that it fetched gets its final name. With another index in the folder it stops with an
error. A shard that was written before the last look is of the index that was there: for those, one look a second is
enough.

The marker, a file in the folder that names its remote, appears just before the first index.json, under the same lock.
Two data sets can have the same index, so nothing else would show that their shards are mixed. A cache of another
program has no marker unless its index had to be fetched again. The marker does not name the server: names and ports of
one data set's servers change, and each rank may use another gateway.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, TypeAlias

import xxhash

from headrace.errors import CacheError, StreamError
from headrace.errors.redaction import without_credentials
from headrace.storage.cache.locks import held, lock_file, open_to_lock
from headrace.storage.protocol import check_key
from headrace.storage.resolve import local_path

REMOTE_MARKER: Final = '.headrace-remote'  # File in a cache folder that names the remote.
_LONGEST: Final = 1 << 16  # Bytes of it that are read.

_BLOCK: Final = 1 << 20  # Bytes of an index that a comparison reads at once.

_LOOK_AGAIN: Final = 1.0  # Seconds between two looks at index.json for old shards.

_CLOCK_STEP: Final = 1.0  # Seconds that the time of a file may be behind the clock.


def marker_text(url: str) -> str:
    """The text of the file: a folder's real path, or a URL without credentials and last slashes."""
    path = local_path(url)
    address = without_credentials(url.rstrip('/')).rstrip('/') if path is None else str(Path(path).resolve())
    return f'{address}\n'


def check_remote(folder: Path, url: str) -> None:
    """See that a folder is not the cache of another remote; else a StreamError."""
    noted, marker = read_marker(folder), marker_text(url).strip()
    # `rm -r cache/*` leaves files with a dot.
    if noted and noted != marker and _holds_files(folder):
        raise StreamError(
            f'Reused local directory: {folder} is the cache of {noted} vs. {marker}. Provide a different one. If the '
            f'first remote was a mistake, remove the folder. If both hold the same data, delete '
            f'{folder / REMOTE_MARKER}.'
        )


def is_from(folder: Path, url: str) -> bool:
    """Whether a folder's marker names this remote."""
    return read_marker(folder) == marker_text(url).strip()


def read_marker(folder: Path) -> str:
    """The marker's text; empty if there is none. A power failure may empty it, too."""
    try:
        handle = os.open(folder / REMOTE_MARKER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ''
    with open(handle, 'rb') as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ''
        return file.read(_LONGEST).decode(errors='replace').strip('\0 \r\n\t')


def _holds_files(folder: Path) -> bool:
    """Whether there are an index or shards, or may be: not every folder whose files can be read can be listed."""
    try:
        return any(not path.name.startswith('.') for path in folder.iterdir())
    except OSError:
        return True


FileIdentity: TypeAlias = 'tuple[int, int]'
"""Differs between a file and its replacement. FUSE may give a file a new inode at each look."""


class CachedIndex:
    """The index of one folder, as one process has read it."""

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        """Touches no disk; nothing is compared with the index until it `was_read`."""
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 - Path.resolve would follow the user's links
        self.path = self.folder / check_key(name)
        self._read: tuple[FileIdentity, str] | None = None  # identity and digest of the index that was read
        self.has_grown: Callable[[Path], bool] | None = None
        """Tells whether a file is the index that was read with further shards at its end."""
        self._looked = 0.0  # the last time that `require_same` found it in the folder, by `time.time`

    def was_read(self, identity: FileIdentity | None, digest: str) -> None:
        """Say which file was read, under its final name or just before it gets that; None if it is gone."""
        self._read = None if identity is None else (identity, digest)

    def require_same(self, written: float = math.inf) -> None:
        """See that the folder's index is still the one that was read, or was deleted; else a CacheError.

        `written`: when the shard that is about to be read was written, in seconds of `time.time`.
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
        if digest in {'', self._read[1]} or (self.has_grown is not None and self.has_grown(self.path)):
            self._read, self._looked = (identity, self._read[1]), now
            return
        raise CacheError(
            f'{self.path} is no longer the index that this process has read: the data have changed, and another '
            f'process has refreshed the cache. Start this one again. Runs on different versions of the data need '
            f'different `local` folders.'
        )

    @contextlib.contextmanager
    def unchanged(self) -> Generator[None]:
        """Publish a shard inside the block: the index is not replaced meanwhile. A CacheError if it was before."""
        if self._read is None:
            yield
            return
        # If it was deleted, every shard that is fetched again is of the index that was read.
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
