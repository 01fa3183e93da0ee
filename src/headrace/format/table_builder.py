"""The builder of a `ShardTable`, from single shards or many at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.format.shards import ShardInfo
from headrace.format.table import Kind, Row, ShardTable

__all__ = ['TableBuilder']

_CHUNK: Final = 1 << 14  # shards held as Python objects before they become arrays


class TableBuilder:
    """Collects shards; checks nothing."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, int] = {}
        self._kind_of: list[int] = []
        self._samples: list[int] = []
        self._sizes: list[int] = []
        self._names: list[str] = []
        self._digests: list[str] = []
        self._chunks: list[_Chunk] = []

    def add(self, info: ShardInfo) -> None:
        """Add one shard."""
        self.add_rows(Kind.of(info), [Kind.row(info)])

    def add_rows(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Add shards of one kind."""
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
        """The table of all added shards."""
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
    """Columns of some shards."""

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


def _lengths(texts: list[str], *, is_ascii: bool) -> npt.NDArray[np.int64]:
    """int64[texts], their lengths in bytes."""
    if is_ascii:
        return np.fromiter(map(len, texts), np.int64, len(texts))
    return np.fromiter((len(text.encode('utf-8', 'surrogatepass')) for text in texts), np.int64, len(texts))


def _joined(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return _frozen(np.concatenate(columns))


def _starts(lengths: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return _frozen(np.cumsum(np.concatenate(lengths)))


def _blob(pieces: list[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b''.join(pieces), np.uint8)


def _frozen(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    column.setflags(write=False)
    return column
