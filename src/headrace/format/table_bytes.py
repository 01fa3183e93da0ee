"""A `ShardTable` as bytes, and the rules for all its shards at once.

Its bytes are the parsed form of a large index, which saves the next process the parsing.

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
from headrace.format.entries import INDEX_NAME, MAX_OFFSET, OWN_NAMES, EntryParser
from headrace.format.table import Kind, NameFinder, ShardTable

# All names are one text, each between two '/'; so parts of names are, too.
_FORBIDDEN: Final = (b'//', b'/./', b'/../', b'\\', b'\0')
_RESERVED: Final = (f'/{INDEX_NAME}/'.encode(), f'/{OWN_NAMES}'.encode())
"""In any case, and with characters in between that some file systems ignore."""


def is_surely_valid(table: ShardTable) -> bool:
    """Whether `EntryParser` would surely accept a table whose columns fit one another.

    No file name leads out of the dataset's folder, is one of headrace's own, or is repeated. No count is larger than
    its file. The parser explains mistakes; here the answer is only "surely valid" or "check".
    """
    return (
        _names_stay_inside(table)
        and bool((table.samples >= 0).all())
        and bool((table.sizes >= 0).all())
        and all(_counts_fit(table, number, kind) for number, kind in enumerate(table.kinds))
        and NameFinder(table.names, table.name_starts).all_differ
    )


def _names_stay_inside(table: ShardTable) -> bool:
    names = table.names.tobytes()
    # Each name has a '/' before and after it, and is not empty.
    if names[:1] != b'/' or bool((np.diff(table.name_starts) < 2).any()):
        return False
    if bool((table.names[table.name_starts - 1] != ord('/')).any()) or any(text in names for text in _FORBIDDEN):
        return False
    if not names.isascii():
        try:
            names = names.decode().casefold().encode('ascii', 'ignore')
        except UnicodeDecodeError:
            return False
    folded = names.lower()
    return not any(text in folded for text in _RESERVED)


def _counts_fit(table: ShardTable, number: int, kind: Kind) -> bool:
    shards = slice(None) if len(table.kinds) == 1 else np.flatnonzero(table.kind_of == number)
    samples = table.samples[shards]
    files = table.first_files[:-1][shards]
    data: npt.NDArray[np.int64] = table.sizes[files]
    # The last raw file has the table of offsets: a count, then 4 bytes for each sample and 4 for the last one's end.
    last_packed = kind.files[-1][1] is not None
    offsets: npt.NDArray[np.int64] = table.sizes[files + len(kind.algorithms) - (2 if last_packed else 1)]
    if bool((np.maximum(data, offsets) > MAX_OFFSET).any()) or bool((samples > MAX_OFFSET).any()):
        return False
    if bool((offsets < 8 + 4 * samples).any()):
        return False
    room = data - (8 + 4 * samples) if kind.schema.format == 'mds' else data
    least = min(kind.schema.min_sample_size, MAX_OFFSET + 1)  # no overflow; no file is larger
    return not bool((samples * least > room).any())


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
