"""Failures of the disk during a fetch: a deleted folder, a full disk, a folder without write permission."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.error_mapping import mapping_errors
from headrace.errors import CacheError, DiskFullError, HeadraceError
from headrace.storage.cache.entry import space_needed
from headrace.storage.cache.fetch_files import is_fetch_file
from headrace.storage.cache.locks import NO_ROOM, cannot_write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from headrace.storage.cache.entry import CacheEntry

__all__ = ['TRIES', 'deleted', 'despite_deletion', 'disk_errors']

T = TypeVar('T')

TRIES: Final = 10
"""How often a file is fetched for one call when something deletes it each time."""


def deleted(folder: Path, name: str) -> CacheError:
    """The error for a file that something deletes as soon as it is there, or before."""
    return CacheError(f'{folder / name} was deleted as often as it was fetched. Stop what deletes it.')


def despite_deletion(folder: Path, name: str, attempt: Callable[[], T]) -> T:
    """Fetch a file again if the cache folder was deleted meanwhile. Each attempt makes the folder anew.

    Raises:
        CacheError: it was deleted each time.
    """
    last: FileNotFoundError | None = None
    for _ in range(TRIES):
        try:
            return attempt()
        except FileNotFoundError as error:  # noqa: PERF203
            if isinstance(error, HeadraceError) or not _is_in(folder, error.filename):
                raise  # the store has no such object, or its client misses a file of its own
            last = error
    raise deleted(folder, name) from last


def _is_in(folder: Path, missing: object) -> bool:
    """Whether the missing file of an error is the cache folder or in it; a bare name comes from its ``.headrace``."""
    if isinstance(missing, int):  # a descriptor
        return True
    if not isinstance(missing, (str, bytes)):
        return False
    path = os.fsdecode(missing)
    return is_fetch_file(path) or Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))  # noqa: PTH100 - lexical


@mapping_errors
def disk_errors(folder: Path, entry: CacheEntry | None, *, keep_packed: bool) -> Generator[None]:
    """Say of a cache folder, while a shard is fetched (None: the index), that it has no room or cannot be written to.

    Raises:
        DiskFullError: it has no room.
        CacheError: it cannot be written to.
    """
    try:
        yield
    except HeadraceError:
        raise
    except OSError as error:
        if error.errno in NO_ROOM:
            what = 'the index'
            if entry is not None:
                needed = space_needed(folder, list(entry.parts), keep_packed=keep_packed)
                what = f'{entry.key}, which needs {needed} bytes'
            raise DiskFullError(
                f'{folder} has no room for {what}; {shutil.disk_usage(folder).free} bytes are free. Make room, name a '
                f'`local` on a larger disk, or set `cache_limit` to less than the disk holds.'
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise cannot_write(error.filename or folder, error) from error
        raise
