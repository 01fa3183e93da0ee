"""The footers of Parquet files: read concurrently, checked, and kept compressed.

pyarrow ends the process when it is asked for row groups of some damaged footers. So `read_row_groups` reads the few
numbers that headrace needs, in Thrift's compact protocol. The format is that of ``parquet.thrift`` of Apache Parquet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import zstandard

from headrace.errors import FormatError
from headrace.sources.ranges import ByteRange, read_range, read_ranges, refuse_packed

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from headrace.storage import ObjectInfo, Store

MAGIC: Final = b'PAR1'  # The first and the last bytes of a file.
_LEAST: Final = 64 << 10  # Bytes of a file's end that are read at first, for small files.
_MOST: Final = 1 << 20  # The same for large files.
_LARGEST: Final = 256 << 20  # Bytes of a footer, at most.


def read_footers(store: Store, objects: Sequence[ObjectInfo]) -> Iterator[bytes]:
    """The footer of each file, in order: thrift, as `parse_footer` takes it.

    One ranged read of each file's end, and a second one of the few whose footer is longer.
    """
    tails = read_ranges(store, (_tail(info) for info in objects))
    for info, tail in zip(objects, tails, strict=True):
        if tail[-4:] not in {MAGIC, b'PARE'}:
            refuse_packed(read_range(store, ByteRange(info.key, 0, min(info.size, 64), info.etag)), info.key)
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
    return zstandard.ZstdDecompressor().decompress(packed, max_output_size=_LARGEST)


_Wanted: TypeAlias = 'Mapping[int, Any]'
"""The fields to read, by their numbers, each with the fields of its structs; the others are skipped."""

_BOOLS: Final = (1, 2)
_BYTE: Final = 3
_INTEGERS: Final = (4, 5, 6)
_DOUBLE: Final = 7
_BINARY: Final = 8
_LISTS: Final = (9, 10)
_MAP: Final = 11
_STRUCT: Final = 12
_DEEPEST: Final = 32

_STATISTICS: Final[_Wanted] = {3: None}
_COLUMN_METADATA: Final[_Wanted] = {3: None, 6: None, 7: None, 9: None, 11: None, 12: _STATISTICS, 14: None, 15: None}
_COLUMN_CHUNK: Final[_Wanted] = {1: None, 3: _COLUMN_METADATA, 4: None, 5: None, 6: None, 7: None}
_ROW_GROUP: Final[_Wanted] = {1: _COLUMN_CHUNK, 3: None}
_FILE: Final[_Wanted] = {3: None, 4: _ROW_GROUP}


class DamagedFooterError(Exception):
    """A footer is damaged. Its reader adds the file's name."""


class ColumnChunk(NamedTuple):
    """The pages of one leaf column in one row group."""

    path: str  # The leaf's path in the schema, its parts joined by dots.
    offset: int  # The first byte in the file.
    size: int  # Bytes in the file.
    unpacked_size: int  # Bytes of the pages, uncompressed.
    null_count: int | None  # Nulls and empty lists; None if the writer did not count.
    end: int  # Where its pages, indexes and Bloom filter end in the file, by the footer.


class RowGroup(NamedTuple):
    """The rows that a file stores together."""

    rows: int
    columns: list[ColumnChunk]  # In the order of the schema's leaves.


def read_row_groups(footer: bytes) -> list[RowGroup]:
    """The row groups of a footer, which is without its size and the magic bytes."""
    try:
        fields, _ = _read_struct(footer, 0, _FILE, 0)
        groups = [RowGroup(int(group[3]), [*map(_column_chunk, group[1])]) for group in fields.get(4, [])]
        total = int(fields[3])
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise DamagedFooterError(
            f'the row groups of its footer are damaged ({type(error).__name__}: {error})'
        ) from error
    rows = sum(group.rows for group in groups)
    if rows != total:
        raise DamagedFooterError(f'its footer counts {total} rows, but its row groups have {rows}')
    return groups


