"""Files that are written whole or not at all: under another name first, which becomes the final one.

`storage.cache.control_folder.publish` does the same in folders that are open, where no link may be followed. A fetch
(`storage.cache.fetch_lock`) keeps what it has written for the next attempt. Neither fits here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(
    path: str | os.PathLike[str], temporary: str | os.PathLike[str], *, sync: bool = False, buffering: int = -1
) -> Generator[BinaryIO]:
    """A file to write, which replaces the one at `path` when the block ends.

    After an error the temporary file is removed, and the one at `path` is as before. After kill -9 it stays. No other
    process writes to `temporary`, in the same folder, at the same time. `sync`: write bytes and name to the disk before
    this returns, where the file system can.
    """
    try:
        with open(temporary, 'wb', buffering=buffering) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105 - a Path per file of a writer costs time
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise
    if sync:
        _sync_folder(os.path.dirname(path))  # noqa: PTH120


def _sync_folder(folder: str) -> None:
    """Make the rename itself survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder or '.', os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
