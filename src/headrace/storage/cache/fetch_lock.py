"""The right to fetch an entry of a cache folder, and the cleanup of interrupted fetches.

A fetch writes into ``.headrace`` until its files get their final names, beside a lock file that exists while the fetch
runs. A fetch that fails removes its files. A process may end, or be killed, in the middle of a fetch. The next process
that fetches into the folder, or runs short of room there, removes what is left (`reclaim_fetches`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Generator
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, TypeVar

from headrace import errors
from headrace.errors import CacheError, DiskFullError, HeadraceError
from headrace.errors.mapping import mapping_errors
from headrace.errors.redaction import logger_of
from headrace.storage.cache.control_folder import ControlFolder, OpenFolder
from headrace.storage.cache.entry import CacheEntry, space_needed
from headrace.storage.cache.locks import NO_ROOM, SAID, LockWait, cannot_write, held, hold, release, try_lock_file
from headrace.storage.cache.mapped_file import check_inside

FETCHES: Final = '.headrace'  # Subfolder of a cache folder for fetches in progress; it exists only during fetches.

LEDGER: Final = 'ledger'
"""File in that folder which remembers a count (`limit`); the only one that is not part of a fetch."""

_NAMES: Final = re.compile(rf'{LEDGER}|[0-9a-f]{{32}}\.(lock|\d+\.[0-9a-f]{{8}}\.(raw|packed))')
_LONGEST: Final = 1 << 17  # Bytes of a note that are read.

TRIES: Final = 10  # How often a file is fetched for one call when something deletes it each time.


def fetch_folder(cache: Path) -> ControlFolder:
    return ControlFolder(cache, FETCHES, _NAMES)


def write_text(handle: int, text: str) -> None:
    """Replace the content of a small file; a reader in between finds no valid text."""
    data = text.encode()
    os.pwrite(handle, data.ljust(os.fstat(handle).st_size), 0)
    os.ftruncate(handle, len(data))


def read_failure(handle: int, *, ahead: bool) -> HeadraceError | None:
    """The failure of a fetch, by its open lock file; None if there is none, or it concerns a prefetch (``ahead``)."""
    try:
        note = json.loads(os.pread(handle, _LONGEST, 0))
        if note['ahead'] and not ahead:
            return None
        kind = getattr(errors, note['failed']) if note['failed'] in errors.__all__ else HeadraceError
        return kind(note['message'])
    except (ValueError, KeyError, TypeError):
        return None


def read_reservation(state: OpenFolder, lock: str) -> int:
    """Bytes that a fetch in progress has reserved; 0 if it runs without a limit or has just ended."""
    try:
        return int(json.loads(state.read(lock, _LONGEST))['reserved'])
    except (OSError, CacheError, ValueError, KeyError, TypeError):
        return 0


_log = logger_of(__name__)


class FetchLock:
    """The right to fetch one entry: waits for its other holder.

    The lock file is the record of the fetch: its text gives the reserved bytes of the folder's limit and, after a
    failure, the error. It is removed before it is unlocked, so a waiter then holds a file without a name, and reads
    the outcome there. A failure is raised in every waiter: 16 processes wait for a dead server once, not in turn.
    A reader does not inherit the failure of a prefetch: it tries by itself.

    A fetch that gets no further is taken over, since its process may be suspended: the lock file is removed, and a new
    one is made. If the old fetch continues after all, it notices, publishes nothing, and starts again.
    """

    def __init__(self, folder: Path, key: str, *, ahead: bool = False, patience: float = 60.0) -> None:
        """Touches no disk.

        `ahead`: the entry is not needed yet. `patience`: seconds without a byte after which another process' fetch is
        taken over. One that is stopped is taken over as soon as that has been said.
        """
        self.folder = folder
        self._state = fetch_folder(folder)
        self._digest = blake2b(key.encode(), digest_size=16).hexdigest()  # a short file name for any key
        self._name = f'{self._digest}.lock'
        self.path = self._state.path / self._name
        self._ahead, self._patience = ahead, patience
        self.waited = 0.0  # Seconds spent waiting for another fetcher.
        self.reserved = 0  # Bytes of the folder's limit that this fetch takes while it runs.
        self._token = os.urandom(4).hex()
        self._handle = self._pid = -1

    def temporary(self, number: int, kind: str) -> Path:
        """A file of this fetch; the release of the lock removes it if it still exists."""
        return self._state.path / f'{self._digest}.{number}.{self._token}.{kind}'

    def create(self, temporary: Path) -> BinaryIO:
        """Make a file of this fetch; it replaces that of the last attempt. Those who share the folder may read it."""
        shared = self.folder.stat().st_mode & 0o022  # the users who may write there; a umask hides files from them
        with self._state.opened() as state:
            handle = state.create(temporary.name)
        with contextlib.suppress(OSError):
            os.fchmod(handle, os.fstat(handle).st_mode | shared << 1)
        return open(handle, 'w+b')  # buffered, so that a short write is finished, or an error of the disk

    def delete(self, temporary: Path) -> None:
        with contextlib.suppress(FileNotFoundError), self._state.opened() as state:
            state.delete(temporary.name)

    def publish(self, made: list[tuple[Path, Path]]) -> None:
        """Give files of this fetch, (temporary, final), their final names, the first one last: it stands for the entry.

        FileNotFoundError: the folder was deleted, or another process has taken this fetch over.
        """
        with self._state.opened() as state:
            if not _is_at(self._handle, state, self._name):
                raise FileNotFoundError(errno.ENOENT, 'Another process has taken the fetch over', self._name)
        for temporary, final in reversed(made):
            if final.parent != self.folder:
                self._make_folder(final.parent)
            with self._state.opened() as state:
                state.rename(temporary.name, final)

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            is_race = isinstance(error, (FileExistsError, FileNotFoundError))
            if is_race and not os.path.lexists(error.filename):  # it, or the folder above, was deleted
                raise FileNotFoundError(errno.ENOENT, 'No such folder', error.filename) from error
            raise cannot_write(folder, error) from error
        check_inside(str(self.folder), os.path.relpath(folder, self.folder))

    def __enter__(self) -> FetchLock:
        if self._handle < 0:
            self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.release(error)

    def acquire(self, *, wait: bool = True) -> bool:
        """Take the lock; False if it must `wait` and may not. Raises the failure of the fetch that it waited for."""
        while True:
            with contextlib.ExitStack() as stack:
                handle = self._open()
                hold(handle)
                stack.callback(release, handle)
                if not try_lock_file(handle, self.path):
                    if not wait:
                        return False
                    if not self._wait(handle):
                        continue
                if self._take(handle):
                    stack.pop_all()
                    return True
                failure = read_failure(handle, ahead=self._ahead)
            if failure is not None and wait:
                raise failure

    def _wait(self, handle: int) -> bool:
        """Wait for the end of another fetch, and lock its file; False if that file has no name any more."""
        begin, wait, reached = time.monotonic(), LockWait(handle, self.path), dict[str, int]()
        try:
            while not try_lock_file(handle, self.path):
                if not wait.turn():
                    continue
                with self._opened() as state:
                    if state is None or not _is_at(handle, state, self._name):
                        return False
                    sizes = {name: _size(state, name) for name in state.names() if name.startswith(self._digest)}
                    if sizes != reached:
                        reached = sizes
                        wait.restart()
                    elif wait.is_over(bound=max(SAID, self._patience), if_stopped=SAID):
                        _log.warning('%s This process takes the fetch over.', wait.why())
                        state.delete(self._name)
                        return False
            return True
        finally:
            self.waited += time.monotonic() - begin

    def _take(self, handle: int) -> bool:
        """Take the locked file, unless its name now belongs to another file."""
        try:
            if not os.path.samestat(os.fstat(handle), self.path.lstat()):
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._handle, self._pid = handle, os.getpid()
        return True

    def release(self, error: BaseException | None = None) -> None:
        """Remove the fetch's files, leave its error for waiters, and unlock."""
        if os.getpid() != self._pid:
            self._handle = -1
            return  # forked while it was held: the lock is the parent's
        handle, self._handle = self._handle, -1
        try:
            with self._opened() as state:
                if state is not None and _is_at(handle, state, self._name):
                    _remove_files(state, self._digest)
                if isinstance(error, HeadraceError):
                    with contextlib.suppress(OSError):  # a full disk has no room for its own error
                        note = {'failed': type(error).__name__, 'message': str(error)[:8000], 'ahead': self._ahead}
                        write_text(handle, json.dumps(note))
                if state is not None and _is_at(handle, state, self._name):
                    state.delete(self._name)
            self._state.remove()  # with the last fetch
        finally:
            release(handle)

    def clear(self) -> None:
        """Remove the leftovers of a fetch of this entry whose process ended: they count towards a limit."""
        with self._opened() as state:
            if state is not None:
                _remove_files(state, self._digest)
        write_text(self._handle, '')

    def reserve(self, count: int) -> None:
        """Note that this fetch takes ``count`` bytes of the folder's limit while it runs."""
        self.reserved = count
        write_text(self._handle, json.dumps({'reserved': count}))

    @contextlib.contextmanager
    def _opened(self) -> Generator[OpenFolder | None]:
        """The folder of fetches; None if it was deleted. Another user may have made a new one, not yet open to all."""
        with contextlib.ExitStack() as stack:
            try:
                state = stack.enter_context(self._state.opened())
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                state = None
            yield state

    def _open(self) -> int:
        refused: OSError | None = None
        absent: OSError | None = None
        for _ in range(100):
            try:
                with self._state.opened(make=True) as state:
                    handle = state.open_file(self._name, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError as error:  # noqa: PERF203
                # The folder is new, or its last user has just removed the subfolder.
                absent = error.with_traceback(None)  # which holds this frame, and so the dataset
            except PermissionError as error:
                # Another user has made the file, or the subfolder, and not yet opened it to all who share the folder.
                refused = error.with_traceback(None)
                if not os.access(self.folder, os.W_OK):
                    raise cannot_write(self.folder, error) from error
                time.sleep(0.001)
                if not os.access(self._state.path, os.W_OK):
                    self._state.remove()  # its maker was killed before that; else it is made again
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise
                raise cannot_write(self.folder, error) from error
            else:
                with contextlib.suppress(OSError):
                    os.fchmod(handle, 0o666 & self.folder.stat().st_mode)
                return handle
        if refused is not None and not os.access(self._state.path, os.W_OK):
            raise cannot_write(self._state.path, refused) from refused
        if absent is not None and not self.folder.exists():
            raise cannot_write(self.folder, absent) from absent
        raise CacheError(
            f'{self.path} cannot be opened: what is in {self._state.path} is deleted as fast as it is made, or belongs '
            f'to another user. Stop the program that deletes it, or delete that folder while no process uses it.'
        )


def _is_at(handle: int, state: OpenFolder, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), state.stat(name))
    except FileNotFoundError:
        return False