def _column_chunk(fields: Mapping[int, Any]) -> ColumnChunk:
    if fields.get(1):
        raise DamagedFooterError('a column is in another file')
    if 3 not in fields:
        raise DamagedFooterError('a column is encrypted')
    about = fields[3]
    first, dictionary = int(about[9]), int(about.get(11, 0))
    offset, size = dictionary if 0 < dictionary < first else first, int(about[7])
    indexes = (fields, 4), (fields, 6), (about, 14)
    return ColumnChunk(
        path='.'.join(cast('bytes', part).decode() for part in about[3]),
        offset=offset,
        size=size,
        unpacked_size=int(about[6]),
        null_count=about.get(12, {}).get(3),
        end=max(
            (offset or dictionary) + size,
            *(int(holder.get(key, 0)) + int(holder.get(key + 1, 0)) for holder, key in indexes),
        ),
    )


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise DamagedFooterError('a number of its footer has more than 10 bytes')


def _read_integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_struct(data: bytes, at: int, wanted: _Wanted, depth: int) -> tuple[dict[int, Any], int]:
    """The wanted fields of a struct, and the position after it."""
    if depth > _DEEPEST:
        raise DamagedFooterError(f'its footer nests more than {_DEEPEST} structs')
    values: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head > 15:
            field += head >> 4
        else:
            field, at = _read_integer(data, at)
        kind = head & 15
        # Most values are integers of few bytes and short texts: a call for each would take twice as long.
        if kind in _INTEGERS:
            value: Any = data[at]
            at += 1
            if value > 127:
                value, at = _read_varint(data, at - 1)
            value = (value >> 1) ^ -(value & 1)
        elif kind == _BINARY:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _read_varint(data, at - 1)
            value, at = data[at : at + size], at + size
        elif kind in _BOOLS:  # the kind is the value
            continue
        else:
            value, at = _read_value(data, at, kind, wanted.get(field), depth, keeps=field in wanted)
        if field in wanted:
            values[field] = value
    return values, at + 1


def _read_value(data: bytes, at: int, kind: int, wanted: _Wanted | None, depth: int, *, keeps: bool) -> tuple[Any, int]:
    """A value, or None for one that is skipped, and the position after it."""
    if kind in _INTEGERS:
        return _read_integer(data, at)
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        return data[at : at + size], at + size
    if kind == _STRUCT:
        return _read_struct(data, at, wanted or {}, depth + 1)
    if kind in _LISTS:
        head = data[at]
        count, at = (head >> 4, at + 1) if head >> 4 < 15 else _read_varint(data, at + 1)
        return _read_list(data, at, count, (head & 15,), wanted, depth + 1, keeps=keeps)
    if kind == _MAP:
        count, at = _read_varint(data, at)
        kinds = (data[at] >> 4, data[at] & 15) if count else (_BYTE, _BYTE)
        return _read_list(data, at + bool(count), count, kinds, None, depth + 1, keeps=False)
    if kind == _BYTE:
        return data[at], at + 1
    if kind == _DOUBLE:
        return None, at + 8
    raise DamagedFooterError(f'its footer has a value of the unknown kind {kind}')


def _read_list(
    data: bytes, at: int, count: int, kinds: tuple[int, ...], wanted: _Wanted | None, depth: int, *, keeps: bool
) -> tuple[list[Any], int]:
    """The values of a list, or of a map in turn; each takes a byte at least."""
    if count > len(data) - at or depth > _DEEPEST:
        raise DamagedFooterError(f'its footer has a list of {count} values')
    values: list[Any] = []
    if kinds == (_STRUCT,) and not keeps:
        for _ in range(count):
            at = _read_struct(data, at, {}, depth + 1)[1]
        return values, at
    for _ in range(count):
        for kind in kinds:
            value, at = _read_value(data, at, _BYTE if kind in _BOOLS else kind, wanted, depth, keeps=keeps)
            if keeps:
                values.append(value)
    return values, at
