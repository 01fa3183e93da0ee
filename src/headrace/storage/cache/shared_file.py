"""Files that one process of a machine makes for all: how they are written, and where, if not in a cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from typing_extensions import Buffer

from headrace.errors import CacheError
from headrace.redaction import without_credentials
from headrace.storage.cache.control_folder import OpenFolder, open_folder

__all__ = ['claim_private_folder', 'private_folder', 'publish', 'refuse_strangers', 'temporary_folder']


def private_folder() -> Path:
    """This user's folder among the temporary files, for data that lies in folders of the user's own."""
    return Path(tempfile.gettempdir()) / f'headrace-{os.geteuid()}'


def claim_private_folder(folder: Path) -> None:
    """Make the private folder, which lies where anybody may make folders.

    Raises:
        CacheError: it is a link, belongs to another user, or others may write to it.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    handle = open_folder(folder)
    try:
        info = os.fstat(handle)
    finally:
        os.close(handle)
    if info.st_uid != os.geteuid():
        raise CacheError(f'{folder} belongs to another user. Have it removed, or set TMPDIR to a folder of your own.')
    if info.st_mode & 0o022:
        raise CacheError(f'{folder} is for this user only, but others may write to it. Remove it, or `chmod 700` it.')


def temporary_folder(remote: str) -> Path:
    """The cache folder of a remote for which no `local` is given, as MosaicML Streaming names it."""
    return (
        Path(tempfile.gettempdir()) / hashlib.blake2s(without_credentials(remote).encode(), digest_size=16).hexdigest()
    )


def refuse_strangers(folder: Path) -> None:
    """See that a folder whose name anybody can know, and make, was not made by somebody else.

    Raises:
        CacheError: it was made by another user than this one and root.
    """
    try:
        owner = folder.lstat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return
    if owner not in {os.geteuid(), 0}:
        raise CacheError(
            f'The temporary folder {folder} belongs to the user with uid {owner}; this process runs as uid '
            f'{os.geteuid()}. Set `local` to a folder of your own, or to this one if you trust what is in it.'
        )


def publish(folder: OpenFolder, name: str, parts: Iterable[Buffer]) -> None:
    """Write a file whole or not at all. Needs the lock under which its makers wait for each other."""
    temporary = f'{name}.tmp'
    try:
        with open(folder.create(temporary), 'wb') as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())  # a file that lost its content in a power failure would be a wrong order
        folder.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            folder.delete(temporary)
        raise
