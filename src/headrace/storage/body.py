"""Bodies of requests and answers, as all backends read and write them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.storage.protocol import ObjectInfo

__all__ = ['SourcePart', 'bad_range', 'check_range']


class SourcePart:
    """The next ``size`` bytes of a file, as SDKs want the body of an upload: with a length and a way back."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source, self._size = source, size
        self._start = source.tell()
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes from its beginning."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As any file's."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        self._source.seek(self._start + self._at)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """As a buffered file's: less than ``size`` at the end only. A source that ends early raises ``ConfigError``."""
        left = self._size - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._source.read(wanted)
        while len(data) < wanted:
            more = self._source.read(wanted - len(data))
            if not more:
                raise ConfigError(
                    f'put() was told {self._size} bytes, but the source ended {left - len(data)} bytes early. Pass the '
                    f'number of bytes that are left in the source.'
                )
            data += more
        self._at += wanted
        return data


def bad_range(url: str, offset: int, size: int | None, found: int) -> ConfigError:
    """The error for a range that its object does not have; ``found`` bytes are there from ``offset``."""
    return ConfigError(
        f'A range lies inside its object; got offset {offset}, size {size} of {url}, which has {found} bytes from '
        f'there.'
    )


def check_range(info: ObjectInfo, url: str, offset: int, size: int | None) -> int:
    """The number of bytes from ``offset`` that were asked for, or ``ConfigError`` if the object has fewer."""
    left = info.size - offset
    if offset < 0 or left < 0 or (size is not None and not 0 <= size <= left):
        raise bad_range(url, offset, size, max(left, 0))
    return left if size is None else size
