"""The samples of a dataset by their ids: number, places, batches, and access with `[]`."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.dataset.reading.sample_pool import SamplePool
from headrace.order import BatchExplanation, BatchPlan
from headrace.storage import CacheCounters

__all__ = ['SamplesById']


class SamplesById:
    """Samples by id, and `dataset[...]` in terms of `get_item`, which subclasses may override."""

    _sample_pool: SamplePool

    @property
    def num_samples(self) -> int:
        """Samples that all streams offer, in an epoch or not."""
        return len(self.pool)

    @property
    def size(self) -> int:
        """Samples that all streams offer; the number of ids that `dataset[i]` takes."""
        return self.num_samples

    @property
    def pool(self) -> SamplePool:
        """The samples that all streams offer, by id, as they are stored."""
        return self._sample_pool

    @property
    def cache_counters(self) -> CacheCounters:
        """This process' reads of each stream's store and cache, indexes included."""
        return self.pool.counters

    def place(self, shard: int) -> tuple[str, int, str]:
        """The name of a shard's stream, the shard's number there, and its file's name, unpacked."""
        return self.pool.place(shard)

    def locate(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Shards of sample ids, and the samples' places in them. Both int64, of the shape of `ids`."""
        return self.pool.locate(ids)

    def explain(self, plan: BatchPlan, k: int, *, reads_data: bool = True) -> BatchExplanation:  # noqa: ARG002
        """The samples and shards of batch k of a plan, on all ranks; reads no data.

        Args:
            plan: the plan.
            k: the batch's number there.
            reads_data: has an effect with packing only; see `PackedDataset.explain`.

        Raises:
            IndexError: there is no such batch.
        """
        return self.pool.explain(plan, k)

    @abstractmethod
    def get_item(self, sample_id: int) -> Any:
        """One sample, by an id from 0 to `size` - 1."""

    def __getitem__(self, at: int | slice | Sequence[int] | npt.NDArray[np.integer[Any]]) -> Any:
        """One sample by its global id, or a list of samples. Negative ids count from the end. Lists may hold lists.

        Raises:
            IndexError: there is no such sample.
            TypeError: it is none of these.
        """
        if isinstance(at, (int, np.integer)):
            size = self.size
            if not -size <= at < size:
                raise IndexError(f'A sample id must be at least {-size} and below {size}, but is {at}.')
            return self.get_item(int(at) % size)
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self.size))]
        if isinstance(at, (str, bytes)):
            raise TypeError(f'A sample id is an int, a slice, or a list or array of ints, but is {at!r:.60}.')
        return [self[_index(i)] for i in at]


def _index(at: Any) -> Any:
    try:
        return operator.index(at)
    except TypeError:
        return at  # a slice, or more ids
