"""Locks between the processes of a machine: ``flock`` on files that are there anyway.

- A *shard file* is locked shared by everyone who has it mapped, and exclusively by who evicts it (`mapped`).
- The *cache folder* itself is locked by who counts or changes its contents under a limit (`limit`).
- ``.headrace/<digest>.lock`` exists while an entry is fetched and is locked by its fetcher (here).

No lock outlives its process, none needs a file that stays, and a process forked while one is held does not keep it:
descriptors close at exec, `_forget` closes them in a forked child, and releasing unlocks explicitly, which reaches
every copy of the descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from headrace import errors
from headrace.errors import CacheError, HeadraceError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from types import TracebackType

__all__ = [
    'FETCHES',
    'LEDGER',
    'FetchLock',
    'cannot_write',
    'held',
    'lock_file',
    'locked_folders',
    'open_to_lock',
    'read_reservation',
    'reclaim_fetches',
    'try_lock_file',
    'unlock_file',
]

FETCHES: Final = '.headrace'
"""Subfolder of a cache folder that holds what is being fetched; it exists only while something is."""

LEDGER: Final = 'ledger'
"""File in that folder which remembers a count (`counting`); the only one that is no part of a fetch."""

_held: set[int] = set()
"""Descriptors of locks that this process holds; a forked child must not keep them alive."""


def _forget() -> None:
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


def _digest(key: str) -> str:
    """A short file name for any key."""
    return blake2b(key.encode(), digest_size=16).hexdigest()


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


def cannot_write(path: str | Path, error: OSError) -> CacheError:
    """The error for a cache folder that this user cannot write to."""
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


@contextlib.contextmanager
def held(handle: int) -> Generator[None]:
    """Take care of a descriptor that is locked inside the block: unlock and close it, here and in forked children."""
    _held.add(handle)
    try:
        yield
    finally:
        _release(handle)


@contextlib.contextmanager
def locked_folders(folders: list[Path]) -> Generator[None]:
    """Hold several folders' locks; always taken in one order, so that two groups that overlap cannot deadlock."""
    with contextlib.ExitStack() as stack:
        for folder in sorted(folders):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.enter_context(held(handle))
            lock_file(handle, folder)
        yield


def _release(handle: int) -> None:
    if handle not in _held:
        return  # a forked child has closed it
    _held.discard(handle)
    with contextlib.suppress(OSError):
        unlock_file(handle)
    os.close(handle)


class FetchLock:
    """The right to fetch one entry: waits in the kernel until nobody else has it.

    The lock file is the record of the fetch: its text says how many bytes of the folder's limit are reserved, and, if
    the fetch failed, why. It is removed before it is unlocked. Whoever waited for it thus holds a file without a name
    and can read there how the fetch ended: a failure is raised in every waiter, so that 16 processes that wait for a
    dead server wait for it once and not one after the other. Nobody else ever sees that text.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.state = folder / FETCHES
        self.digest = _digest(key)
        self.path = self.state / f'{self.digest}.lock'
        self.waited = 0.0
        """Seconds spent waiting for another fetcher."""
        self._handle = self._pid = -1

    def temporary(self, number: int, kind: str) -> Path:
        """A file of this fetch; whatever is left under such a name is removed with the lock."""
        return self.state / f'{self.digest}.{number}.{kind}'

    def __enter__(self) -> FetchLock:
        if self._handle < 0:
            self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.release(error)

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock; raises what the fetch failed with that this one waited for.

        Args:
            wait: False returns False instead of waiting.
        """
        while True:
            handle = self._open()
            _held.add(handle)
            try:
                if not try_lock_file(handle, self.path):
                    if not wait:
                        _release(handle)
                        return False
                    self._wait(handle)
                if _is_at(handle, self.path):
                    self._handle, self._pid = handle, os.getpid()
                    return True
                failure = _read_failure(handle)
            except BaseException:
                _release(handle)
                raise
            _release(handle)
            if failure is not None and wait:
                raise failure

    def release(self, error: BaseException | None = None) -> None:
        """Remove what the fetch left, tell those who wait what it failed with, and unlock."""
        handle, self._handle = self._handle, -1
        if os.getpid() != self._pid:
            return  # forked while it was held: the lock is the parent's
        try:
            if _is_at(handle, self.path):
                _remove_files(self.state, self.digest)
            if isinstance(error, HeadraceError):
                with contextlib.suppress(OSError):  # a full disk has no room for its own error
                    _write_text(handle, json.dumps({'failed': type(error).__name__, 'message': str(error)[:8000]}))
            if _is_at(handle, self.path):
                _remove_lock(self.state, self.digest)
        finally:
            _release(handle)

    def reserve(self, count: int) -> None:
        """Note that this fetch takes ``count`` bytes of the folder's limit while it runs."""
        _write_text(self._handle, json.dumps({'reserved': count}))

    def _wait(self, handle: int) -> None:
        begin = time.monotonic()
        lock_file(handle, self.path)
        self.waited += time.monotonic() - begin

    def _open(self) -> int:
        refused: OSError | None = None
        for _ in range(100):
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:  # noqa: PERF203
                # The folder is new, or its last user has just removed the subfolder.
                self._make_folders()
            except PermissionError as error:
                # Another user has made the file, or the subfolder, and not yet opened it to all who share the folder.
                refused = error
                if not os.access(self.folder, os.W_OK):
                    raise cannot_write(self.folder, error) from error
                time.sleep(0.001)
                if not os.access(self.state, os.W_OK):
                    with contextlib.suppress(OSError):
                        self.state.rmdir()  # its maker was killed before that; else it is made again
            except OSError as error:
                if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                raise cannot_write(self.folder, error) from error
            else:
                with contextlib.suppress(OSError):
                    os.fchmod(handle, 0o666 & self.folder.stat().st_mode)
                return handle
        if refused is not None and not os.access(self.state, os.W_OK):
            raise cannot_write(self.state, refused) from refused
        raise CacheError(
            f'{self.path} cannot be opened: what is in {self.state} is deleted as fast as it is made, or belongs to '
            f'another user. Stop what deletes it, or delete that folder while no process uses it.'
        )

    def _make_folders(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError, FileNotFoundError):  # others make and remove it as well
                self.state.mkdir()
                with contextlib.suppress(PermissionError):  # it is another user's by now
                    # Whoever may write to the folder may also clear up after another user's killed process.
                    self.state.chmod(0o777 & self.folder.stat().st_mode)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise cannot_write(self.folder, error) from error


