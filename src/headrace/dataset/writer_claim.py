"""Marks of datasets that are being written, and leftovers of killed writers.

A file `MARK` stands in a folder, and at the prefix of a store, until the writer has finished the dataset. The writer
holds a kernel lock on the folder's mark, which ends with its process. The text of both marks ends with the writer's
token. So the next writer knows three things: whether the dataset is unfinished, whether its writer still runs on this
machine, and whether another writer has taken the prefix over meanwhile.

Only names that a writer makes are deleted, unless the caller asked for an empty `out`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import AccessDeniedError, CacheError, ObjectNotFoundError, StorageError
from headrace.storage.local import LocalStore
from headrace.storage.locks import hold, let_go, try_lock_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from headrace.storage import Retry, Store

    T = TypeVar('T')

__all__ = ['INDEX', 'FolderClaim', 'StoreClaim']

INDEX: Final = 'index.json'
MARK: Final = '.headrace-writing'
_TITLE: Final = 'unfinished'
_OURS: Final = re.compile(
    r'shard\.\d{5,}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.(br|bz2|gz|snappy|zstd))?(\.tmp)?|index\.json\.tmp'
)
_TEMPORARY: Final = 'headrace-writer-'
_TEMPORARY_NAME: Final = re.compile(rf'{_TEMPORARY}[a-z0-9_]{{8}}')
_LONGEST: Final = 1 << 10  # bytes of a mark


class FolderClaim:
    """A folder that one living writer has for itself."""

    def __init__(self, path: Path, handle: int, token: str, *, is_temporary: bool) -> None:
        """Take a folder whose mark is locked; `take` and `make_temporary` do so."""
        self.path = path
        self.token = token
        self._handle = handle
        self._is_temporary = is_temporary

    @classmethod
    def take(cls, path: Path, *, exist_ok: bool, has_store: bool) -> FolderClaim:
        """Empty a folder and mark it.

        Args:
            path: the folder; made if it is not there.
            exist_ok: whether to delete everything that it holds.
            has_store: whether the dataset is finished in a store, so that an index in the folder says nothing.

        Raises:
            FileExistsError: another writer writes to it; or, without `exist_ok`, it holds a finished dataset or files
                of others.
        """
        path.mkdir(parents=True, exist_ok=True)
        handle = _lock_mark(path)
        if handle is None:
            raise FileExistsError(
                f'Directory is not empty: another writer is writing to {path}. Wait for it, or choose another `out`.'
            )
        try:
            _empty_folder(path, handle, exist_ok=exist_ok, has_store=has_store)
            return cls(path, handle, _write_mark(handle), is_temporary=False)
        except BaseException:
            let_go(handle)
            raise

    @classmethod
    def make_temporary(cls) -> FolderClaim:
        """Make a folder among the system's temporary files; `release` removes it."""
        while True:
            path = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
            with contextlib.suppress(
                FileNotFoundError
            ):  # another writer may take a folder without a mark for a dead one's
                handle = _lock_mark(path)
                if handle is not None:
                    return cls(path, handle, _write_mark(handle), is_temporary=True)

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


def _write_mark(handle: int) -> str:
    token = secrets.token_hex(16)
    os.ftruncate(handle, 0)
    os.pwrite(handle, _mark_text(token), 0)
    return token


def _mark_text(token: str) -> bytes:
    return f'{_TITLE}\n{token}\n'.encode()


def _token_of(text: bytes) -> str:
    return text.decode(errors='replace').partition('\n')[2].strip()


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

    No lock reaches other machines. So a writer takes over an unfinished prefix from a writer elsewhere, and that one,
    should it still run, finds another token in the mark and fails.
    """

    def __init__(self, store: Store, retry: Retry, *, exist_ok: bool) -> None:
        """Look at what the prefix holds; changes nothing there. Removes the temporary folders of dead writers.

        Raises:
            FileExistsError: a writer on this machine writes to it; or, without `exist_ok`, it holds a finished dataset
                or files of others.
        """
        self._store, self._retry = store, retry
        self._token = ''
        living = _reclaim_temporary_folders()
        self._leftovers = self._call('Listing', lambda: self._to_delete(exist_ok=exist_ok))
        if MARK in self._leftovers and self._read_token() in living:
            raise FileExistsError(
                f'Directory is not empty: another writer is writing to {store.url}. Wait for it, or choose another '
                f'`out`.'
            )

    def take(self, token: str) -> None:
        """Mark the prefix with a token, and empty it."""
        self._token = token
        text = _mark_text(token)
        self._call('Marking', lambda: self._store.put(MARK, io.BytesIO(text), size=len(text)))
        if isinstance(self._store, LocalStore):
            self._store.remove_unfinished()
        # The index goes first: from here on the prefix is no dataset.
        for key in sorted(self._leftovers, key=lambda key: key != INDEX):
            if key != MARK:
                self._call('Emptying', lambda key=key: self._store.delete(key))
        self._leftovers = []

    def check(self) -> None:
        """See that no other writer has taken the prefix over.

        Raises:
            StorageError: one has.
        """
        try:
            found = self._read_token()
        except AccessDeniedError:  # a key that may only write
            found = self._token
        if found != self._token:
            raise StorageError(
                f'Another writer has begun to write to {self._store.url} while this one was running, so this dataset '
                f'is given up. Only one writer may write to a prefix: end the others, and write it again.'
            )

    def release(self) -> None:
        """Remove the mark of a finished dataset. A store that refuses keeps it, which does no harm beside an index."""
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

    def _read_token(self) -> str:
        text = io.BytesIO()
        with contextlib.suppress(ObjectNotFoundError):
            self._call('Reading', lambda: self._store.get(MARK, _emptied(text)))
        return _token_of(text.getvalue()[:_LONGEST])

    def _call(self, what: str, attempt: Callable[[], T]) -> T:
        return self._retry.call(f'{what} {self._store.url}', attempt)


def _emptied(text: io.BytesIO) -> io.BytesIO:
    text.seek(0)
    text.truncate()
    return text


def _reclaim_temporary_folders() -> set[str]:
    """Remove this user's temporary folders of writers that were killed; returns the tokens of living writers."""
    living = set[str]()
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if _TEMPORARY_NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError, CacheError):
                    living.add(_reclaim_temporary_folder(entry.path))
    return living - {''}


def _reclaim_temporary_folder(path: str) -> str:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return ''
        try:
            handle = os.open(MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            os.rmdir(path)  # noqa: PTH106 - refused unless it is empty: its writer was killed before it made the mark
            return ''
        hold(handle)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return ''
            if not try_lock_file(handle, path):
                return _token_of(os.pread(handle, _LONGEST, 0))
            for name in os.listdir(folder):  # noqa: PTH208 - a descriptor has no Path
                if name in {MARK, INDEX} or _OURS.fullmatch(name):
                    os.unlink(name, dir_fd=folder)
            os.rmdir(path)  # noqa: PTH106
        finally:
            let_go(handle)
    finally:
        os.close(folder)
    return ''
