"""The right to fetch an entry of a cache folder, and what becomes of fetches that end in the middle.

All that a fetch writes stands in ``.headrace`` until it gets its final name, beside a lock file that exists while the
fetch runs. Nothing of it stays, however it ends. A fetch that fails removes its files. A process that ends removes
those of its daemon threads, which end in the middle (`end_fetches`). What a killed process left is removed by the next
one that fetches into the folder, runs short of room there, or ends.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.util
import os
import sys
import threading
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from headrace import errors
from headrace.errors import CacheError, HeadraceError
from headrace.storage.locks import NO_ROOM, cannot_write, held, hold, let_go, lock_file, try_lock_file, unlock_file

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from types import TracebackType

__all__ = [
    'FETCHES',
    'LEDGER',
    'FetchLock',
    'ProcessEndsError',
    'changing_files',
    'end_fetches',
    'end_threads',
    'leave_clean',
    'read_reservation',
    'reclaim_fetches',
]

FETCHES: Final = '.headrace'
"""Subfolder of a cache folder that holds what is being fetched; it exists only while something is."""

LEDGER: Final = 'ledger'
"""File in that folder which remembers a count (`counting`); the only one that is no part of a fetch."""

_LATE: Final = -900
"""After most that multiprocessing does at a process' end, and before `dataset.worker_end`, which is the end."""

_folders: set[Path] = set()
"""Cache folders that this process, or its parent, has used."""
_under_way: set[FetchLock] = set()
"""Fetches of this process."""
_daemons_end = False
_all_end = False
_changing = threading.RLock()
"""Held by who changes a folder: who ends the process waits for that, and nothing is changed after it."""
_PATIENCE: Final = 1.0
"""Seconds for which who ends the process waits for a thread; it may hang in a file system that does not answer."""
_finalizer: multiprocessing.util.Finalize | None = None
"""This process' own; multiprocessing drops those that a child had before it began."""


def _start_anew() -> None:
    global _daemons_end, _all_end, _changing, _finalizer  # noqa: PLW0603 - they are the process' own
    _under_way.clear()
    _daemons_end = _all_end = False
    _changing, _finalizer = threading.RLock(), None


os.register_at_fork(after_in_child=_start_anew)


class ProcessEndsError(SystemExit):
    """Ends, without a word, a thread of a process that ends: what it fetches or is about to fetch comes to nothing."""


def leave_clean(folder: Path) -> None:
    """Have nothing left in a cache folder, as this process ends, of fetches that ended in the middle."""
    global _finalizer  # noqa: PLW0603 - it is the process' own
    _folders.add(folder)
    if _finalizer is None or not _finalizer.still_active():
        # Also run by workers, where nothing of `atexit` is; and in a trainer after its workers were made to end.
        _finalizer = multiprocessing.util.Finalize(None, _at_end, exitpriority=_LATE)


def _at_end() -> None:
    try:
        if sys.exc_info()[0] is None:  # else this process fails, and has yet to say so
            end_threads()
    finally:
        end_fetches()


def end_threads() -> None:
    """Wait for this process' threads, as it ends; daemons excepted, and idle ones of executors, which are told to end.

    It is what multiprocessing does in a child after its finalizers, and the interpreter before.
    """
    vars(threading)['_shutdown']()


def end_fetches(*, everywhere: bool = False) -> None:
    """Remove what stands in this process' cache folders of fetches that do not go on; its own among them.

    For a process that ends, and with it its daemon threads, wherever they are: what they fetch comes to nothing, and
    they begin nothing more. The main thread may still read, in exit functions.

    Args:
        everywhere: all threads are about to end so.
    """
    global _daemons_end, _all_end
    _daemons_end, _all_end = True, everywhere
    if _changing.acquire(timeout=_PATIENCE):
        _changing.release()
    for lock in list(_under_way):
        if everywhere or lock.in_daemon:
            lock.abandon()
    for folder in list(_folders):
        with contextlib.suppress(OSError, HeadraceError):
            reclaim_fetches(folder)


def _thread_ends() -> bool:
    return _all_end or (_daemons_end and threading.current_thread().daemon)


