"""litdata's chunks, as its `optimize` writes them: `index.json`, and chunk files of items.

An item is a tree of lists and dicts whose leaves are columns. The keys of a dict name the columns, and so do the places
in a tuple ('0', '1', ...). A lone leaf is the column 'value', and tokens of a `TokensLoader` are 'tokens': one sample
for each stored item. An inner list or dict of plain values is one ``json`` column; one with arrays or files gives a
column for each leaf, such as 'image.depth'.

The index is read from `index.json` alone, and from the first chunk if leaves are arrays of any type. A part is a chunk.

A chunk is u32 count, u32 offset[count + 1] from its beginning, and the items. zstd compresses it in one of three ways:
the whole file; runs of items (``LDFZ01``); or each item. Rows of plain values are an Arrow file behind the offsets, and
a chunk of them ends with u32 size of the file and ``LDARW01``. All numbers are little-endian.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from headrace.errors import ConfigError, FormatError, ShardError, StreamError
from headrace.format.encodings.texts import parse_json
from headrace.sources.arrow_types import import_pyarrow
from headrace.sources.formats import choose_columns, folder_of, name_of
from headrace.sources.litdata_leaves import (
    LitdataColumn,
    arrow_values,
    data_formats,
    item_columns,
    leaf_values,
    scalar_encodings,
    split_leaves,
)
from headrace.sources.protocol import Part
from headrace.sources.ranges import MAX_UNPACKED, ByteRange, read_range, unpack
from headrace.sources.source_bytes import PartTable, dump_index, load_index
from headrace.storage.protocol import check_key

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from headrace.storage import ObjectInfo, Store

NAME: Final = 'litdata'
_INDEX: Final = 'index.json'
_MAX_INDEX: Final = 1 << 30
_CHUNK: Final = re.compile(r'(.*/)?chunk-\d+-\d+(\.[a-z0-9:]+)?\.bin', re.DOTALL)
_MAX_DEPTH: Final = 100
_BATCH: Final = 1 << 12


def find(objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    """The index and the chunks. A folder of MDS has an `index.json`, too, but no chunks."""
    chunks = [info for info in objects if _CHUNK.fullmatch(info.key)]
    folders = {folder_of(info.key) for info in chunks}
    heads = [info for info in objects if name_of(info.key) == _INDEX and folder_of(info.key) in folders]
    return [*heads, *chunks] if heads else []


def index(
    store: Store, objects: Sequence[ObjectInfo], *, columns: Collection[str] | None, allow_unsafe_types: bool
) -> LitdataSource:
    heads = [info for info in objects if name_of(info.key) == _INDEX]
    if len(heads) > 1:
        folders = [folder_of(info.key) for info in heads]
        raise StreamError(
            f'The folder holds several datasets: {", ".join(folders[:10])}. Choose one: `split={folders[-1]!r}`.'
        )
    head = heads[0]
    folder = head.key.removesuffix(_INDEX)
    sizes = {info.key.removeprefix(folder): info for info in objects}
    if head.size > _MAX_INDEX:
        raise FormatError(f'An {_INDEX} of litdata has at most {_MAX_INDEX} bytes, but this has {head.size}.')
    data = read_range(store, ByteRange(head.key, 0, head.size, head.etag))
    try:
        value = parse_json(data.decode('utf-8'), f'{_INDEX} of litdata')
    except UnicodeDecodeError as error:
        raise FormatError(f'{_INDEX} of litdata is not UTF-8 text: {error}. Restore or write it again.') from None
    _check_depth(value)
    content = cast('dict[str, Any]', value) if isinstance(value, dict) else {}
    config, chunks = content.get('config'), content.get('chunks')
    if not isinstance(config, dict) or not isinstance(chunks, list):
        raise FormatError(
            f'{_INDEX} of litdata has `config` and `chunks`, but this one does not. Restore or write it again.'
        )
    settings = _settings(cast('dict[str, Any]', config))
    parts = PartTable.of(_part(chunk, sizes, settings) for chunk in cast('list[Any]', chunks))
    scalars: dict[str, str] = {}
    if parts and not {'tensor', 'numpy'}.isdisjoint(settings['data_format']):
        scalars = _peek(store, sizes[parts[0].key.removeprefix(folder)], parts[0], settings)
    return _source(settings, scalars, parts, columns, allow_unsafe_types)


def _check_depth(value: Any) -> None:
    """Refuse nesting that later recursion would not bear."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for inner in level
            if isinstance(inner, dict | list)
            for child in (
                cast('dict[str, Any]', inner).values() if isinstance(inner, dict) else cast('list[Any]', inner)
            )
        ]
        if not level:
            return
    raise FormatError(f'An {_INDEX} of litdata is nested at most {_MAX_DEPTH} deep, but this is nested deeper.')


