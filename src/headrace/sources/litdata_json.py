"""litdata's binary form of lists and dicts. All numbers are little-endian.

A value is a tag of one byte and what follows it. Texts are u32 size and UTF-8. Older versions stored JSON text.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from headrace.errors import FormatError
from headrace.format.encodings.texts import parse_json

__all__ = ['parse_nested']

_MAX_DEPTH: Final = 200


def parse_nested(data: bytes) -> Any:
    """The value.

    Raises:
        FormatError: the bytes are damaged.
    """
    try:
        if not data or data[0] > 0x20:  # JSON text
            return parse_json(data.decode('utf-8'), 'A value of litdata')
        reader = _Reader(data)
        value = reader.value(0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise FormatError(f'A value of litdata ends too early or is damaged: {error}.') from None
    if reader.at != len(data):
        raise FormatError(f'A value of litdata ends at byte {reader.at}, but has {len(data)}.')
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def value(self, depth: int) -> Any:
        """The value at the position, with its tag."""
        if depth > _MAX_DEPTH:
            raise FormatError(f'Values of litdata are nested at most {_MAX_DEPTH} deep, but one is nested deeper.')
        tag = self.byte()
        if tag == 0:
            return parse_json(self.text(), 'A value of litdata')
        if tag == 1:
            return [self.text() for _ in range(self.count(4))]
        if tag in {2, 3}:
            size = self.count(8)
            return np.frombuffer(self.take(8 * size), '<i8' if tag == 2 else '<f8').tolist()
        if tag == 4:
            return [byte != 0 for byte in self.take(self.count(1))]
        if tag == 5:
            return {self.text(): self.value(depth + 1) for _ in range(self.count(5))}
        if tag == 6:
            return self.records()
        return self.scalar(tag - 7, tag)

    def records(self) -> list[dict[str, Any]]:
        """Dicts with the same keys."""
        rows = self.count(0)
        keys = [self.text() for _ in range(self.count(4))]
        if not keys or rows > (len(self.data) - self.at) // len(keys):
            raise FormatError(f'A value of litdata announces {rows} records of {len(keys)} keys, which do not fit.')
        found: list[dict[str, Any]] = []
        for _ in range(rows):
            row: dict[str, Any] = {}
            for key in keys:
                tag = self.byte()
                row[key] = None if tag == 0x10 else self.scalar(tag - 0x11, tag)
            found.append(row)
        return found

    def scalar(self, kind: int, tag: int) -> Any:
        """Text, int, float, bool or None."""
        if kind == 0:
            return self.text()
        if kind in {1, 2}:
            return struct.unpack('<q' if kind == 1 else '<d', self.take(8))[0]
        if kind == 3:
            return self.byte() != 0
        if kind == 4 and tag == 11:
            return None
        raise FormatError(f'A value of litdata has an unknown tag {tag}.')

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def count(self, least: int) -> int:
        """A number of things that take at least so many bytes each."""
        number = int.from_bytes(self.take(4), 'little')
        if number * least > len(self.data) - self.at:
            raise FormatError(f'A value of litdata announces {number} items, which do not fit into it.')
        return number

    def text(self) -> str:
        return self.take(self.count(1)).decode('utf-8')

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise FormatError('A value of litdata ends too early.')
        self.at += size
        return self.data[self.at - size : self.at]
