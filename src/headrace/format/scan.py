"""A large JSON object, read member by member.

The JSON objects of an index need several times the memory of what is kept of them, so that its list of shards is never
there as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

__all__ = ['NotAnObjectError', 'top_level']


class NotAnObjectError(Exception):
    """The text is JSON, but no object; the argument is what it is."""


_decoder: Final = json.JSONDecoder()
_SPACE: Final = ' \t\n\r'


def _skip(text: str, at: int) -> int:
    size = len(text)
    while at < size and text[at] in _SPACE:
        at += 1
    return at


def _expect(text: str, at: int, wanted: str) -> str:
    char = text[at : at + 1]
    if not char or char not in wanted:
        raise json.JSONDecodeError(f'Expecting one of {wanted}', text, at)
    return char


def top_level(text: str, lazy: str) -> Iterator[tuple[str, Any]]:
    """The key-value pairs of the outermost object; a list under the key `lazy` is an iterator of its elements.

    Raises:
        NotAnObjectError: the text is JSON, but no object.
        json.JSONDecodeError: it is no JSON.
    """
    at = _skip(text, 0)
    if at == len(text):
        raise json.JSONDecodeError('No content', text, at)
    if text[at] != '{':
        value, at = _decoder.raw_decode(text, at)
        _end(text, at)
        raise NotAnObjectError(value)
    at = _skip(text, at + 1)
    if _expect(text, at, '"}') == '}':
        _end(text, at + 1)
        return
    while True:
        _expect(text, at, '"')
        key, at = _decoder.raw_decode(text, at)
        at = _skip(text, at)
        _expect(text, at, ':')
        at = _skip(text, at + 1)
        if key == lazy and text[at : at + 1] == '[':
            elements = _Elements(text, at)
            yield key, iter(elements)
            at = elements.at
        else:
            value, at = _decoder.raw_decode(text, at)
            yield key, value
        at = _skip(text, at)
        if _expect(text, at, ',}') == '}':
            break
        at = _skip(text, at + 1)
    _end(text, at + 1)


def _end(text: str, at: int) -> None:
    at = _skip(text, at)
    if at != len(text):
        raise json.JSONDecodeError('Extra data', text, at)


class _Elements:
    """The elements of the JSON list at ``at``; afterwards ``at`` is the position behind the list."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def __iter__(self) -> Iterator[Any]:
        text, decode = self.text, _decoder.raw_decode
        at = _skip(text, self.at + 1)
        if _expect_any(text, at) == ']':
            self.at = at + 1
            return
        while True:
            value, at = decode(text, at)
            yield value
            at = _skip(text, at)
            if _expect(text, at, ',]') == ']':
                break
            at = _skip(text, at + 1)
        self.at = at + 1


def _expect_any(text: str, at: int) -> str:
    if at >= len(text):
        raise json.JSONDecodeError('Expecting value', text, at)
    return text[at]
