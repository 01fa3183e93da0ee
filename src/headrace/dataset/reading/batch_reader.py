"""Batches of one rank by their keys, in the main process or in a worker."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.batch_keys.bad_sample import BAD_SAMPLE_KEY
from headrace.dataset.batch_keys.padding import marked
from headrace.dataset.batch_keys.stream_number import with_streams
from headrace.dataset.prefetch.distance import look_ahead
from headrace.dataset.prefetch.upcoming_batch import Upcoming, upcoming_batches
from headrace.dataset.reading.batch_ids import BatchIds
from headrace.dataset.reading.protocol import Collate, Pass, Reader, SampleSource
from headrace.dataset.reading.sample_errors import collated, read_each
from headrace.dataset.reading.skipping_reader import BadRows
from headrace.dataset.sample_rng import drawing_for_batch
from headrace.dataset.statistics import WorkerBatch
from headrace.order import BatchPlan, BatchSpec

__all__ = ['BatchKey', 'BatchReader']


class BatchKey(NamedTuple):
    """The key of a batch, the same for any process that reads it."""

    epoch: int
    start: int
    number: int
    continues: bool = False
    """Whether the same process reads the next epoch, too."""


class BatchReader(Reader[BatchKey]):
    """Reads batches of one rank by their keys.

    A key has all that changes from batch to batch. So a worker holds no position, and needs no message from the main
    process at a new epoch or after a resume. Each batch comes with the streams of its rows, and its bad rows.
    """

    def __init__(
        self, source: SampleSource, batches: BatchSpec, collate_fn: Collate | None, *, mark_streams: bool = False
    ) -> None:
        super().__init__(source, batches, collate_fn)
        self._mark_streams = mark_streams
        self._num_streams = len(source.run.mixture.streams)
        self._number_type = np.min_scalar_type(self._num_streams - 1)  # of stream numbers sent between processes
        self._pass: tuple[int, int] | None = None
        self._last = -1  # last batch; a lower number means another pass, perhaps of the same epoch
        self._ids: BatchIds | None = None
        self._next_ids: tuple[int, BatchIds] | None = None  # of the next epoch, once the look-ahead reaches it

    def begin(self, plan: BatchPlan, *, continues: bool = False) -> Pass:
        """Begin a pass, in the process that iterates; arguments as `Reader.begin`'s."""
        epoch, start = plan.order.epoch, plan.start
        return Pass(BatchKey(epoch, start, number, continues) for number in range(plan.num_batches))

    def __getitem__(self, key: BatchKey) -> WorkerBatch:
        if self._pass != key[:2] or key.number <= self._last:
            self._begin(key)
        self._last = key.number
        self._source.pool.advance(key.number)
        assert self._ids is not None
        ids = self._ids.of(key.number)
        batch, bad_rows = self._read(key.epoch, ids)
        if self._batches.remainder == 'exact':
            batch = marked(batch, rows=len(ids), own_samples=self._ids.plan.own_samples(key.number))
        streams = None
        if self._num_streams > 1:
            streams = self._source.run.mixture.streams_of(ids).astype(self._number_type)
        if self._mark_streams:
            batch = with_streams(batch, streams, len(ids))
        if self._skipping_reader is not None:
            mark = torch.zeros(len(ids), dtype=torch.bool) if bad_rows is None else torch.from_numpy(bad_rows)
            batch = BAD_SAMPLE_KEY.put(batch, mark)
        return WorkerBatch(batch, len(ids), streams, bad_rows=bad_rows)

    def _read(self, epoch: int, ids: npt.NDArray[np.int64]) -> tuple[Any, BadRows | None]:
        if not self._is_columnar:
            return self._collated(epoch, ids.tolist())
        if self._skipping_reader is not None:
            return self._skipping_reader.batch(ids)
        return self._source.pool.batch(ids), None

    def _collated(self, epoch: int, ids: list[int]) -> tuple[Any, BadRows | None]:
        read, bad_rows, describe = partial(self._sample, epoch), None, self._source.pool.describe
        with drawing_for_batch(self._source.shuffle_seed, epoch, ids):
            if self._skipping_reader is not None:
                samples, bad_rows = self._skipping_reader.samples(ids, read)
            else:
                samples = list(read_each(ids, read, describe))
            return collated(samples, ids, describe, self._collate_fn), bad_rows

    def _begin(self, key: BatchKey) -> None:
        worker = torch.utils.data.get_worker_info()
        workers = worker.num_workers if worker is not None else 1
        self._pass = epoch, start = key[:2]
        begun, self._next_ids = self._next_ids, None
        is_begun = begun is not None and self._pass == (begun[0], 0)
        plan = begun[1].plan if begun is not None and is_begun else self._source.run.plan(epoch, start, self._batches)
        ahead = look_ahead(self._source.predownload, plan.batch_size, workers)
        self._ids = begun[1] if begun is not None and is_begun else BatchIds(plan, ahead.batches)
        if self._skipping_reader is not None:
            self._skipping_reader.begin_pass()
        # The other workers' batches count, too.
        first = key.number - key.number % workers
        self._source.pool.follow(
            self._upcoming(self._ids, first, ahead.batches, epoch + 1 if key.continues else None),
            first=first,
            ahead=ahead,
            progress=self._source.progress,
        )

    def _upcoming(self, ids: BatchIds, first: int, ahead: int, next_epoch: int | None) -> Upcoming:
        """Batches of a pass, then those of the next epoch with continued numbers."""
        yield from upcoming_batches(self._source, ids.plan, ids.of, first=first)
        if next_epoch is not None:
            after = BatchIds(self._source.run.plan(next_epoch, 0, self._batches), ahead)
            self._next_ids = next_epoch, after
            for batch in upcoming_batches(self._source, after.plan, after.of, first=0):
                yield batch._replace(number=ids.plan.num_batches + batch.number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_pass': None, '_last': -1, '_ids': None, '_next_ids': None}
