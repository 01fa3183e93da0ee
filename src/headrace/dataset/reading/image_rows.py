"""Columns of images of samples and batches, from their stored bytes to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.batch_keys import is_bad_sample
from headrace.dataset.reading.batch_memory import empty_in_batch
from headrace.dataset.reading.dataset_shards import CachedShards
from headrace.dataset.reading.sample_errors import Describe
from headrace.dataset.sample_rng import image_draws
from headrace.dataset.streams.columns import ImageColumn
from headrace.errors import CollateError, FormatError, ShardError
from headrace.format import ColumnBatch
from headrace.images import NUM_DRAWS, ImageTensor, Picture, open_picture
from headrace.images.decode import decode_into


class _Row(NamedTuple):
    row: int
    picture: Picture
    column: ImageColumn


class ImageRows:
    """Decodes the images of samples."""

    def __init__(self, shards: CachedShards, describe: Describe) -> None:
        self._shards, self._describe = shards, describe

    def decode_sample(self, sample: dict[str, Any], shard: int, sample_id: int) -> None:
        """Replace the stored images of a sample by tensors of uint8, in the layout of their settings.

        Raises:
            ShardError: an image is damaged, or too large.
        """
        draws = None
        for column in self._shards.images(shard):
            draws = draws or image_draws(sample_id, NUM_DRAWS)
            try:
                picture = open_picture(sample[column.name], column.encoding, column.image.max_pixels)
                out = np.empty(_shape(picture, column.image), np.uint8)
                decode_into(out, picture, column.image, draws)
            except FormatError as error:
                raise self._named(error, column.name, sample_id) from error
            sample[column.name] = torch.from_numpy(_in_layout(out, column.image))

    def decode_batch(
        self,
        batch: ColumnBatch,
        ids: npt.NDArray[np.int64],
        shards: npt.NDArray[np.int64],
        failed: dict[int, Exception] | None,
    ) -> None:
        """Replace the stored images of a batch by arrays uint8[rows, ...], in the layout of their settings.

        Args:
            batch: gathered columns of the samples.
            ids: the samples.
            shards: the shard of each.
            failed: as `SamplePool.gather`'s; rows that are in it already have no images.

        Raises:
            ShardError: an image is damaged, or too large, and `failed` is None.
            CollateError: images differ in size, and are read at their own.
        """
        id_list = ids.tolist()
        columns = [self._shards.images(shard) for shard in shards.tolist()]
        draws: dict[int, list[float] | None] = {}
        for name in dict.fromkeys(column.name for row in columns for column in row if column.name in batch.columns):
            stored = batch.columns[name]
            rows = list(self._opened(name, stored, columns, id_list, failed))
            out = self._room(name, rows, id_list)
            for row in rows:
                sample_id = id_list[row.row]
                if sample_id not in draws:
                    draws[sample_id] = image_draws(sample_id, NUM_DRAWS)
                try:
                    decode_into(out[row.row], row.picture, row.column.image, draws[sample_id])
                except FormatError as error:
                    self._fail(error, name, row.row, sample_id, failed)
            batch.columns[name] = _in_layout(out, rows[0].column.image) if rows else out

    def _opened(
        self,
        name: str,
        stored: Sequence[Any] | npt.NDArray[Any],
        columns: list[Sequence[ImageColumn]],
        ids: list[int],
        failed: dict[int, Exception] | None,
    ) -> Iterator[_Row]:
        """The pictures of a column that are whole so far."""
        for row, of_row in enumerate(columns):
            for column in of_row:
                if column.name != name or (failed and row in failed):
                    continue
                try:
                    yield _Row(row, open_picture(stored[row], column.encoding, column.image.max_pixels), column)
                except FormatError as error:
                    self._fail(error, name, row, ids[row], failed)

    def _room(self, name: str, rows: list[_Row], ids: list[int]) -> npt.NDArray[np.uint8]:
        """Memory for a column, uint8[rows, height, width, channels]."""
        shapes = [_shape(row.picture, row.column.image) for row in rows] or [(0, 0, 0)]
        for row, shape in zip(rows, shapes, strict=False):
            if shape != shapes[0]:
                first, one, other = rows[0], '{} x {}'.format(*shapes[0]), '{} x {}'.format(*shape)
                raise CollateError(
                    f'Images of a batch have one size, but in column {name!r} the image of '
                    f'{self._describe(ids[first.row])}, has {one} pixels (height x width), and that of '
                    f'{self._describe(ids[row.row])}, has {other}. Set `size` of its ImageTensor, such as '
                    f"decode={{{name!r}: ImageTensor(size=224, crop='random')}}, or pass a `collate_fn` to the loader."
                )
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


def _shape(picture: Picture, image: ImageTensor) -> tuple[int, int, int]:
    """Height, width and channels of a decoded picture."""
    height, width = image.out_size or (picture.height, picture.width)
    return height, width, image.channels


def _in_layout(pixels: npt.NDArray[np.uint8], image: ImageTensor) -> npt.NDArray[np.uint8]:
    """Pixels [..., height, width, channels] in the order of dimensions of the settings."""
    return pixels if image.layout == 'HWC' else np.moveaxis(pixels, -1, -3)
