"""Arrow data: folders of Hugging Face's `save_to_disk`, and other IPC files and streams, such as Feather's.

`index` reads the heads of messages, and the offsets of lists to find empty ones. A part is a run of record batches of
about 32 MiB, with the dictionaries before them. A column is ``json`` if any batch has nulls in it, or an empty list of
numbers; see `headrace.sources.arrow_types`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources.arrow_messages import BATCH, DICTIONARY, MAGIC, SCHEMA, ArrowLayout, read_messages
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
from headrace.sources.formats import folder_of, is_hidden, name_of
from headrace.sources.protocol import Part
from headrace.sources.ranges import ByteRange, RangedWindow, in_parallel, read_range
from headrace.sources.source_bytes import PartTable, pack_source, unpack_source

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.storage import ObjectInfo, Store

NAME: Final = 'arrow'
_ENDINGS: Final = ('.arrow', '.arrows', '.feather', '.ipc')
_STATE: Final = 'state.json'
_MAX_STATE: Final = 64 << 20
_PART: Final = 32 << 20
_MAX_DICTIONARIES: Final = 256
_BATCH_ROWS: Final = 1 << 12
_MAX_END: Final = 64  # Bytes of the end mark of a file and of padding.
_END: Final = b'\xff\xff\xff\xff\0\0\0\0'


def find(objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    """The Arrow files, and the `state.json` of `save_to_disk` beside them."""
    files = [info for info in objects if info.key.lower().endswith(_ENDINGS) and not is_hidden(info.key)]
    folders = {folder_of(info.key) for info in files}
    states = [info for info in objects if name_of(info.key) == _STATE and folder_of(info.key) in folders]
    return [*states, *files] if files else []


def index(
    store: Store, objects: Sequence[ObjectInfo], *, columns: Collection[str] | None, allow_unsafe_types: bool
) -> ArrowSource:
    del allow_unsafe_types  # no type of Arrow runs code
    import_pyarrow('Arrow files')
    scans = in_parallel(lambda info: _Scan(store, info, columns), _files(store, objects))
    # The types of a file without rows may be wrong: an empty column of text may have the type of nulls.
    scans = [scan for scan in scans if scan.parts]
    schemas = list(dict.fromkeys(scan.schema for scan in scans))
    homes = [next(scan.key for scan in scans if scan.schema == schema) for schema in schemas]
    parsed = [(_schema(schema, home), home) for schema, home in zip(schemas, homes, strict=True)]
    untyped = (untyped_columns(schema) for schema, _ in parsed)
    with_nulls = sorted(set[str]().union(*untyped, *(scan.with_nulls for scan in scans)))
    columns = None if columns is None else list(columns)
    encodings, meanings = common_columns(parsed, columns=columns, with_nulls=with_nulls, what='Arrow')
    return ArrowSource(
        columns=encodings,
        meanings=meanings,
        with_nulls=with_nulls,
        parts=PartTable.of(part for scan in scans for part in scan.parts),
        schema_of=np.array([schemas.index(scan.schema) for scan in scans for _ in scan.parts], np.int64),
        schemas=schemas,
    )


def load(data: bytes) -> ArrowSource:
    index = unpack_source(data)
    arrays, schemas = dict(index.arrays), [bytes(piece) for piece in index.pieces]
    meanings = index.settings.get('meanings')
    if meanings is None:  # made by an older version
        meanings = meanings_of(index.settings['columns'], _schema(schemas[0], 'the index'))
    return ArrowSource(
        columns=index.settings['columns'],
        meanings=meanings,
        with_nulls=index.settings['with_nulls'],
        parts=PartTable(index.settings['keys'], arrays),
        schema_of=arrays['schema_of'],
        schemas=schemas,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrowSource:
    columns: Mapping[str, str]
    meanings: Mapping[str, str]
    with_nulls: Sequence[str]  # The columns with nulls or empty lists.
    parts: PartTable  # Runs of record batches.
    schema_of: np.ndarray[Any, np.dtype[np.int64]]  # int64[parts], number of each part's schema.
    schemas: Sequence[bytes]  # Messages with the different schemas.

    format = NAME

    def to_bytes(self) -> bytes:
        settings = {name: getattr(self, name) for name in ('columns', 'meanings', 'with_nulls')}
        arrays = {**self.parts.arrays, 'schema_of': self.schema_of}
        return pack_source({**settings, 'keys': self.parts.keys}, arrays, self.schemas)

    @property
    def dropped(self) -> Sequence[str]:
        names = dict.fromkeys(name for schema in self.schemas for name in _schema(schema, 'the data').names)
        return [name for name in names if name not in self.columns]

    @property
    def class_names(self) -> dict[str, list[str]]:
        return class_names(_schema(self.schemas[0], 'the data'))

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]]:
        pa = import_pyarrow('Arrow files')
        described = self.parts[part]
        source = f'{described.key}, part {part},'
        schema = self.schemas[int(self.schema_of[part])]
        rows = 0
        try:
            columns = _columns(schema, list(self.columns), self.with_nulls, source)
            stream = pa.PythonFile(io.BufferedReader(_Chain([memoryview(schema), data, memoryview(_END)])), mode='r')
            for whole in pa.ipc.open_stream(stream):
                whole.validate(full=True)
                for start in range(0, whole.num_rows, _BATCH_ROWS):
                    batch = whole.slice(start, _BATCH_ROWS)
                    yield to_columns(batch, columns, source=source, first_row=rows)
                    rows += batch.num_rows
        except HeadraceError:
            raise
        except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise ShardError(f'{source} is damaged: {error}. Restore the file.') from error
        if rows != described.rows:
            raise ShardError(f'{source} has {rows} rows, but the index says {described.rows}. Restore the file.')


class _Chain(io.RawIOBase):
    """Pieces of bytes, one after another."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        super().__init__()
        self._pieces = [piece for piece in pieces if len(piece)]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast('B')
        if not self._pieces or not len(view):
            return 0
        count = min(len(view), len(self._pieces[0]))
        view[:count] = self._pieces[0][:count]
        self._pieces[0] = self._pieces[0][count:]
        if not len(self._pieces[0]):
            self._pieces.pop(0)
        return count


