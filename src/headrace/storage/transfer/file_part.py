"""A run of bytes of a file, with a position of its own."""

from __future__ import annotations

import os
from typing import BinaryIO

__all__ = ['FilePart']


class FilePart:
    """The `size` bytes of a file from `begin` on. A subclass reads them."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position, from the beginning of the part."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, to the beginning at least; returns it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at
