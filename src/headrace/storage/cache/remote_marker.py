"""The marker: a file in a cache folder that names its remote.

The marker appears just before the first index.json, under the same lock. Two data sets can have the same index, so
nothing else would show that their shards are mixed. A cache of another program has no marker
unless its index had to be fetched anew. The marker does not name the server: names and ports of one data set's servers
change, and each rank may use another gateway.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from headrace.errors import StreamError
from headrace.redaction import without_credentials
from headrace.storage.resolve import local_path

__all__ = ['REMOTE_MARKER', 'check_remote', 'is_from', 'marker_text', 'read_marker']

REMOTE_MARKER: Final = '.headrace-remote'
"""File in a cache folder that names the remote."""
_LONGEST: Final = 1 << 16
"""Bytes of it that are read."""


def marker_text(url: str) -> str:
    """The text of the file: a folder's real path, or a URL without credentials and last slashes."""
    path = local_path(url)
    address = without_credentials(url.rstrip('/')).rstrip('/') if path is None else str(Path(path).resolve())
    return f'{address}\n'


def check_remote(folder: Path, url: str) -> None:
    """See that a folder is not the cache of another remote.

    Raises:
        StreamError: it is.
    """
    noted, own = read_marker(folder), marker_text(url).strip()
    # `rm -r cache/*` leaves files with a dot.
    if noted and noted != own and _holds_files(folder):
        raise StreamError(
            f'Reused local directory: {folder} is the cache of {noted} vs. {own}. Provide a different one. If the '
            f'first remote was a mistake, remove the folder. If both hold the same data, delete '
            f'{folder / REMOTE_MARKER}.'
        )


def is_from(folder: Path, url: str) -> bool:
    """Whether a folder's marker names this remote."""
    return read_marker(folder) == marker_text(url).strip()


def read_marker(folder: Path) -> str:
    """The marker's text; empty if there is none. A power failure may empty it, too."""
    try:
        handle = os.open(folder / REMOTE_MARKER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ''
    with open(handle, 'rb') as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ''
        return file.read(_LONGEST).decode(errors='replace').strip('\0 \r\n\t')


def _holds_files(folder: Path) -> bool:
    """Whether there are an index or shards, or may be: not every folder whose files can be read can be listed."""
    try:
        return any(not path.name.startswith('.') for path in folder.iterdir())
    except OSError:
        return True