def _size(state: OpenFolder, name: str) -> int:
    try:
        return state.stat(name).st_size
    except FileNotFoundError:
        return -1


def _remove_files(state: OpenFolder, digest: str) -> None:
    """Remove the files of a fetch. Needs its lock."""
    for name in state.names():
        if name.startswith(f'{digest}.') and not name.endswith('.lock'):
            with contextlib.suppress(FileNotFoundError):
                state.delete(name)


def _open_to_reclaim(state: OpenFolder, name: str) -> int:
    try:
        return state.open_file(name, os.O_RDWR | os.O_CREAT)
    except PermissionError:
        # Of another user, who has just made it, or was killed before opening it to all. To lock it is enough.
        return state.open_file(name, os.O_RDONLY)


def reclaim_fetches(folder: Path) -> bool:
    """Remove the files of fetches whose process was killed, if there are any; running fetches stay."""
    is_reclaimed = False
    place = fetch_folder(folder)
    try:
        with place.opened() as state:
            for digest in {name.partition('.')[0] for name in state.names()} - {LEDGER}:
                lock = f'{digest}.lock'
                try:
                    handle = _open_to_reclaim(state, lock)
                except PermissionError:
                    continue  # another user's, which has not opened it to all: as in use
                with held(handle):
                    if try_lock_file(handle, place.path / lock) and _is_at(handle, state, lock):
                        _remove_files(state, digest)
                        state.delete(lock)
                        is_reclaimed = True
    except (FileNotFoundError, NotADirectoryError):
        pass  # there is none, or the last fetch ended and took the subfolder with it
    except PermissionError:
        return False  # another user has just made it
    except OSError as error:
        raise cannot_write(folder, error) from error
    if is_reclaimed:
        place.remove()
    return is_reclaimed


