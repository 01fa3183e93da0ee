"""The encodings of columns of JSONL and CSV, by what all of their values are.

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

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.errors import FormatError

__all__ = ['JsonTypes', 'TextTypes', 'json_columns', 'text_columns']

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
_LONGEST: Final = 300
"""Characters of a text that is never a number."""
_INTEGER: Final = re.compile(r'-?(0|[1-9][0-9]{0,18})', re.ASCII)
_DECIMAL: Final = re.compile(r'[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?', re.ASCII)


class JsonTypes:
    """The types of the values of each key, of all objects that were added."""

    def __init__(self) -> None:
        self._kinds: dict[str, int] = {}
        self._present: dict[str, int] = {}
        self._rows = 0

    def add(self, value: dict[str, Any], *, escapes: bool) -> None:
        """Add an object.

        Args:
            value: the object.
            escapes: whether its texts may hold lone surrogates.

        Raises:
            FormatError: the objects have more than 10,000 different keys.
        """
        self._rows += 1
        kinds, present = self._kinds, self._present
        for key, item in value.items():
            kind = _KINDS.get(type(item), _OTHER)
            if kind == _INT:
                bits = item.bit_length()
                kind = _OTHER if bits > 63 and item != -1 << 63 else _INT | _INEXACT if bits > 53 else _INT
            elif kind == _STR and escapes and not _is_utf8(item):
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


def _is_utf8(text: str) -> bool:
    try:
        text.encode('utf-8')
    except UnicodeEncodeError:
        return False
    return True


class TextTypes:
    """The types of the fields of each column, of all rows that were added.

    Args:
        count: number of columns.
    """

    def __init__(self, count: int) -> None:
        self._kinds = [0] * count

    def add(self, row: Sequence[str]) -> None:
        """Add a row of so many fields."""
        kinds = self._kinds
        for column, text in enumerate(row):
            if not kinds[column] & _OTHER:
                kinds[column] |= _text_kind(text)

    def encodings(self) -> list[str]:
        """The encoding of each column."""
        known = {_INT: 'int', _INT | _INEXACT: 'int', _FLOAT: 'float64', _INT | _FLOAT: 'float64'}
        return [known.get(kind, 'str') for kind in self._kinds]

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
    """The columns of rows of CSV, for their encodings."""
    found: dict[str, list[Any]] = {}
    for name, encoding in encodings.items():
        column = header.index(name)
        cast = _CASTS.get(encoding)
        found[name] = [row[column] for row in rows] if cast is None else [cast(row[column]) for row in rows]
    return found
