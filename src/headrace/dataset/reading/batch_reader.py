"""Batches of one rank by their keys, in the main process or in a worker."""

from __future__ import annotations

from collections import OrderedDict
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
from headrace.dataset.reading.protocol import Collate, Pass, Reader, SampleSource
from headrace.dataset.reading.sample_errors import collated, read_each
from headrace.dataset.reading.shard_pool import ShardPool
from headrace.dataset.reading.skipping_reader import BadRows
from headrace.dataset.sample_rng import drawing_for_batch
from headrace.dataset.statistics import WorkerBatch
from headrace.order import BatchPlan

__all__ = ['BatchKey', 'BatchReader']

_CHUNK = 4096  # samples whose ids are worked out together, about
_FEWEST_BATCHES, _MOST_BATCHES = 16, 256  # in a chunk
_LEAST_HELD = 256  # batches whose ids are kept beside those of the look-ahead


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

    Args:
        source, plan, collate_fn: as `Reader`'s.
        mark_streams: whether batches hold the streams of their rows.
    """

    def __init__(
        self, source: SampleSource, plan: BatchPlan, collate_fn: Collate | None, *, mark_streams: bool = False
    ) -> None:
        super().__init__(source, plan, collate_fn)
        self._mark_streams = mark_streams
        self._is_plain = self._is_columnar and self._skipping_reader is None
        self._num_streams = len(source.run.mixture.streams)
        self._number_type = np.min_scalar_type(self._num_streams - 1)  # of stream numbers sent between processes
        self._pass: tuple[int, int] | None = None
        self._last = -1  # last batch; a lower number means another pass, perhaps of the same epoch
        self._ids: _BatchIds | None = None
        self._next_ids: _BatchIds | None = None  # of the next epoch, once the look-ahead reaches it

    def begin(self, plan: BatchPlan, *, continues: bool) -> Pass:
        """Begin a pass, in the process that iterates.

        Args:
            plan: its batches.
            continues: whether the processes that read it read the next epoch, too.
        """
        epoch, start = plan.order.epoch, plan.start
        return Pass(plan, self, (BatchKey(epoch, start, number, continues) for number in range(plan.num_batches)))

    def __getitem__(self, key: BatchKey) -> WorkerBatch:
        if self._pass != key[:2] or key.number <= self._last:
            self._begin(key)
        number = self._last = key.number
        pool = self._source.pool
        pool.shards.advance(number)
        assert self._ids is not None
        chunk, at = self._ids.place(number)
        ids, bad_rows, batch = chunk.ids[at], None, None
        if self._is_plain and pool.joined is not None:
            shards = chunk.shards or chunk.located(self._source)
            batch = pool.joined.batch(shards[at], chunk.rows[at])
        if batch is None:
            batch, bad_rows = self._read(pool, key.epoch, ids)
        if self._batches.remainder == 'exact':
            batch = marked(batch, rows=len(ids), own_samples=self._ids.plan.own_samples(number))
        streams = None
        if self._num_streams > 1:
            streams = self._source.run.mixture.streams_of(ids).astype(self._number_type)
        if self._mark_streams:
            batch = with_streams(batch, streams, len(ids))
        if self._skipping_reader is not None:
            mark = torch.zeros(len(ids), dtype=torch.bool) if bad_rows is None else torch.from_numpy(bad_rows)
            batch = BAD_SAMPLE_KEY.put(batch, mark)
        return WorkerBatch(batch, len(ids), streams, bad_rows=bad_rows)

    def _read(self, pool: ShardPool, epoch: int, ids: npt.NDArray[np.int64]) -> tuple[Any, BadRows | None]:
        if not self._is_columnar:
            return self._collated(epoch, ids.tolist())
        if not pool.has_images:
            return self._columns(pool, ids)
        with drawing_for_batch(self._source.shuffle_seed, epoch, ids.tolist()):
            return self._columns(pool, ids)

    def _columns(self, pool: ShardPool, ids: npt.NDArray[np.int64]) -> tuple[Any, BadRows | None]:
        if self._skipping_reader is not None:
            return self._skipping_reader.batch(ids)
        return pool.batch(ids), None

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
        ahead = look_ahead(self._source.predownload, self._batches.batch_size, workers)
        self._ids, self._next_ids = self._next_ids, None
        if self._ids is None or (self._ids.plan.order.epoch, self._ids.plan.start) != self._pass:
            self._ids = _BatchIds(self._source.run.plan(epoch, start, self._batches), ahead.batches)
        if self._skipping_reader is not None:
            self._skipping_reader.begin_pass()
        # The other workers' batches count, too.
        first = key.number - key.number % workers
        self._source.pool.shards.follow(
            self._upcoming(self._ids, first, ahead.batches, epoch + 1 if key.continues else None),
            first=first,
            ahead=ahead,
            progress=self._source.progress,
        )

    def _upcoming(self, ids: _BatchIds, first: int, ahead: int, next_epoch: int | None) -> Upcoming:
        """Batches of a pass, then those of the next epoch with continued numbers."""
        yield from upcoming_batches(self._source, ids.plan, ids.of, first=first)
        if next_epoch is not None:
            after = self._next_ids = _BatchIds(self._source.run.plan(next_epoch, 0, self._batches), ahead)
            for batch in upcoming_batches(self._source, after.plan, after.of, first=0):
                yield batch._replace(number=ids.plan.num_batches + batch.number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_pass': None, '_last': -1, '_ids': None, '_next_ids': None}


class _Chunk:
    """The samples of consecutive batches."""

    __slots__ = ('ids', 'rows', 'shards')

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self.ids = self.rows = ids
        self.shards: list[int] | None = None
        """The shard of each, once the first of these batches is read; `rows` are then the rows there."""

    def located(self, source: SampleSource) -> list[int]:
        """Work out `shards` and `rows`, and return the shards."""
        of_rows, self.rows = source.locate(self.ids)
        shards: list[int] = of_rows.tolist()
        self.shards = shards
        return shards


class _BatchIds:
    """The sample ids of one rank's batches, for its reader and its prefetch. Those of many are worked out together."""

    def __init__(self, plan: BatchPlan, ahead: int) -> None:
        """Take a plan, and the number of batches to look ahead."""
        self.plan = plan
        self._rows = plan.batch_size
        self._batches = min(max(_CHUNK // self._rows, _FEWEST_BATCHES), _MOST_BATCHES)
        # The reader takes the look-ahead's chunks from here later; older ones have no use.
        self._most_chunks = 2 + (_LEAST_HELD + ahead) // self._batches
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()

    def of(self, number: int) -> npt.NDArray[np.int64]:
        """Ids of a batch; int64[rows], the epoch's last one may be shorter."""
        chunk, at = self.place(number)
        return chunk.ids[at]

    def place(self, number: int) -> tuple[_Chunk, slice]:
        """The chunk that has a batch, and the batch's samples in it."""
        place, batch = divmod(number, self._batches)
        chunk = self._chunks.get(place)
        if chunk is None:
            batches = range(place * self._batches, self.plan.num_batches)[: self._batches]
            chunk = self._chunks[place] = _Chunk(self.plan.order.at(self.plan.positions_of(batches)))
            while len(self._chunks) > self._most_chunks:
                self._chunks.popitem(last=False)
        return chunk, slice(batch * self._rows, (batch + 1) * self._rows)
