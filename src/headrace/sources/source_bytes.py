"""Sources as bytes: a JSON object, arrays and pieces of bytes, with a checksum. Reading them runs no code.

Layout: magic, xxh3-128 of the rest, u32 size of the head, head, arrays, pieces. The head is JSON: the object, dtype and
shape of each array, and the sizes of the pieces.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import xxhash

from headrace.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ['SourceBytes', 'pack_source', 'unpack_source']

_MAGIC: Final = b'headrace source 1\n'
_DIGEST: Final = 16


@dataclass(frozen=True, slots=True)
class SourceBytes:
    """The parts of a packed source."""

    settings: Mapping[str, Any]
    """The JSON object."""
    arrays: Mapping[str, np.ndarray[Any, Any]]
    """Read-only arrays over the packed bytes."""
    pieces: Sequence[memoryview]
    """The pieces, over the packed bytes."""


def pack_source(
    settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]], pieces: Sequence[bytes | memoryview] = ()
) -> bytes:
    """The bytes for `unpack_source`.

    Args:
        settings: values that JSON can express.
        arrays: arrays of numbers.
        pieces: any bytes.
    """
    stored = {name: np.ascontiguousarray(array, array.dtype.newbyteorder('<')) for name, array in arrays.items()}
    head = json.dumps(
        {
            'settings': settings,
            'arrays': {name: [array.dtype.str, array.shape] for name, array in stored.items()},
            'pieces': [len(piece) for piece in pieces],
        }
    ).encode()
    rest = b''.join(
        [
            len(head).to_bytes(4, 'little'),
            head,
            *(array.tobytes() for array in stored.values()),
            *pieces,
        ]
    )
    return _MAGIC + xxhash.xxh3_128_digest(rest) + rest


def unpack_source(data: bytes) -> SourceBytes:
    """The parts of a source.

    Raises:
        FormatError: the bytes are damaged, or of another version.
    """
    start = len(_MAGIC) + _DIGEST
    view = memoryview(data)
    if not data.startswith(_MAGIC):
        raise FormatError(
            'The cached index of a source is of another version of headrace, or damaged. Delete it: it is made again.'
        )
    if xxhash.xxh3_128_digest(view[start:]) != data[len(_MAGIC) : start]:
        raise FormatError(
            'The cached index of a source is damaged: its checksum is wrong. Delete it: it is made again.'
        )
    at = start + 4 + int.from_bytes(view[start : start + 4], 'little')
    head = cast('dict[str, Any]', json.loads(bytes(view[start + 4 : at])))
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, (dtype, shape) in head['arrays'].items():
        count = math.prod(shape)
        arrays[name] = np.frombuffer(data, np.dtype(dtype), count, at).reshape(shape)
        at += arrays[name].nbytes
    pieces: list[memoryview] = []
    for size in head['pieces']:
        pieces.append(view[at : at + size])
        at += size
    return SourceBytes(head['settings'], arrays, pieces)
