"""The right to fetch an entry of a cache folder, and what becomes of fetches that end in the middle.

All that a fetch writes stands in ``.headrace`` until it gets its final name, beside a lock file that exists while the
fetch runs. Three ways to end leave nothing that stays: a fetch that fails removes its files; a process that ends
removes those of its daemon threads, which end in the middle (`end_fetches`); and what a killed one left is
removed by the next process that fetches into the folder, runs short of room there, or ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing.util
import os
import threading
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from headrace import errors
from headrace.errors import CacheError, HeadraceError
from headrace.storage.locks import cannot_write, held, hold, let_go, lock_file, try_lock_file, unlock_file

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from types import TracebackType

__all__ = [
    'FETCHES',
    'LEDGER',
    'FetchLock',
    'end_fetches',
    'leave_clean',
    'making_files',
    'read_reservation',
    'reclaim_fetches',
]

FETCHES: Final = '.headrace'
"""Subfolder of a cache folder that holds what is being fetched; it exists only while something is."""

LEDGER: Final = 'ledger'
"""File in that folder which remembers a count (`counting`); the only one that is no part of a fetch."""


def _digest(key: str) -> str:
    """A short file name for any key."""
    return blake2b(key.encode(), digest_size=16).hexdigest()


_LATE: Final = -900
"""After most that multiprocessing does at a process' end, and before `dataset.worker_end`, which is the end."""

_folders: set[Path] = set()
"""Cache folders that this process, or its parent, has used."""
_under_way: set[FetchLock] = set()
"""Fetches in daemon threads of this process."""
_ends = False
_making = threading.Lock()
"""Held by a daemon thread that makes a file, so that it is known to whoever ends the process, or not made."""
_registered = 0  # process that has the finalizer; a forked one has not


def _start_anew() -> None:
    global _ends, _making
    _under_way.clear()
    _ends, _making = False, threading.Lock()


os.register_at_fork(after_in_child=_start_anew)


def leave_clean(folder: Path) -> None:
    """Have nothing left in a cache folder, as this process ends, of fetches that ended in the middle."""
    global _registered  # noqa: PLW0603 - it is the process' own
    _folders.add(folder)
    if _registered != os.getpid():
        _registered = os.getpid()
        # Also run by workers, where nothing of `atexit` is; and in a trainer after its workers were made to end.
        multiprocessing.util.Finalize(None, end_fetches, exitpriority=_LATE)


def end_fetches() -> None:
    """Remove what stands in this process' cache folders of fetches that do not go on; its own among them.

    For a process that ends, and with it its daemon threads, wherever they are. They make no more files. Other threads,
    which are waited for, or read as the process ends, go on.
    """
    global _ends  # noqa: PLW0603 - it is the process' own
    with _making:
        _ends = True
    for lock in list(_under_way):
        lock.abandon()
    for folder in list(_folders):
        with contextlib.suppress(OSError, HeadraceError):
            reclaim_fetches(folder)


@contextlib.contextmanager
def making_files() -> Generator[None]:
    """Make files of a fetch inside the block.

    Raises:
        CacheError: this is a daemon thread, and the process ends: nobody would remove them.
    """
    if not threading.current_thread().daemon:
        yield
        return
    with _making:
        if _ends:
            raise CacheError('Nothing is fetched any more by daemon threads of a process that ends.')
        yield


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
        self._removing = threading.Lock()

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
            with contextlib.ExitStack() as stack:
                with making_files():
                    handle = self._open()
                    hold(handle)
                    stack.callback(let_go, handle)
                    locked = try_lock_file(handle, self.path)
                    taken = locked and self._take(handle)
                if not locked:
                    if not wait:
                        return False
                    begin = time.monotonic()
                    lock_file(handle, self.path)
                    self.waited += time.monotonic() - begin
                    with making_files():
                        taken = self._take(handle)
                if taken:
                    stack.pop_all()
                    return True
                failure = _read_failure(handle)
            if failure is not None and wait:
                raise failure

    def _take(self, handle: int) -> bool:
        """Have what was locked, unless it is no longer the file that others find."""
        if not _is_at(handle, self.path):
            return False
        self._handle, self._pid = handle, os.getpid()
        leave_clean(self.folder)
        if threading.current_thread().daemon:
            _under_way.add(self)
        return True

    def release(self, error: BaseException | None = None) -> None:
        """Remove what the fetch left, tell those who wait what it failed with, and unlock."""
        if os.getpid() != self._pid:
            self._handle = -1
            return  # forked while it was held: the lock is the parent's
        with self._removing:
            handle, self._handle = self._handle, -1
            _under_way.discard(self)
            try:
                if _is_at(handle, self.path):
                    _remove_files(self.state, self.digest)
                if isinstance(error, HeadraceError):
                    with contextlib.suppress(OSError):  # a full disk has no room for its own error
                        _write_text(handle, json.dumps({'failed': type(error).__name__, 'message': str(error)[:8000]}))
                if _is_at(handle, self.path):
                    _remove_lock(self.state, self.digest)
            finally:
                let_go(handle)

    def abandon(self) -> None:
        """Remove what the fetch has written so far, and unlock: it goes on in a thread, but comes to nothing."""
        with self._removing:
            if self._handle >= 0 and _is_at(self._handle, self.path):
                with contextlib.suppress(OSError):
                    _remove_files(self.state, self.digest)
                    _remove_lock(self.state, self.digest)
                    unlock_file(self._handle)

    def reserve(self, count: int) -> None:
        """Note that this fetch takes ``count`` bytes of the folder's limit while it runs."""
        _write_text(self._handle, json.dumps({'reserved': count}))

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
