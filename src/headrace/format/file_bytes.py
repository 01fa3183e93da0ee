"""The bytes of a small file with four calls of the system, where `Path.read_bytes` takes twice as many."""

from __future__ import annotations

import os
from os import PathLike
from typing import Final

_BLOCK: Final = 96 << 10  # bytes of a read: fewer than malloc takes from the system for each use
_FLAGS: Final = os.O_RDONLY | getattr(os, 'O_CLOEXEC', 0) | getattr(os, 'O_BINARY', 0)


def read_file(path: str | PathLike[str]) -> bytes:
    descriptor = os.open(path, _FLAGS)
    try:
        blocks = [os.read(descriptor, _BLOCK)]
        if len(blocks[0]) == _BLOCK:
            blocks.append(os.read(descriptor, max(_BLOCK, os.fstat(descriptor).st_size - _BLOCK)))
        while blocks[-1]:  # a read may end before the file does
            blocks.append(os.read(descriptor, _BLOCK))
        return blocks[0] if len(blocks) == 2 else b''.join(blocks)
    finally:
        os.close(descriptor)
