"""Batches of values of fixed size, joined sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from headrace.format import Columns, FixedLayout, ShardReader
from headrace.storage.cache.lease_cache import CachedLease

__all__ = ['JoinedRows']

_LARGE_ROW: Final = 512  # bytes of a sample; of smaller ones numpy gathers many of a shard faster
_ROWS_OF_SHARD: Final = 4
_LARGE_BATCH: Final = 1 << 22  # bytes, from which on numpy's memory is faster, since it is of huge pages


class JoinedRows:
    """The fewest steps for a batch whose samples lie in many shards: one join of bytes for each column.

    Numpy copies from one array at a time, so each shard of a batch would cost a call or two.
    """

    def __init__(self, columns: Columns, open_shard: Callable[[int], CachedLease[ShardReader]]) -> None:
        """Take the columns of a batch, and how shards are opened.

        Args:
            columns: arrays only.
            open_shard: opens a shard, which stays mapped while anything views it.
        """
        self._names = tuple(columns.arrays)
        self._open = open_shard
        self._layout: FixedLayout | None = None

    @staticmethod
    def can_join(columns: Columns) -> bool:
        """Whether all columns have values of fixed size."""
        return all(array is not None for array in columns.arrays.values())

    def batch(self, shards: list[int], rows: npt.NDArray[np.int64]) -> dict[str, Any] | None:
        """A batch as `default_collate` gives it; None if the shards need, or numpy has, another way.

        Args:
            shards: the shard of each sample.
            rows: int64[n], the row of each in its shard.
        """
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
