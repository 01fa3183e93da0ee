"""The check of the content of files that were in a cache folder before, at their first use."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from headrace.errors import CacheError, ChecksumError, FormatError
from headrace.storage.cache.entry import CacheEntry, EntrySet
from headrace.storage.cache.mapped_file import delete_file
from headrace.storage.stats import CacheCounts, CacheStats

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ['PresentFiles', 'missing']

_ATTRIBUTE: Final = 'user.headrace.verified'


class PresentFiles:
    """The files of one folder, as one process knows them."""

    def __init__(self, folder: Path, *, has_store: bool, run: str | None, stats: CacheStats) -> None:
        """Touches no disk.

        Args:
            folder: Where they are.
            has_store: Whether a bad file can be fetched again; else it is an error.
            run: Names the processes that trust each other's fetches. Other files are verified at their first use in
                each process, without a store all of them; None: none.
            stats: Counts repeated fetches.
        """
        self._folder, self._root = folder, str(folder)
        self._has_store, self._run, self._stats = has_store, run, stats
        self._verified = EntrySet()

    def forget(self) -> None:
        """Forget what is known of entries by their numbers: they have others now."""
        self._verified = EntrySet()

    def mark(self, path: Path) -> None:
        """Note in a file that this run has fetched and verified it, if the file system can do that."""
        if self._run is not None:
            with contextlib.suppress(AttributeError, OSError):  # the first where Python has no such function
                os.setxattr(path, _ATTRIBUTE, self._mark_of(path), follow_symlinks=False)

    def _is_marked(self, path: Path) -> bool:
        try:
            return os.getxattr(path, _ATTRIBUTE) == self._mark_of(path)
        except (AttributeError, OSError):
            return False

    def _mark_of(self, path: Path) -> bytes:
        # No time is compared with a clock: clocks are set back, and a copy may have the time of its original.
        info = path.stat()
        return f'{self._run} {info.st_ino} {info.st_size} {info.st_mtime_ns}'.encode()

    def verified(self, entry: CacheEntry) -> None:
        """Say that a shard has been verified."""
        if self._run is not None:
            self._verified.add(entry)

    def verify(self, entry: CacheEntry) -> bool:
        """Verify a shard at its first use, if that is wanted; False if it was bad and is now absent."""
        if self._run is None or entry in self._verified:
            return True
        for part in entry.parts:
            path = self._folder / part.name
            if part.verify is None:
                continue
            try:
                if not self._has_store or not self._is_marked(path):
                    part.verify(path)
            except FileNotFoundError:
                return False
            except FormatError as error:
                if not self._has_store:
                    raise ChecksumError(
                        f'{path} is not what its index says: {error} Restore the file, or pass the `remote` that '
                        f'holds it.'
                    ) from error
                self._stats.add(CacheCounts(retries=1))
                delete_file(self._folder, part.name)
                return False
        self.verified(entry)
        return True

    def require(self, entry: CacheEntry) -> None:
        """Raise unless the folder holds the compressed file of every part that is absent."""
        for part in entry.absent(self._root):
            if part.packed_name is not None and (self._folder / part.packed_name).exists():
                continue
            path = self._folder / part.name
            if not path.exists():
                raise missing(path)
            raise ChecksumError(
                f'{path} has {path.stat().st_size} bytes, the index gives {part.size}. Restore the file, or pass the '
                f'`remote` that holds it.'
            )


def missing(path: Path) -> CacheError:
    """The error for a file that neither the folder nor a store has."""
    return CacheError(
        f'No `remote` provided, but local file {path} does not exist. Restore the file, or pass the `remote` that '
        f'holds it.'
    )
