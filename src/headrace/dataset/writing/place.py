"""The files of a dataset that is being written: those of a folder, or the objects at a prefix of a store."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from headrace.storage import Retry, Store

    T = TypeVar('T')

__all__ = ['FolderPlace', 'Place', 'StorePlace']


class Place(Protocol):
    """Where the files of a dataset are."""

    @property
    def shown(self) -> str:
        """Its path or URL, for messages."""
        ...

    def sizes(self) -> dict[str, int]:
        """Name and bytes of everything that it holds, in order of names."""
        ...

    def read(self, name: str) -> bytes:
        """The bytes of a file; FileNotFoundError if it is not there."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Store a file. Readers see the old one or the new one, nothing between."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


class FolderPlace:
    """The files of a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def shown(self) -> str:
        """The path."""
        return str(self._path)

    def sizes(self) -> dict[str, int]:
        """See `Place.sizes`; folders count as 0 bytes."""
        found: dict[str, int] = {}
        for path in sorted(self._path.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                found[path.name] = path.lstat().st_size if path.is_file() else 0
        return found

    def read(self, name: str) -> bytes:
        """See `Place.read`."""
        return (self._path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """See `Place.write`."""
        path = self._path / name
        temporary = path.with_name(f'{name}.tmp')
        try:
            with open(temporary, 'wb', buffering=0) as file:
                written = file.write(data)
                while written < len(data):  # Linux writes at most 2 GiB at once
                    written += file.write(memoryview(data)[written:])
            os.replace(temporary, path)  # noqa: PTH105 - a shard may be small, and a Path costs
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def delete(self, name: str) -> None:
        """See `Place.delete`; a folder goes with all that it holds."""
        path = self._path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class StorePlace:
    """The objects at a prefix of a store, reached with retries."""

    def __init__(self, store: Store, retry: Retry) -> None:
        self.store, self._retry = store, retry

    @property
    def shown(self) -> str:
        """The URL."""
        return self.store.url

    def sizes(self) -> dict[str, int]:
        """See `Place.sizes`."""
        return self._call('Listing', '', lambda: {info.key: info.size for info in self.store.list('')})

    def read(self, name: str) -> bytes:
        """See `Place.read`."""

        def attempt() -> bytes:
            out = io.BytesIO()
            self.store.get(name, out)
            return out.getvalue()

        return self._call('Reading', name, attempt)

    def write(self, name: str, data: bytes) -> None:
        """See `Place.write`."""
        self.upload(name, lambda: io.BytesIO(data), len(data))

    def upload(self, name: str, source: Callable[[], BinaryIO], size: int) -> None:
        """Store the bytes of a file, which is opened for each attempt."""

        def attempt() -> None:
            with source() as opened:
                self.store.put(name, opened, size=size)

        self._call('Uploading', name, attempt)

    def delete(self, name: str) -> None:
        """See `Place.delete`."""
        self._call('Deleting', name, lambda: self.store.delete(name))

    def _call(self, what: str, name: str, attempt: Callable[[], T]) -> T:
        return self._retry.call(f'{what} {self.store.url}/{name}'.removesuffix('/'), attempt)
