"""Which shard holds a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.order.mixture import IntArray, Mixture

__all__ = ['SampleMap']


class SampleMap:
    """Finds the shard and row of global sample ids.

    Ids and shards are numbered stream after stream, in stored order. Set-up is O(shards); a lookup is a binary
    search, or a division where all shards but the last have the same size.
    """

    __slots__ = ('_bounds', '_equal')

    def __init__(self, shard_sizes: IntArray) -> None:
        """Take the samples of each shard, int64[shards]; shards without samples are allowed."""
        self._bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(shard_sizes, dtype=np.int64)])
        first = int(shard_sizes[0]) if len(shard_sizes) else 0
        equal = first > 0 and bool((shard_sizes[:-1] == first).all()) and 0 < int(shard_sizes[-1]) <= first
        self._equal = first if equal else 0

    @classmethod
    def of(cls, mixture: Mixture) -> SampleMap:
        """The map of all streams of a mixture."""
        return cls(mixture.shard_sizes)

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
            return shards, ids - shards * self._equal
        shards = self._bounds.searchsorted(ids, 'right') - 1
        return shards, ids - self._bounds[shards]

    def locate_one(self, sample_id: int) -> tuple[int, int]:
        """Return the global shard number and the row within that shard of one sample id.

        Raises:
            IndexError: the id is negative or not below the number of samples.
        """
        if not 0 <= sample_id < self.num_samples:
            raise IndexError(f'sample ids must be in [0, {self.num_samples}), got {sample_id}.')
        if self._equal:
            return divmod(sample_id, self._equal)
        shard = int(self._bounds.searchsorted(sample_id, 'right')) - 1
        return shard, sample_id - int(self._bounds[shard])
