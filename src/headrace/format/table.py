"""The shards of an index as a few arrays; objects are made on request.

Shards whose files have the same parts, hashes and columns are of one `Kind`, which a table holds once. Per shard it
holds only the number of samples, and the names, sizes and digests of the files.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from headrace.format.shards import NO_HASHES, Erasure, FileInfo, IntArray, Schema, ShardFile, ShardInfo

_LONG: Final = 256  # bytes; longer names, which are few, are hashed one by one
_WORDS: Final = _LONG // 8
# A random secret of each process, so nobody can construct names with equal hashes.
_KEYS: Final = np.frombuffer(os.urandom(8 * (_WORDS + 1)), np.uint64) | np.uint64(1)
_HALF: Final = np.uint64(32)


class NameFinder:
    """The names of a table by their hashes, 16 bytes for each."""

    def __init__(self, names: npt.NDArray[np.uint8], starts: IntArray) -> None:
        """Hash all names, with one byte after each. `starts`: int64[names + 1], their offsets, and the end."""
        self._names, self._starts = names, starts
        hashes = _hash_all(names, starts)
        self._order = np.argsort(hashes, kind='stable')
        self._hashes = hashes[self._order]

    @property
    def all_differ(self) -> bool:
        """True only if no name is repeated. A wrong False has a chance below one in a million."""
        return not bool((self._hashes[1:] == self._hashes[:-1]).any())

    def find(self, name: str) -> int | None:
        try:
            data = name.encode()
        except UnicodeEncodeError:
            return None  # of bytes that are not UTF-8
        encoded = np.frombuffer(data + b'/', np.uint8)
        wanted = _hash_all(encoded, np.array([0, len(encoded)], np.int64))[0]
        first, end = self._hashes.searchsorted(wanted, 'left'), self._hashes.searchsorted(wanted, 'right')
        for number in self._order[first:end].tolist():
            if self._names[self._starts[number] : self._starts[number + 1] - 1].tobytes() == data:
                return number
        return None


def _hash_all(names: npt.NDArray[np.uint8], starts: IntArray) -> npt.NDArray[np.uint64]:
    lengths = np.diff(starts) - 1
    hashes = np.empty(len(lengths), np.uint64)
    for length in np.unique(np.minimum(lengths, _LONG)).tolist():
        if length == _LONG:
            for i in np.flatnonzero(lengths >= _LONG).tolist():
                hashes[i] = hash(names[starts[i] : starts[i + 1] - 1].tobytes()) & 0xFFFFFFFFFFFFFFFF
        else:
            same = np.flatnonzero(lengths == length)
            hashes[same] = _hash_equally_long(names, starts[same], length)
    return hashes


def _hash_equally_long(names: npt.NDArray[np.uint8], starts: IntArray, length: int) -> npt.NDArray[np.uint64]:
    padded = np.zeros((len(starts), length // 8 + 1, 8), np.uint8)
    padded.reshape(len(starts), -1)[:, :length] = sliding_window_view(names, length)[starts]
    words = padded.view(np.uint64)[:, :, 0]
    hashes = np.full(len(starts), length, np.uint64)
    for i in range(words.shape[1]):
        word = words[:, i] + _KEYS[i]
        word ^= word >> _HALF
        word *= _KEYS[-1 - i]
        word ^= word >> _HALF
        hashes += word
        hashes *= _KEYS[i]
    return hashes


Row: TypeAlias = 'tuple[Any, ...]'
"""A shard's samples, and its files' names, sizes and digests. Numbers are int or decimal digits."""

_CHUNK: Final = 1 << 14  # shards that a builder holds as Python objects before they become arrays


@dataclass(frozen=True, slots=True)
class Kind:
    """The fields that many shards share."""

    schema: Schema
    compression: str | None
    hashes: tuple[str, ...]  # Names of the hash algorithms in the writer's settings.
    size_limit: int | None
    files: tuple[tuple[tuple[str, ...], tuple[str, ...] | None], ...]
    """The hash algorithms of each file, raw and compressed; None for a missing one."""
    made_from: str | None = None
    algorithms: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    """The same for each stored file, in this order: raw data, compressed data, raw meta, compressed meta."""
    num_digests: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stored = tuple(algorithms for file in self.files for algorithms in file if algorithms is not None)
        object.__setattr__(self, 'algorithms', stored)
        object.__setattr__(self, 'num_digests', sum(map(len, stored)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Kind, (self.schema, self.compression, self.hashes, self.size_limit, self.files, self.made_from)

    @classmethod
    def of(cls, info: ShardInfo) -> Kind:
        files = tuple(
            (tuple(file.raw.hashes), None if file.zip is None else tuple(file.zip.hashes)) for file in info.files
        )
        return cls(info.schema, info.compression, info.hashes, info.size_limit, files, info.made_from)

    @property
    def slots(self) -> list[tuple[str, ...]]:
        """The paths of keys to the values of a `Row` in a shard's JSON object."""
        parts = [
            part
            for (_, packed), name in zip(self.files, ('data', 'meta'), strict=False)
            for part in (f'raw_{name}', *(() if packed is None else (f'zip_{name}',)))
        ]
        return [
            ('samples',),
            *((part, 'basename') for part in parts),
            *((part, 'bytes') for part in parts),
            *(
                (part, 'hashes', algorithm)
                for part, algorithms in zip(parts, self.algorithms, strict=True)
                for algorithm in algorithms
            ),
        ]

    @staticmethod
    def row(info: ShardInfo) -> Row:
        stored = [part for file in info.files for part in (file.raw, file.zip) if part is not None]
        return (
            info.samples,
            *(part.basename for part in stored),
            *(part.bytes for part in stored),
            *(digest for part in stored for digest in part.hashes.values()),
        )


