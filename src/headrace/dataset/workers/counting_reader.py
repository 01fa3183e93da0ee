"""A reader in a worker that counts the reads of each stream, and puts batches into shared memory."""

from __future__ import annotations

import gc
import os
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.dataset.reading.protocol import Reader
from headrace.dataset.statistics import ReadCounts, WorkerBatch
from headrace.dataset.workers.slots import SlotRings, SlotWriter
from headrace.storage import CountTable

__all__ = ['CountingReader', 'PassKey']


class PassKey(NamedTuple):
    """A reader's key, and the pass of its loader."""

    pass_number: int
    """Counted from 1."""
    key: Any


class CountingReader(Dataset[Any]):
    """Adds to each batch the counters that have changed since the last one.

    Most batches change none: a shard is opened once for many. Counters run from the start of the process, so a batch
    that nobody takes, as at the end of an abandoned pass, loses nothing. The first batch of a pass repeats all of them.
    """

    def __init__(self, reader: Reader[Any], *, prefetch_factor: int) -> None:
        """Take the reader, which is copied into workers, and the number of batches that each prefetches."""
        self._reader = reader
        self._prefetch_factor = prefetch_factor
        self.rings: SlotRings | None = None
        """Memory for the batches of the workers that start next."""
        self._writer: SlotWriter | None = None
        self._process = 0
        self._before: CountTable | None = None  # a fork inherits its parent's counters
        self._pass = -1
        self._said: set[int] = set()

    def __getitem__(self, asked: PassKey) -> Any:
        """A batch, in a form that the trainer's process turns into a `WorkerBatch`."""
        received = self._read(asked)
        worker = torch.utils.data.get_worker_info()
        if self.rings is None or worker is None:
            return received
        if self._writer is None:
            self._writer = self.rings.writer(worker.id, prefetched=self._prefetch_factor)
        return self._writer.pack(received)

    def _read(self, asked: PassKey) -> WorkerBatch:
        counters = self._reader.counters
        if self._before is None:
            # A garbage collection writes to every object that it visits, and so copies the memory that a fork shares
            # with its parent. The parent's objects outlive the worker, so it need not visit them.
            gc.freeze()
            self._process, self._before = os.getpid(), counters.table()
        received = self._reader[asked.key]
        news = counters.update()
        if self._pass != asked.pass_number:
            self._pass = asked.pass_number
            news = list(self._said.union(news))
        if not news:
            return received
        self._said.update(news)
        read = ReadCounts(self._process, np.array(news), counters.rows(news) - self._before[news])
        return received._replace(read=read)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_before': None, '_pass': -1, '_said': set(), '_writer': None}
