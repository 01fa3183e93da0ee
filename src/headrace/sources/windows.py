"""Windows over the bytes of an object, which a parser moves from the beginning to the end.

The same parser then reads bytes in memory, an object behind ranged requests, or a compressed stream. Memory is bounded
by the largest piece that the parser takes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from headrace.errors import FormatError, ShardError
from headrace.format.compression_algorithms import ALGORITHMS
from headrace.sources.ranges import REQUESTS, ByteRange, read_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.storage import ObjectInfo, Store

__all__ = [
    'MAX_UNPACKED',
    'MemoryWindow',
    'RangedWindow',
    'StreamWindow',
    'Window',
    'algorithm_of',
    'in_parallel',
    'stream_object',
    'unpack',
]

T = TypeVar('T')
R = TypeVar('R')

_LEAST: Final = 1 << 16
_MOST: Final = 1 << 22
MAX_UNPACKED: Final = (1 << 32) - 1
"""Bytes of content of a compressed object: it becomes one shard, whose offsets are 32-bit numbers."""
_ENDINGS: Final = {'.gz': 'gz', '.tgz': 'gz', '.zst': 'zstd', '.zstd': 'zstd', '.bz2': 'bz2'}


class Window(Protocol):
    """Bytes from ascending offsets."""

    def take(self, offset: int, size: int) -> memoryview | bytes:
        """The bytes from an offset, which is at least that of the last call; fewer than ``size`` at the end only.

        Raises:
            FormatError: the object ends before ``offset``.
        """
        ...


class MemoryWindow:
    """Bytes that are in memory."""

    def __init__(self, data: memoryview, where: str) -> None:
        self._data, self._where = data, where

    def take(self, offset: int, size: int) -> memoryview:
        """See `Window.take`."""
        if offset > len(self._data):
            raise _ends(self._where, len(self._data), offset)
        return self._data[offset : offset + size]


class RangedWindow:
    """An object behind ranged requests. Large gaps are not read. Here an offset may be before the last one, too.

    A request reads 64 KiB to 4 MiB: more after a window of which everything was used.
    """

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        self._store, self._info = store, info
        self._data, self._start, self._step = b'', 0, _LEAST

    def take(self, offset: int, size: int) -> memoryview:
        """See `Window.take`."""
        info = self._info
        if offset > info.size:
            raise _ends(info.key, info.size, offset)
        stop = min(offset + size, info.size)
        end = self._start + len(self._data)
        if stop > end or offset < self._start:
            gap = offset - end
            kept = self._data[offset - self._start :] if self._start <= offset < end else b''
            self._step = min(self._step * 2, _MOST) if self._data and gap < self._step else _LEAST
            first = offset + len(kept)
            length = min(max(stop - first, self._step), info.size - first)
            self._data, self._start = kept + _read(self._store, info, first, length), offset
        at = offset - self._start
        return memoryview(self._data)[at : at + stop - offset]


class StreamWindow:
    """Chunks that arrive one after another."""

    def __init__(self, chunks: Iterator[bytes], where: str) -> None:
        self._chunks, self._where = chunks, where
        self._data, self._start = bytearray(), 0

    def take(self, offset: int, size: int) -> bytes:
        """See `Window.take`."""
        self._drop(offset)
        while self._start + len(self._data) < offset + size and (chunk := next(self._chunks, None)) is not None:
            self._data += chunk
            self._drop(offset)
        if self._start < offset:
            raise _ends(self._where, self._start, offset)
        return bytes(self._data[:size])

    def _drop(self, offset: int) -> None:
        gone = min(offset - self._start, len(self._data))
        del self._data[:gone]
        self._start += gone


def _ends(where: str, size: int, offset: int) -> FormatError:
    return FormatError(
        f'{where} ends at byte {size}, but its headers say that data follow to {offset}. Restore or write it again.'
    )


def _read(store: Store, info: ObjectInfo, offset: int, size: int) -> bytes:
    return read_range(store, ByteRange(info.key, offset, size, info.etag))


def stream_object(store: Store, info: ObjectInfo) -> Iterator[bytes]:
    """An object in pieces of 4 MiB, each read when it is wanted."""
    for offset in range(0, info.size, _MOST):
        yield _read(store, info, offset, min(_MOST, info.size - offset))


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of `work` for each item, in order, from several threads."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(len(items), REQUESTS), 'headrace-index') as threads:
        futures = [threads.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def algorithm_of(key: str) -> str | None:
    """The compression that an object's name ends with: 'gz', 'zstd', 'bz2', or None."""
    return next((name for ending, name in _ENDINGS.items() if key.lower().endswith(ending)), None)


def unpack(algorithm: str | None, chunks: Iterator[bytes], where: str, limit: int = MAX_UNPACKED) -> Iterator[bytes]:
    """The content of a compressed object, in pieces.

    Args:
        algorithm: result of `algorithm_of`; None: the chunks are the content.
        chunks: the compressed bytes.
        where: the object, for messages.
        limit: bytes of content, at most.

    Raises:
        ShardError: the object is damaged, or has more content.
    """
    if algorithm is None:
        yield from chunks
        return
    compression = ALGORITHMS[algorithm]()
    errors = compression.errors()
    total = 0
    pieces = compression.stream(chunks)
    while True:
        try:
            piece = next(pieces, None)
        except ShardError as error:
            raise ShardError(f'{where}: {error}') from None
        except errors as error:
            raise ShardError(
                f'{where} is not a complete {algorithm} file: its data from byte {compression.begin} on are damaged '
                f'({error}). Restore or write it again.'
            ) from error
        if piece is None:
            return
        total += len(piece)
        if total > limit:
            raise ShardError(
                f'A compressed object holds at most {limit} bytes of content here, but {where} has more. Decompress '
                f'it, or split it into smaller objects.'
            )
        yield piece
