"""Sources as bytes: a JSON object, arrays and pieces of bytes, with a checksum. Reading them runs no code.

Layout: magic, xxh3-128 of the rest, u32 size of the head, head, arrays, pieces. The head is JSON: the object, dtype and
shape of each array, and the sizes of the pieces. A `PartTable` holds the parts of a source as a few arrays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, overload

import numpy as np
import xxhash

from headrace.errors import FormatError
from headrace.sources.protocol import Part

_MAGIC: Final = b'headrace source 1\n'
_DIGEST: Final = 16
_ARRAYS: Final = ('object_of', 'rows', 'sizes', 'range_starts', 'ranges')
_BESIDE: Final = ('beside_starts', 'beside')


@dataclass(frozen=True, slots=True)
class SourceBytes:
    settings: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray[Any, Any]]  # Read-only arrays over the packed bytes.
    pieces: Sequence[memoryview]  # The pieces, over the packed bytes.


def pack_source(
    settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]], pieces: Sequence[bytes | memoryview] = ()
) -> bytes:
    """The bytes for `unpack_source`, of values that JSON can express, arrays of numbers, and any bytes."""
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


class PartTable(Sequence[Part]):
    """Parts, in the order of the rows.

    Args:
        keys: the objects.
        arrays: `object_of`, uint32[parts], number of each part's object; `rows`, int64[parts]; `sizes`, int64[parts],
            estimates of the bytes of shards; `range_starts`, int64[parts + 1], number of each part's first range, then
            of all ranges; `ranges`, int64[ranges, 2], offset and size. If parts have ranges of other objects:
            `beside_starts`, and `beside`, int64[ranges, 3], number of the object, offset and size. Others are left out.
    """

    def __init__(self, keys: Sequence[str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.keys = list(keys)
        self.arrays = {name: arrays[name] for name in (*_ARRAYS, *_BESIDE) if name in arrays or name in _ARRAYS}

    @classmethod
    def of(cls, parts: Iterable[Part]) -> PartTable:
        parts = list(parts)
        keys = list(dict.fromkeys(key for part in parts for key in (part.key, *(other for other, _, _ in part.beside))))
        number = {key: i for i, key in enumerate(keys)}
        arrays = {
            'object_of': np.array([number[part.key] for part in parts], np.uint32),
            'rows': np.array([part.rows for part in parts], np.int64),
            'sizes': np.array([part.size for part in parts], np.int64),
            'range_starts': _starts([len(part.ranges) for part in parts]),
            'ranges': np.array([span for part in parts for span in part.ranges], np.int64).reshape(-1, 2),
        }
        beside = [(number[key], offset, size) for part in parts for key, offset, size in part.beside]
        if beside:
            arrays['beside_starts'] = _starts([len(part.beside) for part in parts])
            arrays['beside'] = np.array(beside, np.int64)
        return cls(keys, arrays)

    def __len__(self) -> int:
        return len(self.arrays['rows'])

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> list[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | list[Part]:
        if isinstance(index, slice):
            return [self[part] for part in range(*index.indices(len(self)))]
        part, arrays = range(len(self))[index], self.arrays
        spans = arrays['ranges'][slice(*arrays['range_starts'][part : part + 2])].tolist()
        beside = (
            arrays['beside'][slice(*arrays['beside_starts'][part : part + 2])].tolist() if 'beside' in arrays else ()
        )
        return Part(
            key=self.keys[arrays['object_of'][part]],
            ranges=tuple((offset, size) for offset, size in spans),
            rows=int(arrays['rows'][part]),
            size=int(arrays['sizes'][part]),
            beside=tuple((self.keys[number], offset, size) for number, offset, size in beside),
        )


def _starts(counts: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.cumsum([0, *counts], dtype=np.int64)


def dump_index(name: str, columns: Mapping[str, str], parts: Iterable[Part], more: Mapping[str, Any]) -> bytes:
    """The bytes of a source, for `Source.to_bytes`.

    Args:
        name: the format.
        columns: encodings by column.
        parts: the parts.
        more: what the format adds, in values that JSON can express.
    """
    table = parts if isinstance(parts, PartTable) else PartTable.of(parts)
    settings = {'format': name, 'columns': dict(columns), 'keys': table.keys, 'more': dict(more)}
    return pack_source(settings, table.arrays)


def load_index(name: str, data: bytes) -> tuple[dict[str, str], PartTable, dict[str, Any]]:
    """The columns, the parts, and what the format adds; for `SourceFormat.load`.

    Raises:
        FormatError: the bytes are damaged, or of another format or version.
    """
    source = unpack_source(data)
    stored_format = source.settings.get('format')
    if stored_format != name:
        raise FormatError(
            f'This is the index of a {name} source, but it is that of {stored_format!r}. Delete it: it is made again.'
        )
    settings = source.settings
    return settings['columns'], PartTable(settings['keys'], source.arrays), settings['more']
