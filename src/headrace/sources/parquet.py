"""Parquet files as a source: a part is a row group, of which only the bytes of the wanted columns are read.

`index` reads the footers and keeps them, compressed, with the table of parts. `batches` parses the footer of one file
when a row group of it is decoded. So a dataset of many thousand row groups opens without parsing a footer.

A column is ``json`` if any file's statistics count nulls in it; see `headrace.sources.arrow_types`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from headrace.errors import FormatError, HeadraceError, ShardError
from headrace.format.encodings.registry import get_mds_encoded_size
from headrace.sources.arrow_types import (
    ArrowColumn,
    arrow_columns,
    class_names,
    common_columns,
    import_pyarrow,
    meanings_of,
    to_columns,
)
from headrace.sources.formats import is_hidden
from headrace.sources.parquet_footers import (
    MAGIC,
    DamagedFooterError,
    pack_footer,
    parse_footer,
    read_footers,
    read_row_groups,
    unpack_footer,
)
from headrace.sources.protocol import Part
from headrace.sources.ranges import ByteRange, read_ranges
from headrace.sources.source_bytes import PartTable, pack_source, unpack_source

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from headrace.storage import ObjectInfo, Store

NAME: Final = 'parquet'
"""See `SourceFormat.NAME`."""

GAP: Final = 128 << 10
"""Bytes between two wanted column chunks that are read, too: fewer than a second request costs."""
_ENDINGS: Final = ('.parquet', '.parq', '.pq')
LARGEST: Final = 1 << 32
"""Bytes of an MDS shard, which is smaller."""
_BATCH: Final = 4 << 20
"""Bytes of the rows that are decoded at once, about."""
_GROWTH: Final = {'json': 3, 'str': 2, 'bytes': 2}
"""How much larger values may be in MDS than their pages: JSON has more text, and pages may hold numbers of words."""


def find(objects: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """See `SourceFormat.find`: files of a Parquet name. Names that begin with '_' or '.' are of other programs.

    Raises:
        FormatError: the files are those of a Delta table, whose log says which of them are current.
    """
    if log := next((info.key for info in objects if '_delta_log/' in info.key), None):
        raise FormatError(
            f'This is a Delta table ({log}): its log says which of its Parquet files are current, and headrace does '
            f'not read that. Name the files with a glob in `remote`, or export the table as plain Parquet.'
        )
    return [info for info in objects if info.key.lower().endswith(_ENDINGS) and not is_hidden(info.key)]


def index(
    store: Store, objects: Sequence[ObjectInfo], *, columns: Collection[str] | None, allow_unsafe_types: bool
) -> ParquetSource:
    """See `SourceFormat.index`. Files of one dataset have the same columns; the order of columns may differ."""
    del allow_unsafe_types  # no type of Parquet runs code
    pa = import_pyarrow('Parquet files')
    base = store.url.rstrip('/')
    table = _FooterTable(columns)
    footers: list[bytes] = []
    for info, footer in zip(objects, read_footers(store, objects), strict=True):
        source = f'{base}/{info.key}'
        try:
            table.add(info, footer, source)
        except HeadraceError:
            raise
        except (DamagedFooterError, pa.ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
            raise FormatError(f'The Parquet file {source} cannot be read: {error}. Restore the file.') from error
        footers.append(pack_footer(footer))
    for wanted, found in zip(table.gaps, read_ranges(store, table.gaps), strict=True):
        if found == MAGIC:
            raise FormatError(
                f'{base}/{wanted.key} holds several Parquet files, joined: one begins at byte {wanted.offset}, and the '
                f'footer tells of that one only. Store each as a file of its own.'
            )
    encodings, meanings = common_columns(table.schemas, columns=columns, with_nulls=table.with_nulls, what='Parquet')
    names = dict.fromkeys(name for schema, _ in table.schemas for name in schema.names)
    return ParquetSource(
        base=base,
        columns=encodings,
        meanings=meanings,
        with_nulls=sorted(table.with_nulls),
        parts=PartTable.of(_parts(table.groups, encodings)),
        groups=np.array([group.number for group in table.groups], np.int64),
        files=[info.key for info in objects],
        footers=footers,
        dropped=[name for name in names if columns is not None and name not in columns],
    )


def load(data: bytes) -> ParquetSource:
    found = unpack_source(data)
    settings, arrays = found.settings, dict(found.arrays)
    meanings = settings.get('meanings')
    if meanings is None:  # made by an older version
        first = settings['keys'][0]  # has rows
        footer = unpack_footer(found.pieces[settings['files'].index(first)])
        meanings = meanings_of(settings['columns'], parse_footer(footer, first).schema.to_arrow_schema())
    return ParquetSource(
        base=settings['base'],
        columns=settings['columns'],
        meanings=meanings,
        with_nulls=settings['with_nulls'],
        parts=PartTable(settings['keys'], arrays),
        groups=arrays['groups'],
        files=settings['files'],
        footers=found.pieces,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ParquetSource:
    base: str
    """The store's root, for messages."""
    columns: Mapping[str, str]
    meanings: Mapping[str, str]
    with_nulls: Sequence[str]
    parts: PartTable
    """The row groups with rows."""
    groups: np.ndarray[Any, np.dtype[np.int64]]
    """int64[parts], number of each part's row group in its file."""
    files: Sequence[str]
    footers: Sequence[bytes | memoryview]
    """The compressed footer of each file."""
    dropped: Sequence[str] = ()

    format = NAME

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.to_bytes(),)

    def to_bytes(self) -> bytes:
        settings = {name: getattr(self, name) for name in ('base', 'columns', 'meanings', 'with_nulls', 'files')}
        arrays = {**self.parts.arrays, 'groups': self.groups}
        return pack_source({**settings, 'keys': self.parts.keys}, arrays, self.footers)

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]]:
        pa = import_pyarrow('Parquet files')
        import pyarrow.parquet as pq

        described = self.parts[part]
        group = int(self.groups[part])
        source = f'{self.base}/{described.key}, row group {group},'
        rows, first = described.rows, 0
        try:
            metadata, columns = self._metadata(self._number[described.key])
            _refuse_wrapped_times(RangeFile(described.ranges, data), metadata, columns, group, source)
            file = pa.PythonFile(RangeFile(described.ranges, data), mode='r')
            # Without read-ahead by threads of Arrow: the bytes are in memory, and workers are forked.
            reader = pq.ParquetFile(file, metadata=metadata, page_checksum_verification=True, pre_buffer=False)
            step = max(1, min(rows, 1 << 14, rows * _BATCH // max(1, described.size)))
            found = reader.iter_batches(step, row_groups=[group], columns=list(columns), use_threads=False)
            for batch in found:
                yield to_columns(batch, columns, source=source, first_row=first)
                first += batch.num_rows
        except HeadraceError:
            raise
        except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise ShardError(f'{source} is damaged: {error}. Restore the file.') from error
        if first != rows:
            raise ShardError(f'{source} has {rows} rows in the footer, but {first} in its pages. Restore the file.')

    @property
    def class_names(self) -> dict[str, list[str]]:
        return class_names(self._metadata(0)[0].schema.to_arrow_schema())

    @cached_property
    def _number(self) -> dict[str, int]:
        return {key: number for number, key in enumerate(self.files)}

    @cached_property
    def _metadata(self) -> Callable[[int], tuple[pq.FileMetaData, dict[str, ArrowColumn]]]:
        return lru_cache(maxsize=8)(self._parse)

    def _parse(self, file: int) -> tuple[pq.FileMetaData, dict[str, ArrowColumn]]:
        source = f'{self.base}/{self.files[file]}'
        metadata = parse_footer(unpack_footer(self.footers[file]), source)
        schema = metadata.schema.to_arrow_schema()
        return metadata, arrow_columns(schema, columns=self.columns, with_nulls=self.with_nulls, source=source)


def _refuse_wrapped_times(
    ranges: RangeFile, metadata: pq.FileMetaData, columns: Collection[str], group: int, source: str
) -> None:
    """Refuse times that pyarrow would wrap around: those of INT96, a day and its ns, that int64 of ns cannot hold."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    found = _leaves([leaf.path for leaf in leaves], list(columns))
    names = list({name: None for number, name in found if leaves[number].physical_type == 'INT96'})
    if not names:
        return
    file = pa.PythonFile(ranges, mode='r')
    reader = pq.ParquetFile(file, metadata=metadata, coerce_int96_timestamp_unit='ms', pre_buffer=False)
    table = reader.read_row_group(group, columns=names, use_threads=False)
    schema = metadata.schema.to_arrow_schema()

    def reason(name: str, rows: Any) -> str:
        try:
            rows.cast(schema.field(name).type)
        except pa.ArrowInvalid as error:
            return str(error)
        return ''

    for name, whole in zip(names, map(table.column, names), strict=True):
        if reason(name, whole):
            row = next(row for row in range(len(whole)) if reason(name, whole.take([row])))
            raise ShardError(
                f'Timestamps of INT96 are read in ns, which hold the years 1678 to 2261, but row {row} of column '
                f'{name!r} of {source} is another: {reason(name, whole.take([row]))}. Write it again in us (Spark: '
                f'`spark.sql.parquet.outputTimestampType` TIMESTAMP_MICROS), or leave the column out with `columns`.'
            )


class _Group(NamedTuple):
    file: str
    number: int
    rows: int
    ranges: tuple[tuple[int, int], ...]
    sizes: dict[str, int]
    """Bytes of each column's pages, uncompressed."""


class _FooterTable:
    """Collects footers: the row groups, and the different schemas."""

    def __init__(self, columns: Collection[str] | None) -> None:
        self._wanted = columns
        self.with_nulls = set[str]()
        self.groups: list[_Group] = []
        self.gaps: list[ByteRange] = []
        """Where the file would begin whose parts end at the footer, of files with other data before it."""
        self.schemas: list[tuple[Any, str]] = []
        """The different ones, each with its first file."""

    def add(self, info: ObjectInfo, footer: bytes, source: str) -> None:
        metadata = parse_footer(footer, source)
        groups = read_row_groups(footer)
        end = max((chunk.end for group in groups for chunk in group.columns), default=len(MAGIC))
        begin = info.size - 8 - len(footer) - end
        if begin > 0:
            self.gaps.append(ByteRange(info.key, begin, len(MAGIC), info.etag))
        if not any(group.rows for group in groups):
            return  # its types may be wrong: an empty column of text may have the type of nulls
        schema = self._schema(metadata, source)
        names = list(arrow_columns(schema, columns=self._wanted, source=source))
        paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
        leaves = _leaves(paths, names)
        for number, group in enumerate(groups):
            if group.rows == 0:
                continue
            if not 0 < group.rows < LARGEST or [chunk.path for chunk in group.columns] != paths:
                raise DamagedFooterError(f'row group {number} has {group.rows} rows, or other columns than the schema')
            spans: list[tuple[int, int]] = []
            sizes = dict.fromkeys(names, 0)
            for leaf, name in leaves:
                chunk = group.columns[leaf]
                if chunk.offset < 4 or chunk.size < 0 or chunk.offset + chunk.size > info.size:
                    raise DamagedFooterError(
                        f'column {chunk.path!r} lies at bytes {chunk.offset} to {chunk.offset + chunk.size}, but the '
                        f'file has {info.size} bytes'
                    )
                spans.append((chunk.offset, chunk.size))
                sizes[name] += max(0, chunk.unpacked_size)
                # The path of a file may always be null.
                if chunk.null_count and not chunk.path.endswith('.path'):
                    self.with_nulls.add(name)
            self.groups.append(_Group(info.key, number, group.rows, _joined(spans), sizes))

    def _schema(self, metadata: pq.FileMetaData, source: str) -> Any:
        """The Arrow schema of a file; equal ones are one object."""
        schema = metadata.schema.to_arrow_schema()
        for known, _ in self.schemas:
            if known.equals(schema, check_metadata=True):
                return known
        self.schemas.append((schema, source))
        return schema


def _parts(groups: Sequence[_Group], encodings: Mapping[str, str]) -> Iterator[Part]:
    """The parts of row groups with rows, with estimates of their shards."""
    fixed = {name: get_mds_encoded_size(encoding) for name, encoding in encodings.items()}
    growth = {name: _GROWTH.get(encoding, 1) for name, encoding in encodings.items()}
    for group in groups:
        known = 4 + sum(4 if size is None else size for size in fixed.values())
        least = group.rows * known
        if least >= LARGEST:
            raise FormatError(
                f'Row group {group.number} of {group.file} has {group.rows} rows of {known} bytes and more each: a '
                f'shard holds less than 4 GiB. Read fewer `columns`, or write the file with smaller row groups.'
            )
        size = least + sum(growth[name] * size for name, size in group.sizes.items() if fixed[name] is None)
        yield Part(group.file, group.ranges, group.rows, min(size + 4096, LARGEST - 1))


def _leaves(paths: Sequence[str], names: Sequence[str]) -> list[tuple[int, str]]:
    """Numbers of the leaf columns that reading these columns reads, each with its column.

    As pyarrow chooses them: by the leaf's path, whose parts are joined by dots.
    """
    found: list[tuple[int, str]] = []
    wanted = set(names)
    for number, path in enumerate(paths):
        parts = path.split('.')
        heads = ('.'.join(parts[:count]) for count in range(len(parts), 0, -1))
        if (name := next((head for head in heads if head in wanted), None)) is not None:
            found.append((number, name))
    return found


def _joined(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges without overlap; those that are close become one."""
    ranges: list[tuple[int, int]] = []
    for begin, size in sorted(spans):
        if ranges and begin <= sum(ranges[-1]) + GAP:
            start = ranges[-1][0]
            ranges[-1] = start, max(sum(ranges[-1]), begin + size) - start
        else:
            ranges.append((begin, size))
    return tuple(ranges)


class RangeFile:
    """The file interface that pyarrow reads from. Reads copy nothing.

    Args:
        ranges: offset and size of each range, ascending, without overlap.
        data: the bytes of the ranges, one after another.
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
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Nothing is open."""
