"""A file of which only some ranges are there, for libraries that read at offsets."""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.errors import ShardError

__all__ = ['RangeFile']


class RangeFile:
    """The file interface that pyarrow reads from. Reads copy nothing.

    Args:
        ranges: offset and size of each range, ascending, without overlap.
        data: the bytes of the ranges, one after another.

    Raises:
        ShardError: there are fewer or more bytes than the ranges have.
    """

    closed = False

    def __init__(self, ranges: Sequence[tuple[int, int]], data: memoryview) -> None:
        self._ranges, self._data = ranges, data
        self._size = max((offset + size for offset, size in ranges), default=0)
        self._at = 0
        total = sum(size for _, size in ranges)
        if total != len(data):
            raise ShardError(
                f'The part has {total} bytes in its index, but got {len(data)}. Restore or write it again.'
            )

    def read(self, size: int = -1) -> memoryview:
        """The next bytes.

        Raises:
            ShardError: not all of them are in one range.
        """
        if size < 0:
            size = self._size - self._at
        start = 0
        for offset, length in self._ranges:
            if offset <= self._at and self._at + size <= offset + length:
                begin = start + self._at - offset
                self._at += size
                return self._data[begin : begin + size]
            start += length
        raise ShardError(
            f'Bytes {self._at} to {self._at + size} are read, which lie outside the columns that the footer gives. '
            f'The file is damaged: restore it.'
        )

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset of the whole file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """The offset in the whole file."""
        return self._at

    def close(self) -> None:
        """Nothing is open."""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """False."""
        return False
