"""Marks of datasets that are being written, and leftovers of killed writers.

A file `MARK` stands in a folder, and at the prefix of a store, until the writer has finished the dataset. The writer
holds a kernel lock on the folder's mark, which ends with its process. Both marks name the writer, its host and its
folder. So the next writer knows whether the dataset is unfinished and whether its writer still runs on this machine. A
writer knows whether another one has taken the prefix over.

Only names that a writer makes are deleted, unless the caller asked for an empty `out` (`start`). A writer of parts
makes folders with the names of `part_name`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from headrace.dataset.writing.place import FolderPlace, Place, StorePlace, delete_or_warn
from headrace.dataset.writing.start import INDEX, MARK, PART, Start, Terms, find_start, is_ours, refuse
from headrace.errors import AccessDeniedError, CacheError, ObjectNotFoundError, StorageError
from headrace.errors.redaction import warn
from headrace.storage.cache.locks import held, release, try_lock_file
from headrace.storage.output import lock_output, make_folder
from headrace.storage.stores.local import LocalStore, mapped_output_errors

_LONGEST: Final = 1 << 15  # Bytes of a mark that are read.
_TITLE: Final = 'unfinished'
_TEMPORARY: Final = 'headrace-writer-'
_TEMPORARY_NAME: Final = re.compile(rf'{_TEMPORARY}[a-z0-9_]{{8}}')
_own: Final[set[tuple[int, str]]] = set()  # Process and token of the marks that it made.


@dataclasses.dataclass(frozen=True)
class WriterMark:
    token: str  # Of this writer alone.
    host: str
    boot: str  # The kernel's id of the host's boot; empty where the system has none.
    folder: str  # The absolute path of the local folder, whose mark the writer holds locked.
    before: str = ''  # How many shards the index had before, in digits: with more the dataset is finished.

    @classmethod
    def of_this_process(cls, folder: Path, before: int) -> WriterMark:
        token = secrets.token_hex(16)
        _own.add((os.getpid(), token))
        return cls(token, socket.gethostname(), _boot_id(), str(folder.absolute()), str(before))

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

    @property
    def shards_before(self) -> int | None:
        return int(self.before) if self.before.isdecimal() and len(self.before) < 10 else None

    def dump(self) -> bytes:
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
    """A new name for the folder of a part: each attempt at it has its own. `run`: the writer's `WriterMark.run`."""
    return f'part-{number:05}-{run}-{secrets.token_hex(4)}'


def reclaim_parts(folder: Path) -> None:
    """Remove parts in a folder of this user whose writers were killed on this machine."""
    _reclaim_folders(folder, PART)


def read_mark(place: Place) -> WriterMark | None:
    """The mark in a folder, or at the prefix of a store; None if there is none."""
    with contextlib.suppress(ObjectNotFoundError):
        return WriterMark.parse(place.read(MARK)[:_LONGEST])
    return None


def _boot_id() -> str:
    try:
        return Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()
    except OSError:
        return ''


