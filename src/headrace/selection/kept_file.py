"""A file that one process of a machine makes, under the lock of its folder, and that all processes map."""

from __future__ import annotations

import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from headrace.errors import CacheError, StorageError
from headrace.storage.cache.control_folder import ControlFolder, OpenFolder
from headrace.storage.cache.locks import cannot_write, lock_file

T = TypeVar('T')


class KeptFile(ABC, Generic[T]):
    """A file in a subfolder of a cache folder, and what it holds. Touches no disk before it is asked for."""

    IS_LOCKED: ClassVar[bool] = False  # whether a process holds a shared lock on the file as long as it has it mapped

    def __init__(self, folder: Path, subfolder: str, names: re.Pattern[str], name: str) -> None:
        self._place, self.name = ControlFolder(folder, subfolder, names), name
        self.path = self._place.path / name

    @abstractmethod
    def _content(self, data: mmap.mmap) -> T | None:
        """The value that a file of at least one byte holds, or None if it is damaged, or another file."""

    def find(self) -> T | None:
        """Map the file, or return None if it cannot be trusted."""
        try:
            with self._place.opened(only_read=True) as folder:
                return self._map(folder)
        except (OSError, CacheError):
            return None

    def find_again(self) -> T:
        kept = self.find()
        if kept is None:
            raise CacheError(
                f'{self.path} was changed or deleted while it was in use. Stop the program that does that.'
            )
        return kept

    def made(self, make: Callable[[OpenFolder], None]) -> T:
        """The same, made now if there is none. Another process that makes it is waited for."""
        try:
            return self.made_if_possible(make)
        except StorageError:  # of the data that it is made of
            raise
        except OSError as error:
            raise cannot_write(self.path.parent, error) from error

    def made_if_possible(self, make: Callable[[OpenFolder], None]) -> T:
        """As `made`, for those who can do without the file: an OSError is the system's, without advice."""
        kept = self.find()
        if kept is not None:
            return kept
        with self._place.opened(make=True) as folder:
            lock_file(folder.handle, folder.path)
            kept = self._map(folder)
            if kept is None:
                for left in folder.names():
                    if left.endswith('.tmp'):
                        folder.delete(left)  # by processes that were killed: who writes one holds the lock
                make(folder)
                kept = self._map(folder)
        if kept is None:
            raise CacheError(
                f'{self.path} was changed or deleted as soon as it was written. Stop the program that does that.'
            )
        return kept

    def _map(self, folder: OpenFolder) -> T | None:
        try:
            handle = folder.open_file(self.name, os.O_RDONLY)
        except (OSError, CacheError):
            return None
        try:
            if self.IS_LOCKED:
                # The map keeps a duplicate of the descriptor, and so the lock.
                lock_file(handle, self.path, shared=True)
            is_empty = not os.fstat(handle).st_size
            return None if is_empty else self._content(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)