@contextlib.contextmanager
def changing_files() -> Generator[None]:
    """Make, rename or delete files of a cache folder inside the block, and count them, to the end or not at all.

    Raises:
        ProcessEndsError: this thread may end at any moment.
    """
    with _changing:
        if _thread_ends():
            raise ProcessEndsError
        yield


class FetchLock:
    """The right to fetch one entry: waits in the kernel until nobody else has it.

    The lock file is the record of the fetch: its text says how many bytes of the folder's limit are reserved, and, if
    the fetch failed, why. It is removed before it is unlocked. Whoever waited for it thus holds a file without a name
    and can read there how the fetch ended: a failure is raised in every waiter, so that 16 processes that wait for a
    dead server wait for it once and not one after the other. But who needs what was fetched ahead tries by itself.

    What one fetch writes has other names than what any other does: one that was abandoned goes on in its thread, and
    must meet nothing but files that are gone.
    """

    def __init__(self, folder: Path, key: str, *, ahead: bool = False) -> None:
        self.folder = folder
        self.state = folder / FETCHES
        self.digest = blake2b(key.encode(), digest_size=16).hexdigest()  # a short file name for any key
        self.path = self.state / f'{self.digest}.lock'
        self._ahead = ahead
        self.waited = 0.0
        """Seconds spent waiting for another fetcher."""
        self.in_daemon = threading.current_thread().daemon
        """Whether the thread that fetches ends as the process does."""
        self._token = os.urandom(4).hex()
        self._handle = self._pid = -1
        self._abandoned = False
        self._removing = threading.Lock()

    def temporary(self, number: int, kind: str) -> Path:
        """A file of this fetch; whatever is left under such a name is removed with the lock."""
        return self.state / f'{self.digest}.{number}.{self._token}.{kind}'

    def __enter__(self) -> FetchLock:
        if self._handle < 0:
            self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.release(error)
        if isinstance(error, Exception) and self._is_over:
            raise ProcessEndsError from error

    @property
    def _is_over(self) -> bool:
        return self._abandoned or _thread_ends()

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock; raises what the fetch failed with that this one waited for.

        Args:
            wait: False returns False instead of waiting.

        Raises:
            ProcessEndsError: this is a daemon thread of a process that ends.
        """
        while True:
            with contextlib.ExitStack() as stack:
                with changing_files():
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
                    with changing_files():
                        taken = self._take(handle)
                if taken:
                    stack.pop_all()
                    return True
                failure = _read_failure(handle, ahead=self._ahead)
            if failure is not None and wait:
                raise failure

    def _take(self, handle: int) -> bool:
        """Have what was locked, unless it is no longer the file that others find."""
        if not _is_at(handle, self.path):
            return False
        self._handle, self._pid = handle, os.getpid()
        leave_clean(self.folder)
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
                if isinstance(error, HeadraceError) and not self._is_over:  # which is no failure of the others'
                    with contextlib.suppress(OSError):  # a full disk has no room for its own error
                        note = {'failed': type(error).__name__, 'message': str(error)[:8000], 'ahead': self._ahead}
                        _write_text(handle, json.dumps(note))
                if _is_at(handle, self.path):
                    _remove_lock(self.state, self.digest)
            finally:
                let_go(handle)

    def abandon(self) -> None:
        """Remove what the fetch has written so far, and unlock: it goes on in a thread, but comes to nothing."""
        self._abandoned = True
        if not self._removing.acquire(timeout=_PATIENCE):
            return
        try:
            with contextlib.suppress(OSError):
                if self._handle >= 0 and _is_at(self._handle, self.path):
                    _remove_files(self.state, self.digest)
                    _remove_lock(self.state, self.digest)
                    unlock_file(self._handle)
        finally:
            self._removing.release()

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
                if error.errno in NO_ROOM:
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
            if error.errno in NO_ROOM:
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


def _read_failure(handle: int, *, ahead: bool) -> HeadraceError | None:
    try:
        note = json.loads(os.pread(handle, 1 << 17, 0))
        if note['ahead'] and not ahead:
            return None
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
        # NFS has names that begin with a dot for files that were deleted while in use.
        names = {item.name.partition('.')[0] for item in state.iterdir()} - {LEDGER, ''}
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
