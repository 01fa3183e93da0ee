"""Unpacks a part of a source into a file that is one MDS shard, batch by batch: memory holds one batch at a time."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import HeadraceError, ShardError
from headrace.format import MDSEncoder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.sources.protocol import Source

__all__ = ['size_at', 'unpack_part']

_LARGEST: Final = (1 << 32) - 1
"""The last offset of an MDS shard."""


def size_at(rows: int) -> int:
    """Where an MDS shard of so many rows holds its size, as a little-endian u32: the last offset of its table."""
    return 4 + 4 * rows


def unpack_part(source: Source, part: int, packed: Path, raw: Path) -> None:
    """Write the rows of a part as an MDS shard.

    Args:
        source: the dataset.
        part: number of the part.
        packed: the bytes of the part's ranges, one after another.
        raw: the file to write; replaced if it exists.

    Raises:
        ShardError: the bytes contradict the index, hold a value that its column cannot store, or more than 4 GiB.
    """
    described = source.parts[part]
    rows, where = described.rows, f'Part {part} of {source.format} data, in {described.key},'
    if 8 + 4 * rows > _LARGEST:
        raise _too_large(where)
    encoder = MDSEncoder(source.columns, size_limit=None, check_bytes=False)
    offsets: list[np.ndarray[Any, Any]] = []  # of the rows that are there: an index may announce any number
    first, at = 0, 0
    raw.unlink(missing_ok=True)  # it may be a link
    with raw.open('xb') as out:
        for batch in source.batches(part, _mapped(packed)):
            for content in _encoded(encoder, batch, where):
                count = int.from_bytes(content[:4], 'little')
                table = np.frombuffer(content, '<u4', count + 1, 4).astype(np.int64)
                size = int(table[-1] - table[0])
                if first + count > rows:
                    raise ShardError(f'{where} has {rows} rows in its index, but more in its bytes. Restore the file.')
                if not first:
                    config = content[8 + 4 * count : table[0]]
                    at = 8 + 4 * rows + len(config)
                    offsets.append(np.array([at], '<u4'))
                    out.seek(8 + 4 * rows)
                    out.write(config)
                if at + size > _LARGEST:
                    raise _too_large(where)
                offsets.append((table[1:] - table[0] + at).astype('<u4'))
                out.write(content[table[0] :])
                first, at = first + count, at + size
        if first != rows or not rows:
            raise ShardError(f'{where} has {rows} rows in its index, but {first} in its bytes. Restore the file.')
        out.seek(0)
        out.write(rows.to_bytes(4, 'little'))
        for table in offsets:
            out.write(table.tobytes())


def _too_large(where: str) -> ShardError:
    return ShardError(
        f'{where} takes 4 GiB or more as a shard, which has 32-bit offsets. Read fewer `columns`, or write the file in '
        f'smaller parts, such as smaller row groups.'
    )


def _encoded(
    encoder: MDSEncoder, batch: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]], where: str
) -> list[memoryview]:
    """A batch as small MDS shards, of which almost always one is enough."""
    try:
        shards = [*encoder.add_batch(batch), *encoder.finish()]
    except HeadraceError:
        raise
    except (AttributeError, TypeError, ValueError, OverflowError, KeyError) as error:
        raise ShardError(f'{where} holds a value that MDS cannot store: {error}') from error
    return [memoryview(shard.files[0][1]) for shard in shards]


def _mapped(path: Path) -> memoryview:
    """A file's bytes. The map ends with the last view of it."""
    with path.open('rb') as file:
        if not path.stat().st_size:
            return memoryview(b'')
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