class ShardSequence(Sequence[ShardInfo]):
    """Shards that are made when they are asked for. Compares equal to any sequence of equal shards."""

    @abstractmethod
    def _shard(self, shard: int) -> ShardInfo:
        """The shard of a number in [0, len)."""

    @overload
    def __getitem__(self, index: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardInfo]: ...
    def __getitem__(self, index: int | slice) -> ShardInfo | list[ShardInfo]:
        numbers = range(len(self))[index]
        return self._shard(numbers) if isinstance(numbers, int) else [self._shard(shard) for shard in numbers]

    def __iter__(self) -> Iterator[ShardInfo]:
        return map(self._shard, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True, eq=False)
class ShardTable(ShardSequence):
    """The shards of an index, in order; made by `parse_index`."""

    kinds: tuple[Kind, ...]
    """Each kind has a shard."""
    kind_of: npt.NDArray[np.uint32]
    """uint32[shards], number of each shard's kind."""
    samples: IntArray
    """int64[shards]"""
    sizes: IntArray
    """int64[files], bytes of the stored files, shard after shard. The kind gives a shard's number of files."""
    name_starts: IntArray
    """int64[files + 1], the offset of each file's name in `names`, and the end of the last."""
    names: npt.NDArray[np.uint8]
    """uint8[bytes], a '/', then all names in UTF-8, each followed by a '/'."""
    digest_starts: IntArray
    """int64[digests + 1], the offset of each digest in `digests`, and the end of the last."""
    digests: npt.NDArray[np.uint8]
    """uint8[bytes], all digests in UTF-8 (lone surrogates allowed), without separators."""
    erased: Mapping[int, Erasure] = field(default_factory=dict[int, Erasure])
    """By number, of the shards that have erased rows."""
    first_files: IntArray = field(init=False, repr=False)
    """int64[shards + 1], number of each shard's first file, then of all files."""
    first_digests: IntArray = field(init=False, repr=False)
    """int64[shards + 1], number of each shard's first digest, then of all digests."""
    _finder: list[NameFinder] = field(init=False, repr=False, default_factory=list[NameFinder])
    """Made on first use."""

    def __post_init__(self) -> None:
        for name, counts in (
            ('first_files', [len(kind.algorithms) for kind in self.kinds]),
            ('first_digests', [kind.num_digests for kind in self.kinds]),
        ):
            firsts = np.zeros(len(self.samples) + 1, np.int64)
            np.cumsum(np.array(counts, np.int64)[self.kind_of], out=firsts[1:])
            object.__setattr__(self, name, firsts)

    def __reduce__(self) -> tuple[Any, ...]:
        columns = self.kind_of, self.samples, self.sizes, self.name_starts, self.names, self.digest_starts, self.digests
        return ShardTable, (self.kinds, *columns, self.erased)

    @classmethod
    def empty(cls) -> ShardTable:
        """A table without shards."""
        none = np.zeros(0, np.int64)
        return cls(
            kinds=(),
            kind_of=np.zeros(0, np.uint32),
            samples=none,
            sizes=none,
            name_starts=np.ones(1, np.int64),
            names=np.frombuffer(b'/', np.uint8),
            digest_starts=np.zeros(1, np.int64),
            digests=np.zeros(0, np.uint8),
        )

    @property
    def schemas(self) -> list[Schema]:
        """The different schemas of the shards."""
        return list(dict.fromkeys(kind.schema for kind in self.kinds))

    def with_meanings(self, meanings: Mapping[str, str]) -> ShardTable:
        """The same shards, with what the values of their columns mean, by name."""
        named = {
            schema: replace(schema, meanings=tuple(meanings.get(name, '') for name in schema.names))
            for schema in self.schemas
        }
        return replace(self, kinds=tuple(replace(kind, schema=named[kind.schema]) for kind in self.kinds))

    def part(self, shards: range) -> ShardTable:
        """Consecutive shards, as a table."""
        first, last = shards.start, shards.stop
        files, digests = (starts[[first, last]].tolist() for starts in (self.first_files, self.first_digests))
        kinds, kind_of = np.unique(self.kind_of[first:last], return_inverse=True)
        return replace(
            self,
            kinds=tuple(self.kinds[kind] for kind in kinds),
            kind_of=kind_of.astype(np.uint32),
            samples=self.samples[first:last],
            sizes=self.sizes[files[0] : files[1]],
            name_starts=self.name_starts[files[0] : files[1] + 1],
            digest_starts=self.digest_starts[digests[0] : digests[1] + 1],
            erased={shard - first: erasure for shard, erasure in self.erased.items() if shard in shards},
        )

    @property
    def num_erased(self) -> int:
        """Erased samples of all shards."""
        return sum(len(erasure.rows) for erasure in self.erased.values())

    def raw_bytes(self) -> IntArray:
        """Bytes of each shard's files without compression, int64[shards]."""
        return self._bytes(raw=True)

    def stored_bytes(self) -> IntArray:
        """Bytes of each shard's files in the store, int64[shards]."""
        return self._bytes(raw=False)

    def _bytes(self, *, raw: bool) -> IntArray:
        total = np.zeros(len(self), np.int64)
        for number, kind in enumerate(self.kinds):
            of_kind = np.flatnonzero(self.kind_of == number)
            file = self.first_files[of_kind]
            for _, packed in kind.files:
                last = file if packed is None else file + 1
                total[of_kind] += self.sizes[file if raw else last]
                file = last + 1
        return total

    def find(self, name: str) -> int | None:
        """The number of the shard with a file of this name, raw or compressed; None if there is none."""
        if not self._finder:
            self._finder.append(NameFinder(self.names, self.name_starts))
        file = self._finder[0].find(name)
        return None if file is None else int(self.first_files.searchsorted(file, 'right')) - 1

    def __len__(self) -> int:
        return len(self.samples)

    def _shard(self, shard: int) -> ShardInfo:
        kind = self.kinds[self.kind_of[shard]]
        file, digest = int(self.first_files[shard]), int(self.first_digests[shard])
        stored: list[FileInfo] = []
        for algorithms in kind.algorithms:
            hashes = NO_HASHES
            if algorithms:
                hashes = {name: self._digest(digest + i) for i, name in enumerate(algorithms)}
                digest += len(algorithms)
            stored.append(FileInfo(self._name(file), int(self.sizes[file]), hashes))
            file += 1
        rest = iter(stored)
        files = tuple(ShardFile(next(rest), None if packed is None else next(rest)) for _, packed in kind.files)
        return ShardInfo(
            kind.schema.format,
            int(self.samples[shard]),
            files,
            kind.compression,
            kind.hashes,
            kind.size_limit,
            kind.schema,
            kind.made_from,
            self.erased.get(shard, Erasure()),
        )

    def keys(self) -> Iterator[str]:
        """The name of each shard's first file, uncompressed."""
        return map(self._name, self.first_files[:-1].tolist())

    def _name(self, file: int) -> str:
        return self.names[self.name_starts[file] : self.name_starts[file + 1] - 1].tobytes().decode()

    def _digest(self, digest: int) -> str:
        begin, end = self.digest_starts[digest], self.digest_starts[digest + 1]
        return self.digests[begin:end].tobytes().decode('utf-8', 'surrogatepass')


