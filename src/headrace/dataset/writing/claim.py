"""Marks of datasets that are being written, and leftovers of killed writers.

A file `MARK` stands in a folder, and at the prefix of a store, until the writer has finished the dataset. The writer
holds a kernel lock on the folder's mark, which ends with its process. Both marks name the writer, its host and its
folder. So the next writer knows whether the dataset is unfinished and whether its writer still runs on this machine. A
writer knows whether another one has taken the prefix over.

Only names that a writer makes are deleted, unless the caller asked for an empty `out`. A writer of parts makes folders
with the names of `part_name`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import AccessDeniedError, CacheError, ObjectNotFoundError, StorageError
from headrace.storage.cache.locks import held, hold, let_go, try_lock_file
from headrace.storage.stores.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from headrace.storage import Retry, Store

    T = TypeVar('T')

__all__ = ['INDEX', 'MARK', 'FolderClaim', 'StoreClaim', 'WriterMark', 'part_name', 'read_mark', 'reclaim_parts']

INDEX: Final = 'index.json'
MARK: Final = '.headrace-writing'
"""Name of the file in a folder, and at the prefix of a store."""
_LONGEST: Final = 1 << 15
"""Bytes of a mark that are read."""
_TITLE: Final = 'unfinished'
_SHARD: Final = r'shard\.\d{5,}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.(br|bz2|gz|snappy|zstd))?(\.tmp)?'
_PART: Final = r'part-\d{5,}-[0-9a-f]{8}-[0-9a-f]{8}'
_OURS: Final = re.compile(rf'{_SHARD}|index\.json\.tmp|{_PART}(/({_SHARD}|index\.json|{re.escape(MARK)}))?')
_PART_NAME: Final = re.compile(_PART)
_TEMPORARY: Final = 'headrace-writer-'
_TEMPORARY_NAME: Final = re.compile(rf'{_TEMPORARY}[a-z0-9_]{{8}}')


@dataclasses.dataclass(frozen=True)
class WriterMark:
    """The writer that a mark names."""

    token: str
    """Of this writer alone."""
    host: str
    boot: str
    """The kernel's id of the host's boot; empty where the system has none."""
    folder: str
    """The absolute path of the local folder, whose mark the writer holds locked."""

    @classmethod
    def of_this_process(cls, folder: Path) -> WriterMark:
        """A new mark for a writer in this process."""
        return cls(secrets.token_hex(16), socket.gethostname(), _boot_id(), str(folder.absolute()))

    @classmethod
    def parse(cls, text: bytes) -> WriterMark | None:
        """Read a mark; None if it is damaged, or not yet written."""
        try:
            mark = cls(**json.loads(text.partition(b'\n')[2]))
        except (ValueError, TypeError, RecursionError):
            return None
        return mark if all(isinstance(value, str) for value in dataclasses.astuple(mark)) else None

    @property
    def run(self) -> str:
        """Eight hexadecimal digits that name the writer in the names of its parts."""
        return self.token[:8]

    def dump(self) -> bytes:
        """The text of the mark."""
        return f'{_TITLE}\n{json.dumps(dataclasses.asdict(self))}\n'.encode()

    def is_of_this_boot(self) -> bool:
        """Whether this machine made the mark since its boot: then its locks tell whether the writer runs."""
        return self.host == socket.gethostname() and self.boot == _boot_id()

    def is_running(self) -> bool | None:
        """Whether the writer still runs; None if this machine cannot tell."""
        if self.host != socket.gethostname():
            return None
        if not self.is_of_this_boot():
            return False
        path = Path(self.folder, MARK)
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return None
        with held(handle), contextlib.suppress(CacheError):
            # A lock with another mark belongs to a later writer of the folder.
            return not try_lock_file(handle, path) and self.parse(os.pread(handle, _LONGEST, 0)) == self
        return None


def part_name(number: int, run: str) -> str:
    """A new name for the folder of a part: each attempt at it has its own.

    Args:
        number: of the part.
        run: `WriterMark.run` of the dataset's writer.
    """
    return f'part-{number:05}-{run}-{secrets.token_hex(4)}'


def reclaim_parts(folder: Path) -> None:
    """Remove parts in a folder of this user whose writers were killed on this machine."""
    _reclaim_folders(folder, _PART_NAME)


def read_mark(store: Store, retry: Retry) -> WriterMark | None:
    """The mark at the prefix of a store; None if there is none."""
    text = io.BytesIO()
    with contextlib.suppress(ObjectNotFoundError):
        retry.call(f'Reading {store.url}', lambda: store.get(MARK, _emptied(text)))
    return WriterMark.parse(text.getvalue()[:_LONGEST])


def _boot_id() -> str:
    try:
        return Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()
    except OSError:
        return ''


class FolderClaim:
    """A folder that one running writer has for itself."""

    def __init__(self, path: Path, handle: int, mark: WriterMark, *, is_temporary: bool) -> None:
        """Take a folder whose mark is locked; `take` and `make_temporary` do so."""
        self.path = path
        self.mark = mark
        self._handle = handle
        self._is_temporary = is_temporary

    @classmethod
    def take(cls, path: Path, *, exist_ok: bool, has_store: bool) -> FolderClaim:
        """Empty a folder and mark it.

        Args:
            path: the folder; made if it is not there.
            exist_ok: whether to delete everything that it holds.
            has_store: whether the dataset is finished in a store; then an index in the folder does not count.

        Raises:
            FileExistsError: another writer writes to it; or, without `exist_ok`, it holds a finished dataset or files
                of others.
        """
        while True:
            path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another writer removes an empty part without a mark
                handle = _lock_mark(path)
                break
        if handle is None:
            raise FileExistsError(
                f'Directory is not empty: another writer is writing to {path}. Wait for it, or choose another `out`.'
            )
        try:
            _empty_folder(path, handle, exist_ok=exist_ok, has_store=has_store)
            return cls(path, handle, _write_mark(handle, path), is_temporary=False)
        except BaseException:
            let_go(handle)
            raise

    @classmethod
    def make_temporary(cls) -> FolderClaim:
        """Make a folder among the system's temporary files; `release` removes it."""
        while True:
            path = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
            with contextlib.suppress(FileNotFoundError):  # another writer removes a folder without a mark
                handle = _lock_mark(path)
                if handle is not None:
                    return cls(path, handle, _write_mark(handle, path), is_temporary=True)

    def remove_files(self) -> None:
        """Remove the shards that the folder holds, and their index."""
        for path in self.path.iterdir():
            if path.name == INDEX or _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the mark, and a temporary folder with it."""
        (self.path / MARK).unlink(missing_ok=True)
        if self._is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        let_go(self._handle)


def _lock_mark(folder: Path) -> int | None:
    """Open, or make, a folder's mark and lock it; None if a living writer has it."""
    handle = os.open(folder / MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    hold(handle)
    try:
        if not try_lock_file(handle, folder / MARK):
            let_go(handle)
            return None
        there = (folder / MARK).stat(follow_symlinks=False)
    except BaseException:
        let_go(handle)
        raise
    if os.path.samestat(os.fstat(handle), there):
        return handle
    let_go(handle)
    return None


def _write_mark(handle: int, folder: Path) -> WriterMark:
    mark = WriterMark.of_this_process(folder)
    os.ftruncate(handle, 0)
    os.pwrite(handle, mark.dump(), 0)
    return mark


def _empty_folder(folder: Path, mark: int, *, exist_ok: bool, has_store: bool) -> None:
    others = [path for path in folder.iterdir() if path.name != MARK]
    index = [path for path in others if path.name == INDEX]
    is_unfinished = os.fstat(mark).st_size > 0 and (has_store or not index)
    foreign = [path for path in others if not (_OURS.fullmatch(path.name) or (has_store and path.name == INDEX))]
    if others and not exist_ok and (foreign or not is_unfinished):
        if not is_unfinished:
            (folder / MARK).unlink(missing_ok=True)
        first = (foreign or others)[0]
        raise FileExistsError(
            f'Directory is not empty: {folder} holds {first.name} and {len(others) - 1} more. '
            f'Choose another `out`, or pass `exist_ok=True` to have it emptied.'
        )
    # The index goes first: from here on the folder is no dataset.
    for path in sorted(others, key=lambda path: path.name != INDEX):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


class StoreClaim:
    """The prefix of a store that one writer has for itself.

    Locks do not reach other machines. So only the caller can decide to take over the unfinished prefix of another
    machine's writer. If that one still runs, it finds another token in the mark and fails.
    """

    def __init__(self, store: Store, retry: Retry, *, exist_ok: bool) -> None:
        """List the prefix without a change. Removes the temporary folders of dead writers.

        Raises:
            FileExistsError: a writer on this machine writes to it. Without `exist_ok` also: it holds a finished dataset
                or files of others, or a writer on another machine has not finished it.
        """
        self._store, self._retry = store, retry
        self._mark: WriterMark | None = None
        _reclaim_folders(Path(tempfile.gettempdir()), _TEMPORARY_NAME)
        self._leftovers = self._call('Listing', lambda: self._to_delete(exist_ok=exist_ok))
        if MARK in self._leftovers:
            self._check_writer(exist_ok=exist_ok)

    def _check_writer(self, *, exist_ok: bool) -> None:
        mark = read_mark(self._store, self._retry)
        is_running = mark.is_running() if mark is not None else None
        if is_running:
            raise FileExistsError(
                f'Directory is not empty: another writer is writing to {self._store.url}. Wait for it, or choose '
                f'another `out`.'
            )
        if is_running is None and not exist_ok:
            where = f'the machine {mark.host!r}' if mark is not None else 'an unknown machine'
            raise FileExistsError(
                f'Directory is not empty: a writer on {where} has begun to write to {self._store.url}, and may still '
                f'run. Wait for it, or choose another `out`. If it was killed, pass `exist_ok=True`.'
            )

    def take(self, mark: WriterMark) -> None:
        """Mark the prefix, and empty it."""
        self._mark = mark
        text = mark.dump()
        self._call('Marking', lambda: self._store.put(MARK, io.BytesIO(text), size=len(text)))
        # The index goes first: from here on the prefix is no dataset.
        for key in sorted(self._leftovers, key=lambda key: key != INDEX):
            if key != MARK:
                self._call('Emptying', lambda key=key: self._store.delete(key))
        self._leftovers = []
        if isinstance(self._store, LocalStore):
            # Files that were never listed, since their objects had not appeared.
            self._store.remove_unfinished()
            for path in self._store.root.iterdir():
                if _PART_NAME.fullmatch(path.name):
                    shutil.rmtree(path)

    def check(self) -> None:
        """Check that no other writer has taken the prefix over.

        Raises:
            StorageError: one has.
        """
        try:
            found = read_mark(self._store, self._retry)
        except AccessDeniedError:  # a key that may only write
            return
        if found != self._mark:
            raise StorageError(
                f'Another writer has begun to write to {self._store.url} while this one was running, so this dataset '
                f'is given up. Only one writer may write to a prefix: end the others, and write it again.'
            )

    def release(self) -> None:
        """Remove the mark of a finished dataset. If the store refuses, the mark does no harm beside an index."""
        with contextlib.suppress(StorageError):
            self._call('Finishing', lambda: self._store.delete(MARK))

    def _to_delete(self, *, exist_ok: bool) -> list[str]:
        found: list[str] = []
        for info in self._store.list(''):
            found.append(info.key)
            is_ours = info.key == MARK or (found[0] == MARK and _OURS.fullmatch(info.key))
            if not exist_ok and not is_ours:
                raise FileExistsError(
                    f'Directory is not empty: {self._store.url} holds {info.key}. Choose another `out`, or pass '
                    f'`exist_ok=True` to have it emptied.'
                )
        return found

    def _call(self, what: str, attempt: Callable[[], T]) -> T:
        return self._retry.call(f'{what} {self._store.url}', attempt)


def _emptied(text: io.BytesIO) -> io.BytesIO:
    text.seek(0)
    text.truncate()
    return text


def _reclaim_folders(parent: Path, names: re.Pattern[str]) -> None:
    """Remove this user's folders of writers that were killed on this machine."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if names.fullmatch(entry.name):
                with contextlib.suppress(OSError, CacheError):
                    _reclaim_folder(entry.path)


def _reclaim_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        try:
            handle = os.open(MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            os.rmdir(path)  # noqa: PTH106 - fails unless it is empty: a killed writer had not made the mark
            return
        with held(handle):
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return
            # The folder may be shared with machines whose locks cannot be seen here.
            mark = WriterMark.parse(os.pread(handle, _LONGEST, 0))
            if mark is None or not mark.is_of_this_boot() or not try_lock_file(handle, path):
                return
            for name in os.listdir(folder):  # noqa: PTH208 - a descriptor has no Path
                if name in {MARK, INDEX} or _OURS.fullmatch(name):
                    os.unlink(name, dir_fd=folder)
            os.rmdir(path)  # noqa: PTH106
    finally:
        os.close(folder)
