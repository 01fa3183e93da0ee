"""The kept table of a large ``index.json``, for the next process.

A cache folder with an index of `WORTHWHILE` shards or more gets a file ``.headrace-index`` beside index.json: the table
of shards as `headrace.format.table_bytes` writes it. The file is valid under four conditions. It was made from this
index.json. Its checksum is right. Its table keeps all rules of an index. It belongs to this user or to the owner of
index.json. Otherwise index.json is parsed, so nobody has to remove the file.

Any number of processes may write the file. Each locks a temporary file while it writes; a process that finds it locked
writes nothing. The next process overwrites what a killed one left. Folders of a user's own data get no such file.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from pathlib import Path
from typing import Final

import xxhash

from headrace.errors import CacheError
from headrace.format import IndexKey, ShardTable, pack_table, read_packed_key, unpack_table
from headrace.storage.cache.locks import held, try_lock_file

__all__ = ['IndexTable']

TABLE: Final = '.headrace-index'
WORTHWHILE: Final = 4096  # shards; fewer are parsed in a few milliseconds
_BLOCK: Final = 1 << 20  # bytes of index.json in memory at once while it is compared


class IndexTable:
    """The kept table of one cache folder's index.json."""

    def __init__(self, folder: Path, *, allow_unsafe_types: bool) -> None:
        """Touches no disk.

        Args:
            folder: the cache folder.
            allow_unsafe_types: accept `pkl` columns, which run code when they are read.
        """
        self._folder, self._allow_unsafe_types = folder, allow_unsafe_types

    def find(self, index: Path) -> tuple[ShardTable, str] | None:
        """The kept table, and the fingerprint of index.json; None if there is none, or any doubt about it.

        Args:
            index: path of index.json, which may have another name while it is fetched.
        """
        with open(index, 'rb', buffering=0) as file:
            owner, size = os.fstat(file.fileno()).st_uid, os.fstat(file.fileno()).st_size
            data = _read_table(self._folder / TABLE, owners={os.geteuid(), owner}, most=size)
            key = None if data is None else read_packed_key(data)
            if data is None or key is None or key.size != size or key.digest != _digest(file):
                return None
        shards = unpack_table(data, allow_unsafe_types=self._allow_unsafe_types)
        return None if shards is None else (shards, key.fingerprint)

    def keep(self, shards: ShardTable, key: IndexKey) -> None:
        """Keep the table of a large parsed index, if the folder can take it."""
        data = pack_table(shards, key) if len(shards) >= WORTHWHILE else None
        if data is not None:
            with contextlib.suppress(OSError, CacheError):
                _write_table(self._folder, data)


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