class JoinedShards(ShardSequence):
    """The shards of several tables, one table after the other."""

    def __init__(self, tables: Sequence[ShardTable]) -> None:
        self._tables = list(tables)
        self._ends = np.cumsum([len(table) for table in tables])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __iter__(self) -> Iterator[ShardInfo]:
        return (info for table in self._tables for info in table)

    def _shard(self, shard: int) -> ShardInfo:
        table = int(self._ends.searchsorted(shard, 'right'))
        return self._tables[table][shard - int(self._ends[table])]  # counted from the table's end


class TableBuilder:
    def __init__(self) -> None:
        self._kinds: dict[Kind, int] = {}
        self._kind_of: list[int] = []
        self._samples: list[int] = []
        self._sizes: list[int] = []
        self._names: list[str] = []
        self._digests: list[str] = []
        self._chunks: list[_Chunk] = []

    def add(self, info: ShardInfo) -> None:
        self.add_rows(Kind.of(info), [Kind.row(info)])

    def add_rows(self, kind: Kind, rows: Sequence[Row]) -> None:
        columns = list(zip(*rows, strict=True))
        sizes_at, digests_at = 1 + len(kind.algorithms), 1 + 2 * len(kind.algorithms)
        self._kind_of += [self._kinds.setdefault(kind, len(self._kinds))] * len(rows)
        self._samples += map(int, columns[0])
        self._names += _by_row(columns[1:sizes_at])
        self._sizes += map(int, _by_row(columns[sizes_at:digests_at]))
        self._digests += _by_row(columns[digests_at:])
        if len(self._samples) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._chunks.append(_Chunk(self._kind_of, self._samples, self._sizes, self._names, self._digests))
        for column in (self._kind_of, self._samples, self._sizes, self._names, self._digests):
            column.clear()

    def finish(self) -> ShardTable:
        self._flush()
        chunks = self._chunks
        return ShardTable(
            kinds=tuple(self._kinds),
            kind_of=_joined([chunk.kind_of for chunk in chunks]),
            samples=_joined([chunk.samples for chunk in chunks]),
            sizes=_joined([chunk.sizes for chunk in chunks]),
            name_starts=_starts([np.ones(1, np.int64), *(chunk.name_lengths + 1 for chunk in chunks)]),
            names=_blob([b'/', *(chunk.names for chunk in chunks)]),
            digest_starts=_starts([np.zeros(1, np.int64), *(chunk.digest_lengths for chunk in chunks)]),
            digests=_blob([chunk.digests for chunk in chunks]),
        )


