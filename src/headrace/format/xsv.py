"""CSV, TSV and XSV shards: a line of column names, a line per sample, and a meta file (``lines``).

Nothing is quoted: a value must not contain the separator or the newline.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from headrace.errors import ConfigError, FormatError
from headrace.format.encoder import DEFAULT_SIZE_LIMIT
from headrace.format.encodings.encoding import wrong_type
from headrace.format.encodings.registry import check_encodings
from headrace.format.encodings.texts import encode_text
from headrace.format.lines import LineEncoder, LineReader
from headrace.format.shards import Schema


class _Text:
    """An encoding of separated columns: Python values of one type to text and back."""

    name: str
    type: type

    def encode(self, obj: Any) -> str:
        if not isinstance(obj, self.type):
            raise wrong_type(self.name, f'Python {self.type.__name__} values', obj)
        return str(obj)

    def decode(self, obj: str) -> Any:
        try:
            return self.type(obj)
        except ValueError:
            raise FormatError(f'A value of encoding `{self.name}` is expected, but got {obj[:60]!r}.') from None


class Str(_Text):
    name, type = 'str', str

    def encode(self, obj: Any) -> str:
        encode_text(super().encode(obj))
        return obj


class Int(_Text):
    name, type = 'int', int

    def encode(self, obj: Any) -> str:
        """The digits. A bool is stored as 0 or 1, because the text ``True`` could not be read back."""
        return str(int(obj)) if isinstance(obj, bool) else super().encode(obj)


class Float(_Text):
    """Python floats, nan and the infinities included."""

    name, type = 'float', float

    def encode(self, obj: Any) -> str:
        super().encode(obj)
        return repr(float(obj))


_ENCODINGS: Final[dict[str, _Text]] = {'str': Str(), 'int': Int(), 'float': Float()}
_FORMATS: Final = {'csv': ',', 'tsv': '\t', 'xsv': None}


def get_xsv_encodings() -> set[str]:
    return set(_ENCODINGS)


def is_xsv_encoding(encoding: str) -> bool:
    return encoding in _ENCODINGS


def xsv_encode(encoding: str, obj: Any) -> str:
    return _get(encoding).encode(obj)


def xsv_decode(encoding: str, obj: str) -> Any:
    return _get(encoding).decode(obj)


def _get(encoding: str) -> _Text:
    converters = _ENCODINGS.get(encoding)
    if converters is None:
        raise ConfigError(f'Separated columns have the encodings {", ".join(_ENCODINGS)}, but got {encoding!r}.')
    return converters


def _header_line(schema: Schema) -> bytes:
    return (schema.separator.join(schema.names) + schema.newline).encode('utf-8')


class XSVReader(LineReader):
    def _first_line(self) -> int:
        header = _header_line(self._schema)
        if bytes(self._view[: len(header)]) != header:
            raise self._error(f'the first line of the data file is {header!r}, but it begins otherwise')
        return len(header)

    def _parse(self, line: str, names: Collection[str]) -> dict[str, Any]:
        schema = self._schema
        values = line.split(schema.separator) if schema.names or line else []
        if len(values) != len(schema.names):
            raise FormatError(f'A line has {len(schema.names)} columns, but this one has {len(values)}.')
        columns = zip(schema.names, schema.encodings, values, strict=True)
        return {name: _decoded(name, encoding, value) for name, encoding, value in columns if name in names}


def _decoded(name: str, encoding: str, value: str) -> Any:
    try:
        return _ENCODINGS[encoding].decode(value)
    except FormatError as error:
        raise FormatError(f'column {name!r}: {error}') from None


class XSVEncoder(LineEncoder):
    """Writes CSV, TSV or XSV shards; see ``ShardEncoder``.

    Args:
        columns: column name to encoding (str, int, float).
        shard_format: 'csv', 'tsv' or 'xsv'.
        separator: the text between two values; for 'xsv' only, since csv and tsv fix it.
        newline: the end of a line.
        compression: see ``ShardEncoder``.
        hashes: see ``ShardEncoder``.
        size_limit: counts the lines of samples.
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        *,
        shard_format: str = 'xsv',
        separator: str | None = None,
        newline: str = '\n',
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
    ) -> None:
        if shard_format not in _FORMATS:
            raise ConfigError(f'A separated format is one of {", ".join(_FORMATS)}, but got {shard_format!r}.')
        defaults = _FORMATS[shard_format]
        separator = separator if defaults is None else defaults
        if not separator or not newline:
            raise ConfigError(
                f'`separator` and `newline` are texts of at least one character, but got {separator!r} and {newline!r}.'
            )
        writer = 'XSVWriter' if defaults is None else f'{shard_format.upper()}Writer'
        check_encodings(columns, writer=writer, is_known=is_xsv_encoding, names=_ENCODINGS)
        names = tuple(sorted(columns))
        for name in names:
            _check_plain(f'The name of column {name!r}', name, separator, newline)
        encodings = tuple(columns[name] for name in names)
        super().__init__(
            Schema(shard_format, names, encodings, (), newline, separator), compression, hashes, size_limit
        )

    def _header(self) -> bytes:
        return _header_line(self.schema)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        schema = self.schema
        values: list[str] = []
        for name, encoding in zip(schema.names, schema.encodings, strict=True):
            self._column = name
            text = _ENCODINGS[encoding].encode(sample[name])
            _check_plain('A value', text, schema.separator, schema.newline)
            values.append(text)
        return (schema.separator.join(values) + schema.newline).encode('utf-8')


def _check_plain(what: str, text: str, separator: str, newline: str) -> None:
    for mark in (separator, newline):
        if mark in text:
            raise ValueError(
                f'{what} must not contain {mark!r}, because nothing is quoted, but got {text[:80]!r}. '
                f'Use another separator, JSONL or MDS.'
            )
