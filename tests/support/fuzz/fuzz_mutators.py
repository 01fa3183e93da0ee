"""Mutations of files: bytes, numbers, lines, JSON values, and what lies below a compression or a checksum."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import random
import re
import zlib
from typing import Any, Final

import zstandard

from tests.support.sources.tfrecord_files import masked_crc

__all__ = ['mutate']

_NUMBERS: Final = (0, 1, 2, 7, 127, 128, 255, 256, 32767, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32)
_LARGE: Final = ((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 10**30)
_ODD: Final[tuple[Any, ...]] = (
    None, True, '', 'x', '../x', '/etc/passwd', 'a\0b', '\ud800', 'ü' * 200, [], {}, [[]], {'a': []}, 0, -1, 1.5, 1e308,
    *_NUMBERS, *_LARGE,
)  # fmt: skip
_LONGEST: Final = 1 << 16


def mutate(rng: random.Random, name: str, data: bytes, other: bytes) -> bytes:
    """Damaged content of a file.

    Args:
        rng: decides.
        name: of the file; its ending tells the format.
        data: the content.
        other: content of the same format, from which pieces come.
    """
    if rng.random() < 0.5:
        for unpack, pack in _packings(name):
            inner = _mutated(rng, name, unpack(data), other)
            return pack(inner)
    return _mutated(rng, name, data, other)


def _mutated(rng: random.Random, name: str, data: bytes, other: bytes) -> bytes:
    if name.endswith('.json') and rng.random() < 0.7:
        return _json(rng, data)
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        found = _once(rng, found, other)
    if '.tar' in name and rng.random() < 0.7:
        _mend_tar(found)
    if '.tfrecord' in name and rng.random() < 0.7:
        _mend_tfrecord(found)
    return bytes(found[:_LONGEST])


def _once(rng: random.Random, data: bytearray, other: bytes) -> bytearray:
    size = len(data)
    # The ends of files hold footers and headers, so they are hit as often as the rest.
    at = rng.choice((rng.randrange(size + 1), min(size, rng.randrange(64)), max(0, size - rng.randrange(1, 512))))
    to = min(size, at + rng.choice((1, 2, 4, 8, 32, 512)))
    kind = rng.randrange(10)
    if kind == 0 and at < size:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1 and at < size:
        data[at] = rng.randrange(256)
    elif kind == 2:
        width = rng.choice((1, 2, 4, 8))
        number = rng.choice((*_NUMBERS, *_LARGE, size, size - at)) % (1 << 8 * width)
        new = number.to_bytes(width, rng.choice(('little', 'big')))
        data[at : at + width] = new[: max(0, size - at)]
    elif kind == 3:
        del data[at:to]
    elif kind == 4:
        data[at:at] = data[at:to] * rng.choice((1, 2, 40))
    elif kind == 5:
        data[at:to] = rng.randbytes(to - at)
    elif kind == 6:
        del data[at:]
    elif kind == 7 and other:
        begin = rng.randrange(len(other))
        data[at:to] = other[begin : begin + to - at]
    elif kind == 8:
        return _number(rng, data)
    else:
        varint = b'\xff' * rng.randrange(1, 10) + bytes([rng.randrange(128)])
        data[at : at + rng.choice((0, len(varint)))] = varint
    return data


def _number(rng: random.Random, data: bytearray) -> bytearray:
    """Another number in text."""
    found = list(re.finditer(rb'\d+', data))
    if found:
        match = rng.choice(found)
        data[match.start() : match.end()] = str(rng.choice((-1, *_NUMBERS, *_LARGE))).encode()
    return data


def _json(rng: random.Random, data: bytes) -> bytes:
    """Another value somewhere in JSON, or one key less; in one line of a log, which has a value in each."""
    lines = [data] if data.lstrip()[:1] == b'[' or data.count(b'\n{') == 0 else data.splitlines(keepends=True)
    line = rng.randrange(len(lines))
    value = json.loads(lines[line])
    for _ in range(rng.choice((1, 1, 2, 3))):
        inner = value
        while isinstance(inner, dict | list) and inner:
            key: Any = rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
            if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.15:
                if rng.random() < 0.2:
                    del inner[key]
                else:
                    old = inner[key]
                    inner[key] = copy.deepcopy(
                        rng.choice((*_ODD, old * 2 if isinstance(old, int | str | list) else old))
                    )
                break
            inner = inner[key]
    lines[line] = json.dumps(value).encode() + b'\n' * (len(lines) > 1)
    return b''.join(lines)


def _mend_tar(data: bytearray) -> None:
    """Give each header its checksum, so that the parser gets beyond it."""
    for block in range(0, len(data) - 511, 512):
        if data[block + 257 : block + 262] == b'ustar':
            data[block + 148 : block + 156] = b' ' * 8
            data[block + 148 : block + 156] = b'%06o\0 ' % sum(data[block : block + 512])


def _mend_tfrecord(data: bytearray) -> None:
    """Give each record its checksums, as far as the sizes of records lead."""
    at = 0
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 8], 'little')
        data[at + 8 : at + 12] = masked_crc(bytes(data[at : at + 8]))
        end = at + 12 + size
        if end + 4 <= len(data):
            data[end : end + 4] = masked_crc(bytes(data[at + 12 : end]))
        at = end + 4


def _packings(name: str) -> list[tuple[Any, Any]]:
    """How a file is unpacked, to be damaged within, and packed again; of files that are packed as a whole."""
    ending = name.rpartition('.')[2]
    if ending == 'gz':
        return [(gzip.decompress, lambda data: gzip.compress(data, mtime=0))]
    if ending == 'bz2':
        return [(bz2.decompress, bz2.compress)]
    if ending in ('zst', 'zstd') or name.endswith('.zstd.bin'):
        return [(_unpack_zstd, zstandard.ZstdCompressor().compress)]
    return []


def _unpack_zstd(data: bytes) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except (zstandard.ZstdError, zlib.error):  # a part of the file is packed
        return data
