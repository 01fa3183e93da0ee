"""The samples of opened streams by their ids: single samples, and columns of many.

A batch is located once. The prefetch and the reader share its `Places`.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.batch_keys import is_bad_sample
from headrace.dataset.reading.dataset_shards import CachedShards, DatasetShards
from headrace.dataset.reading.erased import ErasedSamples
from headrace.dataset.streams.columns import gathered_columns
from headrace.dataset.streams.open_streams import OpenedStream
from headrace.errors import ErasedError
from headrace.format import ColumnBatch, Columns, FixedLayout, ShardReader
from headrace.order import BatchExplanation, BatchPlan, Mixture, Places, SampleMap
from headrace.storage import CacheCounters
from headrace.storage.cache.lease_cache import CachedLease

if TYPE_CHECKING:
    from headrace.dataset.reading.tensor_rows import TensorRows

_LARGE_ROW: Final = 512  # Bytes of a sample. Numpy is faster for many smaller ones of a shard.
_ROWS_OF_SHARD: Final = 4
_FEW_ROWS: Final = 6  # Rows of a shard. Numpy is faster for more.
_SAMPLES: Final = 1024  # Samples of one read by ids.
_SHARED_ROW: Final = 1024  # Bytes of an array that shares memory with others.
_LARGE_BATCH: Final = 1 << 22  # Bytes. Numpy's memory is faster above, since it is of huge pages.


class JoinedRows:
    """Gathers a batch from many shards by one join of bytes for each column.

    Numpy copies from one array at a time, so each shard of a batch would cost a call or two.
    """

    def __init__(self, columns: Columns, open_shard: Callable[[int], CachedLease[ShardReader]]) -> None:
        """Take the columns of a batch, all arrays. A shard that is opened stays mapped while anything views it."""
        self._names = tuple(columns.arrays)
        self._open = open_shard
        self._layout: FixedLayout | None = None

    def batch(self, shards: list[int], rows: npt.NDArray[np.int64]) -> dict[str, Any] | None:
        """A batch as `default_collate` gives it; None if the shards need, or numpy has, another way."""
        count, layout, open_shard = len(shards), self._layout, self._open
        distinct = dict.fromkeys(shards)
        if layout is not None and not _is_fast(layout.size, count, len(distinct)):
            return None
        samples: dict[int, memoryview] = {}
        for shard in distinct:
            table = open_shard(shard).value.fixed_rows
            if table is None:
                return None
            if table.layout is not layout:
                if samples:
                    return None
                layout = self._layout = table.layout
            samples[shard] = table.samples
        assert layout is not None
        size = layout.size
        batch: dict[str, Any] = {}
        begins = rows * size
        for name in self._names:
            at, width, dtype, shape = layout.columns[name]
            starts = (begins + at if at else begins).tolist()
            values = bytearray().join(
                [samples[shard][start : start + width] for shard, start in zip(shards, starts, strict=True)]
            )
            array = np.frombuffer(values, dtype)
            batch[name] = torch.from_numpy(array.reshape(count, *shape) if shape else array)
        return batch


def _is_fast(size: int, samples: int, shards: int) -> bool:
    """Whether numpy is slower for this number of samples, of `size` bytes each, from this number of shards."""
    return samples * size <= _LARGE_BATCH and (size >= _LARGE_ROW or samples < shards * _ROWS_OF_SHARD)


IntArray = npt.NDArray[np.int64]

_OTHERS = 8  # shards of a stream, and streams, searched for another sample


class OpenedPool(NamedTuple):
    process: int
    shards: DatasetShards
    """The shards by number: presence, prefetch, next use and leases."""
    tensors: TensorRows | None
    """Makes tensors of images and sound; None without such columns."""
    joined: JoinedRows | None
    """Reads batches of fixed-size values; None if shards are leased while they are read, or hold other values."""


class SamplePool:
    """The samples that streams offer, those of stream 0 first. Each process maps its own shards."""

    def __init__(self, streams: Sequence[OpenedStream], mixture: Mixture, *, cache_limit: int | None) -> None:
        self.streams = streams
        self.cache_limit = cache_limit
        """Bytes that the shards may take on disk; None: any number."""
        self.has_tensors = any(stream.decode is not None for stream in streams)
        """Whether columns are decoded to tensors, whose crops take random numbers."""
        self._first_shards = mixture.shard_offsets[:-1]
        self.map = SampleMap.of(mixture, [stream.row_selection for stream in streams])
        """Finds the shards and rows of samples."""
        self.erased = ErasedSamples(streams, self.map)
        self._opened: OpenedPool | None = None
        self._counters: CacheCounters | None = None

    def __len__(self) -> int:
        return self.map.num_samples

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_opened': None, '_counters': None}

    # -- the process -----------------------------------------------------------------------------------------------

    @property
    def opened(self) -> OpenedPool:
        """The parts of this process. A forked child makes its own: it does not own its parent's locks."""
        opened = self._opened
        if opened is None or opened.process != os.getpid():
            opened = self._opened = self._open()
        return opened

    def _open(self) -> OpenedPool:
        shards, process = DatasetShards(self.streams, cache_limit=self.cache_limit), os.getpid()
        tensors = joined = None
        if self.has_tensors:
            from headrace.dataset.reading.tensor_rows import TensorRows

            tensors = TensorRows(shards.cached, partial(_describe, shards.cached, self.map))  # no cycle with the pool
        columns = self.columns if shards.give_back is None and tensors is None else None
        if columns is not None and all(array is not None for array in columns.arrays.values()):
            joined = JoinedRows(columns, shards.open)
        # Otherwise its threads would keep it, and themselves, for ever.
        weakref.finalize(self, _close, shards, process).atexit = False
        return OpenedPool(process, shards, tensors, joined)

    @property
    def shards(self) -> DatasetShards:
        return self.opened.shards

    @property
    def counters(self) -> CacheCounters:
        """Counters of this process' reads of each stream; a fork starts with its parent's."""
        if self._counters is None:
            self._counters = CacheCounters([stream.cache.stats for stream in self.streams])
        return self._counters

    # -- places ----------------------------------------------------------------------------------------------------

    def locate(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Shards of sample ids, and the samples' rows in them. Both int64, of the shape of `ids`."""
        return self.map.locate(ids)

    def places_in_batch(self, ids: IntArray) -> tuple[Places, npt.NDArray[np.bool_] | None]:
        """Locations of the samples, with stand-ins for erased ones, and bool[n], the replaced rows, or None."""
        ids, erased = self.erased.replaced(ids)
        return self.map.places(ids), erased

    def check_present(self, ids: IntArray) -> None:
        """Raise an ErasedError if a sample is erased."""
        _, erased = self.erased.replaced(ids)
        if erased is not None:
            sample_id = int(ids[erased][0])
            raise ErasedError(
                f'A sample that was erased has no values any more: {self.describe(sample_id)}. Batches of loaders have '
                f'another in its place; leave it out where you ask for samples by id.'
            )

    def place(self, shard: int) -> tuple[str, int, str]:
        """The name of a shard's stream, the shard's number in its index, and its file's name, unpacked."""
        number = int(self._first_shards.searchsorted(shard, 'right')) - 1
        stream, local = self.streams[number], shard - int(self._first_shards[number])
        return stream.name or '', stream.first_offered + local, stream.shards[local].files[0].raw.basename

    def others(self, sample_id: int) -> Iterator[int]:
        """A few samples that may replace a bad one, the most similar first.

        They come from its shard, then from the next shards of its stream, then from other streams.
        """
        shard, _ = self.map.locate_one(sample_id)
        neighbours = self.map.ids_of(shard)
        near = np.array(neighbours[max(sample_id - neighbours.start - 2, 0) :][:5])
        yield from (i for i in dict.fromkeys(self.erased.replaced(near)[0].tolist()) if i != sample_id)
        home = int(self._first_shards.searchsorted(shard, 'right')) - 1
        for number in [home, *(stream for stream in range(len(self.streams)) if stream != home)][:_OTHERS]:
            first = int(self._first_shards[number])
            shards = self.map.filled_shards(first, first + len(self.streams[number].shards))
            if number == home:
                after = int(shards.searchsorted(shard, 'right'))
                shards = np.concatenate([shards[after:], shards[:after]])[:-1]
            for other in shards[: _OTHERS if number == home else 1].tolist():
                yield int(self.erased.replaced(np.array(self.map.ids_of(other)[:1]))[0][0])

    def stream_of(self, sample_id: int) -> tuple[OpenedStream, int, int]:
        """The stream of a sample, the number of its shard there, and its row in the shard."""
        shard, row = self.map.locate_one(sample_id)
        stream, local = self.shards.cached.place(shard)
        return stream, local, row

    def describe(self, sample_id: int) -> str:
        return _describe(self.shards.cached, self.map, sample_id)

    def explain(self, plan: BatchPlan, k: int) -> BatchExplanation:
        explained = plan.explain(k, self.map)
        shards, numbers = np.unique(self._first_shards[explained.streams] + explained.shards, return_inverse=True)
        names = np.array([self.place(shard)[2] for shard in shards.tolist()])
        first = np.array([stream.first_offered for stream in self.streams])[explained.streams]
        is_erased = self.erased.replaced(explained.ids)[1]
        return replace(explained, shards=explained.shards + first, files=names[numbers], is_erased=is_erased)

    # -- reading ---------------------------------------------------------------------------------------------------

    @cached_property
    def _gathered(self) -> tuple[Columns, bool]:
        return gathered_columns(self.streams)

    @property
    def shared(self) -> Columns:
        """The columns that all shards hold and store alike."""
        return self._gathered[0]

    @cached_property
    def columns(self) -> Columns | None:
        """The columns of a batch; None if shards store their columns differently."""
        shared, is_all = self._gathered
        return shared if is_all else None

    def __getitem__(self, sample_id: int) -> dict[str, Any]:
        return self.sample(sample_id)

    def sample(self, sample_id: int) -> dict[str, Any]:
        shard, row = self.map.locate_one(sample_id)
        if len(self.erased):
            self.check_present(np.array([sample_id]))
        _, shards, tensors, _ = self.opened
        held = shards.open(shard)
        try:
            sample = held.value.sample(row)
        finally:
            if shards.give_back is not None:
                shards.give_back(shard, held)
        if tensors is not None:
            tensors.decode_sample(sample, shard, sample_id)
        return sample

    def samples(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Samples as `sample` gives them. Small arrays share memory, a megabyte at most."""
        columns = self.columns
        # Numbers of a batch have other types.
        if columns is None or self.has_tensors or not all(map(_may_share, columns.arrays.values())):
            return [self.sample(sample_id) for sample_id in ids]
        samples: list[dict[str, Any]] = []
        for first in range(0, len(ids), _SAMPLES):
            some = np.array(ids[first : first + _SAMPLES], np.int64)
            self.check_present(some)
            gathered = self.gather(columns, self.map.places(some)).columns
            samples += [dict(zip(gathered, values, strict=True)) for values in zip(*gathered.values(), strict=True)]
        return samples

    def values(self, ids: IntArray, column: str) -> Sequence[Any] | npt.NDArray[Any]:
        """Values of a column for the samples of `ids`, as stored, of any shape."""
        if column not in self.shared.arrays:
            return [self.sample(sample_id)[column] for sample_id in ids.tolist()]
        return self.gather(self.shared, self.map.places(ids), [column]).columns[column]

    def gather(
        self,
        into: Columns,
        places: Places,
        names: Collection[str] | None = None,
        *,
        failed: dict[int, Exception] | None = None,
    ) -> ColumnBatch:
        """Samples in columns. `names`: columns to read; None: all.

        `failed`: takes the errors of bad samples by row; such rows hold arbitrary values. Without it, errors are
            raised.
        """
        ids, shards, rows = places
        columns = into.allocate(len(ids), names)
        # Rows of one shard are read together; the order of shards inside a batch is free.
        by_shard = shards.argsort(kind='stable')
        shards, rows = shards[by_shard], rows[by_shard]
        cuts, numbers = list[int](), shards[:1].tolist()
        if numbers != shards[-1:].tolist():
            cuts = ((shards[1:] != shards[:-1]).nonzero()[0] + 1).tolist()
            numbers = shards[[0, *cuts]].tolist()
        row_list, out_list = rows.tolist(), by_shard.tolist()
        _, opened, tensors, _ = self.opened
        open_shard, give_back = opened.open, opened.give_back
        for shard, begin, end in zip(numbers, [0, *cuts], [*cuts, len(ids)], strict=False):
            try:
                held = open_shard(shard)
                try:
                    if end - begin <= _FEW_ROWS:  # of most shards, after a shuffle
                        held.value.gather_few(row_list, out_list, range(begin, end), columns)
                    else:
                        held.value.gather(rows[begin:end], by_shard[begin:end], columns)
                finally:
                    if give_back is not None:
                        give_back(shard, held)
            except Exception as error:  # noqa: PERF203 - each shard may be bad by itself
                if failed is None or not is_bad_sample(error):
                    raise
                _gather_each(opened, shard, row_list[begin:end], out_list[begin:end], columns, failed)
        if tensors is not None:
            tensors.decode_batch(columns, *places[:2], failed)
        return columns


def _may_share(array: tuple[np.dtype[Any], tuple[int, ...]] | None) -> bool:
    """Whether samples that are read together may have a column of a dtype and shape; None stands for a list."""
    return array is None or (array[1] != () and math.prod(array[1]) * array[0].itemsize <= _SHARED_ROW)


def _gather_each(
    opened: DatasetShards,
    shard: int,
    rows: list[int],
    out_rows: list[int],
    columns: ColumnBatch,
    failed: dict[int, Exception],
) -> None:
    """Gather rows of a shard one by one, to find the bad ones."""
    for row, out_row in zip(rows, out_rows, strict=True):
        try:
            held = opened.open(shard)
            try:
                held.value.gather_few([row], [out_row], range(1), columns)
            finally:
                if opened.give_back is not None:
                    opened.give_back(shard, held)
        except Exception as error:  # noqa: PERF203 - each sample may be bad by itself
            if not is_bad_sample(error):
                raise
            failed[out_row] = error


def _describe(shards: CachedShards, sample_map: SampleMap, sample_id: int) -> str:
    shard, row = sample_map.locate_one(sample_id)
    stream, local = shards.place(shard)
    file = stream.shards[local].files[0].raw.basename
    return f'stream {stream.name!r}, shard {file!r}, row {row}, sample id {sample_id}'


def _close(shards: DatasetShards, process: int) -> None:
    if os.getpid() == process:  # a fork has none of its parent's threads, nor its locks
        shards.close()
