"""The samples of opened streams by their global ids: their shards, and access to single samples."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.dataset.reading.shard_pool import ShardPool
from headrace.dataset.streams.stream import Stream
from headrace.order import BatchExplanation, BatchPlan, Mixture, SampleMap
from headrace.storage import CacheCounters

__all__ = ['Samples']

_OTHERS = 8  # shards of a stream, and streams, searched for another sample


class Samples:
    """The samples that streams offer, those of stream 0 first. Each process maps its own shards."""

    def __init__(self, streams: Sequence[Stream], mixture: Mixture, *, cache_limit: int | None) -> None:
        """Take opened streams, the mixture of their sizes, and the bytes that their caches may take, if limited."""
        self._streams = streams
        self._cache_limit = cache_limit
        self._first_shards = mixture.shard_offsets[:-1]
        self._map = SampleMap.of(mixture, [stream.kept for stream in streams])
        self._pool: ShardPool | None = None
        self._pool_pid = -1
        self._counters: CacheCounters | None = None

    def __len__(self) -> int:
        return self._map.num_samples

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_pool': None, '_pool_pid': -1, '_counters': None}

    @property
    def pool(self) -> ShardPool:
        """This process' mapped shards. A forked child makes its own: it does not own its parent's locks."""
        if self._pool is None or self._pool_pid != os.getpid():
            self._pool = ShardPool(self._streams, self._map, cache_limit=self._cache_limit)
            self._pool_pid = os.getpid()
            # Otherwise its threads would keep it, and themselves, for ever.
            weakref.finalize(self, _close, self._pool, self._pool_pid).atexit = False
        return self._pool

    @property
    def counters(self) -> CacheCounters:
        """Counters of this process' reads of each stream; a fork starts with its parent's."""
        if self._counters is None:
            self._counters = CacheCounters([stream.cache().stats for stream in self._streams])
        return self._counters

    def locate(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Shards of sample ids, and the samples' places in them. Both int64, of the shape of `ids`."""
        return self._map.locate(ids)

    def place(self, shard: int) -> tuple[str, int, str]:
        """The name of a shard's stream, the shard's number there, and its file's name, unpacked."""
        number = int(self._first_shards.searchsorted(shard, 'right')) - 1
        stream, local = self._streams[number], shard - int(self._first_shards[number])
        return stream.name or '', local, stream.shards[local].files[0].raw.basename

    def others(self, sample_id: int) -> Iterator[int]:
        """A few samples that may replace a bad one, the most similar first.

        They come from its shard, then from the next shards of its stream, then from other streams.
        """
        shard, _ = self._map.locate_one(sample_id)
        neighbours = self._map.ids_of(shard)
        yield from (i for i in neighbours[max(sample_id - neighbours.start - 2, 0) :][:5] if i != sample_id)
        own = int(self._first_shards.searchsorted(shard, 'right')) - 1
        for number in [own, *(stream for stream in range(len(self._streams)) if stream != own)][:_OTHERS]:
            first = int(self._first_shards[number])
            shards = self._map.filled_shards(first, first + len(self._streams[number].shards))
            if number == own:
                after = int(shards.searchsorted(shard, 'right'))
                shards = np.concatenate([shards[after:], shards[:after]])[:-1]
            for other in shards[: _OTHERS if number == own else 1].tolist():
                yield self._map.ids_of(other)[0]

    def stream_of(self, sample_id: int) -> tuple[Stream, int, int]:
        """The stream of a sample, the number of its shard there, and its row in the shard."""
        shard, row = self._map.locate_one(sample_id)
        stream, local = self.pool.shards.cached.place(shard)
        return stream, local, row

    def explain(self, plan: BatchPlan, k: int) -> BatchExplanation:
        """The samples and shards of batch k of a plan, with the names of the shards' files.

        Raises:
            IndexError: there is no such batch.
        """
        explained = plan.explain(k, self._map)
        shards, numbers = np.unique(self._first_shards[explained.streams] + explained.shards, return_inverse=True)
        names = np.array([self.place(shard)[2] for shard in shards.tolist()])
        return replace(explained, files=names[numbers])


def _close(pool: ShardPool, process: int) -> None:
    if os.getpid() == process:  # a fork has none of its parent's threads, nor its locks
        pool.shards.close()
