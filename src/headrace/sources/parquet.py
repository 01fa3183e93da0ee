"""Parquet files as a source: a part is a row group, of which only the bytes of the wanted columns are read.

`index` reads the footers and keeps them, compressed, with the table of parts. `batches` parses the footer of one file
when a row group of it is decoded. So a dataset of many thousand row groups opens without parsing a footer.

A column is ``json`` if any file's statistics count nulls in it; see `headrace.sources.arrow_types`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
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
    untyped_columns,
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
from headrace.sources.table_files import TableFiles, find_field, hive_partitions

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace.storage import ObjectInfo, Store

NAME: Final = 'parquet'

GAP: Final = 128 << 10  # Bytes between two wanted column chunks that are read, too: fewer than a second request costs.
_ENDINGS: Final = ('.parquet', '.parq', '.pq')
_OF_TABLES: Final = re.compile(r'(^|/)(_delta_log/|metadata/[^/]*\.metadata\.json)')
LARGEST: Final = 1 << 32  # Bytes of an MDS shard, which is smaller.
_BATCH: Final = 4 << 20  # Bytes of the rows that are decoded at once, about.
_GROWTH: Final = {'json': 3, 'str': 2, 'bytes': 2}
"""How much larger values may be in MDS than their pages: JSON has more text, and pages may hold numbers of words."""


def find(objects: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """See `SourceFormat.find`: files of a Parquet name. Names that begin with '_' or '.' are of other programs.

    Raises:
        FormatError: the files are those of a table, whose metadata say which of them are current.
    """
    if key := next((info.key for info in objects if _OF_TABLES.search(info.key)), None):
        kind = 'delta' if '_delta_log/' in key else 'iceberg'
        raise FormatError(
            f'This is a table ({key}): its metadata say which of its Parquet files are current. Read it with '
            f'`format={kind!r}`, or name the files with a glob in `remote` to read them as they are.'
        )
    return [info for info in objects if info.key.lower().endswith(_ENDINGS) and not is_hidden(info.key)]


def index(
    store: Store, objects: Sequence[ObjectInfo], *, columns: Collection[str] | None, allow_unsafe_types: bool
) -> ParquetSource:
    """See `SourceFormat.index`. Files of one dataset have the same columns; the order of columns may differ.

    The keys of Hive partitions are columns, too, unless the files have columns of their names.
    """
    del allow_unsafe_types  # no type of Parquet runs code
    import_pyarrow('Parquet files')
    return index_files(store, objects, columns=columns, table=hive_partitions([info.key for info in objects]))


def index_files(
    store: Store,
    objects: Sequence[ObjectInfo],
    *,
    columns: Collection[str] | None,
    table: TableFiles | None,
    format_name: str = NAME,
) -> ParquetSource:
    """Index Parquet files, of which a table may say more; errors as those of `SourceFormat.index`."""
    pa = import_pyarrow('Parquet files')
    base = store.url.rstrip('/')
    footer_table = _FooterTable(columns, table)
    footers: list[bytes] = []
    for info, footer in zip(objects, read_footers(store, objects), strict=True):
        source = f'{base}/{info.key}'
        try:
            footer_table.add(info, footer, source)
        except HeadraceError:
            raise
        except (DamagedFooterError, pa.ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
            raise FormatError(f'The Parquet file {source} cannot be read: {error}. Restore the file.') from error
        footers.append(pack_footer(footer))
    for wanted, begin in zip(footer_table.gaps, read_ranges(store, footer_table.gaps), strict=True):
        if begin == MAGIC:
            raise FormatError(
                f'{base}/{wanted.key} holds several Parquet files, joined: one begins at byte {wanted.offset}, and the '
                f'footer tells of that one only. Store each as a file of its own.'
            )
    encodings, meanings = common_columns(
        footer_table.schemas, columns=columns, with_nulls=footer_table.with_nulls, what='Parquet'
    )
    names = dict.fromkeys(name for schema, _ in footer_table.schemas for name in schema.names)
    deleted = [group.deleted for group in footer_table.groups]
    files = [info.key for info in objects]
    return ParquetSource(
        format=format_name,
        base=base,
        columns=encodings,
        meanings=meanings,
        with_nulls=sorted(footer_table.with_nulls),
        parts=PartTable.of(_parts(footer_table.groups, encodings)),
        groups=np.array([group.number for group in footer_table.groups], np.int64),
        files=files,
        footers=footers,
        dropped=[name for name in names if columns is not None and name not in columns],
        table=table,
        deleted=np.concatenate(deleted) if deleted else np.zeros(0, np.int64),
        deleted_ends=np.cumsum([len(rows) for rows in deleted], dtype=np.int64),
        marks={} if table is None else table.marks(files),
    )


def load(data: bytes) -> ParquetSource:
    index = unpack_source(data)
    settings, arrays = index.settings, dict(index.arrays)
    files, meanings = settings['files'], settings.get('meanings')
    if meanings is None:  # made by an older version
        first = settings['keys'][0]  # has rows
        footer = unpack_footer(index.pieces[files.index(first)])
        meanings = meanings_of(settings['columns'], parse_footer(footer, first).schema.to_arrow_schema())
    more = index.pieces[len(files) :]
    return ParquetSource(
        format=settings.get('format', NAME),
        base=settings['base'],
        columns=settings['columns'],
        meanings=meanings,
        with_nulls=settings['with_nulls'],
        parts=PartTable(settings['keys'], arrays),
        groups=arrays['groups'],
        files=files,
        footers=index.pieces[: len(files)],
        table=TableFiles.of_pieces(more[0], more[1], settings['snapshot']) if more else None,
        deleted=arrays.get('deleted', np.zeros(0, np.int64)),
        deleted_ends=arrays.get('deleted_ends', np.zeros(len(settings['keys']), np.int64)),
        marks=settings.get('marks', {}),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ParquetSource:
    base: str  # The store's root, for messages.
    columns: Mapping[str, str]
    meanings: Mapping[str, str]
    with_nulls: Sequence[str]
    parts: PartTable  # The row groups with rows.
    groups: np.ndarray[Any, np.dtype[np.int64]]  # int64[parts], number of each part's row group in its file.
    files: Sequence[str]
    footers: Sequence[bytes | memoryview]  # The compressed footer of each file.
    table: TableFiles | None  # From a table's log, not from the files. Its deleted rows are those of `deleted`.
    deleted: np.ndarray[Any, np.dtype[np.int64]]
    """int64[n], the deleted rows of each part, ascending from the begin of its row group."""
    deleted_ends: np.ndarray[Any, np.dtype[np.int64]]  # int64[parts], where those of each part end.
    marks: Mapping[str, str]  # A digest of the table's facts about each file, by its key.
    dropped: Sequence[str] = ()
    format: str = NAME

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.to_bytes(),)

    @property
    def snapshot(self) -> str:
        """The version of the table; '' for files without one."""
        return '' if self.table is None else self.table.snapshot

    @property
    def identity(self) -> str:
        """A digest of the table's facts about its files; '' for files without one."""
        marks = [(key.rpartition('/')[2], mark) for key, mark in self.marks.items()]
        return hashlib.blake2b(json.dumps(marks).encode(), digest_size=8).hexdigest() if self.snapshot else ''

    def to_bytes(self) -> bytes:
        names = 'format', 'base', 'columns', 'meanings', 'with_nulls', 'files', 'marks', 'snapshot'
        settings = {**{name: getattr(self, name) for name in names}, 'keys': self.parts.keys}
        arrays = {name: getattr(self, name) for name in ('groups', 'deleted', 'deleted_ends')}
        pieces = [*self.footers, *([] if self.table is None else self.table.to_pieces())]
        return pack_source(settings, {**self.parts.arrays, **arrays}, pieces)

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]]:
        return self._batches(part, self.parts[part].ranges, data)

    def lengths_of(
        self, part: int, column: str, read: Callable[[Sequence[tuple[str, int, int]]], bytes]
    ) -> Iterator[Sequence[Any] | np.ndarray[Any, Any]] | None:
        """See `Source`: the pages of this column only. None if it is not stored in the file."""
        key = self.parts[part].key
        ranges = self._metadata(self._number[key], column)[1].ranges[int(self.groups[part])]
        if not ranges:
            return None
        data = memoryview(read([(key, *span) for span in ranges]))
        return (values[column] for values in self._batches(part, ranges, data, column))

    def _batches(
        self, part: int, ranges: Sequence[tuple[int, int]], data: memoryview, column: str | None = None
    ) -> Iterator[Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]]:
        """The rows of a part from these ranges of its file: of one column, or of all that are read."""
        pa = import_pyarrow('Parquet files')
        import pyarrow.parquet as pq

        described = self.parts[part]
        group, file = int(self.groups[part]), self._number[described.key]
        source = f'{self.base}/{described.key}, row group {group},'
        deleted = self.deleted[self.deleted_ends[part - 1] if part else 0 : self.deleted_ends[part]]
        stored, first = described.rows + len(deleted), 0
        try:
            metadata, columns = self._metadata(file, column)
            stored_fields = columns.stored
            _refuse_wrapped_times(RangeFile(ranges, data), metadata, stored_fields, group, source)
            opened = pa.PythonFile(RangeFile(ranges, data), mode='r')
            # Without read-ahead by threads of Arrow: the bytes are in memory, and workers are forked.
            reader = pq.ParquetFile(opened, metadata=metadata, page_checksum_verification=True, pre_buffer=False)
            step = max(1, min(stored, 1 << 14, stored * _BATCH // max(1, described.size)))
            for batch in reader.iter_batches(step, row_groups=[group], columns=stored_fields, use_threads=False):
                begin, first = first, first + batch.num_rows
                rows = batch
                gone = deleted[np.searchsorted(deleted, begin) : np.searchsorted(deleted, first)]
                if len(gone):
                    kept = np.ones(batch.num_rows, bool)
                    kept[gone - begin] = False
                    rows = batch.filter(pa.array(kept))
                if self.table is not None:
                    rows = self.table.rows(rows, columns.physical, columns.schema, file)
                yield to_columns(rows, columns.read, source=source, first_row=begin)
        except HeadraceError:
            raise
        except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise ShardError(f'{source} is damaged: {error}. Restore the file.') from error
        if first != stored:
            raise ShardError(f'{source} has {stored} rows in the footer, but {first} in its pages. Restore the file.')

    @property
    def class_names(self) -> dict[str, list[str]]:
        return class_names(self._metadata(0)[1].physical)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {key: number for number, key in enumerate(self.files)}

    @cached_property
    def _metadata(self) -> Callable[..., tuple[pq.FileMetaData, _Columns]]:
        return lru_cache(maxsize=8)(self._parse)

    def _parse(self, file: int, column: str | None = None) -> tuple[pq.FileMetaData, _Columns]:
        source = f'{self.base}/{self.files[file]}'
        footer = unpack_footer(self.footers[file])
        metadata = parse_footer(footer, source)
        physical = metadata.schema.to_arrow_schema()
        schema = physical if self.table is None else self.table.columns(physical)
        wanted = self.columns if column is None else [column]
        read = arrow_columns(schema, columns=wanted, with_nulls=self.with_nulls, source=source)
        by_id = self.table is not None and self.table.by_id
        columns = _Columns(read, physical, schema, by_id=by_id)
        if column is not None:
            paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
            leaves = _leaves(paths, columns.stored)
            for group in read_row_groups(footer):
                chunks = [group.columns[leaf] for leaf, _ in leaves]
                columns.ranges.append(_joined([(chunk.offset, chunk.size) for chunk in chunks]))
        return metadata, columns


class _Columns:
    """The columns that are read of a file."""

    def __init__(self, read: Mapping[str, ArrowColumn], physical: pa.Schema, schema: pa.Schema, *, by_id: bool) -> None:
        import pyarrow as pa

        self.read, self.physical = read, physical
        self.schema = pa.schema([schema.field(name) for name in read])  # Those of the reader.
        self.stored = list(_own_columns(self.schema, physical, by_id=by_id))
        self.ranges: list[tuple[tuple[int, int], ...]] = []
        """Offset and size of the bytes of one column that is read alone, by row group."""


def _own_columns(wanted: pa.Schema, physical: pa.Schema, *, by_id: bool) -> dict[str, str]:
    """The columns of a file that hold columns of the reader, with the names of these."""
    pairs = ((find_field(field, physical, by_id=by_id), field.name) for field in wanted)
    return {field.name: name for field, name in pairs if field is not None}


def _refuse_wrapped_times(
    ranges: RangeFile, metadata: pq.FileMetaData, columns: Sequence[str], group: int, source: str
) -> None:
    """Refuse times that pyarrow would wrap around: those of INT96, a day and its ns, that int64 of ns cannot hold."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    leaves_read = _leaves([leaf.path for leaf in leaves], columns)
    names = list({name: None for number, name in leaves_read if leaves[number].physical_type == 'INT96'})
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
    sizes: dict[str, int]  # Bytes of each column's pages, uncompressed.
    deleted: np.ndarray[Any, np.dtype[np.int64]]  # Rows of it that do not count.


class _FooterTable:
    """Collects footers: the row groups, and the different schemas."""

    def __init__(self, columns: Collection[str] | None, table: TableFiles | None) -> None:
        self._wanted, self._table = columns, table
        self._files = 0
        self.with_nulls = set[str]()
        self.groups: list[_Group] = []
        self.gaps: list[ByteRange] = []
        """Where the file would begin whose parts end at the footer, of files with other data before it."""
        self.schemas: list[tuple[Any, str]] = []  # The different ones, each with its first file.

    def add(self, info: ObjectInfo, footer: bytes, source: str) -> None:
        metadata = parse_footer(footer, source)
        groups = read_row_groups(footer)
        file, self._files = self._files, self._files + 1
        end = max((chunk.end for group in groups for chunk in group.columns), default=len(MAGIC))
        begin = info.size - 8 - len(footer) - end
        if begin > 0:
            self.gaps.append(ByteRange(info.key, begin, len(MAGIC), info.etag))
        rows = sum(group.rows for group in groups)
        expected = self._table.rows_of[file] if self._table is not None and self._table.rows_of else None
        if expected not in (None, rows):
            raise DamagedFooterError(f'its footer has {rows} rows, but its table counts {expected}')
        if not rows:
            return  # its types may be wrong: an empty column of text may have the type of nulls
        physical = metadata.schema.to_arrow_schema()
        pa = import_pyarrow('Parquet files')
        schema = self._schema(physical if self._table is None else self._table.columns(physical), source)
        names = list(arrow_columns(schema, columns=self._wanted, source=source))
        self.with_nulls.update(untyped_columns(schema).intersection(names))
        by_id = self._table is not None and self._table.by_id
        stored = _own_columns(pa.schema([schema.field(name) for name in names]), physical, by_id=by_id)
        if self._table is not None:
            lacking = set(names).difference(stored.values())
            self.with_nulls.update(name for name in lacking if self._table.has_nulls(name, file))
        deleted = np.zeros(0, np.int64) if self._table is None else self._table.deleted.get(file, np.zeros(0, np.int64))
        paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
        leaves = [(leaf, stored[column]) for leaf, column in _leaves(paths, list(stored))]
        first = 0
        for number, group in enumerate(groups):
            if group.rows == 0:
                continue
            if not 0 < group.rows < LARGEST or [chunk.path for chunk in group.columns] != paths:
                raise DamagedFooterError(f'row group {number} has {group.rows} rows, or other columns than the schema')
            spans: list[tuple[int, int]] = []
            sizes = dict.fromkeys(names, 0)
            # A part has bytes, though all its columns may be constants.
            smallest = min(range(len(paths)), key=lambda leaf: group.columns[leaf].size)
            for leaf, name in leaves or [(smallest, None)]:
                chunk = group.columns[leaf]
                if chunk.offset < 4 or chunk.size < 0 or chunk.offset + chunk.size > info.size:
                    raise DamagedFooterError(
                        f'column {chunk.path!r} lies at bytes {chunk.offset} to {chunk.offset + chunk.size}, but the '
                        f'file has {info.size} bytes'
                    )
                spans.append((chunk.offset, chunk.size))
                if name is None:
                    continue
                sizes[name] += max(0, chunk.unpacked_size)
                # The path of a file may always be null.
                if chunk.null_count and not chunk.path.endswith('.path'):
                    self.with_nulls.add(name)
            begin, first = first, first + group.rows
            gone = deleted[np.searchsorted(deleted, begin) : np.searchsorted(deleted, first)] - begin
            if group.rows > len(gone):
                kept = group.rows - len(gone)
                self.groups.append(_Group(info.key, number, kept, _joined(spans), sizes, gone))
        if len(deleted) and not 0 <= deleted[0] <= deleted[-1] < first:
            raise DamagedFooterError(f'it has {first} rows, but its table deletes row {deleted[-1]}')

    def _schema(self, schema: pa.Schema, source: str) -> pa.Schema:
        """The columns of a file for its reader; equal schemas are one object."""
        for earlier, _ in self.schemas:
            if earlier.equals(schema, check_metadata=True):
                return earlier
        self.schemas.append((schema, source))
        return schema


def _parts(groups: Sequence[_Group], encodings: Mapping[str, str]) -> Iterator[Part]:
    """The parts of row groups with rows, with estimates of their shards."""
    fixed = {name: get_mds_encoded_size(encoding) for name, encoding in encodings.items()}
    growth = {name: _GROWTH.get(encoding, 1) for name, encoding in encodings.items()}
    for group in groups:
        row_size = 4 + sum(4 if size is None else size for size in fixed.values())
        least = group.rows * row_size
        if least >= LARGEST:
            raise FormatError(
                f'Row group {group.number} of {group.file} has {group.rows} rows of {row_size} bytes and more each: a '
                f'shard holds less than 4 GiB. Read fewer `columns`, or write the file with smaller row groups.'
            )
        size = least + sum(growth[name] * size for name, size in group.sizes.items() if fixed[name] is None)
        yield Part(group.file, group.ranges, group.rows, min(size + 4096, LARGEST - 1))


def _leaves(paths: Sequence[str], names: Sequence[str]) -> list[tuple[int, str]]:
    """Numbers of the leaf columns that reading these columns reads, each with its column.

    As pyarrow chooses them: by the leaf's path, whose parts are joined by dots.
    """
    leaves: list[tuple[int, str]] = []
    wanted = set(names)
    for number, path in enumerate(paths):
        parts = path.split('.')
        heads = ('.'.join(parts[:count]) for count in range(len(parts), 0, -1))
        if (name := next((head for head in heads if head in wanted), None)) is not None:
            leaves.append((number, name))
    return leaves


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
    """The file interface that pyarrow reads from; `ranges` ascend without overlap. Reads copy nothing."""

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
            f'Bytes {self._at} to {self._at + size} are read, which are outside the columns that the footer gives. '
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
