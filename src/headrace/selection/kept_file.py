"""A file that one process of a machine makes, under the lock of its folder, and that all processes map."""

from __future__ import annotations

import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from headrace.errors import CacheError, StorageError
from headrace.storage.cache.control_folder import ControlFolder, OpenFolder
from headrace.storage.cache.locks import cannot_write, lock_file

T = TypeVar('T')


class KeptFile(ABC, Generic[T]):
    """A file in a subfolder of a cache folder, and what it holds. Touches no disk before it is asked for."""

    def __init__(self, folder: Path, subfolder: str, names: re.Pattern[str], name: str) -> None:
        self._place, self.name = ControlFolder(folder, subfolder, names), name
        self.path = self._place.path / name

    @abstractmethod
    def _content(self, data: mmap.mmap) -> T | None:
        """What a file of at least one byte holds; None: it is damaged, or another one."""

    def find(self) -> T | None:
        """Map the file; None if there is none that can be believed."""
        try:
            with self._place.opened(only_read=True) as folder:
                return self._map(folder)
        except (OSError, CacheError):
            return None

    def find_again(self) -> T:
        found = self.find()
        if found is None:
            raise CacheError(
                f'{self.path} was changed or deleted while it was in use. Stop what does that; start anew.'
            )
        return found

    def made(self, make: Callable[[OpenFolder], None]) -> T:
        """The same, made now if there is none. Another process that makes it is waited for."""
        found = self.find()
        if found is not None:
            return found
        try:
            with self._place.opened(make=True) as folder:
                lock_file(folder.handle, folder.path)
                found = self._map(folder)
                if found is None:
                    for left in folder.names():
                        if left.endswith('.tmp'):
                            folder.delete(left)  # by processes that were killed: who writes one holds the lock
                    make(folder)
                    found = self._map(folder)
        except StorageError:  # of the data that it is made of
            raise
        except OSError as error:
            raise cannot_write(self.path.parent, error) from error
        if found is None:
            raise CacheError(f'{self.path} was changed or deleted as soon as it was written. Stop what does that.')
        return found

    def _map(self, folder: OpenFolder) -> T | None:
        try:
            handle = folder.open_file(self.name, os.O_RDONLY)
        except (OSError, CacheError):
            return None
        try:
            is_empty = not os.fstat(handle).st_size
            return None if is_empty else self._content(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)
