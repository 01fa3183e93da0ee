"""The bytes of a shard while its samples are collected, in few blocks of memory.

Small objects that stay need fresh memory, and the page faults cost several times the copy. So a sample's own bytes live
shortly, in memory that is used again. The blocks are of a pool, so that they are used again, too.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

BLOCK: Final = 2 << 20
"""Bytes of a block. numpy asks for no huge pages for so few: to find some can take long on a busy machine."""


class BlockPool:
    """Blocks of `BLOCK` bytes for all threads; one returns when its last view goes: none is reused while read."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray[Any, np.dtype[np.uint8]]] = deque()

    def take(self) -> memoryview:
        """A block of any content, with one axis of bytes."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(BLOCK, np.uint8)
        lent = memory[:]
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent.data


_shared: Final[weakref.WeakValueDictionary[str, BlockPool]] = weakref.WeakValueDictionary()


def shared_pool() -> BlockPool:
    """The pool of this process, which lives as long as it is used."""
    return _shared.setdefault('', BlockPool())


Piece: TypeAlias = bytes | memoryview  # bytes of a shard; a view is of bytes, with one axis
WAITING: Final = 96 << 10
"""Bytes of samples that wait to be copied together: joined, less than malloc takes from the system for each use."""
_KEPT: Final = 1 << 20
_FEW: Final = 8


class ShardMemory:
    """The bytes of one shard, in order, in blocks of a pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._pieces: list[Piece] = []
        self._block = memoryview(b'')
        self._begin = self._end = 0  # the bytes of the block that are used, and in no piece

    def add_samples(self, samples: Sequence[bytes]) -> None:
        if not samples:
            return
        few = samples if len(samples) <= _FEW else (b''.join(samples[:-1]), samples[-1])
        for data in few:
            self.add(data)

    def keep(self, data: Piece) -> None:
        """Add bytes that nothing changes any more, without a copy."""
        self._end_piece()
        self._pieces.append(data)

    def add(self, data: Piece) -> None:
        """Copy bytes; or keep them, if they are many and nothing can change them."""
        if isinstance(data, bytes) and len(data) >= _KEPT:
            self.keep(data)
            return
        rest = memoryview(data)
        while rest:
            if self._end == len(self._block):
                self._end_piece()
                self._block = self._pool.take()
                self._begin = self._end = 0
            size = min(len(rest), len(self._block) - self._end)
            self._block[self._end : self._end + size] = rest[:size]
            self._end += size
            rest = rest[size:]

    def pieces(self) -> list[Piece]:
        """All bytes. Nothing may be added afterwards."""
        self._end_piece()
        self._block = memoryview(b'')
        return self._pieces

    def _end_piece(self) -> None:
        if self._begin < self._end:
            self._pieces.append(self._block[self._begin : self._end])
            self._begin = self._end


def joined_rows(
    parts: Sequence[bytes], width: int, sizes: np.ndarray[Any, np.dtype[np.int64]]
) -> Callable[[int, int], Iterator[Piece]]:
    """The bytes of rows from one to before another, joined a few at a time; `parts` has `width` for each row."""
    step = _rows_at_a_time(sizes)

    def pieces(begin: int, stop: int) -> Iterator[Piece]:
        for first in range(begin, stop, step):
            yield b''.join(parts[first * width : min(first + step, stop) * width])

    return pieces


def framed_rows(
    values: Sequence[str] | Sequence[bytes],
    before: np.ndarray[Any, Any],
    after: np.ndarray[Any, Any] | None,
    sizes: np.ndarray[Any, np.dtype[np.int64]],
) -> Callable[[int, int], Iterator[Piece]]:
    """As `joined_rows`, of rows with one value of any size between others of fixed size.

    The values are joined with gaps, and the others are put into the gaps: nothing is done for each row in Python. These
    are opaque elements ``[rows]``, and `sizes` the bytes of whole rows.
    """
    head, tail = before.itemsize, 0 if after is None else after.itemsize
    gap = bytes(head + tail)
    step, ends = _rows_at_a_time(sizes), np.cumsum(sizes)

    def pieces(begin: int, stop: int) -> Iterator[Piece]:
        for first in range(begin, stop, step):
            last = min(first + step, stop)
            some: Any = values[first:last]
            if isinstance(some[0], str):
                joined = bytearray(gap.decode().join(['', *some, '']).encode())
            else:
                joined = bytearray(gap).join([b'', *some, b''])
            piece = memoryview(joined)[tail : len(joined) - head]
            behind = ends[first:last] - int(ends[first] - sizes[first])
            _windows(piece, head)[behind - sizes[first:last]] = before[first:last]
            if after is not None:
                _windows(piece, tail)[behind - tail] = after[first:last]
            yield piece

    return pieces


def _windows(data: memoryview, size: int) -> np.ndarray[Any, Any]:
    """The opaque element of some size that begins at each byte."""
    return np.ndarray((len(data) - size + 1,), f'V{size}', data, strides=(1,))


def _rows_at_a_time(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    return max(1, len(sizes) * WAITING // max(1, int(sizes.sum())))