def _columns(
    schema: bytes, columns: Collection[str] | None, with_nulls: Collection[str], source: str
) -> dict[str, ArrowColumn]:
    return arrow_columns(_schema(schema, source), columns=columns, with_nulls=with_nulls, source=source)


def _schema(message: bytes, source: str) -> pa.Schema:
    pa = import_pyarrow('Arrow files')
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(message))
        for field in schema:
            _read_names(field)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise FormatError(f'The schema of {source} is damaged: {error}. Restore the file.') from error
    return schema


def _read_names(field: Any) -> str:
    """The name of a field. That of each inner field is read, too: a damaged one raises UnicodeDecodeError."""
    kind = getattr(field.type, 'storage_type', field.type)
    for number in range(kind.num_fields):
        _read_names(kind.field(number))
    return field.name


# Indexing


def _files(store: Store, objects: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """The Arrow files, in the order of the `state.json` if there is one."""
    states = [info for info in objects if name_of(info.key) == _STATE]
    files = {info.key: info for info in objects if name_of(info.key) != _STATE}
    if len(states) > 1:
        names = [folder_of(info.key) for info in states]
        raise StreamError(
            f'The folder holds several datasets: {", ".join(names[:10])}. Choose one, such as `split={names[0]!r}`.'
        )
    if not states:
        return list(files.values())
    state = states[0]
    if state.size > _MAX_STATE:
        raise FormatError(f'{state.key} has at most {_MAX_STATE} bytes, but this has {state.size}. Restore it.')
    data = read_range(store, ByteRange(state.key, 0, state.size, state.etag))
    try:
        names = [str(file['filename']) for file in cast('dict[str, Any]', json.loads(data))['_data_files']]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f'{state.key} of a Hugging Face dataset lists `_data_files`, but cannot be read: {error!r:.99}. Restore it.'
        ) from None
    folder = folder_of(state.key)
    keys = [f'{folder}/{name}' if folder else name for name in names]
    lacking = [key for key in keys if key not in files]
    if lacking:
        raise FormatError(f'{state.key} lists {lacking[0]!r:.200}, which does not exist. Copy the whole folder.')
    return [files[key] for key in dict.fromkeys(keys)]


