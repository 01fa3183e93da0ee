"""Which shard holds a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.order.arrays import IntArray
    from headrace.order.mixture.mixture import Mixture
    from headrace.order.row_selection import RowSelection

__all__ = ['Places', 'SampleMap']


class Places(NamedTuple):
    """Samples, and where they lie; int64[n] each."""

    ids: IntArray
    """Global sample ids."""
    shards: IntArray
    """The shard of each."""
    rows: IntArray
    """The row of each in its shard."""

    def cut(self, part: slice) -> Places:
        """Some of them, as views."""
        return Places(self.ids[part], self.shards[part], self.rows[part])


class SampleMap:
    """Finds the shard and row of global sample ids.

    Ids and shards are numbered stream after stream, in stored order. Set-up is O(shards); a lookup is a binary
    search, or a division where all shards but the last have the same size. Where a stream offers only some of its
    rows, ids number the selected ones, and a lookup also asks its `RowSelection` which stored rows they are.
    """

    __slots__ = ('_bounds', '_equal', '_first_shards', '_selections')

    def __init__(self, shard_sizes: IntArray) -> None:
        """Take the samples of each shard, int64[shards]; shards without samples are allowed."""
        self._selections: Sequence[RowSelection | None] = ()
        self._bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(shard_sizes, dtype=np.int64)])
        first = int(shard_sizes[0]) if len(shard_sizes) else 0
        equal = first > 0 and bool((shard_sizes[:-1] == first).all()) and 0 < int(shard_sizes[-1]) <= first
        self._equal = first if equal else 0

    @classmethod
    def of(cls, mixture: Mixture, row_selections: Sequence[RowSelection | None] = ()) -> SampleMap:
        """The map of all streams of a mixture.

        Args:
            mixture: whose shard sizes count selected rows.
            row_selections: of each stream, None for all rows. Default: all rows of every stream.
        """
        made = cls(mixture.shard_sizes)
        if any(one is not None for one in row_selections):
            made._selections, made._first_shards = tuple(row_selections), mixture.shard_offsets[:-1]
        return made

    def places(self, ids: IntArray) -> Places:
        """The ids with their shards and rows; see `locate`."""
        return Places(ids, *self.locate(ids))

    @property
    def num_samples(self) -> int:
        """Number of samples; ids are below it."""
        return int(self._bounds[-1])

    def locate(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Return global shard numbers int64[n] and rows within those shards int64[n] of sample ids int64[n].

        Raises:
            IndexError: an id is negative or not below the number of samples.
        """
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.num_samples):
            raise IndexError(f'sample ids must be in [0, {self.num_samples}), got {ids.min()} to {ids.max()}.')
        if self._equal:
            shards = ids // self._equal
            ranks = ids - shards * self._equal
        else:
            shards = self._bounds.searchsorted(ids, 'right') - 1
            ranks = ids - self._bounds[shards]
        return shards, self._stored(shards, ranks) if self._selections else ranks

    def ids_of(self, shard: int) -> range:
        """The ids of a shard's samples; global shard numbers."""
        return range(int(self._bounds[shard]), int(self._bounds[shard + 1]))

    def filled_shards(self, begin: int, end: int) -> IntArray:
        """Those of the shards [begin, end) that hold samples, int64."""
        return begin + np.flatnonzero(np.diff(self._bounds[begin : end + 1]))

    def _stored(self, shards: IntArray, ranks: IntArray) -> IntArray:
        """Which rows the selected ones with these ranks are, int64[n] all."""
        rows = ranks.copy()
        owners = self._first_shards.searchsorted(shards, 'right') - 1
        for number in np.bincount(owners).nonzero()[0].tolist():
            selection = self._selections[number]
            if selection is not None:
                at = (owners == number).nonzero()[0]
                rows[at] = selection.rows(shards[at] - self._first_shards[number], ranks[at])
        return rows

    def locate_one(self, sample_id: int) -> tuple[int, int]:
        """Return the global shard number and the row within that shard of one sample id.

        Raises:
            IndexError: the id is negative or not below the number of samples.
        """
        if not 0 <= sample_id < self.num_samples:
            raise IndexError(f'sample ids must be in [0, {self.num_samples}), got {sample_id}.')
        if self._selections:
            shards, rows = self.locate(np.array([sample_id]))
            return int(shards[0]), int(rows[0])
        if self._equal:
            return divmod(sample_id, self._equal)
        shard = int(self._bounds.searchsorted(sample_id, 'right')) - 1
        return shard, sample_id - int(self._bounds[shard])
