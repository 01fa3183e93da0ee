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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.errors import CacheError
from headrace.errors.redaction import warn
from headrace.order import Mixture, OrderConfig, fill_permutation, permutation_key
from headrace.selection.kept_file import KeptFile
from headrace.storage.cache.control_folder import OpenFolder, claim_private_folder, private_folder, publish
from headrace.storage.cache.locks import held, try_lock_file

FOLDER = '.headrace-epochs'
_NAMES = re.compile(r'[0-9a-f]{32}\.int64(\.tmp)?')
IN_MEMORY = 65_536  # positions; below, every process computes them faster than it would open a file


class _PermutationFile(KeptFile[npt.NDArray[np.int64]]):
    IS_LOCKED = True

    def __init__(self, folder: Path, name: str, size: int) -> None:
        super().__init__(folder, FOLDER, _NAMES, name)
        self._size = size

    def _content(self, data: mmap.mmap) -> npt.NDArray[np.int64] | None:
        return np.frombuffer(data, np.int64) if len(data) == 8 * self._size else None


class EpochPermutations:
    def __init__(self, folder: Path, *, is_private: bool = False) -> None:
        """Take a cache folder; a private one must belong to this user, since anybody may make folders beside it."""
        self._cache, self.folder = folder, folder / FOLDER
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

        def in_memory() -> npt.NDArray[np.int64]:
            ids = np.empty(mixture.epoch_size, np.int64)
            fill_permutation(mixture, config, epoch, ids)
            return ids

        def make(folder: OpenFolder) -> None:
            _clear(folder)
            publish(folder, file.name, [in_memory().data])

        if mixture.epoch_size < IN_MEMORY:
            return in_memory()
        file = _PermutationFile(self._cache, f'{permutation_key(mixture, config, epoch)}.int64', mixture.epoch_size)
        try:
            if self._is_private:
                claim_private_folder(self.folder.parent)
            return file.made_if_possible(make)
        except (OSError, CacheError) as error:
            warn(
                f'The order of an epoch cannot be kept in {self.folder} ({error}): every process computes it for '
                f'itself, and holds {mixture.epoch_size * 8 >> 20} MiB. Name a writable `local`.',
                stacklevel=2,
            )
            return in_memory()


def _clear(folder: OpenFolder) -> None:
    """Remove files that no process has mapped: earlier epochs, and leftovers of killed processes."""
    for name in folder.names():
        with contextlib.suppress(OSError, CacheError):
            handle = folder.open_file(name, os.O_RDONLY)
            with held(handle):
                if try_lock_file(handle, folder.path / name):
                    folder.delete(name)
