"""A folder as a store: local disks and network file systems; and listings of other stores whose objects are files.

The folder is the user's, so symbolic links inside it are followed, to files and to folders. One that leads nowhere is
an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from headrace.errors import AccessDeniedError, DiskFullError, ObjectNotFoundError, StorageError, TransferError
from headrace.errors.mapping import mapping_errors
from headrace.errors.redaction import logger_of
from headrace.storage.cache.locks import NO_ROOM
from headrace.storage.protocol import ObjectInfo, StoreOptions, check_extra, check_key, check_prefix
from headrace.storage.resolve import local_path
from headrace.storage.transfer.http import CHUNK, ReadRequest, SourcePart, changed, truncated
from headrace.storage.transfer.sealed_errors import sealed
from headrace.storage.whole_file import whole_file

TEMPORARY: Final = '.headrace-put-'
"""Beginning of the names under which objects are written before they appear; never listed."""

LONGEST_KEY: Final = 4096
"""Characters of a folder's key at most. File systems have shorter ones, but a folder that holds itself has not."""


def temporary_name() -> str:
    return f'{TEMPORARY}{os.urandom(8).hex()}'


def is_temporary(key: str) -> bool:
    """Whether this is an object that is being written, or was when its writer died."""
    return key.rpartition('/')[2].startswith(TEMPORARY)


def walk(prefix: str, children: Callable[[str], Iterable[ObjectInfo | str]]) -> list[ObjectInfo]:
    """All objects whose key begins with ``prefix``, in order of their keys; folders that hold none are not opened.

    Args:
        prefix: Plain text.
        children: Returns the objects and the keys of folders in a folder. It takes the folder's key, '' for the root.
            Nothing if the folder does not exist; it may have been deleted meanwhile.
    """
    folder, _, _ = check_prefix(prefix).rpartition('/')
    folders, infos = [folder], list[ObjectInfo]()
    while folders:
        if len(folder := folders.pop()) > LONGEST_KEY:
            raise StorageError(
                f'Listing a folder: {folder[:60]!r}... has a name of more than {LONGEST_KEY} characters, so it seems '
                f'that a folder holds itself and the listing does not end. Check links, mounts and the server.'
            )
        for child in children(folder):
            if isinstance(child, str):
                if f'{child}/'.startswith(prefix) or prefix.startswith(f'{child}/'):
                    folders.append(child)
            elif child.key.startswith(prefix) and not is_temporary(child.key):
                infos.append(child)
    return sorted(infos, key=lambda info: info.key)


def temporary_keys(folders: Iterable[str], children: Callable[[str], Iterable[ObjectInfo | str]]) -> list[str]:
    """Keys of the objects in these folders that are being written; `children` as in `walk`."""
    infos = (child for folder in folders for child in children(folder) if not isinstance(child, str))
    return [info.key for info in infos if is_temporary(info.key)]


_log = logger_of(__name__)


def open_local_store(url: str, options: StoreOptions) -> LocalStore:
    path = local_path(url)
    assert path is not None
    check_extra(options, (), 'a folder')
    return LocalStore(path)


