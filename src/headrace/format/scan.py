"""A large JSON object, read member by member.

The JSON objects of an index need several times the memory of its table. So its list of shards is never held as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

__all__ = ['Elements', 'NotAnObjectError', 'decode', 'expect', 'skip', 'top_level']


class NotAnObjectError(Exception):
    """The text is JSON, but not an object; the argument is its value."""


decode: Final = json.JSONDecoder().raw_decode
"""(text, position) -> (value, position after it)"""
_SPACE: Final = ' \t\n\r'


def skip(text: str, at: int) -> int:
    """The position of the first character from `at` on that is not a space."""
    size = len(text)
    while at < size and text[at] in _SPACE:
        at += 1
    return at


def expect(text: str, at: int, wanted: str) -> str:
    """The character at `at`, which must be one of `wanted`."""
    char = text[at : at + 1]
    if not char or char not in wanted:
        raise json.JSONDecodeError(f'Expecting one of {wanted}', text, at)
    return char


def top_level(text: str, lazy: str) -> Iterator[tuple[str, Any]]:
    """The key-value pairs of the outermost object.

    The list under the key `lazy` is yielded as its `Elements`: read them to the end before the next pair.

    Raises:
        NotAnObjectError: the text is JSON, but not an object.
        json.JSONDecodeError: the text is not JSON.
    """
    at = skip(text, 0)
    if at == len(text):
        raise json.JSONDecodeError('No content', text, at)
    if text[at] != '{':
        value, at = decode(text, at)
        _end(text, at)
        raise NotAnObjectError(value)
    at = skip(text, at + 1)
    if expect(text, at, '"}') == '}':
        _end(text, at + 1)
        return
    while True:
        expect(text, at, '"')
        key, at = decode(text, at)
        at = skip(text, at)
        expect(text, at, ':')
        at = skip(text, at + 1)
        if key == lazy and text[at : at + 1] == '[':
            elements = Elements(text, at)
            yield key, elements
            at = elements.at
        else:
            value, at = decode(text, at)
            yield key, value
        at = skip(text, at)
        if expect(text, at, ',}') == '}':
            break
        at = skip(text, at + 1)
    _end(text, at + 1)


def _end(text: str, at: int) -> None:
    at = skip(text, at)
    if at != len(text):
        raise json.JSONDecodeError('Extra data', text, at)


class Elements:
    """The elements of the JSON list at ``at``; afterwards ``at`` is the position after the list."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def __iter__(self) -> Iterator[Any]:
        text = self.text
        at = skip(text, self.at + 1)
        if _expect_any(text, at) == ']':
            self.at = at + 1
            return
        while True:
            value, at = decode(text, at)
            yield value
            at = skip(text, at)
            if expect(text, at, ',]') == ']':
                break
            at = skip(text, at + 1)
        self.at = at + 1


def _expect_any(text: str, at: int) -> str:
    if at >= len(text):
        raise json.JSONDecodeError('Expecting value', text, at)
    return text[at]