class FolderClaim:
    """A folder that one running writer has for itself."""

    def __init__(self, path: Path, handle: int, mark: WriterMark, start: Start, *, is_temporary: bool) -> None:
        """Take a folder whose mark is locked; `take` and `make_temporary` do so."""
        self.path = path
        self.place = FolderPlace(path)
        self.mark = mark
        self.start = start
        self._handle = handle
        self._is_temporary = is_temporary

    @classmethod
    def take(cls, path: Path, terms: Terms, *, store: Start | None, keep_local: bool) -> FolderClaim:
        """Mark a folder, which is made if need be, and remove what does not stay.

        `store`: where the writer starts in a store, if the dataset is finished there; `keep_local`: the folder holds
        the shards, too. FileExistsError: another writer writes to it, or `terms` allow neither to continue nor to
        remove its files.
        """
        while True:
            make_folder(path)
            with contextlib.suppress(FileNotFoundError):  # another writer removes an empty part without a mark
                handle = lock_output(path / MARK)
                break
        if handle is None:
            raise _is_written(str(path), read_mark(FolderPlace(path)))
        try:
            place = FolderPlace(path)
            sizes = place.sizes()
            if not sizes.get(MARK):
                sizes.pop(MARK, None)
            with mapped_output_errors(path / MARK):
                left = WriterMark.parse(os.pread(handle, _LONGEST, 0))
            try:
                if store is None:
                    start = find_start(place, sizes, None, left and left.shards_before, terms)
                else:
                    start = _start_beside(place, sizes, store, terms, keep_local=keep_local)
            except Exception:
                if MARK not in sizes:
                    delete_or_warn(place, [MARK])
                raise
            if start.is_finished:
                return cls(path, handle, left or WriterMark.of_this_process(path, 0), start, is_temporary=False)
            for name in start.obsolete:
                place.delete(name)
            return cls(path, handle, _write_mark(handle, path, len(start.before)), start, is_temporary=False)
        except BaseException:
            release(handle)
            raise

    @classmethod
    def make_temporary(cls, start: Start) -> FolderClaim:
        """Make a folder among the system's temporary files; `release` removes it."""
        while True:
            with mapped_output_errors(Path(tempfile.gettempdir())):
                path = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
            with contextlib.suppress(FileNotFoundError):  # another writer removes a folder without a mark
                handle = lock_output(path / MARK)
                if handle is not None:
                    return cls(path, handle, _write_mark(handle, path, len(start.before)), start, is_temporary=True)

    def remove_files(self) -> bool:
        """Remove the shards and the journal that this writer stored in the folder; whether all are gone."""
        kept = dataclasses.replace(self.start, whole=()).roots
        try:
            names = [name for name in self.place.sizes() if name not in kept and is_ours(name)]
        except FileNotFoundError:  # the folder of a part that is not needed
            return True
        except OSError as error:
            warn(f'Shards without an index stay in {self.path}. The next writer removes them. The reason: {error}')
            return False
        return delete_or_warn(self.place, names)

    def release(self, *, is_done: bool = True) -> None:
        """Let another writer take the folder. Unless `is_done`, its mark stays as that of a killed writer."""
        mark = self.path / MARK
        try:
            if self._is_temporary:
                shutil.rmtree(self.path, ignore_errors=True)
                return
            with contextlib.suppress(OSError):
                is_done = is_done or not mark.stat().st_size
                if is_done and not delete_or_warn(self.place, [MARK]):
                    os.truncate(mark, 0)  # an empty mark says nothing
        finally:
            release(self._handle)


def _is_written(shown: str, mark: WriterMark | None) -> FileExistsError:
    fix = 'Wait for it, or choose another `out`.'
    if mark is not None and (os.getpid(), mark.token) in _own:
        fix = (
            'It is a writer of this process: call its `finish` or `abort`, or leave its `with` block. One without a '
            '`with` block is given up by `exist_ok=True`.'
        )
    return FileExistsError(f'Directory is not empty: another writer is writing to {shown}. {fix}')


def _start_beside(
    place: FolderPlace, sizes: Mapping[str, int], store: Start, terms: Terms, *, keep_local: bool
) -> Start:
    """Where to start in a folder beside a store: its index does not count."""
    continues = bool(store.shards)
    kept: Collection[str] = {INDEX, *store.roots} if keep_local and continues else ()
    others = [name for name in sizes if name != MARK and name not in kept]
    foreign = [name for name in others if not (MARK in sizes and (name == INDEX or is_ours(name)))]
    if foreign and not terms.exist_ok:
        raise refuse(place.shown, foreign[0], len(sizes) - 1)
    return dataclasses.replace(store, obsolete=tuple(sorted(others, key=lambda name: name != INDEX)))


def _write_mark(handle: int, folder: Path, before: int) -> WriterMark:
    mark = WriterMark.of_this_process(folder, before)
    with mapped_output_errors(folder / MARK):
        # A full disk leaves the mark of a killed writer as it is.
        os.ftruncate(handle, os.pwrite(handle, mark.dump(), 0))
    return mark


