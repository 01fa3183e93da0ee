"""A folder as a store: local disks and network file systems.

The folder is the user's, so symbolic links inside it are followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headrace.error_mapping import mapping_errors
from headrace.errors import AccessDeniedError, ObjectNotFoundError, StorageError, TransferError
from headrace.storage.protocol import ObjectInfo, StoreOptions, check_extra, check_key, check_prefix
from headrace.storage.resolve import local_path
from headrace.storage.stores.file_tree import is_temporary, temporary_name
from headrace.storage.transfer.http_body import CHUNK, ReadRequest, SourcePart, truncated
from headrace.storage.transfer.http_errors import changed
from headrace.storage.transfer.sealed_errors import sealed
from headrace.storage.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ['LocalStore', 'mapped_path_errors', 'open_local_store']


def open_local_store(url: str, options: StoreOptions) -> LocalStore:
    """The store for a plain path or a ``file://`` URL."""
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
        """The folder."""
        return str(self.root)

    def __repr__(self) -> str:
        return f'LocalStore({str(self.root)!r})'

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`."""
        path = self._path(key)
        with mapped_path_errors(path), open(path, 'rb', buffering=0) as source:
            info = os.fstat(source.fileno())
            if stat.S_ISDIR(info.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if etag is not None and etag != _etag(info):
                raise changed(str(path))
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
        with mapped_path_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path, temporary, sync=True) as out:
                part = SourcePart(source, size)
                while chunk := part.read(CHUNK):
                    out.write(chunk)

    def head(self, key: str) -> ObjectInfo:
        """See `Store.head`."""
        path = self._path(key)
        with mapped_path_errors(path):
            info = path.stat()
            if not stat.S_ISREG(info.st_mode):
                raise FileNotFoundError(errno.ENOENT, 'No such file or directory (it is not a regular file)', str(path))
        return ObjectInfo(key, info.st_size, _etag(info), f'{info.st_mtime_ns:x}')  # inodes may differ between mounts

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        folder, _, _ = check_prefix(prefix).rpartition('/')
        start = self.root / folder
        if not start.is_dir():
            return
        found: list[ObjectInfo] = []
        with mapped_path_errors(start):
            # Symbolic links to folders are not walked: a loop would never end.
            for parent, _, names in os.walk(start, onerror=_raise):
                for name in names:
                    path = os.path.join(parent, name)  # noqa: PTH118 - a Path per file costs more than the stat
                    key = os.path.relpath(path, self.root).replace(os.sep, '/')
                    if not key.startswith(prefix) or is_temporary(name):
                        continue
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        info = os.stat(path)  # noqa: PTH116
                        if stat.S_ISREG(info.st_mode):
                            found.append(ObjectInfo(key, info.st_size, _etag(info), f'{info.st_mtime_ns:x}'))
        yield from sorted(found, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        path = self._path(key)
        with mapped_path_errors(path), contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_unfinished(self) -> None:
        """Remove what killed processes left of objects that they were putting directly below the root.

        For a caller that is the only one to put objects there.
        """
        with contextlib.suppress(FileNotFoundError), mapped_path_errors(self.root), os.scandir(self.root) as entries:
            for entry in entries:
                if is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.path)  # noqa: PTH108

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)


def _etag(info: os.stat_result) -> str:
    return f'{info.st_ino:x}-{info.st_mtime_ns:x}-{info.st_size:x}'


def _raise(error: OSError) -> None:
    raise error


@mapping_errors
def mapped_path_errors(path: Path) -> Generator[None]:
    """Turn what the system says of the store's files into headrace's exceptions."""
    try:
        yield
    except StorageError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        missing = next((p for p in reversed(path.parents) if not p.is_dir()), None)
        if missing is None:
            where = 'its folder exists, but holds no such file'
        else:
            where = f'{missing} is a file, not a folder' if missing.exists() else f'the folder {missing} does not exist'
        raise ObjectNotFoundError(
            f'{errno.errorcode.get(error.errno or 0, "ENOENT")}: No such file or directory: {path}: {where}. '
            f'Check the path and that it is mounted on this machine.'
        ) from error
    except PermissionError as error:
        raise AccessDeniedError(
            f'This user (uid {os.getuid()}) may not use {path}: {error.strerror}. Change its owner or its mode.'
        ) from error
    except OSError as error:
        if error.errno in {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EREMOTEIO}:
            raise TransferError(
                f'Reading or writing {path} failed: {error.strerror}. Check its disk or mount.'
            ) from error
        raise
