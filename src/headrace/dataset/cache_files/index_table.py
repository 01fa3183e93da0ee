"""Reads a stream's ``index.json``, and keeps the table of a large one for the next process.

A cache folder with an index of `WORTHWHILE` shards or more gets a file ``.headrace-index`` beside index.json: the table
of shards as `headrace.format.table_bytes` writes it. The file is valid under four conditions. It was made from this
index.json. Its checksum is right. Its table keeps all rules of an index. It belongs to this user or to the owner of
index.json. Otherwise index.json is parsed, so nobody has to remove the file.

Any number of processes may write the file. Each locks a temporary file while it writes; a process that finds it locked
writes nothing. The next process overwrites what a killed one left. Folders of a user's own data get no such file.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import xxhash

from headrace.errors import CacheError, HeadraceError
from headrace.format import IndexKey, ShardTable, pack_table, parse_index, read_packed_key, unpack_table
from headrace.storage.cache.locks import held, try_lock_file

__all__ = ['INDEX', 'IndexFile']

INDEX: Final = 'index.json'
TABLE: Final = '.headrace-index'
WORTHWHILE: Final = 4096  # shards; fewer are parsed in a few milliseconds
_BLOCK: Final = 1 << 20  # bytes of index.json in memory at once while it is compared


class IndexFile:
    """One stream's index."""

    def __init__(self, source: str, *, allow_unsafe_types: bool, cache: Path | None = None) -> None:
        """Touches no file.

        Args:
            source: path or URL of the index, for messages.
            allow_unsafe_types: accept `pkl` columns, which run code when they are read.
            cache: folder to keep the table in; None: nowhere.
        """
        self.shards = ShardTable.empty()
        self.fingerprint = ''
        self._source, self._allow_unsafe_types, self._cache = source, allow_unsafe_types, cache
        self._parsed: IndexKey | None = None

    def read(self, path: Path) -> None:
        """Read an index.json at this path, or the kept table of it.

        Raises:
            IndexFileError: the file is empty or is not JSON.
            FormatError: it is JSON, but breaks the format's rules.
            EmptyDatasetError: it has no samples.
        """
        if self._cache is not None and self._find(path):
            return
        data = path.read_bytes()
        self.shards = parse_index(data, source=self._source, allow_unsafe_types=self._allow_unsafe_types)
        self.fingerprint = hashlib.blake2b(data, digest_size=8).hexdigest()
        self._parsed = IndexKey(xxhash.xxh3_128_digest(data), len(data), self.fingerprint)

    def unproven(self, cached: Path) -> Iterator[str]:
        """Files whose content may differ between a cached index and the last one read.

        A shard is the same if its entries in both indexes are equal, with checksums of its files.

        Args:
            cached: the cached index. If it cannot be read, all shards may differ.
        """
        old = ShardTable.empty()
        with contextlib.suppress(OSError, HeadraceError):
            old = parse_index(cached.read_bytes(), source=str(cached), allow_unsafe_types=True)
        for info in self.shards:
            found = old.find(info.files[0].raw.basename)
            is_same = found is not None and old[found] == info
            for file in info.files:
                for stored in (file.raw, file.zip):
                    if stored is not None and not (is_same and stored.hashes):
                        yield stored.basename
        for info in old:
            for file in info.files:
                for stored in (file.raw, file.zip):
                    if stored is not None and self.shards.find(stored.basename) is None:
                        yield stored.basename

    def _find(self, path: Path) -> bool:
        """Take the kept table of this index.json; False if there is none, or any doubt about it."""
        assert self._cache is not None
        with open(path, 'rb', buffering=0) as index:
            owner, size = os.fstat(index.fileno()).st_uid, os.fstat(index.fileno()).st_size
            data = _read_table(self._cache / TABLE, owners={os.geteuid(), owner}, most=size)
            key = None if data is None else read_packed_key(data)
            if data is None or key is None or key.size != size or key.digest != _digest(index):
                return False
        shards = unpack_table(data, allow_unsafe_types=self._allow_unsafe_types)
        if shards is None:
            return False
        self.shards, self.fingerprint, self._parsed = shards, key.fingerprint, None
        return True

    def keep(self) -> None:
        """Keep the table of a large parsed index, if the folder can take it."""
        if self._cache is None or self._parsed is None or len(self.shards) < WORTHWHILE:
            return
        data = pack_table(self.shards, self._parsed)
        if data is not None:
            with contextlib.suppress(OSError, CacheError):
                _write_table(self._cache, data)


def _read_table(path: Path, *, owners: set[int], most: int) -> bytes | None:
    """The content of a regular file of one of these owners; None if there is none, or if it is larger than `most`."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in owners or info.st_size > most:
            return None
        with open(handle, 'rb', buffering=0, closefd=False) as file:
            return file.read(info.st_size)
    except OSError:
        return None
    finally:
        os.close(handle)


def _digest(file: io.FileIO) -> bytes:
    digest, block = xxhash.xxh3_128(), memoryview(bytearray(_BLOCK))
    while count := file.readinto(block):
        digest.update(block[:count])
    return digest.digest()


def _write_table(folder: Path, data: bytes) -> None:
    temporary = folder / f'{TABLE}.tmp'
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    # Other users may only read it: its owner is the reason to trust it.
    handle = os.open(temporary, flags, 0o644)
    with held(handle):
        if not try_lock_file(handle, temporary):
            return  # another process is writing the same
        info = os.fstat(handle)
        # The last holder of the lock may have given the file its final name.
        if not os.path.samestat(info, temporary.stat(follow_symlinks=False)) or info.st_nlink != 1:
            return
        os.ftruncate(handle, 0)
        with open(handle, 'wb', closefd=False) as file:
            file.write(data)
        temporary.replace(folder / TABLE)
