"""Batches of one rank by their keys, in the main process or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from headrace.dataset.bad_sample import BAD_SAMPLE_MARK
from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.look_ahead import look_ahead
from headrace.dataset.padding import marked
from headrace.dataset.pass_ids import PassIds
from headrace.dataset.randomness import drawing_for, drawing_for_batch
from headrace.dataset.sample_errors import collated, read_each
from headrace.dataset.statistics import Delivery
from headrace.dataset.stream_mark import with_streams
from headrace.dataset.tolerant_reader import BadRows
from headrace.dataset.upcoming import Upcoming, upcoming_batches
from headrace.order import BatchPlan, Remainder, Topology
from headrace.storage import CacheCounters

__all__ = ['BatchKey', 'BatchReader', 'Collate', 'Feed']

Collate = Callable[[list[Any]], Any]
Feed = Callable[[Iterator[Any]], Iterator[Delivery]]
"""What has a reader's items read by their keys, in workers or here, and returns them in the keys' order."""


class BatchKey(NamedTuple):
    """A batch, by what does not depend on who reads it."""

    epoch: int
    start: int
    number: int
    goes_on: bool = False
    """Whether who reads it reads the next epoch, too."""


class BatchReader(Dataset[Any]):
    """Reads batches of one rank by their keys: in the main process, or in workers, which get a copy.

    A key says all that changes from batch to batch, so a worker holds no position and needs no word from the main
    process at a new epoch or after a resume. What it gives says beside the batch what its rows are.
    """

    packs_here = False
    """Whether the process that iterates makes batches of what was read."""

    def __init__(
        self,
        dataset: StreamingDataset,
        topology: Topology,
        global_batch_size: int,
        remainder: Remainder,
        collate_fn: Collate | None,
        *,
        mark_streams: bool = False,
    ) -> None:
        self._dataset = dataset
        self._topology = topology
        self._global_batch_size = global_batch_size
        self._remainder: Remainder = remainder
        self._collate_fn = collate_fn
        self._mark_streams = mark_streams
        self._number_type = np.min_scalar_type(len(dataset.streams) - 1)  # of streams, on their way between processes
        self._is_columnar = collate_fn is None and dataset.is_columnar
        self._tolerant = dataset.tolerant_reader
        self._pass: tuple[int, int] | None = None
        self._last = -1  # batch that was read; one before it is of another pass, be it of the same epoch
        self._rows = global_batch_size // topology.replicas
        self._ids: PassIds | None = None
        self._next_ids: tuple[int, PassIds] | None = None  # of the next epoch, which the look-ahead has reached

    def plan(self, epoch: int, start: int) -> BatchPlan:
        """The plan of a pass."""
        return self._dataset.plan(
            epoch=epoch,
            start=start,
            global_batch_size=self._global_batch_size,
            remainder=self._remainder,
            topology=self._topology,
        )

    def deliveries(
        self, plan: BatchPlan, epoch: int, start: int, feed: Feed, *, goes_on: bool = False
    ) -> Iterator[Delivery]:
        """The batches of a pass, in the process that iterates."""
        return feed(BatchKey(epoch, start, number, goes_on) for number in range(plan.num_batches))

    def __getitem__(self, key: BatchKey) -> Delivery:
        if self._pass != key[:2] or key.number <= self._last:
            self._begin(key)
        self._last = key.number
        self._dataset.pool.advance(key.number)
        assert self._ids is not None
        ids = self._ids.of(key.number)
        batch, bad_rows = self._read(key.epoch, ids)
        if self._remainder == 'exact':
            batch = marked(batch, rows=len(ids), own_samples=self._ids.plan.own_samples(key.number))
        streams = None
        if len(self._dataset.streams) > 1:
            streams = self._dataset.mixture.streams_of(ids).astype(self._number_type)
        if self._mark_streams:
            batch = with_streams(batch, streams, len(ids))
        if self._tolerant is not None:
            mark = torch.zeros(len(ids), dtype=torch.bool) if bad_rows is None else torch.from_numpy(bad_rows)
            batch = BAD_SAMPLE_MARK.put(batch, mark)
        return Delivery(batch, len(ids), streams, bad_rows=bad_rows)

    @property
    def sent_to_workers(self) -> dict[str, Any]:
        """The objects of users that workers get, by their names."""
        return {'collate_fn': self._collate_fn, 'dataset': self._dataset}

    @property
    def counters(self) -> CacheCounters:
        """What this process has read of each stream."""
        return self._dataset.cache_counters

    def _read(self, epoch: int, ids: npt.NDArray[np.int64]) -> tuple[Any, BadRows | None]:
        if not self._is_columnar:
            return self._collated(epoch, ids.tolist())
        if self._tolerant is not None:
            return self._tolerant.batch(ids)
        return self._dataset.pool.batch(ids), None

    def _collated(self, epoch: int, ids: list[int]) -> tuple[Any, BadRows | None]:
        read, bad_rows, describe = partial(self._sample, epoch), None, self._dataset.pool.describe
        with drawing_for_batch(self._dataset.shuffle_seed, epoch, ids):
            if self._tolerant is not None:
                samples, bad_rows = self._tolerant.samples(ids, read)
            else:
                samples = list(read_each(ids, read, describe))
            return collated(samples, ids, describe, self._collate_fn), bad_rows

    def _sample(self, epoch: int, sample_id: int) -> Any:
        with drawing_for(self._dataset.shuffle_seed, epoch, sample_id):
            return self._dataset[sample_id]

    def _begin(self, key: BatchKey) -> None:
        worker = torch.utils.data.get_worker_info()
        workers = worker.num_workers if worker is not None else 1
        ahead = look_ahead(self._dataset.predownload, self._rows, workers)
        self._pass = epoch, start = key[:2]
        begun, self._next_ids = self._next_ids, None
        if begun is not None and self._pass == (begun[0], 0):
            self._ids = begun[1]
        else:
            self._ids = PassIds(self.plan(epoch, start), self._rows, ahead.batches)
        if self._tolerant is not None:
            self._tolerant.begin_pass()
        # The other workers' batches, too, from the one on that is handed out first.
        first = key.number - key.number % workers
        self._dataset.pool.follow(
            self._upcoming(self._ids, first, ahead.batches, epoch + 1 if key.goes_on else None),
            first=first,
            ahead=ahead,
            progress=self._dataset.progress,
        )

    def _upcoming(self, ids: PassIds, first: int, ahead: int, next_epoch: int | None) -> Upcoming:
        """Batches of a pass, and those of the next epoch, with numbers that go on."""
        yield from upcoming_batches(self._dataset, ids.plan, self._topology, ids.of, first=first)
        if next_epoch is not None:
            after = PassIds(self.plan(next_epoch, 0), self._rows, ahead)
            self._next_ids = next_epoch, after
            for batch in upcoming_batches(self._dataset, after.plan, self._topology, after.of, first=0):
                yield batch._replace(number=ids.plan.num_batches + batch.number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_pass': None, '_last': -1, '_ids': None, '_next_ids': None}
