"""Records of JSONL, CSV and TSV, from chunks of bytes: dicts, or lists of texts. And the types of their values.

CSV and TSV are those of RFC 4180: a field in double quotes may hold separators, line ends, and quotes written twice.

The encoding of a column depends on all of its values:

=======================================================  =========
values                                                   encoding
=======================================================  =========
JSON: text                                               str
JSON: integers of 64 bits                                int
JSON: numbers, of which the integers are exact floats    float64
JSON: true and false                                     uint8
JSON: others, mixed ones, null, or keys that are absent  json
CSV: integers of 64 bits, as JSON writes them            int
CSV: decimal numbers, of which integers are exact        float64
CSV: others, also if some are empty or too large         str
=======================================================  =========
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, cast

from headrace.errors import FormatError
from headrace.format.entries import is_utf8

_MAX_RECORD: Final = 256 << 20
_BOM: Final = b'\xef\xbb\xbf'


class Record(NamedTuple):
    """A record, and its place."""

    value: Any  # The object of JSON, or the texts of a row.
    start: int  # Offset of its first byte.
    end: int  # Offset behind its line end.
    escapes: bool = False  # Whether text may hold lone surrogates, which JSON can write and UTF-8 cannot.


def read_objects(chunks: Iterable[bytes], where: str) -> Iterator[Record]:
    """The objects of JSONL. Empty lines are left out."""
    at = 0
    for number, line in enumerate(lines_of(chunks, where), 1):
        start, at = at, at + len(line)
        text = line.removeprefix(_BOM)  # joined files have several such marks
        if text.isspace() or not text:
            continue
        decoded = _decoded(text, at, where)
        try:
            value = json.loads(decoded)
        except (ValueError, RecursionError) as error:
            reason = str(error) or 'it is nested too deeply'
            raise FormatError(
                f'Line {number} (byte {start}) of {where} is not JSON: {reason:.200}. Write each object in one line, '
                f'such as with `jq -c`; correct the line, or remove it.'
            ) from None
        if not isinstance(value, dict):
            raise FormatError(
                f'A line of JSONL is an object, but line {number} (byte {start}) of {where} is a '
                f'{type(value).__name__}. Write it as an object, such as {{"text": ...}}.'
            )
        yield Record(cast('dict[str, Any]', value), start, at, b'\\ud' in text or b'\\uD' in text)


_SPACE: Final = re.compile(r'[ \t\r\n]*')
_NEXT: Final = {'\ufeff': '[{', '[': '{]', ',': '{', ']': ''}  # The signs that may follow each sign of an array.
_LITERAL: Final = 16  # More characters than a cut literal or escape has, such as ``-Infinity`` and a surrogate pair.


def read_array(chunks: Iterable[bytes], where: str) -> Iterator[Record]:
    """The objects of an array of JSON; or of a run of its elements, without brackets.

    Memory holds the largest object and what was read with it.
    """
    pieces = _utf8_pieces(chunks, where)
    text, at, byte = '', 0, 0  # `byte`: the offset of text[at] in the file
    allowed, is_open = '\ufeff[{', False
    while True:
        start = at
        at = _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess] - it matches everywhere
        byte += at - start
        if at == len(text):
            text, at = next(pieces, ''), 0
            if not text:
                break
            continue
        sign = text[at]
        if sign not in allowed:
            raise FormatError(
                f'An array of JSON holds objects, separated by commas, but byte {byte} of {where} has {sign!r}. Write '
                f'the objects as JSONL, such as with `jq -c ".[]"`.'
            )
        if sign != '{':
            is_open = sign == '[' or (is_open and sign != ']')
            at, byte, allowed = at + 1, byte + len(sign.encode()), _NEXT[sign]
            continue
        try:
            value, stop = _decode(text, at)
        except (ValueError, RecursionError) as error:
            is_cut = isinstance(error, json.JSONDecodeError) and (
                error.pos > len(text) - _LITERAL or error.msg.startswith('Unterminated')
            )
            if len(text) - at > _MAX_RECORD:
                raise _too_long(where, byte) from None
            before = len(text) - at
            more: list[str] = []
            while is_cut and sum(map(len, more)) <= before and (piece := next(pieces, '')):  # twice as much
                more.append(piece)
            if not more:
                raise FormatError(
                    f'The object at byte {byte} of {where} is not JSON: {error!s:.200}. Correct it, or fetch the file '
                    f'again.'
                ) from None
            text, at = ''.join((text[at:], *more)), 0
            continue
        raw = text[at:stop]
        size = len(raw.encode())
        yield Record(value, byte, byte + size, '\\ud' in raw or '\\uD' in raw)
        at, byte, allowed = stop, byte + size, ',]' if is_open else ','
    if is_open:
        raise FormatError(f'An array of JSON ends with "]", but {where} ends at byte {byte}. Fetch it again.')


_decode: Final[Callable[[str, int], tuple[dict[str, Any], int]]] = json.JSONDecoder().raw_decode


def _utf8_pieces(chunks: Iterable[bytes], where: str) -> Iterator[str]:
    """The text of chunks; a piece is never empty."""
    decoder = codecs.getincrementaldecoder('utf-8')()
    at = 0
    for chunk in chain(chunks, (None,)):
        begin = at - len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk or b'', chunk is None)
        except UnicodeDecodeError as error:
            raise _not_utf8(error, begin, where) from None
        at += len(chunk or b'')
        if text:
            yield text


@dataclass(frozen=True, slots=True)
class Dialect:
    delimiter: str
    quote: str = '"'  # The character around fields; '': none, so that quotes are text.
    has_header: bool = True  # Whether the first row names the columns.


def read_texts(chunks: Iterable[bytes], dialect: Dialect, where: str) -> Iterator[Record]:
    """The rows of CSV, the header included. Empty lines are left out."""
    # The standard library refuses fields above 128 KiB until it is told otherwise, for all of its users.
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_RECORD))
    place = _Place()
    rows = csv.reader(
        _texts(chunks, place, where),
        delimiter=dialect.delimiter,
        quotechar=dialect.quote or None,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        strict=True,
    )
    while True:
        start = place.end
        place.start = start
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise FormatError(
                f'The row at byte {start} of {where} is not a row of CSV: {error}. Quote fields that hold separators, '
                f'quotes or line ends, and write quotes in them twice.'
            ) from None
        if row is None:
            return
        if row:
            yield Record(row, start, place.end)


class _Place:
    """The offsets of the row that is read."""

    start = 0
    end = 0


def _texts(chunks: Iterable[bytes], place: _Place, where: str) -> Iterator[str]:
    for line in lines_of(chunks, where):
        text = line.removeprefix(_BOM) if not place.end else line
        place.end += len(line)
        if place.end - place.start > _MAX_RECORD:
            raise _too_long(where, place.start)
        yield _decoded(text, place.end, where)


def _decoded(line: bytes, end: int, where: str) -> str:
    try:
        return line.decode('utf-8')
    except UnicodeDecodeError as error:
        raise _not_utf8(error, end - len(line), where) from None


def _not_utf8(error: UnicodeDecodeError, begin: int, where: str) -> FormatError:
    """`begin`: the offset of the bytes that were decoded."""
    if min(error.object) < 9:  # a sign that no text has
        return FormatError(
            f'Text is UTF-8, but {where} holds binary data (byte {begin + error.start} is not text). Say its `format`, '
            f'or leave it out with a glob in `remote`.'
        )
    return FormatError(
        f'Text is UTF-8, but byte {begin + error.start} of {where} is 0x{error.object[error.start]:02x}: '
        f'{error.reason}. Write the file again in UTF-8, such as with `iconv --from-code=LATIN1 --to-code=UTF-8`.'
    )


def require_utf8(chunks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """The chunks of a file, as they are."""
    is_first = True
    for chunk in chunks:
        if is_first and not (detected := json.detect_encoding(chunk)).startswith('utf-8'):
            name = f'UTF-{detected[4:].replace("-", "").upper()}'
            raise FormatError(
                f'Text is UTF-8, but {where} is {name} from byte 0 on. Write the file again in UTF-8, such as with '
                f'`iconv --from-code={name} --to-code=UTF-8`.'
            )
        is_first = is_first and not chunk
        yield chunk


def lines_of(chunks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """The lines, with their ends; the last one may have none."""
    pending: list[bytes] = []
    size = at = 0
    for chunk in chunks:
        lines = chunk.split(b'\n')
        rest = lines.pop()
        for line in lines:
            whole = b''.join((*pending, line, b'\n')) if pending else line + b'\n'
            pending, size = [], 0
            at += len(whole)
            yield whole
        if rest:
            pending.append(rest)
            size += len(rest)
            if size > _MAX_RECORD:
                raise _too_long(where, at)
    if pending:
        yield b''.join(pending)


def _too_long(where: str, at: int) -> FormatError:
    return FormatError(
        f'A record has at most {_MAX_RECORD} bytes, but that at byte {at} of {where} has more. Write it again, with '
        f'line ends and closed quotes.'
    )


_STR, _INT, _FLOAT, _BOOL, _OTHER, _INEXACT = 1, 2, 4, 8, 16, 32
_KINDS: Final[dict[type, int]] = {str: _STR, int: _INT, float: _FLOAT, bool: _BOOL}
_JSON: Final = {
    _STR: 'str',
    _INT: 'int',
    _INT | _INEXACT: 'int',
    _FLOAT: 'float64',
    _INT | _FLOAT: 'float64',
    _BOOL: 'uint8',
}
_MAX_COLUMNS: Final = 10_000
_LONGEST: Final = 300  # Characters of a text that is never a number.
_INTEGER: Final = re.compile(r'-?(0|[1-9][0-9]{0,18})', re.ASCII)
_DECIMAL: Final = re.compile(r'[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?', re.ASCII)


class JsonTypes:
    """The types of the values of each key, of all objects that were added."""

    def __init__(self) -> None:
        self._kinds: dict[str, int] = {}
        self._present: dict[str, int] = {}
        self._rows = 0

    def add(self, value: dict[str, Any], *, escapes: bool) -> None:
        """Add an object. `escapes`: whether its texts may hold lone surrogates."""
        self._rows += 1
        kinds, present = self._kinds, self._present
        for key, item in value.items():
            kind = _KINDS.get(type(item), _OTHER)
            if kind == _INT:
                bits = item.bit_length()
                kind = _OTHER if bits > 63 and item != -1 << 63 else _INT | _INEXACT if bits > 53 else _INT
            elif kind == _STR and escapes and not is_utf8(item):
                kind = _OTHER
            if key in kinds:
                kinds[key] |= kind
                present[key] += 1
            else:
                kinds[key], present[key] = kind, 1
        if len(kinds) > _MAX_COLUMNS:
            raise FormatError(
                f'Objects of JSONL have at most {_MAX_COLUMNS} different keys, which are the columns, but these have '
                f'more. Write a dict with arbitrary keys as the value of one key.'
            )

    def encodings(self) -> dict[str, str]:
        """The encoding of each key, in the order of their appearance."""
        return {
            key: _JSON.get(kind, 'json') if self._present[key] == self._rows else 'json'
            for key, kind in self._kinds.items()
        }


class TextTypes:
    """The types of the fields of each column, of all rows that were added."""

    def __init__(self, count: int) -> None:
        self._kinds = [0] * count

    def add(self, row: Sequence[str]) -> None:
        kinds = self._kinds
        for column, text in enumerate(row):
            if not kinds[column] & _OTHER:
                kinds[column] |= _text_kind(text)

    def encodings(self) -> list[str]:
        encoding_of = {_INT: 'int', _INT | _INEXACT: 'int', _FLOAT: 'float64', _INT | _FLOAT: 'float64'}
        return [encoding_of.get(kind, 'str') for kind in self._kinds]

    def merge(self, other: TextTypes, places: Sequence[int]) -> None:
        """Add the rows of another one, whose columns are at these places."""
        self._kinds = [kind | other._kinds[place] for kind, place in zip(self._kinds, places, strict=True)]


def _text_kind(text: str) -> int:
    if len(text) >= _LONGEST:  # the patterns take a time that grows with the square of a long row of digits
        return _OTHER
    if _INTEGER.fullmatch(text):
        number = int(text)
        bits = number.bit_length()
        if text == '-0' or (bits > 63 and number != -1 << 63):
            return _OTHER
        return _INT | _INEXACT if bits > 53 else _INT
    return _FLOAT if _DECIMAL.fullmatch(text) and not _has_leading_zero(text) and _fits_float(text) else _OTHER


def _fits_float(text: str) -> bool:
    """Whether a float holds a number: each digit of one without a fraction, as hashes of 20 digits are; no infinity."""
    if text.lstrip('+-').isdigit():
        return len(text) < 16 or int(text).bit_length() <= 53
    return not math.isinf(float(text))


def _has_leading_zero(text: str) -> bool:
    """Whether digits begin with a zero, as those of codes do: 007."""
    digits = text.lstrip('+-')
    return digits[0] == '0' and digits[1:2].isdigit()


def json_columns(rows: Sequence[dict[str, Any]], encodings: dict[str, str]) -> dict[str, list[Any]]:
    """The columns of objects, for their encodings. A key that is absent is None."""
    return {
        name: [float(row[name]) for row in rows] if encoding == 'float64' else [row.get(name) for row in rows]
        for name, encoding in encodings.items()
    }


_CASTS: Final[dict[str, Callable[[str], Any]]] = {'int': int, 'float64': float}


def text_columns(
    rows: Sequence[Sequence[str]], header: Sequence[str], encodings: dict[str, str]
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for name, encoding in encodings.items():
        column = header.index(name)
        cast = _CASTS.get(encoding)
        columns[name] = [row[column] for row in rows] if cast is None else [cast(row[column]) for row in rows]
    return columns
