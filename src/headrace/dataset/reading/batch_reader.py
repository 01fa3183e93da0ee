"""A pass in batches: the loader's request, the dataset's answer, and the readers of its data by keys.

The plan names the samples of a batch, and a `SampleMap` locates them. `BatchReader` asks both for many batches at once,
in the main process or in a worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, default_collate

from headrace.dataset.batch_keys import BAD_SAMPLE_KEY, LOSS_WEIGHT_KEY, marked, with_streams
from headrace.dataset.prefetch.horizon import Upcoming, upcoming_batches
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.dataset.progress import Progress
from headrace.dataset.reading.padded import collated_padded, padded, places_of
from headrace.dataset.reading.sample_errors import Describe, collated, misfit, read_each
from headrace.dataset.reading.sample_pool import SamplePool
from headrace.dataset.reading.skipping_reader import BadRows, SkippingReader
from headrace.dataset.sample_rng import drawing_for, drawing_for_batch
from headrace.dataset.statistics import WorkerBatch
from headrace.errors import CollateError
from headrace.format import ColumnBatch
from headrace.order import BatchPlan, BatchSpec, Decision, Places, Run
from headrace.storage import CacheCounters
from headrace.storage.cache.peers import Peers
from headrace.tensors.audio import Clips
from headrace.tensors.padding import Pad

Collate = Callable[[list[Any]], Any]
Weigh = Callable[[BatchPlan, int, npt.NDArray[np.int64]], npt.NDArray[np.float32]]
Key = TypeVar('Key')


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """The parts of a dataset that readers get. They go to workers."""

    pool: SamplePool  # The samples by id, as they are stored.
    samples: SamplePool | Dataset[Any]  # The dataset, if a user's code reads samples; else the pool.
    is_columnar: bool  # Whether no user's code reads samples, so that batches can be read column by column.
    skipping_reader: SkippingReader | None  # Replaces bad samples; None: they raise.
    shuffle_seed: int
    predownload: int | None  # Samples to look ahead; None: the default.
    progress: Progress  # Has the time that the trainer has waited.
    peers: Peers | None  # The nodes that share their caches.


AHEAD = 64  # batches whose existence a pass asks for at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRequest:
    batches: BatchSpec  # How the sequence is cut, with all defaults filled in.
    place: tuple[int, int]  # Epoch and first sample.
    collate_fn: Collate | None  # A user's; None for columns, or `default_collate`.
    mark_streams: bool
    continues: bool  # Whether the processes that read it read the next epoch, too.
    pad: Pad | None = None  # The columns that are padded, without `collate_fn`.


class Pass(NamedTuple):
    """A pass over a dataset, in the process that iterates."""

    plan: BatchPlan  # Its batches, their size and remainder, and the topology.
    reader: Reader[Any]
    keys: Iterator[Any]
    combine: Callable[[Iterator[WorkerBatch]], Iterator[WorkerBatch]] | None = None
    """Makes batches of what was read; None if it is batches already."""


class Reader(Dataset[WorkerBatch], ABC, Generic[Key]):
    """Reads the data of keys, for one rank, in the main process or as a copy in workers.

    A copy that lives on reads the keys of later passes, too.
    """

    def __init__(self, source: SampleSource, collate_fn: Collate | None = None) -> None:
        self._source = source
        self._collate_fn = collate_fn
        self._is_columnar = collate_fn is None and source.is_columnar
        self._skipping_reader = source.skipping_reader

    @abstractmethod
    def __getitem__(self, key: Key) -> WorkerBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read the data of a key, in this process."""

    @abstractmethod
    def change(self, batches: BatchSpec, decisions: tuple[Decision, ...]) -> None:
        """Read for another rank, or with other decisions of the run, from the next key on."""

    @property
    def peers(self) -> Peers | None:
        """The nodes that share their caches, as this process knows them."""
        return self._source.peers

    @property
    def sent_to_workers(self) -> dict[str, Any]:
        """The objects of users that workers get, by their names."""
        return {'collate_fn': self._collate_fn, 'dataset': self._source.samples}

    @property
    def counters(self) -> CacheCounters:
        """Counters of the data that this process has read, for each stream."""
        return self._source.pool.counters

    def _sample(self, epoch: int, sample_id: int) -> Any:
        with drawing_for(self._source.shuffle_seed, epoch, sample_id):
            return self._source.samples[sample_id]


