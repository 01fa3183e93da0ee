"""Permutations of epochs beside the shards in a cache folder, made once for all processes.

``.headrace-epochs`` of the cache folder holds one file for each permutation of MosaicML's orders in use, int64 in the
machine's byte order. A process writes it under a temporary name and renames it; an exclusive lock on the subfolder
makes the other processes wait. A process that maps a file holds a shared lock on it. The next write removes all files
without such a lock. Locks end with their processes, so kill -9 leaves only files, which are reused or removed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.errors import CacheError
from headrace.errors.redaction import warn
from headrace.order import Mixture, OrderConfig, fill_permutation, permutation_key
from headrace.storage.cache.control_folder import (
    ControlFolder,
    OpenFolder,
    claim_private_folder,
    private_folder,
    publish,
)
from headrace.storage.cache.locks import held, lock_file, try_lock_file

FOLDER = '.headrace-epochs'
_NAMES = re.compile(r'[0-9a-f]{32}\.int64(\.tmp)?')
IN_MEMORY = 65_536  # positions; below, every process computes them faster than it would open a file


class EpochPermutations:
    def __init__(self, folder: Path, *, is_private: bool = False) -> None:
        """Take a cache folder; a private one must belong to this user, since anybody may make folders beside it."""
        self._place = ControlFolder(folder, FOLDER, _NAMES)
        self.folder = self._place.path
        self._is_private = is_private

    @classmethod
    def beside(cls, caches: list[Path]) -> EpochPermutations:
        """The permutations of a dataset, in the cache folder of its first stream with a remote.

        A dataset without one keeps them in a folder of temporary files, since its folders are the user's own.
        """
        if caches:
            return cls(caches[0])
        return cls(private_folder(), is_private=True)

    def load(self, mixture: Mixture, config: OrderConfig, epoch: int) -> npt.NDArray[np.int64]:
        """Return the sample ids of an epoch's positions, int64[epoch size], read-only."""

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
