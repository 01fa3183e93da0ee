"""The footers of Parquet files: read concurrently, checked, and kept compressed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import zstandard

from headrace.errors import FormatError
from headrace.sources.ranges import ByteRange, read_ranges

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from headrace.storage import ObjectInfo, Store

__all__ = ['MAGIC', 'pack_footer', 'parse_footer', 'read_footers', 'unpack_footer']

MAGIC: Final = b'PAR1'
"""The first and the last bytes of a file."""
_LEAST: Final = 64 << 10
"""Bytes of a file's end that are read at first, for small files."""
_MOST: Final = 1 << 20
"""The same for large files."""
_LARGEST: Final = 256 << 20
"""Bytes of a footer, at most."""


def read_footers(store: Store, objects: Sequence[ObjectInfo]) -> Iterator[bytes]:
    """The footer of each file, in order: thrift, as `parse_footer` takes it.

    One ranged read of each file's end, and a second one of the few whose footer is longer.

    Raises:
        FormatError: an object is no Parquet file, or is encrypted.
        StorageError: see `read_ranges`.
    """
    tails = read_ranges(store, (_tail(info) for info in objects))
    for info, tail in zip(objects, tails, strict=True):
        size = _footer_size(info, tail, f'{store.url.rstrip("/")}/{info.key}')
        if size + 8 > len(tail):
            begin = ByteRange(info.key, info.size - 8 - size, size + 8 - len(tail), info.etag)
            (rest,) = read_ranges(store, [begin])
            tail = rest + tail  # noqa: PLW2901
        yield tail[len(tail) - 8 - size : len(tail) - 8]


def _tail(info: ObjectInfo) -> ByteRange:
    size = min(info.size, _MOST, max(_LEAST, info.size >> 10))
    return ByteRange(info.key, info.size - size, size, info.etag)


def _footer_size(info: ObjectInfo, tail: bytes, url: str) -> int:
    if info.size < 12 or tail[-4:] not in {MAGIC, b'PARE'}:
        raise FormatError(
            f'A Parquet file ends with the bytes PAR1, but {url} ({info.size} bytes) does not. It is damaged, or of '
            f'another format: restore it, or leave it out with a glob in `remote`.'
        )
    if tail[-4:] == b'PARE':
        raise FormatError(f'{url} is an encrypted Parquet file, which headrace does not read. Write it unencrypted.')
    size = int.from_bytes(tail[-8:-4], 'little')
    if size > min(info.size - 12, _LARGEST):
        raise FormatError(
            f'The footer of {url} ({info.size} bytes) announces {size} bytes, which the file does not have, or which '
            f'are more than {_LARGEST}. It is damaged: restore it.'
        )
    return size


def parse_footer(footer: bytes, source: str) -> pq.FileMetaData:
    """The metadata of a Parquet file.

    Args:
        footer: of `read_footers`.
        source: the file, for messages.

    Raises:
        FormatError: it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tail: Any = pa.BufferReader(b''.join([MAGIC, footer, len(footer).to_bytes(4, 'little'), MAGIC]))
    try:
        return pq.read_metadata(tail)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(
            f'The footer of the Parquet file {source} cannot be read: {error}. Restore the file.'
        ) from error


def pack_footer(footer: bytes) -> bytes:
    """A footer, compressed. Footers repeat themselves: it takes about a fifth."""
    return zstandard.ZstdCompressor(level=3).compress(footer)


def unpack_footer(packed: bytes | memoryview) -> bytes:
    """The footer of `pack_footer`."""
    return zstandard.ZstdDecompressor().decompress(packed, max_output_size=_LARGEST)
