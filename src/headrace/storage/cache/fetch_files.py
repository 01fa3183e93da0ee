"""The files of ``.headrace``: those of fetches, the text of lock files, and the ledger's name."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Final

from headrace import errors
from headrace.errors import CacheError, HeadraceError
from headrace.storage.cache.control_folder import ControlFolder

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.storage.cache.control_folder import OpenFolder

__all__ = ['FETCHES', 'LEDGER', 'fetch_folder', 'is_fetch_file', 'read_failure', 'read_reservation', 'write_text']

FETCHES: Final = '.headrace'
"""Subfolder of a cache folder for fetches in progress; it exists only during fetches."""

LEDGER: Final = 'ledger'
"""File in that folder which remembers a count (`disk_usage`); the only one that is no part of a fetch."""

_NAMES: Final = re.compile(rf'{LEDGER}|[0-9a-f]{{32}}\.(lock|\d+\.[0-9a-f]{{8}}\.(raw|packed))')
_LONGEST: Final = 1 << 17
"""Bytes of a note that are read."""


def fetch_folder(cache: Path) -> ControlFolder:
    """The folder in which a cache folder's fetches write."""
    return ControlFolder(cache, FETCHES, _NAMES)


def is_fetch_file(name: str) -> bool:
    """Whether a name without a folder is that of a file in ``.headrace``."""
    return _NAMES.fullmatch(name) is not None


def write_text(handle: int, text: str) -> None:
    """Replace the content of a small file; a reader in between finds no valid text."""
    data = text.encode()
    os.pwrite(handle, data.ljust(os.fstat(handle).st_size), 0)
    os.ftruncate(handle, len(data))


def read_failure(handle: int, *, ahead: bool) -> HeadraceError | None:
    """The failure of a fetch, by its open lock file; None if there is none, or it concerns a prefetch (``ahead``)."""
    try:
        note = json.loads(os.pread(handle, _LONGEST, 0))
        if note['ahead'] and not ahead:
            return None
        kind = getattr(errors, note['failed']) if note['failed'] in errors.__all__ else HeadraceError
        return kind(note['message'])
    except (ValueError, KeyError, TypeError):
        return None


def read_reservation(state: OpenFolder, lock: str) -> int:
    """Bytes that a fetch in progress has reserved; 0 if it runs without a limit or has just ended."""
    try:
        return int(json.loads(state.read(lock, _LONGEST))['reserved'])
    except (OSError, CacheError, ValueError, KeyError, TypeError):
        return 0
