"""JSONL, CSV and TSV, plain or compressed (.gz, .zst, .bz2), without an index.

`index` reads all data once: it finds the ends of records, and the type of each column in all rows. A part is a run of
records of about 32 MiB, or a compressed file. A column has a type if all its values have; see
`headrace.sources.line_records`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import FormatError, ShardError
from headrace.format.compression import CHUNK
from headrace.redaction import logger_of
from headrace.sources.formats import choose_columns, is_hidden
from headrace.sources.line_records import (
    JsonTypes,
    Record,
    TextTypes,
    json_columns,
    read_objects,
    read_texts,
    require_utf8,
    text_columns,
)
from headrace.sources.protocol import Part
from headrace.sources.ranges import ByteRange, algorithm_of, read_ranges, unpack
from headrace.sources.source_bytes import PartTable, dump_index, load_index

if TYPE_CHECKING:
    from headrace.storage import ObjectInfo, Store

_log = logger_of(__name__)

_COMPRESSED: Final = r'(\.(gz|zst|zstd|bz2))'
_PART: Final = 32 << 20
_READ: Final = 4 << 20
_LARGE: Final = 10 * 10**9
_RATE: Final = 10**8
"""Bytes a second of indexing, about."""
_BATCH_ROWS: Final = 1 << 12
_BATCH_BYTES: Final = 8 << 20


class LineFormat:
    """A `SourceFormat` of records in lines.

    Args:
        name: the format.
        names: pattern of the names of its files.
        separator: of the fields of a row; empty for objects of JSON.
    """

    def __init__(self, name: str, names: str, separator: str) -> None:
        self.NAME = name
        self.separator = separator
        self._names = re.compile(names, re.IGNORECASE)

    def find(self, objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
        return [info for info in objects if self._names.search(info.key) and not is_hidden(info.key)]

    def index(
        self,
        store: Store,
        objects: Sequence[ObjectInfo],
        *,
        columns: Collection[str] | None,
        allow_unsafe_types: bool,
    ) -> LineSource:
        del allow_unsafe_types  # no type of text runs code
        size = sum(info.size for info in objects)
        if size > _LARGE:
            _log.warning(
                '%d GB of %s are indexed, once: all records are read, which takes about %d minutes. Convert them with '
                '`headrace convert` to start faster elsewhere.',
                size // 10**9,
                self.NAME,
                size // _RATE // 60,
            )
        reader: _Reader = _TextReader(self.separator) if self.separator else _ObjectReader()
        ahead = (  # of the parser
            ByteRange(info.key, at, min(_READ, info.size - at), info.etag)
            for info in objects
            for at in range(0, info.size, _READ)
        )
        pieces = read_ranges(store, ahead)
        parts = [part for info in objects for part in _parts(reader, info, islice(pieces, -(-info.size // _READ)))]
        found = reader.encodings()
        if parts and not found:
            raise FormatError(
                f'A row of {self.NAME} has a value for each of its columns, but all rows of {store.url} are empty, '
                f'such as the first one of {parts[0].key}. Choose other files with a glob in `remote`.'
            )
        chosen = choose_columns(list(found), columns, source=f'the {self.NAME} data')
        return LineSource(
            self,
            {name: found[name] for name in chosen},
            PartTable.of(parts),
            reader.headers,
            reader.header_of,
            [name for name in found if name not in chosen],
        )

    def load(self, data: bytes) -> LineSource:
        columns, parts, more = load_index(self.NAME, data)
        return LineSource(self, columns, parts, more['headers'], more['header_of'])


JSONL: Final = LineFormat('jsonl', rf'(\.(jsonl|ndjson){_COMPRESSED}?|\.json{_COMPRESSED})$', '')
"""Objects of JSON. A plain ``.json`` is not of this format: it may be one large value."""
CSV: Final = LineFormat('csv', rf'\.csv{_COMPRESSED}?$', ',')
TSV: Final = LineFormat('tsv', rf'\.(tsv|tab){_COMPRESSED}?$', '\t')


@dataclass(frozen=True, slots=True)
class LineSource:
    kind: LineFormat
    columns: Mapping[str, str]
    parts: Sequence[Part]
    headers: Sequence[Sequence[str]]
    """The different first rows of files of CSV."""
    header_of: Mapping[str, int]
    """The number of a file's header, if it is not the first."""
    dropped: Sequence[str] = ()

    @property
    def format(self) -> str:
        return self.kind.NAME

    @property
    def meanings(self) -> Mapping[str, str]:
        return {name: 'bool' for name, encoding in self.columns.items() if encoding == 'uint8'}

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any]]]:
        found = self.parts[part]
        where = f'{found.key} (part {part})'
        try:
            rows = 0
            for batch in self._batches(found, data, where):
                rows += len(batch)
                yield self._columns(batch, found.key)
        except ShardError:
            raise
        except (FormatError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise ShardError(f'{where} differs from what was indexed: {error!s:.300}. Restore the file.') from error
        if rows != found.rows:
            raise ShardError(f'{where} has {rows} rows, but the index says {found.rows}. Restore the file.')

    def _columns(self, batch: list[Any], key: str) -> Mapping[str, Sequence[Any]]:
        columns = dict(self.columns)
        return text_columns(batch, self._header(key), columns) if self.kind.separator else json_columns(batch, columns)

    def _batches(self, part: Part, data: memoryview, where: str) -> Iterator[list[Any]]:
        chunks = unpack(
            algorithm_of(part.key), (bytes(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)), where
        )
        if not self.kind.separator:
            records = read_objects(chunks, where)
        else:
            records = read_texts(chunks, self.kind.separator, where)
            if not part.ranges:
                next(records, None)  # the header
            count = len(self._header(part.key))
            records = (_checked(record, count, where) for record in records)
        batch: list[Any] = []
        start = 0
        for record in records:
            batch.append(record.value)
            if len(batch) == _BATCH_ROWS or record.end - start >= _BATCH_BYTES:
                yield batch
                batch, start = [], record.end
        if batch:
            yield batch

    def to_bytes(self) -> bytes:
        more = {'headers': self.headers, 'header_of': dict(self.header_of)}
        return dump_index(self.format, self.columns, self.parts, more)

    def _header(self, key: str) -> Sequence[str]:
        return self.headers[self.header_of.get(key, 0)]


# Indexing


class _ObjectReader:
    """Records of JSONL, and the types of all of them."""

    def __init__(self) -> None:
        self._types = JsonTypes()
        self.headers: list[list[str]] = []
        self.header_of: dict[str, int] = {}

    def records(self, info: ObjectInfo, chunks: Iterable[bytes]) -> Iterator[Record]:
        for record in read_objects(chunks, info.key):
            self._types.add(record.value, escapes=record.escapes)
            yield record

    def encodings(self) -> dict[str, str]:
        return self._types.encodings()


class _TextReader:
    """Rows of CSV, and the types of all of them."""

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self._types: dict[tuple[str, ...], TextTypes] = {}
        self.headers: list[list[str]] = []
        self.header_of: dict[str, int] = {}

    def records(self, info: ObjectInfo, chunks: Iterable[bytes]) -> Iterator[Record]:
        """The records of a file, without its header."""
        records = read_texts(chunks, self._separator, info.key)
        head = next(records, None)
        if head is None:
            return
        header: list[str] = head.value
        if len(set(header)) < len(header):
            raise FormatError(
                f'The first row of CSV names the columns, all different, but {info.key} has {header!r:.300}.'
            )
        known = self.headers[0] if self.headers else header
        if set(known) != set(header):
            raise FormatError(
                f'The files of a dataset have the same columns, but {info.key} has {header!r:.200}, and '
                f'the first one {known!r:.200}. The first row of a file names its columns. Choose '
                f'files of one kind with a glob in `remote`.'
            )
        if header not in self.headers:
            self.headers.append(header)
        if number := self.headers.index(header):
            self.header_of[info.key] = number
        types = self._types.setdefault(tuple(header), TextTypes(len(header)))
        for record in records:
            if record.value == header and len(header) > 1:
                raise FormatError(
                    f'The first row of a file names the columns, but the row at byte {record.start} of {info.key} does '
                    f'so again, as in joined files. Remove it, or store each as a file of its own.'
                )
            types.add(_checked(record, len(header), info.key).value)
            yield record

    def encodings(self) -> dict[str, str]:
        """The encoding of each column, for files whose columns may be in another order."""
        names = self.headers[0] if self.headers else []
        total = TextTypes(len(names))
        for header, types in self._types.items():
            total.merge(types, [header.index(name) for name in names])
        return dict(zip(names, total.encodings(), strict=True))


_Reader = _ObjectReader | _TextReader


def _checked(record: Record, count: int, where: str) -> Record:
    if len(record.value) != count:
        raise FormatError(
            f'Each row has the {count} fields that the first row names, but that at byte {record.start} of {where} has '
            f'{len(record.value)}. Quote fields that hold separators or line ends.'
        )
    return record


def _parts(reader: _Reader, info: ObjectInfo, pieces: Iterator[bytes]) -> Iterator[Part]:
    """The parts of a file. All its pieces are read."""
    algorithm = algorithm_of(info.key)
    start = end = rows = 0
    for record in reader.records(info, require_utf8(unpack(algorithm, pieces, info.key), info.key)):
        if rows and algorithm is None and record.end - start > _PART:
            yield Part(info.key, ((start, end - start),), rows, end - start)
            rows = 0
        start = start if rows else record.start
        end = record.end
        rows += 1
    if rows:
        yield Part(info.key, () if algorithm else ((start, end - start),), rows, end - start)
    for _ in pieces:
        pass
