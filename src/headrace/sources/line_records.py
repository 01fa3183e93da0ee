"""Records of JSONL, CSV and TSV, from chunks of bytes: dicts, or lists of texts.

CSV and TSV are those of RFC 4180: a field in double quotes may hold separators, line ends, and quotes written twice.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from headrace.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ['Record', 'lines_of', 'read_objects', 'read_texts', 'require_utf8']

_MAX_RECORD: Final = 256 << 20
_BOM: Final = b'\xef\xbb\xbf'


class Record(NamedTuple):
    """A record, and its place."""

    value: Any
    """The object of JSON, or the texts of a row."""
    start: int
    """Offset of its first byte."""
    end: int
    """Offset behind its line end."""
    escapes: bool = False
    """Whether text may hold lone surrogates, which JSON can write and UTF-8 cannot."""


def read_objects(chunks: Iterable[bytes], where: str) -> Iterator[Record]:
    """The objects of JSONL. Empty lines are left out.

    Args:
        chunks: the bytes.
        where: the object in a store, for messages.

    Raises:
        FormatError: a line is no UTF-8 or no JSON object, or is longer than 256 MiB.
    """
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
                f'Line {number} (byte {start}) of {where} is not JSON: {reason:.200}. Correct the line, or remove it.'
            ) from None
        if not isinstance(value, dict):
            raise FormatError(
                f'A line of JSONL is an object, but line {number} (byte {start}) of {where} is a '
                f'{type(value).__name__}. Write it as an object, such as {{"text": ...}}.'
            )
        yield Record(cast('dict[str, Any]', value), start, at, b'\\ud' in text or b'\\uD' in text)


def read_texts(chunks: Iterable[bytes], separator: str, where: str) -> Iterator[Record]:
    """The rows of CSV, the header included. Empty lines are left out.

    Args:
        chunks: the bytes.
        separator: of the fields.
        where: the object in a store, for messages.

    Raises:
        FormatError: the quotes of a row are damaged, or it is no UTF-8, or longer than 256 MiB.
    """
    # The standard library refuses fields above 128 KiB until it is told otherwise, for all of its users.
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_RECORD))
    place = _Place()
    rows = csv.reader(_texts(chunks, place, where), delimiter=separator, strict=True)
    while True:
        start = place.end
        place.start = start
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise FormatError(
                f'The row at byte {start} of {where} is no row of CSV: {error}. Quote fields that hold separators, '
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
        byte = end - len(line) + error.start
        raise FormatError(
            f'Text is UTF-8, but byte {byte} of {where} is 0x{line[error.start]:02x}: {error.reason}. Write the file '
            f'again in UTF-8, such as with `iconv --from-code=LATIN1 --to-code=UTF-8`.'
        ) from None


def require_utf8(chunks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """The chunks of a file, as they are.

    Raises:
        FormatError: it begins as UTF-16 or UTF-32 do, whose zeros UTF-8 would take for characters.
    """
    is_first = True
    for chunk in chunks:
        if is_first and not (found := json.detect_encoding(chunk)).startswith('utf-8'):
            name = f'UTF-{found[4:].replace("-", "").upper()}'
            raise FormatError(
                f'Text is UTF-8, but {where} is {name} from byte 0 on. Write the file again in UTF-8, such as with '
                f'`iconv --from-code={name} --to-code=UTF-8`.'
            )
        is_first = is_first and not chunk
        yield chunk


def lines_of(chunks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """The lines, with their ends; the last one may have none.

    Raises:
        FormatError: a line is longer than 256 MiB.
    """
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
