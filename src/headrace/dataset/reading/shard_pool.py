"""Samples and batches from mapped shards, in one process."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from headrace.dataset.batch_keys.bad_sample import is_bad_sample
from headrace.dataset.prefetch.cache_sizing import fixed_bytes
from headrace.dataset.prefetch.distance import LookAhead
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.dataset.prefetch.upcoming_batch import Upcoming
from headrace.dataset.progress import Progress
from headrace.dataset.reading.dataset_shards import DatasetShards
from headrace.dataset.reading.joined_rows import JoinedRows
from headrace.dataset.reading.sample_errors import Describe, collated, misfit
from headrace.dataset.streams.columns import gathered_columns
from headrace.dataset.streams.stream import Stream
from headrace.errors import CollateError
from headrace.format import ColumnBatch, Columns, ShardReader
from headrace.order import SampleMap
from headrace.storage import FetchResult, Lease
from headrace.storage.cache.lease_cache import CachedLease, LeaseCache, MapCache

if TYPE_CHECKING:
    from headrace.dataset.reading.image_rows import ImageRows

__all__ = ['ShardPool', 'collate_columns']

_AHEAD = 0.75  # share of a cache limit for shards that are needed next; the rest is for running fetches
_SHORTEST_WAIT = 1_000_000  # nanoseconds; to open a present shard takes a twentieth of it


class ShardPool:
    """The shards that one process reads: presence, prefetch, next use and leases.

    Under a cache limit the pool leases one shard at a time while it reads rows, and a little longer if coming batches
    need it. So a process that needs room waits only for readers that wait for nothing, and only briefly.
    """

    def __init__(self, streams: Sequence[Stream], sample_map: SampleMap, *, cache_limit: int | None) -> None:
        self.shards = DatasetShards(streams)
        """The shards in their caches, by number."""
        self._sample_map = sample_map
        limit = math.inf if cache_limit is None else cache_limit
        self._room = partial(_room, streams, limit)
        self._leases: MapCache[ShardReader] | LeaseCache[ShardReader] = (
            MapCache() if cache_limit is None else LeaseCache()
        )
        # Without a limit a shard stays in the cache while it is read.
        self._returns = None if cache_limit is None else self._leases.keep
        self._prefetcher: Prefetcher | None = None
        self._is_trying_once = False
        self._images: ImageRows | None = None
        if any(stream.decode is not None for stream in streams):
            from headrace.dataset.reading.image_rows import ImageRows

            self._images = ImageRows(self.shards, sample_map, self.describe)
        self.has_images = self._images is not None
        """Whether images are read as tensors, whose crops take random numbers."""
        self.shared, is_all = gathered_columns(streams)
        """The columns that all shards hold and store alike."""
        self.columns = self.shared if is_all else None
        """The columns of a batch; None if shards store their columns differently."""
        self.joined: JoinedRows | None = None
        """Reads batches of fixed-size values; None: shards are leased while they are read, or hold other values."""
        is_plain = isinstance(self._leases, MapCache) and self._images is None
        if is_plain and self.columns is not None and JoinedRows.can_join(self.columns):
            self.joined = JoinedRows(self.columns, self._leases.take, self._acquire)

    # -- shards ----------------------------------------------------------------------------------------------------

    def fetch(self, shard: int) -> FetchResult:
        """Make a shard present in its cache."""
        return self.shards.fetch(shard, next_use=self._next_use)

    def evict(self, shard: int) -> bool:
        """Remove a shard from its cache; False if it stays."""
        self._leases.drop([shard])
        return self.shards.evict(shard)

    def _next_use(self, shard: int) -> float:
        return math.inf if self._prefetcher is None else self._prefetcher.next_use(shard)

    def follow(self, upcoming: Upcoming, *, first: int, ahead: LookAhead, progress: Progress | None = None) -> None:
        """Fetch the shards of upcoming batches in the background.

        Args:
            upcoming: the batches and their shards.
            first: number of the first one.
            ahead: the look-ahead.
            progress: has the time that the trainer has waited; None: unknown.
        """
        if self.shards.are_local:
            return
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self.shards, ahead, self.shards.fetch_ahead, room=self._room())
        starved = None if progress is None else lambda: progress.seconds_stalled
        self._prefetcher.follow(upcoming, first=first, starved=starved)

    def advance(self, batch: int) -> None:
        """Move to `batch`, which is read next."""
        if self._prefetcher is not None:
            out_of_sight = self._prefetcher.advance(batch)
            if isinstance(self._leases, LeaseCache):
                self._leases.has_room = self._prefetcher.fits
                self._leases.drop(out_of_sight)

    def pause(self) -> None:
        """Stop the prefetch until the next `follow`."""
        if self._prefetcher is not None:
            self._prefetcher.pause()

    def close(self) -> None:
        """Unmap all shards, and end the prefetch."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._leases.close()

    @contextlib.contextmanager
    def trying_once(self) -> Generator[None]:
        """Inside the block, a shard with bad data is remembered, and not fetched again for its next sample."""
        self._is_trying_once = True
        try:
            yield
        finally:
            self._is_trying_once = False

    def _acquire(self, shard: int) -> CachedLease[ShardReader]:
        """Open a shard to read it, before `_returns` takes it back; it is fetched if it is absent."""
        held = CachedLease.now(*(self._open_once(shard) if self._is_trying_once else self._open(shard)))
        if self._returns is None:
            self._leases.keep(shard, held)
        return held

    def _open_once(self, shard: int) -> tuple[Lease, ShardReader]:
        self.shards.bad.check(shard)
        try:
            return self._open(shard)
        except Exception as error:
            if not is_bad_sample(error):
                raise
            # The size is right, but the content is not: the cached file may be damaged, and the object intact.
            if not self.evict(shard):
                self.shards.bad.add(shard, error)
                raise
        try:
            return self._open(shard)
        except Exception as error:
            if is_bad_sample(error):
                self.shards.bad.add(shard, error)
            raise

    def _open(self, shard: int) -> tuple[Lease, ShardReader]:
        begin = time.perf_counter_ns()
        if self._prefetcher is not None:
            self._prefetcher.wait(shard)
        try:
            lease = self.shards.acquire(shard, next_use=self._next_use)
        finally:
            if self._prefetcher is not None:
                self._prefetcher.has_shard()
        if (waited := time.perf_counter_ns() - begin) > _SHORTEST_WAIT:
            self.shards.waited(shard, waited)
        return lease, self.shards.reader(shard, lease)

    # -- samples ---------------------------------------------------------------------------------------------------

    def describe(self, sample_id: int) -> str:
        """Where a sample lies, for messages."""
        shard, row = self._sample_map.locate_one(sample_id)
        stream, local = self.shards.place(shard)
        file = stream.shards[local].files[0].raw.basename
        return f'stream {stream.name!r}, shard {file!r}, row {row}, sample id {sample_id}'

    def sample(self, sample_id: int) -> dict[str, Any]:
        """One sample by its global id."""
        shard, row = self._sample_map.locate_one(sample_id)
        held = self._leases.take(shard) or self._acquire(shard)
        try:
            sample = held.value.sample(row)
        finally:
            if self._returns is not None:
                self._returns(shard, held)
        if self._images is not None:
            self._images.decode_sample(sample, shard, sample_id)
        return sample

    def batch(self, ids: npt.NDArray[np.int64]) -> dict[str, Any]:
        """The samples of `ids`, collated: what `default_collate` gives for them, read column by column."""
        if self.columns is None:
            samples = [self.sample(sample_id) for sample_id in ids.tolist()]
            return collated(samples, ids.tolist(), self.describe)
        return collate_columns(self.gather(self.columns, ids), ids, self.describe)

    def values(self, ids: npt.NDArray[np.int64], column: str) -> Sequence[Any] | npt.NDArray[Any]:
        """Values of a column for the samples of `ids`, as stored, of any shape."""
        if column not in self.shared.arrays:
            return [self.sample(sample_id)[column] for sample_id in ids.tolist()]
        return self.gather(self.shared, ids, [column]).columns[column]

    def gather(
        self,
        into: Columns,
        ids: npt.NDArray[np.int64],
        names: Collection[str] | None = None,
        *,
        failed: dict[int, Exception] | None = None,
    ) -> ColumnBatch:
        """The samples of `ids` in columns.

        Args:
            into: columns of all shards.
            ids: the samples.
            names: columns to read; None: all.
            failed: takes the errors of bad samples by row; such rows hold arbitrary values. None: errors are raised.
        """
        columns = into.allocate(len(ids), names)
        shards, rows = self._sample_map.locate(ids)
        # Rows of one shard are read together; the order of shards inside a batch is free.
        by_shard = shards.argsort(kind='stable')
        shards, rows = shards[by_shard], rows[by_shard]
        cuts = ((shards[1:] != shards[:-1]).nonzero()[0] + 1).tolist()
        firsts = [0, *cuts] if len(ids) else []
        row_list, out_list = rows.tolist(), by_shard.tolist()
        take, returns = self._leases.take, self._returns
        for shard, begin, end in zip(shards[firsts].tolist(), firsts, [*cuts, len(ids)], strict=False):
            try:
                held = take(shard) or self._acquire(shard)
                try:
                    if end - begin == 1:  # of most shards, after a shuffle
                        held.value.gather_row(row_list[begin], out_list[begin], columns)
                    else:
                        held.value.gather(rows[begin:end], by_shard[begin:end], columns)
                finally:
                    if returns is not None:
                        returns(shard, held)
            except Exception as error:  # noqa: PERF203 - each shard may be bad by itself
                if failed is None or not is_bad_sample(error):
                    raise
                self._gather_each(shard, row_list[begin:end], out_list[begin:end], columns, failed)
        if self._images is not None:
            self._images.decode_batch(columns, ids, failed)
        return columns

    def _gather_each(
        self, shard: int, rows: list[int], out_rows: list[int], columns: ColumnBatch, failed: dict[int, Exception]
    ) -> None:
        """Gather rows of a shard one by one, to find the bad ones."""
        for row, out_row in zip(rows, out_rows, strict=True):
            try:
                held = self._leases.take(shard) or self._acquire(shard)
                try:
                    held.value.gather_row(row, out_row, columns)
                finally:
                    if self._returns is not None:
                        self._returns(shard, held)
            except Exception as error:  # noqa: PERF203 - each sample may be bad by itself
                if not is_bad_sample(error):
                    raise
                failed[out_row] = error


def _room(streams: Sequence[Stream], limit: float) -> float:
    """Bytes of a cache limit for shards that are needed next."""
    return _AHEAD * (limit - fixed_bytes(streams))


def collate_columns(batch: ColumnBatch, ids: npt.NDArray[np.int64], describe: Describe) -> dict[str, Any]:
    """Columns as `default_collate` would have made them: tensors, lists of str or bytes, or nested collections.

    Args:
        batch: the columns.
        ids: the samples, for messages.
        describe: where a sample lies, for messages.

    Raises:
        CollateError: the values of a column do not stack; it names the first sample that does not go with the others.
    """
    out: dict[str, Any] = {}
    for name, column in batch.columns.items():
        if isinstance(column, np.ndarray):
            out[name] = torch.from_numpy(column)
        elif isinstance(column[0], (str, bytes)):
            out[name] = column
        else:
            try:
                out[name] = default_collate(column)
            except (TypeError, RuntimeError) as error:
                raise CollateError(
                    f'Column {name!r} cannot be made into a batch: {error}. The first value that does not fit is of '
                    f'{misfit(column, ids.tolist(), describe)}. Pass `collate_fn` to the loader, or '
                    f'override `get_item` to turn it into tensors of one shape.'
                ) from error
    return out
