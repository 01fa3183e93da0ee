"""Files of TFRecord, and Examples in any form that protobuf reads."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pytest

KINDS: Final = {bytes: 1, float: 2, int: 3}


def masked_crc(data: bytes) -> bytes:
    crc = pytest.importorskip('google_crc32c').value(data)
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, 'little')


def tfrecord(records: Iterable[bytes]) -> bytes:
    """The file of some records."""
    found = bytearray()
    for record in records:
        size = len(record).to_bytes(8, 'little')
        found += size + masked_crc(size) + record + masked_crc(record)
    return bytes(found)


def varint(value: int) -> bytes:
    value %= 1 << 64
    found = bytearray()
    while value >= 0x80:
        found.append(value % 0x80 + 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Sequence[Any], kind: int = 0, *, is_packed: bool = True) -> bytes:
    """A Feature. `kind`: number of its list; 0: that of the values, and of bytes if there are none."""
    kind = kind or (KINDS[type(values[0])] if values else 1)
    if kind == 1:
        return field(1, b''.join(field(1, value) for value in values))
    numbers = [struct.pack('<f', value) if kind == 2 else varint(value) for value in values]
    if is_packed:
        return field(kind, field(1, b''.join(numbers)) if numbers else b'')
    return field(kind, b''.join((b'\r' if kind == 2 else b'\x08') + number for number in numbers))


def entry(name: str, content: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, content))


def example(features: Mapping[str, Any]) -> bytes:
    """An Example of the usual form. A value that is no list stands for a list of one."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in features.items()}
    return field(1, b''.join(entry(name, feature(values)) for name, values in lists.items()))
