"""A fast reader of index entries that differ only in counts, names and digests.

One program wrote all entries of an index. So the text of one parsed and checked entry becomes a regular expression, its
*pattern*, with a group for each value that may differ. A group matches only one JSON number, or one JSON text without
escapes. Matching is several times faster than parsing.

The fast path refuses nothing, and checks neither file names nor sizes: see `rules`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from headrace.format.entries import EntryParser
from headrace.format.scan import Elements, decode, expect, skip
from headrace.format.shards import ShardInfo
from headrace.format.table import Kind, Row
from headrace.format.table_builder import TableBuilder

__all__ = ['read_by_pattern']

_NUMBER: Final = '(0|[1-9][0-9]{0,17})'  # fits an int64
_TEXT: Final = r'"([^"\\\x00-\x1f]*)"'
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[ \t\n\r]+|[^ \t\n\r{}\[\],:"]+')
_LONGEST: Final = 1 << 16  # characters of an object with a pattern
_MOST: Final = 8  # patterns made for one list, and tried on one object
_RUN: Final = 1 << 14  # shards taken at once


def read_by_pattern(elements: Elements, parser: EntryParser, builder: TableBuilder) -> None:
    """Read the list of shards.

    Raises:
        FormatError: a parsed shard breaks a rule. The message gives a wrong number for it.
        json.JSONDecodeError: the list is not JSON.
    """
    text = elements.text
    at = skip(text, elements.at + 1)
    if text[at : at + 1] == ']':
        elements.at = at + 1
        return
    patterns: list[_EntryPattern] = []
    tries, between = 0, ','
    while True:
        for number, pattern in enumerate(patterns):
            rows, end = pattern.run(text, at, between)
            if rows:
                builder.add_rows(pattern.kind, rows)
                patterns.insert(0, patterns.pop(number))  # the next shards probably match the same pattern
                break
        else:
            value, end = decode(text, at)
            info = parser.parse(value)
            builder.add(info)
            if tries < _MOST and end - at <= _LONGEST:
                tries += 1
                pattern = _EntryPattern.of(text[at:end], info)
                patterns += [] if pattern is None else [pattern]
        at = skip(text, end)
        if expect(text, at, ',]') == ']':
            break
        at = skip(text, at + 1)
        between = text[end:at]
    elements.at = at + 1


class _EntryPattern:
    """The text of one shard's object, with a group for each value that may differ."""

    def __init__(self, expression: re.Pattern[str], groups: list[int], kind: Kind) -> None:
        self.kind = kind
        self._match = expression.match
        self._groups = groups  # the group of each value of a row

    @classmethod
    def of(cls, text: str, info: ShardInfo) -> _EntryPattern | None:
        """The pattern of a parsed object; None if it repeats a key, or if a group's value has escapes."""
        kind = Kind.of(info)
        wanted = set(kind.slots)
        parts: list[str] = []
        slots: list[tuple[str | None, ...]] = []
        for token, path in _values(text):
            if path in wanted:
                slots.append(path)
                parts.append(_TEXT if token[0] == '"' else _NUMBER)
            else:
                parts.append(re.escape(token))
        if len(slots) != len(wanted) or set(slots) != wanted:
            return None
        pattern = cls(re.compile(''.join(parts)), [slots.index(slot) + 1 for slot in kind.slots], kind)
        rows, _ = pattern.run(text, 0, ',')
        return pattern if rows == [tuple(map(str, Kind.row(info)))] else None

    def run(self, text: str, at: int, between: str) -> tuple[list[Row], int]:
        """Match objects from position `at` on.

        Args:
            text: the index.
            at: the first object's position.
            between: the separator of two objects.

        Returns:
            The rows of the matching objects, and the position after the last one.
        """
        rows: list[Row] = []
        match, groups, step, end = self._match, self._groups, len(between), at
        found = match(text, at)
        while found is not None:
            rows.append(found.group(*groups))
            end = found.end()
            if len(rows) == _RUN or not text.startswith(between, end):
                break
            found = match(text, end + step)
        return rows, end


def _values(text: str) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """The tokens of a JSON object. A value's token comes with its path of keys (None: a list)."""
    path: list[str | None] = []
    is_key = False
    for token in _TOKEN.findall(text):
        first = token[0]
        value: tuple[str | None, ...] = ()
        if first in '{[':
            path.append('' if first == '{' else None)
            is_key = first == '{'
        elif first in '}]':
            path.pop()
        elif first == ',':
            is_key = path[-1] is not None
        elif first == '"' and is_key:
            path[-1] = json.loads(token)
            is_key = False
        elif first not in ': \t\n\r':
            value = tuple(path)
        yield token, value
