"""Samples and batches from mapped shards, in one process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from headrace.dataset.batch_keys.bad_sample import is_bad_sample
from headrace.dataset.reading.dataset_shards import DatasetShards
from headrace.dataset.reading.joined_rows import JoinedRows
from headrace.dataset.reading.sample_errors import Describe, collated, misfit
from headrace.dataset.streams.columns import gathered_columns
from headrace.dataset.streams.stream import Stream
from headrace.errors import CollateError
from headrace.format import ColumnBatch, Columns
from headrace.order import SampleMap

if TYPE_CHECKING:
    from headrace.dataset.reading.image_rows import ImageRows

__all__ = ['ShardPool', 'collate_columns']


class ShardPool:
    """Reads samples and batches of the shards that one process has open."""

    def __init__(self, streams: Sequence[Stream], sample_map: SampleMap, *, cache_limit: int | None) -> None:
        self.shards = DatasetShards(streams, cache_limit=cache_limit)
        """The shards by number: presence, prefetch, next use and leases."""
        self._take, self._open, self._give_back = self.shards.take, self.shards.open, self.shards.give_back
        self._sample_map = sample_map
        self._images: ImageRows | None = None
        if any(stream.decode is not None for stream in streams):
            from headrace.dataset.reading.image_rows import ImageRows

            self._images = ImageRows(self.shards.cached, sample_map, self.describe)
        self.has_images = self._images is not None
        """Whether images are read as tensors, whose crops take random numbers."""
        self.shared, is_all = gathered_columns(streams)
        """The columns that all shards hold and store alike."""
        self.columns = self.shared if is_all else None
        """The columns of a batch; None if shards store their columns differently."""
        self.joined: JoinedRows | None = None
        """Reads batches of fixed-size values; None: shards are leased while they are read, or hold other values."""
        is_plain = self.shards.give_back is None and self._images is None
        if is_plain and self.columns is not None and JoinedRows.can_join(self.columns):
            self.joined = JoinedRows(self.columns, self.shards.take, self.shards.open)

    def describe(self, sample_id: int) -> str:
        """Where a sample lies, for messages."""
        shard, row = self._sample_map.locate_one(sample_id)
        stream, local = self.shards.cached.place(shard)
        file = stream.shards[local].files[0].raw.basename
        return f'stream {stream.name!r}, shard {file!r}, row {row}, sample id {sample_id}'

    def sample(self, sample_id: int) -> dict[str, Any]:
        """One sample by its global id."""
        shard, row = self._sample_map.locate_one(sample_id)
        held = self._take(shard) or self._open(shard)
        try:
            sample = held.value.sample(row)
        finally:
            if self._give_back is not None:
                self._give_back(shard, held)
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
        take, give_back = self._take, self._give_back
        for shard, begin, end in zip(shards[firsts].tolist(), firsts, [*cuts, len(ids)], strict=False):
            try:
                held = take(shard) or self._open(shard)
                try:
                    if end - begin == 1:  # of most shards, after a shuffle
                        held.value.gather_row(row_list[begin], out_list[begin], columns)
                    else:
                        held.value.gather(rows[begin:end], by_shard[begin:end], columns)
                finally:
                    if give_back is not None:
                        give_back(shard, held)
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
                held = self._take(shard) or self._open(shard)
                try:
                    held.value.gather_row(row, out_row, columns)
                finally:
                    if self._give_back is not None:
                        self._give_back(shard, held)
            except Exception as error:  # noqa: PERF203 - each sample may be bad by itself
                if not is_bad_sample(error):
                    raise
                failed[out_row] = error


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
                    f'{misfit(column, ids.tolist(), describe)}. Pass `collate_fn` to the loader, '
                    f'override `get_item` to turn it into tensors of one shape, or leave it out with `columns`.'
                ) from error
    return out
