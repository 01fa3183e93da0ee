"""The items of litdata's chunks.

A chunk is u32 count, u32 offset[count + 1] from its beginning, and the items. zstd compresses it in one of three ways:
the whole file; runs of items (``LDFZ01``); or each item. Rows of plain values are an Arrow file behind the offsets, and
a chunk of them ends with u32 size of the file and ``LDARW01``. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import ShardError
from headrace.sources.arrow_types import import_pyarrow
from headrace.sources.windows import MAX_UNPACKED, unpack

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ['arrow_rows', 'read_items', 'unpack_chunk']

_ZSTD: Final = b'\x28\xb5\x2f\xfd'
_FRAMED: Final = b'LDFZ01\0\0'
_FRAMED_HEAD: Final = struct.Struct('<8sHHIII')  # magic, version, flags, items, items a frame, frames
_FRAME: Final = np.dtype([('first', '<u4'), ('items', '<u4'), ('at', '<u8'), ('packed', '<u4'), ('size', '<u4')])
_ARROW: Final = b'LDARW01\0'


def unpack_chunk(data: memoryview, limit: int, where: str) -> memoryview:
    """The chunk, decompressed if it is compressed as a whole.

    Args:
        data: the object.
        limit: bytes of a decompressed chunk, as the index gives them.
        where: the chunk, for messages.

    Raises:
        ShardError: the object is damaged, or larger than that.
    """
    if bytes(data[:4]) != _ZSTD:
        return data
    return memoryview(b''.join(unpack('zstd', iter([bytes(data)]), where, limit)))


def arrow_rows(data: memoryview, where: str) -> Iterator[pa.RecordBatch] | None:
    """The rows of a chunk that ends with an Arrow file; None: it has none.

    Raises:
        ShardError: the chunk is damaged.
        MissingDependencyError: pyarrow is not installed.
    """
    if len(data) < 12 or bytes(data[-8:]) != _ARROW:
        return None
    size = int.from_bytes(data[-12:-8], 'little')
    begin = len(data) - 12 - size
    if begin != 8 + 4 * int.from_bytes(data[:4], 'little'):
        raise _damaged(where, f'its Arrow file begins at byte {begin}')
    return _record_batches(data[begin:-12], where)


def _record_batches(data: memoryview, where: str) -> Iterator[pa.RecordBatch]:
    pa = import_pyarrow("litdata's chunks of plain values")
    try:
        if bytes(data[:6]) == b'ARROW1':
            reader = pa.ipc.open_file(pa.py_buffer(data))
            batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(pa.py_buffer(data)))
        for batch in batches:
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _damaged(where, f'its Arrow file cannot be read: {error}') from error


def read_items(data: memoryview, count: int, *, each_packed: bool, where: str) -> Iterator[list[memoryview]]:
    """The items of a chunk, in runs.

    Args:
        data: the chunk, from `unpack_chunk`.
        count: number of items in the index.
        each_packed: whether zstd compressed each item.
        where: the chunk, for messages.

    Raises:
        ShardError: the chunk is damaged, or has another number of items.
    """
    if bytes(data[:8]) == _FRAMED:
        yield from _framed_items(data, count, where)
        return
    found = int.from_bytes(data[:4], 'little') if len(data) >= 4 else 0
    _check_count(found, count, where)
    ends = _offsets(data, 4, count, where)
    if ends[0] < 8 + 4 * count or ends[-1] != len(data):
        raise _damaged(where, f'its items end at byte {ends[-1]} of {len(data)}')
    run = 1 if each_packed else 1 << 12
    for start in range(0, count, run):
        bounds = ends[start : start + run + 1].tolist()
        items = [data[begin:end] for begin, end in pairwise(bounds)]
        if each_packed:
            items = [memoryview(b''.join(unpack('zstd', iter([bytes(item)]), where))) for item in items]
        yield items


def _framed_items(data: memoryview, count: int, where: str) -> Iterator[list[memoryview]]:
    if len(data) < _FRAMED_HEAD.size:
        raise _damaged(where, 'it ends within its head')
    _, version, _, found, _, frames = _FRAMED_HEAD.unpack_from(data)
    if version != 1:
        raise ShardError(
            f'Frames of a litdata chunk have version 1, but those of {where} have {version}. Write it anew.'
        )
    _check_count(found, count, where)
    offsets = _offsets(data, _FRAMED_HEAD.size, count, where)
    at = _FRAMED_HEAD.size + 4 * (count + 1)
    if len(data) - at < frames * _FRAME.itemsize:
        raise _damaged(where, f'it has no room for its {frames} frames')
    rows = end = 0
    for first, items, begin, packed, size in np.frombuffer(data, _FRAME, frames, at).tolist():
        if first != rows or not 0 < items <= count - rows or begin + packed > len(data) or size > MAX_UNPACKED:
            raise _damaged(where, f'its frames do not follow each other at item {rows}')
        bounds = (offsets[rows : rows + items + 1] - offsets[rows]).tolist()
        content = memoryview(b''.join(unpack('zstd', iter([bytes(data[begin : begin + packed])]), where, size)))
        if bounds[-1] != len(content):
            raise _damaged(where, f'the frame of item {rows} has {len(content)} bytes, not {bounds[-1]}')
        yield [content[start:end] for start, end in pairwise(bounds)]
        rows, end = rows + items, begin + packed
    _check_count(rows, count, where)
    if end != len(data):
        raise _damaged(where, f'its frames end at byte {end} of {len(data)}')


def _offsets(data: memoryview, at: int, count: int, where: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    if len(data) - at < 4 * (count + 1):
        raise _damaged(where, f'it has no room for the offsets of {count} items')
    offsets = np.frombuffer(data, '<u4', count + 1, at).astype(np.int64)
    if (np.diff(offsets) < 0).any():
        raise _damaged(where, 'its offsets are not in order')
    return offsets


def _check_count(found: int, count: int, where: str) -> None:
    if found != count:
        raise ShardError(f'{where} has {found} items, but the index says {count}. Restore or write it again.')


def _damaged(where: str, reason: str) -> ShardError:
    return ShardError(f'{where} is no chunk of litdata: {reason}. Restore or write it again.')
