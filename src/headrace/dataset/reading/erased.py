"""Erased samples, and the samples that batches have in their places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.dataset.streams.open_streams import OpenedStream
from headrace.errors import EmptyDatasetError
from headrace.order import SampleMap

IntArray = npt.NDArray[np.int64]
Rows = npt.NDArray[np.bool_]


class ErasedSamples:
    """The erased samples of streams by their ids, and one that stands in for each.

    That is the next sample of its shard that is not erased, else the one before, else one of a shard near by. So it
    depends on the data alone, and batches are the same on any ranks.
    """

    def __init__(self, streams: Sequence[OpenedStream], sample_map: SampleMap) -> None:
        """Look through the shards that hold some. An EmptyDatasetError if a stream offers no other sample."""
        ids, bounds = [np.zeros(0, np.int64)], [np.zeros((0, 3), np.int64)]
        for stream in streams:
            first = sample_map.ids_of(stream.first_shard).start
            end = sample_map.ids_of(stream.first_shard + len(stream.shards) - 1).stop
            left = end - first
            for shard, erasure in sorted(stream.shards.erased.items()):
                offered = sample_map.ids_of(stream.first_shard + shard)
                stored = sample_map.places(np.arange(offered.start, offered.stop)).rows
                erased = offered.start + np.flatnonzero(np.isin(stored, erasure.rows))
                ids.append(erased)
                bounds.append(np.tile([offered.start, offered.stop, end], (len(erased), 1)))
                left -= len(erased)
            if stream.shards.erased and not left:
                raise EmptyDatasetError(f'All samples that stream {stream.title} offers are erased. Leave it out.')
        self.ids = np.concatenate(ids)
        begin, stop, end = np.concatenate(bounds).T
        edges = np.diff(self.ids, prepend=-2) != 1  # of runs of erased samples
        runs = np.cumsum(edges) - 1
        before = (self.ids[edges] - 1)[runs]
        after = (self.ids[np.append(edges[1:], True)] + 1)[runs] if len(self.ids) else before
        near = np.where(before >= begin, before, np.where(after < end, after, before))
        self._stand_ins = np.where(after < stop, after, near)

    def __len__(self) -> int:
        return len(self.ids)

    def replaced(self, ids: IntArray) -> tuple[IntArray, Rows | None]:
        """The ids with stand-ins, and which rows they are; the same ids, and None, without any."""
        if not len(self.ids):
            return ids, None
        at = np.minimum(self.ids.searchsorted(ids), len(self.ids) - 1)
        erased = self.ids[at] == ids
        if not erased.any():
            return ids, None
        return np.where(erased, self._stand_ins[at], ids), erased
