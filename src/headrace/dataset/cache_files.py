"""Files beside the shards in a cache folder, made once for all processes: the table of a large index, and permutations.

A cache folder with an index of `WORTHWHILE` shards or more gets a file ``.headrace-index`` beside index.json: the table
of shards as `headrace.format.table_bytes` writes it. The file is valid under four conditions. It was made from this
index.json. Its checksum is right. Its table keeps all rules of an index. It belongs to this user or to the owner of
index.json. Otherwise index.json is parsed, so nobody has to remove the file. Any number of processes may write it. Each
locks a temporary file while it writes; a process that finds it locked writes nothing. The next process overwrites what
a killed one left. Folders of a user's own data get no such file.

``.headrace-epochs`` of the cache folder holds one file for each permutation of MosaicML's orders in use, int64 in the
machine's byte order. A process writes it under a temporary name and renames it; an exclusive lock on the subfolder
makes the other processes wait. A process that maps a file holds a shared lock on it. The next write removes all files
without such a lock. Locks end with their processes, so kill -9 leaves only files, which are reused or removed.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.errors import CacheError
from headrace.format import IndexKey, ShardTable, pack_table, read_packed_key, unpack_table
from headrace.order import Mixture, OrderConfig, fill_permutation, permutation_key
from headrace.redaction import warn
from headrace.storage.cache.control_folder import (
    ControlFolder,
    OpenFolder,
    claim_private_folder,
    private_folder,
    publish,
)
from headrace.storage.cache.locks import held, lock_file, try_lock_file

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


FOLDER = '.headrace-epochs'
_NAMES = re.compile(r'[0-9a-f]{32}\.int64(\.tmp)?')
IN_MEMORY = 65_536  # positions; below, every process computes them faster than it would open a file


class EpochPermutations:
    """The permutations of one dataset."""

    def __init__(self, folder: Path, *, is_private: bool = False) -> None:
        """Take the folder that holds the subfolder, which is made on demand.

        Args:
            folder: a cache folder.
            is_private: whether it must belong to this user, since anybody may make folders beside it.
        """
        self._place = ControlFolder(folder, FOLDER, _NAMES)
        self.folder = self._place.path
        self._is_private = is_private

    @classmethod
    def beside(cls, caches: list[Path]) -> EpochPermutations:
        """The permutations of a dataset, in the cache folder of its first stream with a remote.

        Args:
            caches: folders of the streams with a remote. A dataset without one keeps its permutations in a folder of
                temporary files, since its folders are the user's own.
        """
        if caches:
            return cls(caches[0])
        return cls(private_folder(), is_private=True)

    def load(self, mixture: Mixture, config: OrderConfig, epoch: int) -> npt.NDArray[np.int64]:
        """Return the sample ids of an epoch's positions, int64[epoch size], read-only.

        Raises:
            ConfigError: the order does not exist for this data.
        """

        def fill(out: npt.NDArray[np.int64]) -> None:
            fill_permutation(mixture, config, epoch, out)

        if mixture.epoch_size < IN_MEMORY:
            return _in_memory(mixture.epoch_size, fill)
        name = f'{permutation_key(mixture, config, epoch)}.int64'
        try:
            if self._is_private:
                claim_private_folder(self.folder.parent)
            ids = self._find(name, mixture.epoch_size)
            return self._make(name, mixture.epoch_size, fill) if ids is None else ids
        except (OSError, CacheError) as error:
            warn(
                f'The order of an epoch cannot be kept in {self.folder} ({error}): every process computes it for '
                f'itself, and holds {mixture.epoch_size * 8 >> 20} MiB. Name a writable `local`.',
                stacklevel=2,
            )
            return _in_memory(mixture.epoch_size, fill)

    def _find(self, name: str, size: int) -> npt.NDArray[np.int64] | None:
        try:
            with self._place.opened(only_read=True) as folder:
                return self._map(folder, name, size)
        except FileNotFoundError:
            return None

    def _map(self, folder: OpenFolder, name: str, size: int) -> npt.NDArray[np.int64] | None:
        try:
            handle = folder.open_file(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            lock_file(handle, folder.path / name, shared=True)
            if os.fstat(handle).st_size != size * 8:
                return None
            # The map keeps a duplicate of the descriptor, and with it the lock, as long as the array is used.
            return np.frombuffer(mmap.mmap(handle, size * 8, access=mmap.ACCESS_READ), np.int64)
        finally:
            os.close(handle)

    def _make(self, name: str, size: int, fill: Callable[[npt.NDArray[np.int64]], None]) -> npt.NDArray[np.int64]:
        """Compute a file, unless another process has done so in the meantime, and map it."""
        with self._place.opened(make=True) as folder:
            lock_file(folder.handle, self.folder)
            ids = self._map(folder, name, size)
            if ids is not None:
                return ids
            self._clear(folder)
            ids = _in_memory(size, fill)
            publish(folder, name, [ids.data])
            mapped = self._map(folder, name, size)
            return ids if mapped is None else mapped

    def _clear(self, folder: OpenFolder) -> None:
        """Remove files that no process has mapped: earlier epochs, and leftovers of killed processes."""
        for name in folder.names():
            with contextlib.suppress(OSError, CacheError):
                handle = folder.open_file(name, os.O_RDONLY)
                with held(handle):
                    if try_lock_file(handle, folder.path / name):
                        folder.delete(name)


def _in_memory(size: int, fill: Callable[[npt.NDArray[np.int64]], None]) -> npt.NDArray[np.int64]:
    ids = np.empty(size, np.int64)
    fill(ids)
    return ids
