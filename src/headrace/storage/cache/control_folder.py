"""Folders that headrace keeps for itself inside a cache folder, such as ``.headrace``.

A cache folder may lie where others can write, too. Users who share it are not trusted with other folders. So such a
folder is opened as a directory, without following a link, and only if its owner may change the cache.
All files in it are reached through that descriptor, by names that headrace itself makes; no other name is touched.
Each operation opens the folder again: no descriptor stays open, and a folder that was deleted is simply absent.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final

from typing_extensions import Buffer

from headrace.errors import CacheError
from headrace.errors.redaction import without_credentials
from headrace.storage.cache.locks import held

_SHARED: Final = 0o022  # Mode bits of a folder that other users may write to.


def open_folder(path: Path) -> int:
    """Open a folder itself; a CacheError for a link to one, or a file."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        mode = path.lstat().st_mode  # or the error of its parent
        what = 'a symbolic link' if stat.S_ISLNK(mode) else 'no folder'
        raise CacheError(
            f'headrace keeps files of its own in the folder {path}, but that is {what}. Nothing behind it was touched. '
            f'Remove it: headrace makes the folder.'
        ) from error


class OpenFolder:
    """An open folder of headrace's own. Names that headrace does not make are invisible in it."""

    def __init__(self, path: Path, handle: int, names: re.Pattern[str]) -> None:
        self.path, self.handle = path, handle
        self._names = names

    def names(self) -> list[str]:
        return [name for name in os.listdir(self.handle) if self._names.fullmatch(name)]  # noqa: PTH208 - a descriptor

    def stat(self, name: str) -> os.stat_result:
        """The size, owner and kind of a file. A link is not followed."""
        return os.stat(self._own(name), dir_fd=self.handle, follow_symlinks=False)

    def open_file(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Open a regular file that has this one name; a CacheError for links, devices and second names."""
        try:
            handle = os.open(
                self._own(name), flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode, dir_fd=self.handle
            )
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
                raise
            raise self._foreign(name) from error
        info = os.fstat(handle)
        # Without a name: its user has just removed it.
        if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
            os.close(handle)
            raise self._foreign(name)
        return handle

    def create(self, name: str, mode: int = 0o666) -> int:
        """Make a file, in place of one that was there."""
        with contextlib.suppress(FileNotFoundError):
            self.delete(name)
        return self.open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, name: str, most: int) -> bytes:
        handle = self.open_file(name, os.O_RDONLY)
        try:
            return os.read(handle, most)
        finally:
            os.close(handle)

    def delete(self, name: str) -> None:
        """Remove a file, or a link that has its name."""
        try:
            os.unlink(self._own(name), dir_fd=self.handle)
        except IsADirectoryError as error:
            raise self._foreign(name) from error

    def rename(self, name: str, target: Path | str) -> None:
        """Give a file its final name: a path, or another name in this folder."""
        if isinstance(target, str):
            os.replace(self._own(name), self._own(target), src_dir_fd=self.handle, dst_dir_fd=self.handle)
        else:
            os.replace(self._own(name), target, src_dir_fd=self.handle)

    def _own(self, name: str) -> str:
        if not self._names.fullmatch(name):
            raise CacheError(f'headrace makes no file {name!r} in {self.path}. This is a fault of headrace: report it.')
        return name

    def _foreign(self, name: str) -> CacheError:
        return CacheError(
            f'headrace keeps a file of its own at {self.path / name}, but that is a link, or no file. Remove it while '
            f'no process uses the folder.'
        )


class ControlFolder:
    """One folder of headrace's own, by its name in a cache folder."""

    def __init__(self, cache: Path, name: str, names: re.Pattern[str]) -> None:
        """Touches no disk. `names`: what the whole names of headrace's files in it match."""
        self.cache, self.path = cache, cache / name
        self._names = names

    @contextlib.contextmanager
    def opened(self, *, make: bool = False, only_read: bool = False) -> Generator[OpenFolder]:
        """Open the folder inside the block, whose end also ends a lock on its descriptor; `make`: if it is absent.

        `only_read`: nothing in it is changed, so that its owner does not matter. PermissionError: another user has made
        it, and has not (yet) opened it to all who share the cache folder. CacheError: it is a link or a file, or its
        owner does not share the cache folder.
        """
        try:
            handle = open_folder(self.path)
        except FileNotFoundError:
            if not make:
                raise
            handle = self._make()
        with held(handle):
            if not only_read:
                self._check_owner(os.fstat(handle))
            yield OpenFolder(self.path, handle, self._names)

    def _make(self) -> int:
        """Make the folder, open to all who may write to the cache folder: any of them may clear up after another."""
        try:
            try:
                self.path.mkdir()
            except FileNotFoundError:
                self.cache.mkdir(parents=True, exist_ok=True)
                self.path.mkdir()
        except FileExistsError:
            # Others make it, and remove it, as well. `exist_ok` raises this, too, if the folder is gone when it looks.
            return open_folder(self.path)
        handle = open_folder(self.path)
        try:
            # Below a folder of a group, new folders inherit the setgid bit, and new files the group.
            inherited = os.fstat(handle).st_mode & stat.S_ISGID
            with contextlib.suppress(PermissionError):  # it is another user's by now
                os.fchmod(handle, inherited | (0o777 & self.cache.stat().st_mode))
        except BaseException:
            os.close(handle)
            raise
        return handle

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _check_owner(self, info: os.stat_result) -> None:
        if info.st_uid in {os.geteuid(), 0}:
            return
        cache = self.cache.stat()
        if info.st_uid == cache.st_uid:
            return
        shared = cache.st_mode & _SHARED
        if not shared:
            raise CacheError(
                f'{self.path} belongs to the user with uid {info.st_uid}, but {self.cache} is not shared with others '
                f'(this process runs as uid {os.geteuid()}). Remove it, or name another `local`.'
            )
        if info.st_mode & shared != shared:
            raise PermissionError(errno.EACCES, 'it is not open to all who share the cache folder', str(self.path))


def private_folder() -> Path:
    """This user's folder among the temporary files, for data that lies in folders of the user's own."""
    return Path(tempfile.gettempdir()) / f'headrace-{os.geteuid()}'


def claim_private_folder(folder: Path) -> None:
    """Make the private folder, where all users may make folders; CacheError: a link, another's, or open to others."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    handle = open_folder(folder)
    try:
        info = os.fstat(handle)
    finally:
        os.close(handle)
    if info.st_uid != os.geteuid():
        raise CacheError(f'{folder} belongs to another user. Have it removed, or set TMPDIR to a folder of your own.')
    if info.st_mode & 0o022:
        raise CacheError(f'{folder} is for this user only, but others may write to it. Remove it, or `chmod 700` it.')


def temporary_folder(remote: str) -> Path:
    """The cache folder of a remote for which no `local` is given, as MosaicML Streaming names it."""
    return (
        Path(tempfile.gettempdir()) / hashlib.blake2s(without_credentials(remote).encode(), digest_size=16).hexdigest()
    )


def check_owner(folder: Path) -> None:
    """Check that a temporary folder, whose name others can make, is of this user or root; else a CacheError."""
    try:
        owner = folder.lstat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return
    if owner not in {os.geteuid(), 0}:
        raise CacheError(
            f'The temporary folder {folder} belongs to the user with uid {owner}; this process runs as uid '
            f'{os.geteuid()}. Set `local` to a folder of your own, or to this one if you trust what is in it.'
        )


def publish(folder: OpenFolder, name: str, parts: Iterable[Buffer]) -> None:
    """Write a file whole or not at all. Needs the lock under which its makers wait for each other."""
    temporary = f'{name}.tmp'
    try:
        with open(folder.create(temporary), 'wb') as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())  # a file that lost its content in a power failure would be a wrong order
        folder.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            folder.delete(temporary)
        raise
