"""A reader in a worker, with what the worker has read of each stream."""

from __future__ import annotations

import gc
import os
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from headrace.dataset.reading.protocol import Reader
from headrace.dataset.statistics import ReadCounts, WorkerBatch
from headrace.storage import CountTable

__all__ = ['CountedKey', 'CountingReader']


class CountedKey(NamedTuple):
    """What a reader is asked for, and in which pass of its loader."""

    number: int
    """Of the pass; each has another."""
    key: Any


class CountingReader(Dataset[Any]):
    """Adds to each batch what this process has read, of the streams for which that is news.

    Most batches bring no news: a shard is opened once for many. What is sent is what was read since the process began,
    and not what is new: batches that nobody takes, as those of a pass that was left, may then be lost. So the first
    one of a pass repeats all that such batches may have said.
    """

    def __init__(self, reader: Reader[Any]) -> None:
        """Take the reader, which is copied into workers."""
        self._reader = reader
        self._process = 0
        self._before: CountTable | None = None  # a fork goes on with its parent's counters
        self._pass = -1
        self._said: set[int] = set()

    def __getitem__(self, asked: CountedKey) -> WorkerBatch:
        counters = self._reader.counters
        if self._before is None:
            # What a fork has from its parent is shared with it until one of them writes, as a collection does to
            # every object that it looks at. It need not look at these: they outlive the worker.
            gc.freeze()
            self._process, self._before = os.getpid(), counters.table()
        received = self._reader[asked.key]
        news = counters.update()
        if self._pass != asked.number:
            self._pass = asked.number
            news = list(self._said.union(news))
        if not news:
            return received
        self._said.update(news)
        read = ReadCounts(self._process, np.array(news), counters.rows(news) - self._before[news])
        return received._replace(read=read)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_before': None, '_pass': -1, '_said': set()}
