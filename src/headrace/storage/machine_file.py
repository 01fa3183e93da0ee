"""Files that one process of a machine makes for all: how they are written, and where, if not in a cache folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from typing_extensions import Buffer

from headrace.errors import CacheError

__all__ = ['claim_private_folder', 'private_folder', 'publish']


def private_folder() -> Path:
    """This user's folder among the temporary files, for data that lies in folders of the user's own."""
    return Path(tempfile.gettempdir()) / f'headrace-{os.geteuid()}'


def claim_private_folder(folder: Path) -> None:
    """Make the private folder, which lies where anybody may make folders.

    Raises:
        CacheError: it belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise CacheError(f'{folder} belongs to another user.')


def publish(path: Path, parts: Iterable[Buffer]) -> None:
    """Write a file whole or not at all. Needs the lock under which its makers wait for each other."""
    temporary = path.with_name(f'{path.name}.tmp')
    temporary.unlink(missing_ok=True)  # of a process that was killed
    try:
        with open(temporary, 'xb') as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())  # a file that lost its content in a power failure would be a wrong order
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