_CHUNK = 4096  # samples that are located together, about
_FEWEST_BATCHES, _MOST_BATCHES = 16, 256  # in a chunk
_LEAST_HELD = 256  # batches whose places are kept beside those of the look-ahead


class BatchKey(NamedTuple):
    """The key of a batch, the same for any process that reads it."""

    epoch: int
    start: int
    number: int
    continues: bool = False  # Whether the same process reads the next epoch, too.


class BatchReader(Reader[BatchKey]):
    """Reads batches of one rank by their keys. It knows plans and stored samples, but no dataset.

    A key has all that changes from batch to batch. So a worker holds no position, and needs no message from the main
    process at a new epoch or after a resume. Each batch comes with the streams of its rows, and its bad rows.

    `plan` is that of the first pass, and `run` gives those of later passes. `weigh` gives the weights of a batch's
    rows, for its number and samples; without it, batches hold no weights. Other arguments are as `PassRequest`'s.
    """

    def __init__(
        self,
        source: SampleSource,
        plan: BatchPlan,
        run: Run,
        collate_fn: Collate | None = None,
        *,
        mark_streams: bool = False,
        pad: Pad | None = None,
        weigh: Weigh | None = None,
    ) -> None:
        super().__init__(source, collate_fn)
        self._weigh = weigh
        self._pad = pad
        self._plan: BatchPlan | None = plan
        self._run = run
        self._batches = plan.spec
        self._mark_streams = mark_streams
        self._is_plain = self._is_columnar and self._skipping_reader is None and pad is None
        self._mixture = plan.order.mixture
        self._num_streams = len(self._mixture.streams)
        self._number_type = np.min_scalar_type(self._num_streams - 1)  # of stream numbers sent between processes
        self._pass: tuple[int, int] | None = None
        self._last = -1  # last batch; a lower number means another pass, perhaps of the same epoch
        self._places: _BatchPlaces | None = None
        self._has_padding = False  # Whether batches of the pass may have any.
        self._next_places: _BatchPlaces | None = None  # of the next epoch, once the look-ahead reaches it

    def __getitem__(self, key: BatchKey) -> WorkerBatch:
        if self._pass != key[:2] or key.number <= self._last:
            self._begin(key)
        number = self._last = key.number
        opened = self._source.pool.opened
        opened.shards.advance(number)
        assert self._places is not None
        chunk, part = self._places.find(number)
        ids, bad_rows, batch = chunk.places.ids[part], None, None
        if self._is_plain and opened.joined is not None:
            shards = chunk.shards or chunk.list_shards()
            batch = opened.joined.batch(shards[part], chunk.places.rows[part])
        if batch is None:
            batch, bad_rows = self._read(key.epoch, chunk.places.cut(part))
        if chunk.erased is not None and (erased := chunk.erased[part]).any():
            bad_rows = erased if bad_rows is None else bad_rows | erased
        padding = None if self._pad is None else places_of(batch, self._pad)
        if self._has_padding:
            batch = marked(batch, rows=len(ids), own_samples=self._places.plan.own_samples(number))
        if self._weigh is not None:
            batch = LOSS_WEIGHT_KEY.put(batch, torch.from_numpy(self._weigh(self._places.plan, number, ids)))
        streams = None
        if self._num_streams > 1:
            streams = self._mixture.streams_of(ids).astype(self._number_type)
        if self._mark_streams:
            batch = with_streams(batch, streams, len(ids))
        if self._skipping_reader is not None:
            mark = np.zeros(len(ids), np.bool_) if bad_rows is None else bad_rows
            batch = BAD_SAMPLE_KEY.put(batch, torch.from_numpy(mark))
        return WorkerBatch(batch, len(ids), streams, bad_rows=bad_rows, padding=padding)

    def change(self, batches: BatchSpec, decisions: tuple[Decision, ...]) -> None:
        vars(self).update(self.__getstate__())  # a copy has nothing of a pass
        self._batches = batches
        self._run = self._run.with_decisions(decisions)

    def _read(self, epoch: int, places: Places) -> tuple[Any, BadRows | None]:
        if self._is_columnar and not self._source.pool.has_tensors:
            return self._columns(places)
        with drawing_for_batch(self._source.shuffle_seed, epoch, places.ids.tolist()):
            if self._is_columnar:
                return self._columns(places)
            return self._collated(partial(self._sample, epoch), places)

    def _columns(self, places: Places) -> tuple[Any, BadRows | None]:
        pool, skipping, bad_rows = self._source.pool, self._skipping_reader, None
        if pool.columns is None:
            return self._collated(pool.sample, places)
        if skipping is None:
            columns = pool.gather(pool.columns, places)
        else:
            columns, bad_rows = skipping.gather(pool.columns, places)
        return collate_columns(columns, places.ids, pool.describe, self._pad), bad_rows

    def _collated(self, read: Callable[[int], Any], places: Places) -> tuple[Any, BadRows | None]:
        ids, bad_rows, describe = places.ids.tolist(), None, self._source.pool.describe
        if self._skipping_reader is not None:
            samples, bad_rows = self._skipping_reader.samples(ids, read)
        else:
            samples = list(read_each(ids, read, describe))
        if self._pad is not None:
            return collated_padded(samples, self._pad, ids, describe), bad_rows
        return collated(samples, ids, describe, self._collate_fn), bad_rows

    def plan_of(self, key: BatchKey) -> BatchPlan:
        """The plan of the pass that has a key: as it was given, or for a later pass by the run."""
        plan = self._plan
        if plan is None or (plan.order.epoch, plan.start) != key[:2]:
            plan = self._plan = self._run.plan(key.epoch, key.start, self._batches)
        return plan

    def _begin(self, key: BatchKey) -> None:
        worker = torch.utils.data.get_worker_info()
        workers = worker.num_workers if worker is not None else 1
        self._pass, source = key[:2], self._source
        limits = prefetch_limits(source.predownload, self._batches.batch_size, workers)
        self._places, self._next_places = self._next_places, None
        if self._places is None or (self._places.plan.order.epoch, self._places.plan.start) != self._pass:
            self._places = _BatchPlaces(self.plan_of(key), source.pool, limits.batches)
        self._plan = self._places.plan  # an earlier one may hold a permutation
        self._has_padding = self._plan.has_padding
        if self._skipping_reader is not None:
            self._skipping_reader.begin_pass()
        # The other workers' batches count, too.
        first = key.number - key.number % workers
        source.pool.shards.follow(
            self._upcoming(self._places, first, limits.batches, key.epoch + 1 if key.continues else None),
            first=first,
            limits=limits,
            progress=source.progress,
        )

    def _upcoming(self, places: _BatchPlaces, first: int, ahead: int, next_epoch: int | None) -> Upcoming:
        """Batches of a pass, then those of the next epoch with continued numbers."""
        pool = self._source.pool
        yield from upcoming_batches(pool, places.plan, places.shards_of, first=first)
        if next_epoch is not None:
            plan = self._run.plan(next_epoch, 0, self._batches)
            after = self._next_places = _BatchPlaces(plan, pool, ahead)
            for batch in upcoming_batches(pool, plan, after.shards_of, first=0):
                yield batch._replace(number=places.plan.num_batches + batch.number)

    def __getstate__(self) -> dict[str, Any]:
        # The plan stays here: its order may hold much, and the run makes an equal one in a millisecond.
        fresh = {'_plan': None, '_pass': None, '_last': -1, '_places': None, '_next_places': None}
        return {**self.__dict__, **fresh}