class _Scan:
    """The parts of one file, and the columns that hold nulls or empty lists."""

    def __init__(self, store: Store, info: ObjectInfo, columns: Collection[str] | None) -> None:
        self.key = info.key
        self.schema = b''
        self.with_nulls: set[str] = set()
        self.parts: list[Part] = []
        window = RangedWindow(store, info)
        layout: ArrowLayout | None = None
        dictionaries: dict[int, list[tuple[int, int]]] = {}
        start = end = rows = last = 0
        for message in read_messages(window, info.key):
            last = message.end
            if message.kind == SCHEMA:
                size = message.end - message.start
                schema = read_range(store, ByteRange(info.key, message.start, size, info.etag))
                if layout is not None and schema != self.schema:
                    raise FormatError(
                        f'Streams of Arrow data in one file have one schema, but {info.key} has another at byte '
                        f'{message.start}. Write them as several files.'
                    )
                if rows:
                    self._finish(dictionaries, start, end, rows)
                    rows = 0
                dictionaries.clear()
                self.schema, layout = schema, ArrowLayout(_schema(schema, info.key), columns)
                continue
            if layout is None or message.kind not in {DICTIONARY, BATCH}:
                raise FormatError(
                    f'Arrow data are a schema and record batches, but {info.key} has a message of kind {message.kind} '
                    f'at byte {message.start}. Write it again.'
                )
            # A run ends before a dictionary, which may replace that of the run.
            if rows and (message.kind == DICTIONARY or message.end - start > _PART):
                self._finish(dictionaries, start, end, rows)
                rows = 0
            if message.kind == DICTIONARY:
                span = message.start, message.end - message.start
                before = dictionaries.get(message.dictionary, []) if message.is_delta else []
                dictionaries[message.dictionary] = [*before, span]
                if sum(map(len, dictionaries.values())) > _MAX_DICTIONARIES:
                    raise FormatError(
                        f'A record batch needs at most {_MAX_DICTIONARIES} dictionaries, but that after byte '
                        f'{message.start} of {info.key} needs more. Write the data with one dictionary a column.'
                    )
            elif message.rows:
                self.with_nulls |= layout.with_nulls(message, self.with_nulls, window, info.key)
                start, end = start if rows else message.start, message.end
                rows += message.rows
        if layout is None:
            raise FormatError(f'{info.key} has no schema, so it holds no Arrow data. Restore or remove it.')
        if rows:
            self._finish(dictionaries, start, end, rows)
        if bytes(window.take(0, len(MAGIC))) == MAGIC:
            tail = bytes(window.take(max(0, info.size - 10), 10))
            if tail[4:] != MAGIC:
                raise FormatError(f'{info.key} has no end, so records may be missing. Restore or write it again.')
            if info.size - 10 - int.from_bytes(tail[:4], 'little') - last > _MAX_END:
                raise FormatError(
                    f'{info.key} has other data after its records, from byte {last} on. Files of Arrow data cannot be '
                    f'joined: restore the files.'
                )

    def _finish(self, dictionaries: Mapping[int, list[tuple[int, int]]], start: int, end: int, rows: int) -> None:
        ranges = (*sorted(span for spans in dictionaries.values() for span in spans), (start, end - start))
        self.parts.append(Part(self.key, ranges, rows, sum(size for _, size in ranges)))