class _Chunk:
    def __init__(
        self, kind_of: list[int], samples: list[int], sizes: list[int], names: list[str], digests: list[str]
    ) -> None:
        self.kind_of = np.array(kind_of, np.uint32)
        self.samples = np.array(samples, np.int64)
        self.sizes = np.array(sizes, np.int64)
        self.names = ''.join([f'{name}/' for name in names]).encode()
        self.name_lengths = _lengths(names, is_ascii=self.names.isascii())
        # JSON allows lone surrogates, and no rule forbids them in a digest.
        self.digests = ''.join(digests).encode('utf-8', 'surrogatepass')
        self.digest_lengths = _lengths(digests, is_ascii=self.digests.isascii())


def _by_row(columns: Sequence[tuple[Any, ...]]) -> Iterable[Any]:
    return columns[0] if len(columns) == 1 else chain.from_iterable(zip(*columns, strict=True))


def _lengths(texts: list[str], *, is_ascii: bool) -> IntArray:
    """int64[texts], their lengths in bytes."""
    if is_ascii:
        return np.fromiter(map(len, texts), np.int64, len(texts))
    return np.fromiter((len(text.encode('utf-8', 'surrogatepass')) for text in texts), np.int64, len(texts))


def _joined(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return _frozen(np.concatenate(columns))


def _starts(lengths: list[IntArray]) -> IntArray:
    return _frozen(np.cumsum(np.concatenate(lengths)))


def _blob(pieces: list[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b''.join(pieces), np.uint8)


def _frozen(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    column.setflags(write=False)
    return column