class _Chunk:
    __slots__ = ('bounds', 'erased', 'places', 'shards')

    def __init__(self, places: Places, erased: BadRows | None, rows: npt.NDArray[np.int64]) -> None:
        self.places, self.erased = places, erased
        self.bounds: list[int] = [0, *np.cumsum(rows).tolist()]
        """The samples of batch i of the chunk are those from bound i on, and below bound i + 1."""
        self.shards: list[int] | None = None  # The shard of each, once `list_shards` was called.

    def list_shards(self) -> list[int]:
        """Make `shards`, which only joined rows need."""
        shards: list[int] = self.places.shards.tolist()
        self.shards = shards
        return shards


class _BatchPlaces:
    """The places of one rank's batches, for its reader and its prefetch. Many batches are located together."""

    def __init__(self, plan: BatchPlan, pool: SamplePool, ahead: int) -> None:
        self.plan = plan
        self._pool = pool
        self._batches = min(max(_CHUNK // plan.batch_size, _FEWEST_BATCHES), _MOST_BATCHES)
        # The reader takes the look-ahead's chunks from here later; older ones have no use.
        self._most_chunks = 2 + (_LEAST_HELD + ahead) // self._batches
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()

    def shards_of(self, number: int) -> npt.NDArray[np.int64]:
        """Shards of a batch's samples; int64[rows], the epoch's last batch may be shorter."""
        chunk, part = self.find(number)
        return chunk.places.shards[part]

    def find(self, number: int) -> tuple[_Chunk, slice]:
        """The chunk that has a batch, and the batch's samples in it."""
        place, batch = divmod(number, self._batches)
        chunk = self._chunks.get(place)
        if chunk is None:
            batches = self.plan.batches(place * self._batches, self._batches)
            places = self._pool.places_in_batch(self.plan.ids_of(batches))
            chunk = self._chunks[place] = _Chunk(*places, self.plan.rows_of(batches))
            while len(self._chunks) > self._most_chunks:
                self._chunks.popitem(last=False)
        return chunk, slice(chunk.bounds[batch], chunk.bounds[batch + 1])


def collate_columns(
    batch: ColumnBatch, ids: npt.NDArray[np.int64], describe: Describe, pad: Pad | None = None
) -> dict[str, Any]:
    """Columns as `default_collate` would have made them: tensors, lists of str or bytes, or nested collections.

    `Clips` become a list. Columns of `pad` become a tensor, with the lengths of the rows beside it. CollateError: the
    values of a column do not stack; it names the first sample that does not go with the others.
    """
    padded_columns = {} if pad is None else {column.name: column for column in pad.columns}
    out: dict[str, Any] = {}
    for name, column in batch.columns.items():
        if name in padded_columns:
            out.update(padded(padded_columns[name], column, ids.tolist(), describe))
        elif isinstance(column, np.ndarray):
            out[name] = torch.from_numpy(column)
        elif isinstance(column, Clips):
            out[name] = list(column)
        elif isinstance(column[0], (str, bytes)):
            out[name] = column
        else:
            try:
                out[name] = default_collate(column)
            except (TypeError, RuntimeError) as error:
                fill = f'`pad={{{name!r}: 0}}` to fill rows up, or ' if isinstance(column[0], np.ndarray) else ''
                raise CollateError(
                    f'Column {name!r} cannot be made into a batch: {error}. The first value that does not fit is of '
                    f'{misfit(column, ids.tolist(), describe)}. Pass {fill}`collate_fn` to the loader, '
                    f'override `get_item` to turn it into tensors of one shape, or leave it out with `columns`.'
                ) from error
    return out
