"""Columns of images and sound of samples and batches, from their stored bytes to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace.audio import AudioTensor, Clip, Clips, open_clip
from headrace.dataset.batch_keys import is_bad_sample
from headrace.dataset.reading.batch_memory import empty_in_batch
from headrace.dataset.reading.dataset_shards import CachedShards
from headrace.dataset.reading.sample_errors import Describe
from headrace.dataset.sample_rng import tensor_draws
from headrace.dataset.streams.columns import TensorColumn
from headrace.decoding import TensorSettings
from headrace.errors import CollateError, FormatError, ShardError
from headrace.format import ColumnBatch
from headrace.images import NUM_DRAWS, Picture, open_picture
from headrace.images.decode import decode_into

_NUM_DRAWS: Final = NUM_DRAWS + 1  # the last one is that of clips


class _Row(NamedTuple):
    row: int
    value: Picture | Clip
    settings: TensorSettings


class TensorRows:
    def __init__(self, shards: CachedShards, describe: Describe) -> None:
        self._shards, self._describe = shards, describe

    def decode_sample(self, sample: dict[str, Any], shard: int, sample_id: int) -> None:
        """Replace the stored images and clips of a sample by tensors of their settings."""
        draws = None
        for column in self._shards.tensors(shard):
            draws = draws or tensor_draws(sample_id, _NUM_DRAWS)
            try:
                value = _open(sample[column.name], column)
                out = _empty(_shape(value, column.settings), column.settings)
                _decode_into(out, value, column.settings, draws)
            except FormatError as error:
                raise self._named(error, column.name, sample_id) from error
            sample[column.name] = torch.from_numpy(_in_layout(out, column.settings))

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
            for row, value, settings in rows:
                sample_id = id_list[row]
                if sample_id not in draws:
                    draws[sample_id] = tensor_draws(sample_id, _NUM_DRAWS)
                try:
                    _decode_into(out[row], value, settings, draws[sample_id])
                except FormatError as error:
                    self._fail(error, name, row, sample_id, failed)
            if isinstance(out, list):
                batch.columns[name] = Clips(None if one is None else torch.from_numpy(one) for one in out)
            else:
                batch.columns[name] = _in_layout(out, rows[0].settings) if rows else out

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
                    yield _Row(row, _open(stored[row], column), column.settings)
                except FormatError as error:
                    self._fail(error, name, row, ids[row], failed)

    def _room(self, name: str, rows: list[_Row], ids: list[int]) -> npt.NDArray[Any] | list[Any]:
        """Memory for a column: an array for values of one shape, a list for clips of any length."""
        if any(isinstance(settings, AudioTensor) and settings.samples is None for _, _, settings in rows):
            lengths = {row: _empty(_shape(value, settings), settings) for row, value, settings in rows}
            return [lengths.get(row) for row in range(len(ids))]
        shapes = [_shape(value, settings) for _, value, settings in rows] or [(0, 0, 0)]
        for row, shape in zip(rows, shapes, strict=False):
            if shape != shapes[0]:
                first, one, other = rows[0], '{} x {}'.format(*shapes[0]), '{} x {}'.format(*shape)
                raise CollateError(
                    f'Images of a batch have one size, but in column {name!r} the image of '
                    f'{self._describe(ids[first.row])}, has {one} pixels (height x width), and that of '
                    f'{self._describe(ids[row.row])}, has {other}. Set `size` of its ImageTensor, such as '
                    f"decode={{{name!r}: ImageTensor(size=224, crop='random')}}, or pass a `collate_fn` to the loader."
                )
        if rows and isinstance(rows[0].settings, AudioTensor):
            channels, samples = shapes[0]
            return empty_in_batch((len(ids), channels, 4 * samples)).view(np.float32)
        return empty_in_batch((len(ids), *shapes[0]))

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


def _open(data: bytes, column: TensorColumn) -> Picture | Clip:
    settings = column.settings
    if isinstance(settings, AudioTensor):
        return open_clip(data, settings)
    return open_picture(data, column.encoding, settings.max_pixels)


def _shape(value: Picture | Clip, settings: TensorSettings) -> tuple[int, ...]:
    """Height, width and channels of a decoded picture; channels and samples of a clip."""
    if isinstance(settings, AudioTensor):
        return cast('Clip', value).shape
    picture = cast('Picture', value)
    return *(settings.out_size or (picture.height, picture.width)), settings.channels


def _empty(shape: tuple[int, ...], settings: TensorSettings) -> npt.NDArray[Any]:
    return np.empty(shape, np.float32 if isinstance(settings, AudioTensor) else np.uint8)


def _decode_into(
    out: npt.NDArray[Any], value: Picture | Clip, settings: TensorSettings, draws: list[float] | None
) -> None:
    if isinstance(settings, AudioTensor):
        cast('Clip', value).read_into(out, None if draws is None else draws[-1])
    else:
        decode_into(out, cast('Picture', value), settings, draws)


def _in_layout(array: npt.NDArray[Any], settings: TensorSettings) -> npt.NDArray[Any]:
    """Pixels [..., height, width, channels] in the order of dimensions of the settings; samples as they are."""
    return array if isinstance(settings, AudioTensor) or settings.layout == 'HWC' else np.moveaxis(array, -1, -3)