def load(data: bytes) -> LitdataSource:
    columns, parts, more = load_index(NAME, data)
    return _source(more['config'], more['scalars'], parts, list(columns), more['allow_unsafe_types'])


_KNOWN: Final = ('data_spec', 'types', 'item_loader', 'compression_level')


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of an index that reading needs."""
    loader = config.get('item_loader') or 'PyTreeLoader'
    if loader not in ['PyTreeLoader', 'TokensLoader']:
        fix = "Read its files as they are, with format='parquet'." if loader == 'ParquetLoader' else 'Write them again.'
        raise FormatError(
            f'Chunks of litdata are those of PyTreeLoader or TokensLoader here, but these need {loader!r}. {fix}'
        )
    if config.get('encryption'):
        raise FormatError('Chunks of litdata are read without encryption, but these are encrypted. Write them again.')
    return {**{name: config.get(name) for name in _KNOWN}, 'data_format': data_formats(config)}


def _part(chunk: Any, sizes: Mapping[str, ObjectInfo], settings: Mapping[str, Any]) -> Part:
    entry = cast('dict[str, Any]', chunk) if isinstance(chunk, dict) else {}
    key, rows, size = entry.get('filename'), entry.get('chunk_size'), entry.get('chunk_bytes')
    if (
        not (isinstance(key, str) and isinstance(rows, int) and isinstance(size, int))
        or not 0 < rows < 1 << 32
        or not 0 <= size < 1 << 40
    ):
        raise FormatError(
            f'A chunk of litdata has `filename`, `chunk_size` (items) and `chunk_bytes`, but got {chunk!r:.200}.'
        )
    try:
        check_key(key)
    except ConfigError as error:
        raise FormatError(str(error)) from None
    if key not in sizes:
        raise FormatError(f'{_INDEX} of litdata lists {key}, which does not exist. Copy the whole folder.')
    if settings['compression_level'] in ['batch', 'sample']:
        size *= 3  # an estimate: the index has the compressed size only
    return Part(sizes[key].key, (), rows, max(size, sizes[key].size) + 4 * (rows + 4))


def _peek(store: Store, info: ObjectInfo, part: Part, settings: Mapping[str, Any]) -> dict[str, str]:
    """The encodings of arrays without axes in the first item."""
    data = memoryview(read_range(store, ByteRange(info.key, 0, info.size, info.etag)))
    chunk = _unpack_chunk(data, part.size, part.key)
    packed = settings['compression_level'] == 'sample'
    first = next(_read_items(chunk, part.rows, each_packed=packed, where=part.key))[:1]
    leaves = split_leaves(first, len(settings['data_format']), part.key)
    return scalar_encodings(settings, [values[0] for values in leaves])


def _source(
    settings: dict[str, Any],
    scalars: dict[str, str],
    parts: Sequence[Part],
    columns: Collection[str] | None,
    allow_unsafe_types: bool,
) -> LitdataSource:
    available = item_columns(settings, scalars, allow_unsafe_types=allow_unsafe_types)
    chosen = [
        available[name] for name in choose_columns(list(available), columns, source=f'the index of litdata, {_INDEX},')
    ]
    for column in chosen:
        if column.problem:
            raise FormatError(
                f'Column {column.name!r} of litdata cannot be read: {column.problem}. Leave it out with `columns`.'
            )
    return LitdataSource(tuple(chosen), parts, settings, scalars, allow_unsafe_types)


@dataclass(frozen=True, slots=True)
class LitdataSource:
    chosen: tuple[LitdataColumn, ...]
    parts: Sequence[Part]
    settings: Mapping[str, Any]
    scalars: Mapping[str, str]
    allow_unsafe_types: bool

    format = NAME

    @property
    def columns(self) -> Mapping[str, str]:
        return {column.name: column.encoding for column in self.chosen}

    @property
    def dropped(self) -> Sequence[str]:
        available = item_columns(self.settings, self.scalars, allow_unsafe_types=self.allow_unsafe_types)
        return [name for name in available if name not in self.columns]

    @property
    def meanings(self) -> Mapping[str, str]:
        bools = [
            column for column in self.chosen if column.encoding == 'uint8' and str(column.node) not in self.scalars
        ]
        return {column.name: 'bool' for column in bools}

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any]]]:
        described = self.parts[part]
        chunk = _unpack_chunk(data, described.size, described.key)
        rows = 0
        arrow = _arrow_rows(chunk, described.key) if isinstance(self.settings['types'], dict) else None
        if arrow is not None:
            for batch in arrow:
                values = self._arrow_columns(batch, described.key)
                rows += batch.num_rows
                yield {
                    column.name: arrow_values(column, values.get(column.path[0]), batch.num_rows, described.key)
                    for column in self.chosen
                }
            if rows != described.rows:
                raise ShardError(
                    f'{described.key} has {rows} rows, but the index says {described.rows}. Restore or write it again.'
                )
            return
        formats = self.settings['data_format']
        packed = self.settings['compression_level'] == 'sample'
        tokens = self.settings['item_loader'] == 'TokensLoader'
        for items in _read_items(chunk, described.rows, each_packed=packed, where=described.key):
            for start in range(0, len(items), _BATCH):
                run = items[start : start + _BATCH]
                leaves = [run] if tokens else split_leaves(run, len(formats), described.key)
                yield {
                    column.name: leaf_values(column, formats, leaves, len(run), described.key) for column in self.chosen
                }

    def _arrow_columns(self, batch: pa.RecordBatch, where: str) -> dict[str, list[Any]]:
        """The values of the columns that are read, as Python objects."""
        try:
            names = batch.schema.names
            tops = {column.path[0] for column in self.chosen}
            return {name: batch.column(name).to_pylist() for name in tops if names.count(name) == 1}
        except UnicodeDecodeError as error:  # names of fields are not checked before
            raise ShardError(f'The Arrow data in {where} are damaged: {error}. Restore the file.') from None

    def to_bytes(self) -> bytes:
        more = {'config': self.settings, 'scalars': self.scalars, 'allow_unsafe_types': self.allow_unsafe_types}
        return dump_index(NAME, self.columns, self.parts, more)


_ZSTD: Final = b'\x28\xb5\x2f\xfd'
_FRAMED: Final = b'LDFZ01\0\0'
_FRAMED_HEAD: Final = struct.Struct('<8sHHIII')  # magic, version, flags, items, items a frame, frames
_FRAME: Final = np.dtype([('first', '<u4'), ('items', '<u4'), ('at', '<u8'), ('packed', '<u4'), ('size', '<u4')])
_ARROW: Final = b'LDARW01\0'


def _unpack_chunk(data: memoryview, limit: int, where: str) -> memoryview:
    """The chunk, decompressed if it is compressed as a whole."""
    if bytes(data[:4]) != _ZSTD:
        return data
    return memoryview(b''.join(unpack('zstd', iter([bytes(data)]), where, limit)))


def _arrow_rows(data: memoryview, where: str) -> Iterator[pa.RecordBatch] | None:
    """The rows of a chunk that ends with an Arrow file, or None for another chunk."""
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


def _read_items(data: memoryview, count: int, *, each_packed: bool, where: str) -> Iterator[list[memoryview]]:
    """The items of a chunk, in runs."""
    if bytes(data[:8]) == _FRAMED:
        yield from _framed_items(data, count, where)
        return
    stored = int.from_bytes(data[:4], 'little') if len(data) >= 4 else 0
    _check_count(stored, count, where)
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
    _, version, _, stored, _, frames = _FRAMED_HEAD.unpack_from(data)
    if version != 1:
        raise ShardError(
            f'Frames of a litdata chunk have version 1, but those of {where} have {version}. Write it again.'
        )
    _check_count(stored, count, where)
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


def _check_count(stored: int, count: int, where: str) -> None:
    if stored != count:
        raise ShardError(f'{where} has {stored} items, but the index says {count}. Restore or write it again.')


def _damaged(where: str, reason: str) -> ShardError:
    return ShardError(f'{where} is not a chunk of litdata: {reason}. Restore or write it again.')
