"""Which remote the shards of a cache folder are from."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from headrace.errors import StreamError
from headrace.storage.resolve import local_path

__all__ = ['ORIGIN', 'check_origin', 'note_origin']

ORIGIN: Final = '.headrace-remote'
"""File in a cache folder that names the remote."""


def note_origin(folder: Path, url: str) -> None:
    """Note where the shards of a folder, whose index has just been fetched, are from."""
    with contextlib.suppress(OSError):  # a folder that cannot be written to says so when it has to be
        (folder / ORIGIN).write_text(f'{_normal(url)}\n', encoding='utf-8')


def check_origin(folder: Path, url: str) -> None:
    """See that a folder's shards, if it is noted where they are from, are from there.

    Two data sets can have the same index, so that shards of one beside those of the other would not be noticed. Caches
    of other programs have no note, and get none.

    Raises:
        StreamError: they are from another remote.
    """
    path, own = folder / ORIGIN, _normal(url)
    try:
        noted = path.read_text(encoding='utf-8', errors='replace').rstrip('\n')
    except OSError:
        noted = ''
    if noted and noted != own:  # it is empty where there was no room for it
        raise StreamError(
            f'Reused local directory: {folder} is the cache of {noted} vs. {own}. Provide a different one. If both '
            f'hold the same data, delete {path}.'
        )


def _normal(url: str) -> str:
    """One for all spellings of an address, without a password."""
    path = local_path(url)
    return re.sub('(://[^/@:]*):[^/@]*@', r'\1@', url.rstrip('/')) if path is None else str(Path(path).resolve())
