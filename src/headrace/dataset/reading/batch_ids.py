"""The sample ids of a pass, batch by batch, for its reader and its prefetch."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from headrace.order import BatchPlan

__all__ = ['BatchIds']

_CHUNK = 64  # batches whose ids are worked out together
_FEWEST_CHUNKS = 4


class BatchIds:
    """Ids of one rank's batches."""

    def __init__(self, plan: BatchPlan, ahead: int) -> None:
        """Take a plan, and the number of batches to look ahead."""
        self.plan = plan
        """Of the pass."""
        self._rows = plan.batch_size
        self._most_chunks = _FEWEST_CHUNKS + ahead // _CHUNK
        self._chunks: OrderedDict[int, npt.NDArray[np.int64]] = OrderedDict()

    def of(self, number: int) -> npt.NDArray[np.int64]:
        """Ids of a batch; int64[rows], the epoch's last one may be shorter."""
        chunk, place = divmod(number, _CHUNK)
        ids = self._chunks.get(chunk)
        if ids is None:
            batches = range(chunk * _CHUNK, self.plan.num_batches)[:_CHUNK]
            ids = self.plan.order.at(self.plan.positions_of(batches))
            self._chunks[chunk] = ids
            # The reader takes the look-ahead's chunks from here later; older ones have no use.
            while len(self._chunks) > self._most_chunks:
                self._chunks.popitem(last=False)
        return ids[place * self._rows : (place + 1) * self._rows]
