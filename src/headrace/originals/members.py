"""Members of distributions: files of a folder, and files within tars and zips, which are read in place."""

from __future__ import annotations

import os
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from headrace.errors import FormatError, ObjectNotFoundError
from headrace.sources.tar import read_members
from headrace.storage.stores.local import mapped_path_errors


class Member(NamedTuple):
    path: str  # of the file, relative to the root of the distribution
    begin: int
    size: int  # in bytes
    version: str  # of the file: changes when it is written again
    name: str  # of the member within the file; empty for the file itself

    @classmethod
    def of(cls, path: str, info: os.stat_result) -> Member:
        return cls(path, 0, info.st_size, f'{info.st_mtime_ns:x}', '')

    @property
    def label(self) -> str:
        return f'{self.path}:{self.name}' if self.name else self.path

    def read(self, root: Path) -> bytes:
        with open(root / self.path, 'rb', buffering=0) as file:
            there = os.fstat(file.fileno()).st_size
            if not 0 <= self.size <= there - self.begin:
                # The sizes in a tar are not to be trusted with memory.
                raise FormatError(
                    f'A member lies within its file, but has {self.size} bytes from byte {self.begin}, and the file '
                    f'has {there}. Fetch it again.'
                )
            file.seek(self.begin)
            data = file.read(self.size)
            while len(data) < self.size and (more := file.read(self.size - len(data))):
                data += more
        if len(data) < self.size:
            raise FormatError(f'A member has {self.size} bytes, but its file ends after {len(data)} of them.')
        return data


def label_of(record: Sequence[object]) -> str:
    """The label of the first member in a record."""
    return next(part.label for part in record if isinstance(part, Member))


def files_of(root: Path, folder: str) -> list[Member]:
    """The files of a folder, without those beneath it, by name."""
    if not (root / folder).is_dir():
        raise ObjectNotFoundError(f'{root} holds no folder {folder!r}. Check the path.')
    members: list[Member] = []
    with os.scandir(root / folder) as entries:
        for entry in entries:
            if entry.name.startswith('.'):
                continue
            with mapped_path_errors(Path(entry.path)):  # of a link that leads nowhere
                info = entry.stat()
            if stat.S_ISREG(info.st_mode):
                members.append(Member.of((Path(folder) / entry.name).as_posix(), info))
    return sorted(members)


def tar_members(root: Path, path: str, begin: int = 0, size: int | None = None) -> Iterator[Member]:
    """The files within an uncompressed tar at a byte of a file; FormatError: damaged, after the members before."""
    info = (root / path).stat()
    version = f'{info.st_size:x}-{info.st_mtime_ns:x}'
    size = info.st_size - begin if size is None else size
    with open(root / path, 'rb') as file:
        for member in read_members(_TarWindow(file, path, begin, size), path, has_end=True):
            yield Member(path, begin + member.data, member.size, version, member.name)


def read_packed(path: Path, name: str, limit: int) -> bytes:
    """A file of a compressed tar; FormatError: it is not there, is damaged, or unpacks to more than `limit` bytes."""
    try:
        with tarfile.open(path, 'r|gz') as tar:
            for info in tar:
                if info.name == name and (file := tar.extractfile(info)) is not None:
                    if info.size > limit:  # a few packed bytes can unpack to more than the memory holds
                        raise FormatError(
                            f'A packed file of a known dataset has at most {limit} bytes, but {path.name}:{name} has '
                            f'{info.size}. Fetch it again.'
                        )
                    return file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise FormatError(f'The archive {path.name} is damaged: {error}. Fetch it again.') from error
    raise FormatError(f'The archive {path.name} has no {name}. Fetch it again.')


class _TarWindow:
    """A run of bytes of a file; see `headrace.sources.ranges.Window`."""

    def __init__(self, file: BinaryIO, path: str, begin: int, size: int) -> None:
        self._file, self._path, self._begin, self._size = file, path, begin, size

    def take(self, offset: int, size: int) -> bytes:
        if offset > self._size:
            raise FormatError(f'{self._path} ends within the tar member before byte {offset}. Fetch it again.')
        self._file.seek(self._begin + offset)
        return self._file.read(min(size, self._size - offset))