class StoreClaim:
    """The prefix of a store that one writer has for itself.

    Locks do not reach other machines. So only the caller can decide to take over the unfinished prefix of another
    machine's writer. If that one still runs, it finds another token in the mark and fails.
    """

    def __init__(self, place: StorePlace, terms: Terms, *, beside: Mapping[str, int] | None) -> None:
        """List the prefix without a change. Removes the temporary folders of dead writers.

        `beside`: name and bytes of the files of a folder that is to hold the same shards; None without such a folder.
        FileExistsError: a writer on this machine writes to the prefix, or `terms` allow neither to continue nor to
        remove its objects. With neither `exist_ok` nor `resume` also: a writer on another machine has not finished it.
        """
        self.place = place
        self._mark: WriterMark | None = None
        _reclaim_folders(Path(tempfile.gettempdir()), _TEMPORARY_NAME)
        sizes = place.sizes()
        left: WriterMark | None = None
        if MARK in sizes:
            left = read_mark(place)
            self._check_writer(left, terms)
        self.start = find_start(place, sizes, beside, left and left.shards_before, terms)

    def _check_writer(self, mark: WriterMark | None, terms: Terms) -> None:
        is_running = mark.is_running() if mark is not None else None
        if is_running:
            raise _is_written(self.place.shown, mark)
        if is_running is None and not (terms.exist_ok or terms.resume):
            where = f'the machine {mark.host!r}' if mark is not None else 'an unknown machine'
            raise FileExistsError(
                f'Directory is not empty: a writer on {where} has begun to write to {self.place.shown}, and may still '
                f'run. Wait for it, or choose another `out`. If it was killed, pass `resume=True` to continue it, or '
                f'`exist_ok=True` to start over.'
            )

    def take(self, mark: WriterMark) -> None:
        """Mark the prefix, and remove what does not stay."""
        if self.start.is_finished:
            return
        self._mark = mark
        self.place.write(MARK, mark.dump())
        for name in self.start.obsolete:
            self.place.delete(name)
        self.place.remove_unfinished()  # files that were never listed, since their objects had not appeared
        if isinstance(self.place.store, LocalStore):
            with mapped_output_errors(self.place.store.root):
                for path in self.place.store.root.iterdir():
                    if PART.fullmatch(path.name) and path.name not in self.start.roots:
                        shutil.rmtree(path)

    def check(self) -> None:
        """Check that no other writer has taken the prefix over; a StorageError if one has."""
        try:
            mark = read_mark(self.place)
        except AccessDeniedError:  # a key that may only write
            return
        if mark != self._mark:
            raise StorageError(
                f'Another writer has begun to write to {self.place.shown} while this one was running, so this dataset '
                f'is given up. Only one writer may write to a prefix: end the others, and write it again.'
            )

    def release(self) -> None:
        delete_or_warn(self.place, [MARK])


class Claim:
    """A folder, the prefix of a store, or both, that one running writer has for itself."""

    def __init__(
        self,
        folder: Path | None,
        store: StorePlace | None,
        terms: Terms,
        *,
        keep_local: bool,
        beside: Mapping[str, int] | None = None,
    ) -> None:
        """Mark both, and remove what does not stay. Without a folder, a temporary one is made.

        `keep_local`, `beside`: see `FolderClaim.take` and `StoreClaim`, also for the errors.
        """
        self.store = None if store is None else StoreClaim(store, terms, beside=beside)
        start = self.store and self.store.start
        if folder is None:
            assert start is not None, 'there is a store'
            self.folder = FolderClaim.make_temporary(start)
        else:
            self.folder = FolderClaim.take(folder, terms, store=start, keep_local=keep_local)
        self.start = start or self.folder.start
        try:
            if self.store is not None:
                self.store.take(self.folder.mark)
        except BaseException:
            self.folder.release(is_done=not terms.resume)
            raise

    def check(self) -> None:
        """Check that no other writer has taken the store over; a StorageError if one has."""
        if self.store is not None:
            self.store.check()

    def release(self, *, is_done: bool = True) -> None:
        """Let another writer take both. Unless `is_done`, the marks stay as those of a killed writer."""
        if self.store is not None and is_done:
            self.store.release()
        self.folder.release(is_done=is_done)


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
                if name in {MARK, INDEX} or is_ours(name):
                    os.unlink(name, dir_fd=folder)
            os.rmdir(path)  # noqa: PTH106
    finally:
        os.close(folder)
