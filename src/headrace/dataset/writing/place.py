"""The files of a dataset that is being written: those of a folder, or the objects at a prefix of a store."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeVar

from headrace.errors import ObjectNotFoundError
from headrace.errors.redaction import warn
from headrace.format.shard_memory import Piece
from headrace.storage import ObjectInfo, Retry, Store
from headrace.storage.output import list_output
from headrace.storage.stores.local import mapped_output_errors
from headrace.storage.whole_file import whole_file

T = TypeVar('T')

_BLOCK: Final = 1 << 17  # bytes


class Place(Protocol):
    """Where the files of a dataset are."""

    @property
    def shown(self) -> str:
        """Its path or URL, for messages."""
        ...

    def sizes(self) -> dict[str, int]:
        """Name and bytes of everything that it holds, in order of names."""
        ...

    def read(self, name: str, size: int | None = None) -> bytes:
        """The first `size` bytes of a file, or all; FileNotFoundError if it is not there."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Store a file. Readers see the old one or the new one, nothing between."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


class FolderPlace:
    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def shown(self) -> str:
        return str(self._path)

    def sizes(self) -> dict[str, int]:
        """See `Place.sizes`; folders count as 0 bytes."""
        sizes: dict[str, int] = {}
        with mapped_output_errors(self._path):
            for path in sorted(self._path.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    sizes[path.name] = path.lstat().st_size if path.is_file() else 0
        return sizes

    def read(self, name: str, size: int | None = None) -> bytes:
        with mapped_output_errors(self._path / name), (self._path / name).open('rb') as file:
            return file.read(size)

    def write(self, name: str, data: bytes) -> None:
        self.write_pieces(name, [data])

    def write_pieces(self, name: str, pieces: list[Piece]) -> None:
        """As `write`, of bytes in pieces, which are joined a few at a time.

        Each piece is taken out of the list before it is written, so that its memory can be used again.
        """
        temporary, path = (os.path.join(self._path, ending) for ending in (f'{name}.tmp', name))  # noqa: PTH118
        with mapped_output_errors(self._path / name), whole_file(path, temporary, buffering=0) as file:
            for block in _blocks(pieces):
                written = file.write(block)
                while written < len(block):  # Linux writes at most 2 GiB at once
                    written += file.write(memoryview(block)[written:])

    def delete(self, name: str) -> None:
        """See `Place.delete`; a folder goes with all that it holds."""
        path = self._path / name
        with mapped_output_errors(path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _blocks(pieces: list[Piece]) -> Iterator[Piece]:
    """The same bytes in pieces that are neither small, since each is a call, nor copies that leave the cache."""
    pieces.reverse()
    small: list[Piece] = []
    size = 0
    while pieces:
        small.append(pieces.pop())
        size += len(small[-1])
        if size >= _BLOCK or not pieces:
            # A large piece is not copied.
            last = small.pop() if len(small[-1]) >= _BLOCK else b''
            if small:
                yield b''.join(small)
            if last:
                yield last
            small.clear()
            size = 0


class StorePlace:
    """The objects at a prefix of a store, reached with retries."""

    def __init__(self, store: Store, retry: Retry) -> None:
        self.store, self._retry = store, retry

    @property
    def shown(self) -> str:
        return self.store.url

    def sizes(self) -> dict[str, int]:
        return self._call('Listing', '', lambda: {info.key: info.size for info in list_output(self.store)})

    def read(self, name: str, size: int | None = None) -> bytes:
        def attempt() -> bytes:
            out = io.BytesIO()
            self.store.get(name, out, size=size)
            return out.getvalue()

        return self._call('Reading', name, attempt)

    def read_if_there(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except ObjectNotFoundError:
            return None

    def has(self, name: str) -> bool:
        try:
            self._call('Looking for', name, lambda: self.store.head(name))
        except ObjectNotFoundError:
            return False
        return True

    def list(self, prefix: str = '') -> list[ObjectInfo]:
        return self._call('Listing', '', lambda: [*self.store.list(prefix)])

    def write(self, name: str, data: bytes) -> None:
        self.upload(name, io.BytesIO(data), len(data))

    def upload(self, name: str, file: BinaryIO, size: int) -> None:
        """Store the bytes of an open file from its beginning."""

        def attempt() -> None:
            file.seek(0)
            self.store.put(name, file, size=size)

        self._call('Uploading', name, attempt)

    def delete(self, name: str) -> None:
        self._call('Deleting', name, lambda: self.store.delete(name))

    def remove_unfinished(self, folders: Iterable[str] = ('',)) -> None:
        """Remove what killed processes left of objects that they were putting into these folders.

        For a caller that is the only one to put objects there. Stores whose objects appear at once leave nothing.
        """
        remove = getattr(self.store, 'remove_unfinished', None)
        if remove is not None:
            self._call('Cleaning', '', lambda: remove(folders))

    def _call(self, what: str, name: str, attempt: Callable[[], T]) -> T:
        return self._retry.call(f'{what} {self.store.url}/{name}'.removesuffix('/'), attempt)


def may_hold(place: Place, name: str, data: bytes) -> bool:
    """Whether a place has a file with this content; also if nobody can tell."""
    try:
        return place.read(name) == data
    except FileNotFoundError:
        return False
    except OSError:
        return True


def delete_or_warn(place: Place, names: Iterable[str]) -> bool:
    """Remove files that do no harm where they are; whether all are gone. A warning names the others."""
    left: dict[str, OSError] = {}
    for name in names:
        try:
            place.delete(name)
        except OSError as error:  # noqa: PERF203 - the others go
            left[name] = error
    if left:
        warn(
            f'Files of a writer that has ended could not be removed from {place.shown}: {", ".join(left)}. Remove them '
            f'before the next writer starts there. The reason: {next(iter(left.values()))}'
        )
    return not left
