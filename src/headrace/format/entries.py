"""The rules for shards of ``index.json``: their keys, values and file names; of one shard, or of a whole table."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from headrace.errors import ConfigError, FormatError
from headrace.format.compression import is_compression
from headrace.format.encodings.registry import get_mds_encoded_size, get_mds_encoding, is_mds_encoding_safe
from headrace.format.human_size import bytes_to_int
from headrace.format.shards import NO_HASHES, FileInfo, Schema, ShardFile, ShardInfo
from headrace.format.table import Kind, NameFinder, ShardTable

INDEX_NAME: Final = 'index.json'
OWN_NAMES: Final = '.headrace'  # prefix of headrace's own files and folders; no shard may use it

_SEPARATORS: Final = {'csv': ',', 'tsv': '\t'}
_PLAIN_ENCODINGS: Final = ('str', 'int', 'float')  # of json and the separated formats
_COMMON_KEYS: Final = {'version', 'format', 'compression', 'hashes', 'size_limit', 'samples', 'raw_data', 'zip_data'}
_META_KEYS: Final = {'raw_meta', 'zip_meta', 'newline'}
_XSV_KEYS: Final = _COMMON_KEYS | _META_KEYS | {'column_names', 'column_encodings'}
_KEYS: Final[dict[str, frozenset[str]]] = {
    'mds': frozenset(_COMMON_KEYS | {'column_names', 'column_encodings', 'column_sizes'}),
    'json': frozenset(_COMMON_KEYS | _META_KEYS | {'columns'}),
    'csv': frozenset(_XSV_KEYS),
    'tsv': frozenset(_XSV_KEYS),
    'xsv': frozenset(_XSV_KEYS | {'separator'}),
}
_OWN_KEYS: Final = {'samples', 'raw_data', 'zip_data', 'raw_meta', 'zip_meta'}  # of one shard; others mostly repeat
_FILE_KEYS: Final = frozenset({'basename', 'bytes', 'hashes'})
# Nearly all names match; others are checked part by part.
_PLAIN_NAME: Final = re.compile(r'(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*')
MAX_OFFSET: Final = (1 << 32) - 1  # offsets inside shards are 32 bits
_MAX_BYTES: Final = (1 << 63) - 1


def is_utf8(text: str) -> bool:
    """False for text with lone surrogates: JSON allows them, file systems do not."""
    try:
        text.encode('utf-8')
    except UnicodeEncodeError:
        return False
    return True


def _fold(name: str) -> str:
    """The name on a file system that ignores case and invisible characters."""
    return ''.join(c for c in name.casefold() if c.isascii() or unicodedata.category(c)[0] not in 'CM')


def show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + '...'


class EntryParser:
    """Checks the shards of one index in order; messages give their numbers."""

    def __init__(self, source: str, allow_unsafe_types: bool) -> None:
        self.source = source
        self.allow_unsafe_types = allow_unsafe_types
        self.count = 0
        self.names: set[str] = set()
        self.schemas: dict[Any, Schema] = {}
        self._last: dict[str, Any] = {}  # the last shard's common keys, and their meaning
        self._common: tuple[Schema, str | None, tuple[str, ...], int | None] = Schema('mds', (), ()), None, (), None

    def fail(self, message: str) -> FormatError:
        return FormatError(f'Shard {self.count} of the index {self.source}: {message}')

    def parse(self, entry: Any) -> ShardInfo:
        if not isinstance(entry, dict):
            raise self.fail(f'a shard is a JSON object, but this is {show(entry)}.')
        if entry.keys() != _KEYS.get(self._last.get('format', '')) or not self._last.items() <= entry.items():
            self._read_common(entry)
        schema, compression, hashes, size_limit = self._common
        name, least = schema.format, schema.min_sample_size
        samples = entry['samples']
        if type(samples) is not int or samples < 0:
            raise self.fail(f'`samples` is a count of 0 or more, but this is {show(samples)}.')
        data = self._file(entry, 'data', compression)
        files = (data,) if name == 'mds' else (data, self._file(entry, 'meta', compression))
        # A count, then 4 bytes for the beginning of each sample and 4 for the end of the last.
        table, table_size = files[-1].raw, 8 + 4 * samples
        if max(table.bytes, data.raw.bytes) > MAX_OFFSET or table.bytes < table_size:
            raise self.fail(
                f'{samples} samples need a table of {table_size} bytes in a file below 4 GiB, but {table.basename!r} '
                f'has {table.bytes} bytes and {data.raw.basename!r} has {data.raw.bytes}.'
            )
        if samples * least + (table_size if name == 'mds' else 0) > data.raw.bytes:
            raise self.fail(
                f'{samples} samples of at least {least} bytes do not fit into {data.raw.basename!r}, which has '
                f'{data.raw.bytes} bytes.'
            )
        self.count += 1
        return ShardInfo(name, samples, files, compression, hashes, size_limit, schema)

    def _read_common(self, entry: dict[str, Any]) -> None:
        """Check everything except counts and files."""
        name = entry.get('format')
        keys = _KEYS.get(name) if isinstance(name, str) else None
        if keys is None or not isinstance(name, str):
            raise self.fail(f'`format` is one of {", ".join(_KEYS)}, but this is {show(name)}.')
        if entry.keys() != keys:
            raise self.fail(self._wrong_keys(entry, keys, 'a shard of format ' + name))
        version = entry['version']
        if isinstance(version, bool) or version != 2:
            raise self.fail(f'`version` is 2, but this is {show(version)}.')
        self._common = self._schema(name, entry), *self._writer_options(entry)
        self._last = {key: value for key, value in entry.items() if key not in _OWN_KEYS}

    def _wrong_keys(self, entry: Mapping[str, Any], keys: frozenset[str], what: str) -> str:
        missing, unknown = sorted(keys - entry.keys()), sorted(entry.keys() - keys)
        parts = [f'lacks {", ".join(missing)}'] if missing else []
        parts += [f'has the unknown {show(", ".join(unknown))}'] if unknown else []
        return f'{what} has the keys {", ".join(sorted(keys))}, but this one {" and ".join(parts)}.'

    def _schema(self, name: str, entry: Mapping[str, Any]) -> Schema:
        if name == 'json':
            columns = entry['columns']
            if not isinstance(columns, dict):
                raise self.fail(f'`columns` is an object, but this is {show(columns)}.')
            names, encodings, sizes = list(columns), list(columns.values()), []
        else:
            lists = [entry['column_names'], entry['column_encodings'], entry.get('column_sizes', [])]
            if not all(isinstance(values, list) for values in lists):
                raise self.fail(f'`column_names`, `column_encodings` and `column_sizes` are lists, not {show(lists)}.')
            names, encodings, sizes = lists
        newline = entry.get('newline', '')
        separator = _SEPARATORS.get(name) or entry.get('separator', '')
        for text in (*names, *encodings, newline, separator):
            if not isinstance(text, str) or (name != 'mds' and not is_utf8(text)):
                raise self.fail(
                    f'column names, encodings, newline and separator are texts (Unicode), but one is {show(text)}.'
                )
        key = name, tuple(names), tuple(encodings), newline, separator
        schema = self.schemas.get(key)
        if schema is None:
            schema = self._new_schema(*key)
        if name == 'mds':
            self._check_sizes(schema, sizes)
        self.schemas[key] = schema
        return schema

    def _check_sizes(self, schema: Schema, sizes: list[Any]) -> None:
        if len(sizes) != len(schema.names):
            raise self.fail(f'there is one size for each of {len(schema.names)} columns, but there are {len(sizes)}.')
        for column, encoding, size, fixed in zip(schema.names, schema.encodings, sizes, schema.sizes, strict=True):
            if isinstance(size, bool) or (size or None) != fixed:
                raise self.fail(f'values of encoding {encoding!r} have size {fixed}, but {column!r} has {show(size)}.')

    def _new_schema(
        self, name: str, names: tuple[str, ...], encodings: tuple[str, ...], newline: str, separator: str
    ) -> Schema:
        if len(set(names)) != len(names):
            raise self.fail(f'column names differ from one another, but these are {show(names)}.')
        if len(names) != len(encodings):
            raise self.fail(
                f'there is one encoding for each column name, but there are {len(names)} names and {len(encodings)} '
                f'encodings.'
            )
        columns = list(zip(names, encodings, strict=True))
        if name == 'mds':
            sizes = tuple(self._fixed_size(column, encoding) for column, encoding in columns)
            return Schema(name, names, encodings, sizes)
        if not newline or (name != 'json' and not separator):
            raise self.fail('`newline` and `separator` are texts of at least one character, but one is empty.')
        for column, encoding in columns:
            if encoding not in _PLAIN_ENCODINGS:
                raise self.fail(
                    f'columns of format {name} have the encodings {", ".join(_PLAIN_ENCODINGS)}, but {column!r} has '
                    f'{show(encoding)}.'
                )
        return Schema(name, names, encodings, (), newline, separator)

    def _fixed_size(self, column: str, encoding: str) -> int | None:
        try:
            get_mds_encoding(encoding)
        except ConfigError as error:
            raise self.fail(f'column {column!r}: {error}') from None
        if not self.allow_unsafe_types and not is_mds_encoding_safe(encoding):
            raise self.fail(
                f'column {column!r} contains an unsafe type: {encoding!r} runs code when it is read. If you trust the '
                f'data, set `allow_unsafe_types=True`.'
            )
        return get_mds_encoded_size(encoding)

    def _writer_options(self, entry: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...], int | None]:
        compression, hashes, size_limit = entry['compression'], entry['hashes'], entry['size_limit']
        if compression is not None and not (isinstance(compression, str) and is_compression(compression)):
            raise self.fail(f'{show(compression)} is not a supported compression algorithm. Write the shard again.')
        if not isinstance(hashes, list) or not all(isinstance(algorithm, str) for algorithm in hashes):
            raise self.fail(f'`hashes` is a list of texts, but this is {show(hashes)}.')
        if isinstance(size_limit, str):
            try:
                size_limit = bytes_to_int(size_limit)
            except ConfigError as error:
                raise self.fail(f'`size_limit`: {error}') from None
        if size_limit is not None and (type(size_limit) is not int or size_limit < 0):
            raise self.fail(f'`size_limit` is null or a number of bytes, but this is {show(size_limit)}.')
        return compression, tuple(hashes), size_limit or None

    def _file(self, entry: Mapping[str, Any], part: str, compression: str | None) -> ShardFile:
        raw = self._info('raw_' + part, entry['raw_' + part])
        packed = entry['zip_' + part]
        if packed is None:
            return ShardFile(raw, None)
        if compression is None:
            raise self.fail(f'`zip_{part}` is null where `compression` is null, but this is {show(packed)}.')
        return ShardFile(raw, self._info('zip_' + part, packed))

    def _info(self, key: str, value: Any) -> FileInfo:
        if not isinstance(value, dict):
            raise self.fail(f'`{key}` is a JSON object, but this is {show(value)}.')
        if value.keys() != _FILE_KEYS:
            raise self.fail(self._wrong_keys(value, _FILE_KEYS, f'`{key}`'))
        name, size, hashes = value['basename'], value['bytes'], value['hashes']
        if not isinstance(name, str):
            raise self.fail(f'`basename` is a text, but this is {show(name)}.')
        if not _PLAIN_NAME.fullmatch(name) or name.lower().endswith(INDEX_NAME):
            self._check_name(name)
        if name in self.names:
            raise self.fail(f'each shard file has its own name, but {name!r} is used twice.')
        self.names.add(name)
        if type(size) is not int or not 0 <= size <= _MAX_BYTES:
            raise self.fail(f'`bytes` is a size of 0 or more, but {name!r} has {show(size)}.')
        if not hashes:
            hashes = NO_HASHES if hashes == {} else hashes
        elif isinstance(hashes, dict):
            for digest in hashes.values():
                if not isinstance(digest, str):
                    raise self.fail(f'a hash is a text, but {name!r} has {show(digest)}.')
        if not isinstance(hashes, dict | MappingProxyType):
            raise self.fail(f'`hashes` of a file is an object, but {name!r} has {show(hashes)}.')
        return FileInfo(name, size, hashes)

    def _check_name(self, name: str) -> None:
        parts = name.split('/')
        if '\\' in name or '\0' in name or not is_utf8(name) or any(part in ('', '.', '..') for part in parts):
            raise self.fail(
                f'a file name is a relative path with `/` between its parts, without `.`, `..`, backslashes and NUL; '
                f'but this is {show(name)}. Nothing outside the dataset folder is read.'
            )
        folded = [_fold(part) for part in parts]
        if folded[-1] == INDEX_NAME or any(part.startswith(OWN_NAMES) for part in folded):
            raise self.fail(
                f'a shard file is not called {INDEX_NAME}, and no part of its name begins with `{OWN_NAMES}`, in '
                f'capitals or not; but this is {show(name)}. headrace keeps files of its own under these names. Write '
                f'the shard under another name.'
            )


# In a table all names are one text, each between two '/'; so parts of names are, too.
_FORBIDDEN: Final = (b'//', b'/./', b'/../', b'\\', b'\0')
_RESERVED: Final = (f'/{INDEX_NAME}/'.encode(), f'/{OWN_NAMES}'.encode())


def is_surely_valid(table: ShardTable) -> bool:
    """Whether `EntryParser` accepts all shards of a `TableBuilder`. False: perhaps; it explains mistakes."""
    return (
        _names_stay_inside(table.names.tobytes())
        and all(_counts_fit(table, number, kind) for number, kind in enumerate(table.kinds))
        and NameFinder(table.names, table.name_starts).all_differ
    )


def _names_stay_inside(names: bytes) -> bool:
    if any(text in names for text in _FORBIDDEN):
        return False
    # In any case, and with characters in between that some file systems ignore.
    folded = names if names.isascii() else names.decode().casefold().encode('ascii', 'ignore')
    return not any(text in folded.lower() for text in _RESERVED)


def _counts_fit(table: ShardTable, number: int, kind: Kind) -> bool:
    shards = slice(None) if len(table.kinds) == 1 else np.flatnonzero(table.kind_of == number)
    samples = table.samples[shards]
    files = table.first_files[:-1][shards]
    data = table.sizes[files]
    # The last raw file has the table of offsets: a count, then 4 bytes for each sample and 4 for the last one's end.
    last_packed = kind.files[-1][1] is not None
    offsets = table.sizes[files + len(kind.algorithms) - (2 if last_packed else 1)]
    if bool((np.maximum(data, offsets) > MAX_OFFSET).any()) or bool((samples > MAX_OFFSET).any()):
        return False
    if bool((offsets < 8 + 4 * samples).any()):
        return False
    room = data - (8 + 4 * samples) if kind.schema.format == 'mds' else data
    least = min(kind.schema.min_sample_size, MAX_OFFSET + 1)  # no overflow; no file is larger
    return not bool((samples * least > room).any())
