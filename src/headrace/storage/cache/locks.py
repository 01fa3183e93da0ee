"""Locks between the processes of a machine: ``flock`` on files that are there anyway.

- A *shard file* is locked shared by each process that has it mapped, exclusively by the one that evicts it.
- The *cache folder* is locked by a process that counts or changes its contents under a limit (`limit`).
- ``.headrace/<digest>.lock`` exists while an entry is fetched and is locked by its fetcher (`fetch_lock`).

A wait for a lock says so after `SAID` seconds, and is bounded: its holder may be suspended, or hang.

No lock outlives its process or needs a file that stays. Forked children do not keep their parent's locks: `_forget`
closes their descriptors, and an explicit unlock reaches every copy. Descriptors close at exec.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

from headrace.errors import AccessDeniedError, CacheError, DiskFullError, ObjectNotFoundError, StorageError
from headrace.errors.redaction import logger_of

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # Errors of a full disk or a used up quota.

SAID: Final = 3.0  # Seconds of a wait after which a user is told.
BOUND: Final = 1800.0  # Seconds after which a wait is an error.
BOUND_STOPPED: Final = 20.0  # The same if the holder of the lock is stopped.
TURN: Final = 0.01  # Seconds between two attempts to lock, at most.
LOOK: Final = 1.0  # Seconds between two looks at what the holder of a lock does.

_log = logger_of(__name__)
_held: set[int] = set()  # Descriptors of locks that this process holds; a forked child must not keep them alive.


def _forget() -> None:
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


class LockWait:
    """A wait for a lock. Its user is told after `SAID` seconds."""

    def __init__(self, handle: int, path: str | Path) -> None:
        """Take the open file, and its name for messages."""
        self._handle, self._path = handle, path
        self._since = self._looked = time.monotonic()
        self._turn = TURN / 16
        self._is_told = False

    def turn(self) -> bool:
        """Wait a moment; returns whether it is time to look at the holder."""
        time.sleep(self._turn)
        self._turn = min(TURN, 1.5 * self._turn)
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        self._looked = now
        if now - self._since >= SAID and not self._is_told:
            self._is_told = True
            _log.warning('%s', self.why())
        return True

    def restart(self) -> None:
        self._since = time.monotonic()

    def is_over(self, *, bound: float, if_stopped: float) -> bool:
        """Whether the holder has done nothing for this many seconds."""
        waited = time.monotonic() - self._since
        return waited >= bound or (waited >= if_stopped and any(map(_is_stopped, _holders(self._handle))))

    def why(self) -> str:
        """Says how long this process has waited, for whom, and what to do."""
        holders = _holders(self._handle)
        stopped = [pid for pid in holders if _is_stopped(pid)]
        if stopped:
            who = f'process {stopped[0]}, which is stopped (SIGSTOP, Ctrl-Z)'
            fix = f'Resume that with `kill -CONT {stopped[0]}`, or end it.'
        elif holders:
            who = f'process {holders[0]}' + ' (this one, in another thread)' * (holders[0] == os.getpid())
            fix = 'If that hangs, end it.'
        else:
            who = 'a process that this one cannot see (in another container, or on another machine)'
            fix = 'If that hangs or is suspended, resume or end it.'
        waited = time.monotonic() - self._since
        return f'This process has waited {waited:.0f} s for the lock of {self._path}, which is held by {who}. {fix}'


def _holders(handle: int) -> list[int]:
    """The processes that have locked an open file, if the system tells."""
    info = os.fstat(handle)
    name = f'{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}'
    try:
        lines = [line.split() for line in Path('/proc/locks').read_text().splitlines()]
    except OSError:  # no Linux
        return []
    return [int(line[4]) for line in lines if line[1] == 'FLOCK' and line[5] == name]


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] in {'T', 't'}
    except OSError:
        return False


def lock_file(handle: int, path: str | Path, *, shared: bool = False) -> None:
    """Lock an open file, after a wait; CacheError: no locks, or held for `BOUND` seconds, or `BOUND_STOPPED`."""
    if try_lock_file(handle, path, shared=shared):
        return
    wait = LockWait(handle, path)
    while not try_lock_file(handle, path, shared=shared):
        if wait.turn() and wait.is_over(bound=BOUND, if_stopped=BOUND_STOPPED):
            raise CacheError(wait.why())


def try_lock_file(handle: int, path: str | Path, *, shared: bool = False) -> bool:
    """Lock an open file; False if another lock prevents it."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
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


def cannot_use(path: str | Path, error: OSError) -> StorageError:
    """The error for a file or folder that the system cannot read or write; `path` stands in where it says none."""
    if isinstance(error.filename, str) and os.path.isabs(error.filename):  # noqa: PTH117 - plain text
        path = error.filename
    if error.errno in NO_ROOM:
        return DiskFullError(f'{path} could not be written: {error.strerror}. Make room on its disk, or in its quota.')
    if isinstance(error, PermissionError):
        return AccessDeniedError(
            f'This user (uid {os.geteuid()}) may not use {path}: {error.strerror}. Change its owner or its mode.'
        )
    kind = ObjectNotFoundError if isinstance(error, FileNotFoundError) else StorageError
    return kind(
        f'{path} could not be read or written: {errno.errorcode.get(error.errno or 0, "?")}: {error.strerror}. Check '
        f'its disk or mount, or name another `local`.'
    )


def open_to_lock(path: Path) -> int:
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
    """Register a descriptor that is about to be locked: a forked child closes its copy. `release` ends that."""
    _held.add(handle)


@contextlib.contextmanager
def held(handle: int) -> Generator[None]:
    """Register a descriptor that is locked inside the block, and release it at the end, also in forked children."""
    hold(handle)
    try:
        yield
    finally:
        release(handle)


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


def release(handle: int) -> None:
    """Unlock and close a descriptor, if it is still held."""
    if handle not in _held:
        return  # a forked child has closed it
    _held.discard(handle)
    with contextlib.suppress(OSError):
        unlock_file(handle)
    os.close(handle)
