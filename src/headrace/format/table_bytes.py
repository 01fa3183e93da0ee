"""A `ShardTable` as bytes: the parsed form of a large index, which saves the next process the parsing.

The file is a head, the table's columns, and one JSON object of `index.json` for each kind of shard. A digest names its
index.json. Reading runs no code, and allocates at most the file's size. A checksum finds damage. A forged file can have
a right checksum, so all rules of an index are checked again. Then it can do as little as a forged index.json.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.errors import HeadraceError
from headrace.format.entries import EntryParser
from headrace.format.rules import is_surely_valid
from headrace.format.table import Kind, ShardTable

__all__ = ['IndexKey', 'pack_table', 'read_packed_key', 'unpack_table']

_MAGIC: Final = b'headrace table 1'
"""16 bytes; changes with the format."""
_HEAD: Final = struct.Struct('<16s16s16sQ8s7Q')
"""Magic, checksum of all that follows it, key (digest and size of index.json, fingerprint), lengths of the columns."""
_CHECKED_FROM: Final = 32
_COLUMNS: Final = (
    ('samples', '<i8'),
    ('sizes', '<i8'),
    ('name_starts', '<i8'),
    ('digest_starts', '<i8'),
    ('kind_of', '<u4'),
    ('names', 'u1'),
    ('digests', 'u1'),
)


@dataclass(frozen=True, slots=True)
class IndexKey:
    """The index.json of a table."""

    digest: bytes
    """XXH3 of the file, 16 bytes. It need not resist forgery: a forger could as well write index.json."""
    size: int
    """Bytes of the file."""
    fingerprint: str
    """BLAKE2b of the file, 16 hexadecimal digits, as in saved states."""


def pack_table(table: ShardTable, key: IndexKey) -> bytes | None:
    """The bytes of a table; None if `unpack_table` would refuse it, for example for digests not in ASCII."""
    if not table.digests.tobytes().isascii() or not is_surely_valid(table):
        return None
    columns = [np.ascontiguousarray(getattr(table, name), kind) for name, kind in _COLUMNS]
    _, examples = np.unique(table.kind_of, return_index=True)
    kinds = json.dumps([table[shard].entry() for shard in examples.tolist()]).encode()
    lengths = [len(column) for column in columns]
    head = _HEAD.pack(_MAGIC, bytes(16), key.digest, key.size, bytes.fromhex(key.fingerprint), *lengths)
    checked = [head[_CHECKED_FROM:], *(column.tobytes() for column in columns), kinds]
    checksum = xxhash.xxh3_128()
    for part in checked:
        checksum.update(part)
    return b''.join([_MAGIC, checksum.digest(), *checked])


def read_packed_key(data: bytes) -> IndexKey | None:
    """The index.json of a packed table; None if it is damaged, or not a table of this version."""
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        return None
    _, checksum, digest, size, fingerprint, *_ = _HEAD.unpack_from(data)
    if xxhash.xxh3_128_digest(memoryview(data)[_CHECKED_FROM:]) != checksum:
        return None
    return IndexKey(digest, size, fingerprint.hex())


def unpack_table(data: bytes, *, allow_unsafe_types: bool = False) -> ShardTable | None:
    """The table of a file with a key; None if it breaks a rule, or has no samples.

    Args:
        data: the file.
        allow_unsafe_types: accept `pkl` columns, which run code when they are read.
    """
    lengths = _HEAD.unpack_from(data)[-len(_COLUMNS) :]
    ends = list(accumulate((n * np.dtype(kind).itemsize for n, (_, kind) in zip(lengths, _COLUMNS, strict=True))))
    if _HEAD.size + ends[-1] > len(data):
        return None
    columns: dict[str, npt.NDArray[Any]] = {}
    for (name, kind), length, begin in zip(_COLUMNS, lengths, [0, *ends], strict=False):
        column = np.frombuffer(data, kind, length, _HEAD.size + begin)
        columns[name] = column.astype(column.dtype.newbyteorder('='), copy=False)
    kinds = _kinds(data[_HEAD.size + ends[-1] :], allow_unsafe_types)
    if kinds is None or not _are_consistent(kinds, columns):
        return None
    table = ShardTable(kinds, **columns)
    return table if table.samples.any() and is_surely_valid(table) else None


def _kinds(data: bytes, allow_unsafe_types: bool) -> tuple[Kind, ...] | None:
    parser = EntryParser('kept beside index.json', allow_unsafe_types)
    try:
        entries = json.loads(data)
        return tuple(Kind.of(parser.parse(entry)) for entry in entries) if isinstance(entries, list) else None
    except (HeadraceError, ValueError, RecursionError):
        return None


def _are_consistent(kinds: tuple[Kind, ...], columns: dict[str, npt.NDArray[Any]]) -> bool:
    """Whether the columns have the lengths that the kinds imply, and all offsets are inside their columns."""
    kind_of, sizes, digests = columns['kind_of'], columns['sizes'], columns['digests']
    name_starts, digest_starts = columns['name_starts'], columns['digest_starts']
    if len(kind_of) != len(columns['samples']) or not len(kind_of) or int(kind_of.max()) >= len(kinds):
        return False
    counts = np.bincount(kind_of, minlength=len(kinds)).tolist()
    if not all(counts):
        return False
    files = sum(count * len(kind.algorithms) for count, kind in zip(counts, kinds, strict=True))
    num_digests = sum(count * kind.num_digests for count, kind in zip(counts, kinds, strict=True))
    return (
        len(sizes) == files
        and _are_offsets(name_starts, files, 1, len(columns['names']))
        and _are_offsets(digest_starts, num_digests, 0, len(digests))
        and digests.tobytes().isascii()
    )


def _are_offsets(starts: npt.NDArray[np.int64], count: int, first: int, last: int) -> bool:
    """Whether these are the offsets of `count` parts, and the end of the last."""
    return (
        len(starts) == count + 1
        and int(starts[0]) == first
        and int(starts[-1]) == last
        and not bool((starts[1:] < starts[:-1]).any())
    )
