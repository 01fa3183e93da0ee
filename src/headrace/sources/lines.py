"""JSONL, arrays of JSON, CSV and TSV, plain or compressed (.gz, .zst, .bz2), without an index.

`index` reads all data once: it finds the ends of records, and the type of each column in all rows. A part is a run of
records of about 32 MiB, or a compressed file. A column has a type if all its values have; see
`headrace.sources.line_records`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, cast

from headrace.errors import FormatError, ShardError, StreamError
from headrace.errors.redaction import logger_of
from headrace.format.compression import CHUNK
from headrace.sources.formats import choose_columns, is_hidden, is_plain_json
from headrace.sources.line_records import (
    Dialect,
    JsonTypes,
    Record,
    TextTypes,
    json_columns,
    read_array,
    read_objects,
    read_texts,
    require_utf8,
    text_columns,
)
from headrace.sources.protocol import Part
from headrace.sources.ranges import parts_of_records, read_whole, unpacked
from headrace.sources.source_bytes import PartTable, dump_index, load_index
from headrace.storage import ObjectInfo, Store

_log = logger_of(__name__)

_COMPRESSED: Final = r'(\.(gz|zst|zstd|bz2))'
_ARRAY: Final = re.compile(rb'(\xef\xbb\xbf)?\s*\[')
_OTHERS: Final = re.compile(r'[;|\t,]')  # Delimiters that people use.
_LARGE: Final = 10 * 10**9
_RATE: Final = 10**8  # Bytes a second of indexing, about.
_BATCH_ROWS: Final = 1 << 12
_BATCH_BYTES: Final = 8 << 20


class LineFormat:
    """The `SourceFormat` of objects of JSON; `names`: pattern of files' names; `separator`: of fields, '' for JSON."""

    def __init__(self, name: str, names: str, separator: str = '') -> None:
        self.NAME = name
        self.separator = separator
        self._names = re.compile(names, re.IGNORECASE)

    def find(self, objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
        shown = [info for info in objects if not is_hidden(info.key)]
        named = [info for info in shown if self._names.search(info.key)]
        return named or [info for info in shown if not self.separator and is_plain_json(info.key)]

    def index(
        self,
        store: Store,
        objects: Sequence[ObjectInfo],
        *,
        columns: Collection[str] | None,
        allow_unsafe_types: bool,
    ) -> LineSource:
        del allow_unsafe_types  # no type of text runs code
        return self._index(store, objects, columns, _ObjectReader())

    def _index(
        self, store: Store, objects: Sequence[ObjectInfo], columns: Collection[str] | None, reader: _Reader
    ) -> LineSource:
        size = sum(info.size for info in objects)
        if size > _LARGE:
            _log.warning(
                '%d GB of %s are indexed, once: all records are read, which takes about %d minutes. Convert them with '
                '`headrace convert` to start faster elsewhere.',
                size // 10**9,
                self.NAME,
                size // _RATE // 60,
            )
        parts = [part for info, pieces in read_whole(store, objects) for part in _parts(reader, info, pieces)]
        encodings = reader.encodings()
        if parts and not encodings:
            raise FormatError(
                f'A row of {self.NAME} has a value for each of its columns, but all rows of {store.url} are empty, '
                f'such as the first one of {parts[0].key}. Choose other files with a glob in `remote`.'
            )
        chosen = choose_columns(list(encodings), columns, source=f'the {self.NAME} data')
        return LineSource(
            self,
            {name: encodings[name] for name in chosen},
            PartTable.of(parts),
            reader.kept,
            [name for name in encodings if name not in chosen],
        )

    def load(self, data: bytes) -> LineSource:
        columns, parts, more = load_index(self.NAME, data)
        # An index of 0.2.0 has neither of both.
        return LineSource(self, columns, parts, {'arrays': [], 'dialect': [self.separator], **more})


class TextFormat(LineFormat):
    """The `SourceFormat` of rows of CSV."""

    def index(
        self,
        store: Store,
        objects: Sequence[ObjectInfo],
        *,
        columns: Collection[str] | None,
        allow_unsafe_types: bool,
        delimiter: object = None,
        quoting: object = None,
        header: object = None,
    ) -> LineSource:
        # See `SourceFormat.index`; docs/formats.md has the options.
        del allow_unsafe_types
        delimiter = '\t' if delimiter == '\\t' else delimiter  # as a shell passes it
        is_delimiter = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '\r\n\0"'
        if not (delimiter is None or is_delimiter):
            raise StreamError(f'`delimiter` of {self.NAME} is one character, such as ";", but is {delimiter!r:.80}.')
        dialect = Dialect(cast('str', delimiter or self.separator), has_header=header in (None, True))
        if quoting is not None:
            quote = '' if quoting == 'none' else quoting
            if not (isinstance(quote, str) and len(quote) <= 1 and quote not in ('\r', '\n', '\0', dialect.delimiter)):
                raise StreamError(
                    f"`quoting` of {self.NAME} is the character around fields, or 'none', but is {quoting!r:.80}."
                )
            dialect = replace(dialect, quote=quote)
        names: list[str] = []
        if isinstance(header, list):
            names = [name for name in cast('list[object]', header) if isinstance(name, str) and name]
        if not isinstance(header, bool | None) and not (names and len(set(names)) == len(cast('list[object]', header))):
            raise StreamError(
                f'`header` of {self.NAME} is true, false, or the list of the different names of the columns of files '
                f'without a header, but is {header!r:.200}.'
            )
        return self._index(store, objects, columns, _TextReader(dialect, names, is_known=delimiter is not None))


JSONL: Final = LineFormat('jsonl', rf'(\.(jsonl|ndjson){_COMPRESSED}?|\.json{_COMPRESSED})$')
"""Objects of JSON. A ``.json`` is of this format only if no other file is."""
CSV: Final = TextFormat('csv', rf'\.csv{_COMPRESSED}?$', ',')
TSV: Final = TextFormat('tsv', rf'\.(tsv|tab){_COMPRESSED}?$', '\t')


@dataclass(frozen=True, slots=True)
class LineSource:
    kind: LineFormat
    columns: Mapping[str, str]
    parts: Sequence[Part]
    kept: Mapping[str, Any]
    """State of the reader of all records that `batches` needs; see `_ObjectReader.kept` and `_TextReader.kept`."""
    dropped: Sequence[str] = ()

    @property
    def format(self) -> str:
        return self.kind.NAME

    @property
    def meanings(self) -> Mapping[str, str]:
        return {name: 'bool' for name, encoding in self.columns.items() if encoding == 'uint8'}

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any]]]:
        described = self.parts[part]
        where = f'{described.key} (part {part})'
        try:
            rows = 0
            for batch in self._batches(described, data, where):
                rows += len(batch)
                yield self._columns(batch, described.key)
        except ShardError:
            raise
        except (FormatError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise ShardError(f'{where} differs from what was indexed: {error!s:.300}. Restore the file.') from error
        if rows != described.rows:
            raise ShardError(f'{where} has {rows} rows, but the index says {described.rows}. Restore the file.')

    def _columns(self, batch: list[Any], key: str) -> Mapping[str, Sequence[Any]]:
        columns = dict(self.columns)
        return text_columns(batch, self._header(key), columns) if self.kind.separator else json_columns(batch, columns)

    def _batches(self, part: Part, data: memoryview, where: str) -> Iterator[list[Any]]:
        chunks = (bytes(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
        if not part.ranges:
            _, chunks = unpacked(chunks, part.key, where)
        if not self.kind.separator:
            records = (read_array if part.key in self.kept['arrays'] else read_objects)(chunks, where)
        else:
            dialect = Dialect(*self.kept['dialect'])
            records = read_texts(chunks, dialect, where)
            if not part.ranges and dialect.has_header:
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
        return dump_index(self.format, self.columns, self.parts, self.kept)

    def _header(self, key: str) -> Sequence[str]:
        return self.kept['headers'][self.kept['header_of'].get(key, 0)]


# Indexing


class _ObjectReader:
    """Records of JSONL and of arrays, and the types of all of them."""

    def __init__(self) -> None:
        self._types = JsonTypes()
        self._arrays: list[str] = []

    @property
    def kept(self) -> dict[str, Any]:
        """`arrays`: the files that are an array each."""
        return {'arrays': self._arrays}

    def records(self, info: ObjectInfo, chunks: Iterator[bytes]) -> Iterator[Record]:
        first = next(chunks, b'')
        is_array = _ARRAY.match(first) is not None
        self._arrays += [info.key] * is_array
        for record in (read_array if is_array else read_objects)(itertools.chain((first,), chunks), info.key):
            self._types.add(record.value, escapes=record.escapes)
            yield record

    def encodings(self) -> dict[str, str]:
        return self._types.encodings()


class _TextReader:
    """Rows of CSV, and the types of all of them."""

    def __init__(self, dialect: Dialect, names: list[str], *, is_known: bool) -> None:
        """`is_known`: whether the user named the delimiter."""
        self._dialect, self._names, self._is_known = dialect, names, is_known
        self._types: dict[tuple[str, ...], TextTypes] = {}
        self.headers: list[list[str]] = []
        self.header_of: dict[str, int] = {}

    @property
    def kept(self) -> dict[str, Any]:
        """`headers`: the different headers of files. `header_of`: the number of a file's, if it is not the first."""
        return {'headers': self.headers, 'header_of': self.header_of, 'dialect': astuple(self._dialect)}

    def records(self, info: ObjectInfo, chunks: Iterator[bytes]) -> Iterator[Record]:
        """The records of a file, without its header."""
        records = read_texts(chunks, self._dialect, info.key)
        head = next(records, None)
        if head is None:
            return
        header: list[str] = head.value
        if not self._dialect.has_header:
            header = self._names or [str(number) for number in range(len(header))]
            records = itertools.chain((head,), records)
        elif not self._is_known and len(header) == 1 and (signs := _OTHERS.findall(header[0])):
            raise FormatError(
                f'The first row of {info.key} names one column only, {header[0]!r:.200}. Name the format and its '
                f'delimiter, such as format_options={json.dumps({"delimiter": signs[0]})}; or the usual one, if it is '
                f'one name.'
            )
        if self._dialect.has_header and header and header[0].lstrip('[ ').startswith('{"'):
            raise FormatError(
                f"The first row of {info.key} is a JSON object, not the names of columns. Set `format='jsonl'`, or "
                f'`format_options={{"header": false}}` if it is a row.'
            )
        if len(set(header)) < len(header):
            raise FormatError(
                f'The first row of CSV names the columns, all different, but {info.key} has {header!r:.300}.'
            )
        first_header = self.headers[0] if self.headers else header
        if set(first_header) != set(header):
            raise FormatError(
                f'The files of a dataset have the same columns, but {info.key} has {header!r:.200}, and '
                f'the first one {first_header!r:.200}. The first row of a file names its columns. Choose '
                f'files of one kind with a glob in `remote`.'
            )
        if header not in self.headers:
            self.headers.append(header)
        if number := self.headers.index(header):
            self.header_of[info.key] = number
        types = self._types.setdefault(tuple(header), TextTypes(len(header)))
        for record in records:
            if record.value == header and len(header) > 1 and (self._dialect.has_header or self._names):
                raise FormatError(
                    f'The first row of a file names the columns, but the row at byte {record.start} of {info.key} does '
                    f'so again, as in joined files. Remove it, or store each as a file of its own; a file that has a '
                    f'header needs no `header`.'
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
    algorithm, content = unpacked(pieces, info.key, info.key)
    records = reader.records(info, require_utf8(content, info.key))
    places = ((record.start, record.end) for record in records)
    return parts_of_records(info.key, places, is_whole=algorithm is not None)