@sealed
class LocalStore:
    """Objects are the regular files below ``root``."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    @property
    def url(self) -> str:
        return str(self.root)

    def __repr__(self) -> str:
        return f'LocalStore({str(self.root)!r})'

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        path = self._path(key)
        with mapped_path_errors(path), open(path, 'rb', buffering=0) as source:
            info = os.fstat(source.fileno())
            if stat.S_ISDIR(info.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if etag is not None and etag != _etag(info):
                raise changed(str(path), etag, _etag(info))
            left = ReadRequest(str(path), offset, size).check(ObjectInfo(key, info.st_size, ''))
            source.seek(offset)
            while left:
                chunk = source.read(min(CHUNK, left))
                if not chunk:
                    raise truncated(str(path), left)
                out.write(chunk)
                left -= len(chunk)
        return _etag(info)

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`. The bytes and the name are on disk when this returns."""
        path = self._path(key)
        temporary = path.parent / temporary_name()
        with mapped_output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path, temporary, sync=True) as out:
                part = SourcePart(source, size)
                while chunk := part.read(CHUNK):
                    out.write(chunk)

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with mapped_path_errors(path):
            info = path.stat()
            if not stat.S_ISREG(info.st_mode):
                raise FileNotFoundError(errno.ENOENT, 'No such file or directory (it is not a regular file)', str(path))
        return ObjectInfo(key, info.st_size, _etag(info), f'{info.st_mtime_ns:x}')  # inodes may differ between mounts

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, _ = check_prefix(prefix).rpartition('/')
        with mapped_path_errors(self.root / folder):
            is_there = (self.root / folder).is_dir()
        if is_there:
            yield from sorted(self._walk(folder, prefix), key=lambda info: info.key)

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        """The files below a folder, also behind links. A folder that is reached again is left out: circles end so."""
        folders, links, seen, is_behind_link = [folder], list[str](), set[tuple[int, int]](), False
        while folders or links:
            if not folders:  # all others first, so that they keep their own names
                links.sort(reverse=True)
                folders.append(links.pop())
                is_behind_link = True
            folder = folders.pop()
            path = self.root / folder
            with mapped_path_errors(path):
                info = path.stat()
                if is_behind_link and (info.st_dev, info.st_ino) in seen:
                    _log.warning('%s is a link to a folder that is listed already: its files count once.', path)
                    continue
                seen.add((info.st_dev, info.st_ino))
                with os.scandir(path) as entries:
                    for entry in entries:
                        key = f'{folder}/{entry.name}' if folder else entry.name
                        if not key.startswith(prefix) or is_temporary(entry.name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(key)
                        elif (info := _told(entry, key)) is None:
                            continue
                        elif stat.S_ISDIR(info.st_mode) and not _is_hidden(key):
                            links.append(key)
                        elif stat.S_ISREG(info.st_mode):
                            yield ObjectInfo(key, info.st_size, _etag(info), f'{info.st_mtime_ns:x}')

    def delete(self, key: str) -> None:
        path = self._path(key)
        with mapped_output_errors(path), contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_unfinished(self, folders: Iterable[str]) -> None:
        """Remove what killed processes left of objects that they were putting directly into these folders.

        For a caller that is the only one to put objects there.
        """
        for path in (self.root / folder for folder in folders):
            with contextlib.suppress(FileNotFoundError), mapped_output_errors(path), os.scandir(path) as entries:
                for entry in entries:
                    if is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(entry.path)  # noqa: PTH108

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)


def _etag(info: os.stat_result) -> str:
    return f'{info.st_ino:x}-{info.st_mtime_ns:x}-{info.st_size:x}'


def _told(entry: os.DirEntry[str], key: str) -> os.stat_result | None:
    """The status of a file, or of the target of a link. None if it is gone, or hidden as a lock of Emacs is."""
    try:
        return entry.stat()
    except OSError as error:
        if _is_hidden(key) or (isinstance(error, FileNotFoundError) and not os.path.islink(entry.path)):  # noqa: PTH114
            return None
        with mapped_path_errors(Path(entry.path)):
            raise


def _is_hidden(key: str) -> bool:
    return '/.' in f'/{key}'


@mapping_errors
def mapped_path_errors(path: Path) -> Generator[None]:
    """Turn what the system says of the store's files into headrace's exceptions."""
    try:
        yield
    except StorageError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        # Functions of `os.path`, not methods of a Path: they never raise.
        missing = next((p for p in reversed(path.parents) if not os.path.isdir(p)), None)  # noqa: PTH112
        if os.path.islink(path):  # noqa: PTH114
            where = f'it is a link to {os.readlink(path)}, which is not there'  # noqa: PTH115 - as it is written
        elif missing is None:
            where = 'its folder exists, but holds no such file'
        elif os.path.exists(missing):  # noqa: PTH110
            where = f'{missing} is a file, not a folder'
        else:
            where = f'the folder {missing} does not exist'
        raise ObjectNotFoundError(
            f'{errno.errorcode.get(error.errno or 0, "ENOENT")}: No such file or directory: {path}: {where}. '
            f'Check the path and that it is mounted on this machine.'
        ) from error
    except PermissionError as error:
        raise AccessDeniedError(
            f'This user (uid {os.getuid()}) may not use {path}: {error.strerror}. Change its owner or its mode.'
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ObjectNotFoundError(
                f'{path} is a link that leads to itself. Remove it, or link to a file or folder.'
            ) from error
        if error.errno in {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EREMOTEIO}:
            raise TransferError(
                f'Reading or writing {path} failed: {error.strerror}. Check its disk or mount.'
            ) from error
        raise


@mapping_errors
def mapped_output_errors(path: Path) -> Generator[None]:
    """As `mapped_path_errors`, for files that are only written. There a full disk can only be theirs."""
    try:
        with mapped_path_errors(path):
            yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFullError(
                f'{path} could not be written: {error.strerror}. Make room on its disk, or in its quota, and run again.'
            ) from error
        raise StorageError(
            f'{path} could not be written: {errno.errorcode.get(error.errno or 0, "?")}: {error.strerror}. Check its '
            f'disk or mount, and run again.'
        ) from error