def _is_at(handle: int, path: Path) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _write_text(handle: int, text: str) -> None:
    data = text.encode()
    os.pwrite(handle, data.ljust(os.fstat(handle).st_size), 0)
    os.ftruncate(handle, len(data))


def _read_failure(handle: int) -> HeadraceError | None:
    try:
        note = json.loads(os.pread(handle, 1 << 17, 0))
        kind = getattr(errors, note['failed']) if note['failed'] in errors.__all__ else HeadraceError
        return kind(note['message'])
    except (ValueError, KeyError, TypeError):
        return None


def read_reservation(path: Path) -> int:
    """Bytes that a fetch in progress has reserved; 0 if it runs without a limit or has just ended."""
    try:
        return int(json.loads(path.read_bytes())['reserved'])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _remove_files(state: Path, name: str) -> None:
    """Remove what a fetch has written. Needs its lock."""
    with contextlib.suppress(FileNotFoundError):
        for item in list(state.iterdir()):
            if item.name.startswith(f'{name}.') and item.suffix != '.lock':
                item.unlink(missing_ok=True)


def _remove_lock(state: Path, name: str) -> None:
    """Remove a fetch's lock file, the last of its files, and the subfolder with the last fetch. Needs the lock."""
    with contextlib.suppress(FileNotFoundError):
        (state / f'{name}.lock').unlink()
    with contextlib.suppress(OSError):
        state.rmdir()


def _open_to_reclaim(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        # Of another user, who has just made it, or was killed before opening it to all. To lock it is enough.
        return os.open(path, flags | os.O_RDONLY)


def reclaim_fetches(folder: Path) -> bool:
    """Remove the leftovers of fetches whose process was killed; what is still being fetched is left alone.

    Returns:
        Whether there were any.
    """
    state = folder / FETCHES
    try:
        names = {item.name.partition('.')[0] for item in state.iterdir()} - {LEDGER}
    except (FileNotFoundError, NotADirectoryError):
        return False
    found = False
    for name in names:
        path = state / f'{name}.lock'
        try:
            handle = _open_to_reclaim(path)
        except FileNotFoundError:
            break  # the last fetch ended and took the subfolder with it
        except PermissionError:
            continue  # another user's, which has not opened it to all: as in use
        except OSError as error:
            raise cannot_write(folder, error) from error
        with held(handle):
            if try_lock_file(handle, path) and _is_at(handle, path):
                _remove_files(state, name)
                _remove_lock(state, name)
                found = True
    return found