T = TypeVar('T')


def deleted(folder: Path, name: str) -> CacheError:
    """The error for a file that something deletes as soon as it is there, or before."""
    return CacheError(f'{folder / name} was deleted as often as it was fetched. Stop what deletes it.')


def despite_deletion(folder: Path, name: str, attempt: Callable[[], T]) -> T:
    """Fetch a file again if the cache folder was deleted meanwhile. Each attempt makes the folder again."""
    last: FileNotFoundError | None = None
    for _ in range(TRIES):
        try:
            return attempt()
        except FileNotFoundError as error:  # noqa: PERF203
            if isinstance(error, HeadraceError) or not _is_in(folder, error.filename):
                raise  # the store has no such object, or its client misses a file of its own
            last = error
    raise deleted(folder, name) from last


def _is_in(folder: Path, missing: object) -> bool:
    """Whether the missing file of an error is the cache folder or in it; a bare name comes from its ``.headrace``."""
    if isinstance(missing, int):  # a descriptor
        return True
    if not isinstance(missing, (str, bytes)):
        return False
    path = os.fsdecode(missing)
    is_fetch_file = _NAMES.fullmatch(path) is not None  # a name without a folder
    return is_fetch_file or Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))  # noqa: PTH100 - lexical


@mapping_errors
def disk_errors(folder: Path, entry: CacheEntry | None, *, keep_packed: bool) -> Generator[None]:
    """Say of a cache folder, while a shard is fetched (None: the index), that it has no room or is not writable."""
    try:
        yield
    except HeadraceError:
        raise
    except OSError as error:
        if error.errno in NO_ROOM:
            what = 'the index'
            if entry is not None:
                needed = space_needed(folder, list(entry.parts), keep_packed=keep_packed)
                what = f'{entry.key}, which needs {needed} bytes'
            there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
            raise DiskFullError(
                f'{folder} has no room for {what}; {shutil.disk_usage(there).free} bytes are free. Make room, name a '
                f'`local` on a larger disk, or set `cache_limit` to less than the disk holds.'
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise cannot_write(error.filename or folder, error) from error
        raise
