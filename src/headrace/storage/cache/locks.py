"""Locks between the processes of a machine: ``flock`` on files that are there anyway.

- A *shard file* is locked shared by each process that has it mapped, exclusively by the one that evicts it.
- The *cache folder* is locked by a process that counts or changes its contents under a limit (`limit`).
- ``.headrace/<digest>.lock`` exists while an entry is fetched and is locked by its fetcher (`fetch_lock`).

No lock outlives its process or needs a file that stays. Forked children do not keep their parent's locks: `_forget`
closes their descriptors, and an explicit unlock reaches every copy. Descriptors close at exec.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING, Final

from headrace.errors import CacheError, DiskFullError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = [
    'NO_ROOM',
    'cannot_write',
    'held',
    'hold',
    'let_go',
    'lock_file',
    'locked_folders',
    'open_to_lock',
    'try_lock_file',
    'unlock_file',
]

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk or a used up quota."""

_held: set[int] = set()
"""Descriptors of locks that this process holds; a forked child must not keep them alive."""


def _forget() -> None:
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


def lock_file(handle: int, path: str | Path, *, shared: bool = False) -> None:
    """Lock an open file, waiting in the kernel."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except OSError as error:
        raise _cannot_lock(path, error) from error


def try_lock_file(handle: int, path: str | Path) -> bool:
    """Lock an open file exclusively, unless anybody has it locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _cannot_lock(path, error) from error
    return True


def unlock_file(handle: int) -> None:
    """Unlock for every copy of the descriptor, forked children's included."""
    fcntl.flock(handle, fcntl.LOCK_UN)


def _cannot_lock(path: str | Path, error: OSError) -> CacheError:
    return CacheError(
        f'A cache folder needs a file system with working file locks (flock); locking {path} failed with '
        f'{errno.errorcode.get(error.errno or 0, "?")}: {error.strerror}. Put `local` on a local disk, or have the '
        f'file system mounted with locks (Lustre: "-o flock"; NFS: version 4, or lockd running).'
    )


def cannot_write(path: str | Path, error: OSError) -> CacheError | DiskFullError:
    """The error for a cache folder that this user cannot write to, or that has no room."""
    if error.errno in NO_ROOM:
        return DiskFullError(
            f'{path} has no room for what had to be written there ({error.strerror}). Make room, or name a `local` on '
            f'a larger disk.'
        )
    return CacheError(
        f'A cache folder with a remote must be writable; {path} is not: '
        f'{errno.errorcode.get(error.errno or 0, "?")}: {error.strerror}. Name another `local`, or change the owner or '
        f'mode of this one (this process runs as uid {os.geteuid()}).'
    )


def open_to_lock(path: Path) -> int:
    """Open a file in order to lock it."""
    try:
        # NFS grants exclusive locks on files opened for writing only.
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except (PermissionError, IsADirectoryError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def hold(handle: int) -> None:
    """Take care of a descriptor that is about to be locked: a forked child closes its copy. Ends with `let_go`."""
    _held.add(handle)


@contextlib.contextmanager
def held(handle: int) -> Generator[None]:
    """Take care of a descriptor that is locked inside the block: unlock and close it, here and in forked children."""
    hold(handle)
    try:
        yield
    finally:
        let_go(handle)


@contextlib.contextmanager
def locked_folders(folders: list[Path]) -> Generator[None]:
    """Hold several folders' locks; always taken in one order, so that two groups that overlap cannot deadlock.

    A folder that is absent, or was deleted, holds nothing to lock.
    """
    with contextlib.ExitStack() as stack:
        for folder in sorted(folders):
            try:
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            stack.enter_context(held(handle))
            lock_file(handle, folder)
        yield


def let_go(handle: int) -> None:
    """Unlock and close a descriptor, if it is still held."""
    if handle not in _held:
        return  # a forked child has closed it
    _held.discard(handle)
    with contextlib.suppress(OSError):
        unlock_file(handle)
    os.close(handle)
