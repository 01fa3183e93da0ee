"""Columns of images and sound of samples and batches, from their stored bytes to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.batch_keys import is_bad_sample
from headrace.dataset.reading.batch_memory import empty_in_batch
from headrace.dataset.reading.dataset_shards import CachedShards
from headrace.dataset.reading.sample_errors import Describe
from headrace.dataset.sample_rng import tensor_draws
from headrace.errors import CollateError, FormatError, ShardError
from headrace.format import ColumnBatch
from headrace.tensors.audio import Clip, Clips
from headrace.tensors.decoding import TensorColumn
from headrace.tensors.images import NUM_DRAWS, Picture

_NUM_DRAWS: Final = NUM_DRAWS + 1  # the last one is that of clips


class _Row(NamedTuple):
    row: int
    value: Picture | Clip


class TensorRows:
    def __init__(self, shards: CachedShards, describe: Describe) -> None:
        self._shards, self._describe = shards, describe

    def decode_sample(self, sample: dict[str, Any], shard: int, sample_id: int) -> None:
        """Replace the stored images and clips of a sample by tensors of their settings."""
        draws = None
        for column in self._shards.tensors(shard):
            draws = draws or tensor_draws(sample_id, _NUM_DRAWS)
            try:
                value = column.settings.open(sample[column.name], column.encoding)
                out = np.empty(value.shape, column.settings.dtype)
                value.read_into(out, draws)
            except FormatError as error:
                raise self._named(error, column.name, sample_id) from error
            sample[column.name] = torch.from_numpy(column.settings.in_layout(out))

    def decode_batch(
        self,
        batch: ColumnBatch,
        ids: npt.NDArray[np.int64],
        shards: npt.NDArray[np.int64],
        failed: dict[int, Exception] | None,
    ) -> None:
        """Replace the stored images and clips of a batch by arrays [rows, ...], or by lists of tensors.

        `failed`: as `SamplePool.gather`'s; rows that are in it already have no values.
        """
        id_list = ids.tolist()
        columns = [self._shards.tensors(shard) for shard in shards.tolist()]
        draws: dict[int, list[float] | None] = {}
        for name in dict.fromkeys(column.name for row in columns for column in row if column.name in batch.columns):
            stored = batch.columns[name]
            rows = list(self._opened(name, stored, columns, id_list, failed))
            out = self._room(name, rows, id_list)
            for row, value in rows:
                sample_id = id_list[row]
                if sample_id not in draws:
                    draws[sample_id] = tensor_draws(sample_id, _NUM_DRAWS)
                try:
                    value.read_into(out[row], draws[sample_id])
                except FormatError as error:
                    self._fail(error, name, row, sample_id, failed)
            if isinstance(out, list):
                batch.columns[name] = Clips(None if clip is None else torch.from_numpy(clip) for clip in out)
            else:
                batch.columns[name] = rows[0].value.settings.in_layout(out) if rows else out

    def _opened(
        self,
        name: str,
        stored: Sequence[Any] | npt.NDArray[Any],
        columns: list[Sequence[TensorColumn]],
        ids: list[int],
        failed: dict[int, Exception] | None,
    ) -> Iterator[_Row]:
        """The images or clips of a column that are whole so far."""
        for row, of_row in enumerate(columns):
            for column in of_row:
                if column.name != name or (failed and row in failed):
                    continue
                try:
                    yield _Row(row, column.settings.open(stored[row], column.encoding))
                except FormatError as error:
                    self._fail(error, name, row, ids[row], failed)

    def _room(self, name: str, rows: list[_Row], ids: list[int]) -> npt.NDArray[Any] | list[Any]:
        """Memory for a column: an array for values of one shape, a list for clips of any length."""
        if any(value.settings.is_ragged for _, value in rows):
            lengths = {row: np.empty(value.shape, value.settings.dtype) for row, value in rows}
            return [lengths.get(row) for row in range(len(ids))]
        shapes = [value.shape for _, value in rows] or [(0, 0, 0)]
        for row, shape in zip(rows, shapes, strict=False):
            if shape != shapes[0]:
                first, size, other = rows[0], '{} x {}'.format(*shapes[0]), '{} x {}'.format(*shape)
                raise CollateError(
                    f'Images of a batch have one size, but in column {name!r} the image of '
                    f'{self._describe(ids[first.row])}, has {size} pixels (height x width), and that of '
                    f'{self._describe(ids[row.row])}, has {other}. Set `size` of its ImageTensor, such as '
                    f"decode={{{name!r}: ImageTensor(size=224, crop='random')}}, or pass a `collate_fn` to the loader."
                )
        dtype = rows[0].value.settings.dtype if rows else np.dtype(np.uint8)
        *sides, last = shapes[0]
        return empty_in_batch((len(ids), *sides, last * dtype.itemsize)).view(dtype)

    def _fail(
        self, error: FormatError, name: str, row: int, sample_id: int, failed: dict[int, Exception] | None
    ) -> None:
        named = self._named(error, name, sample_id)
        if failed is None or not is_bad_sample(named):
            raise named from error
        failed[row] = named

    def _named(self, error: FormatError, name: str, sample_id: int) -> ShardError:
        """The error with its place; its cause tells whether the sample is bad."""
        named = ShardError(f'Column {name!r} of {self._describe(sample_id)}, cannot be decoded: {error}')
        named.__cause__ = error
        return named
