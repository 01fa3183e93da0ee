"""Columns of arrays of different lengths as one array, with the lengths of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.reading.batch_memory import empty_in_batch
from headrace.dataset.reading.sample_errors import Describe, collated
from headrace.errors import CollateError
from headrace.tensors.padding import Pad, PadColumn, can_hold


def padded(
    column: PadColumn, values: Sequence[Any] | npt.NDArray[Any], ids: Sequence[int], describe: Describe
) -> dict[str, torch.Tensor]:
    """A padded column of a batch, with the lengths of its rows and their mask, as it is asked for.

    `values`: arrays, tensors or lists of numbers, one of each sample; or an array of all. A CollateError names a
    sample: rows differ in more than the length of the axis, one is too long, or the value does not fit.
    """

    def refuse(row: int, rule: str) -> NoReturn:
        raise CollateError(f'Column {column.name!r} cannot be padded: {rule}. It is of {describe(ids[row])}.')

    rows = list[npt.NDArray[Any]]()
    for number, value in enumerate(values):
        try:
            rows.append(np.asarray(value))
        except (TypeError, ValueError, RuntimeError) as error:  # noqa: PERF203 - names the row
            refuse(number, f'a row is no array of numbers: {error}')
    dtype, shape = rows[0].dtype, rows[0].shape
    axis = column.axis or 0
    if not -len(shape) <= axis < len(shape):
        refuse(0, f'a row has an axis {axis} whose length may differ, but its shape is {shape}')
    axis %= len(shape)
    if dtype.kind not in 'biuf':
        refuse(0, f'rows are arrays of numbers, but one is of dtype {dtype}')
    if not can_hold(dtype, column.value):
        refuse(0, f'the value {column.value} does not fit the dtype {dtype} of a row. Give `pad` another value')
    before, after = shape[:axis], shape[axis + 1 :]
    for number, row in enumerate(rows):
        if row.dtype != dtype or row.shape[:axis] != before or row.shape[axis + 1 :] != after or row.ndim != len(shape):
            fix = '' if row.ndim == 1 else '. Give `pad` another `axis`, or rows one shape'
            first, other = f'{dtype} of shape {shape}', f'{row.dtype} of shape {row.shape}'
            refuse(
                number, f'rows differ in the length of axis {axis} alone, but one is {first}, and another {other}{fix}'
            )
    lengths = np.array([row.shape[axis] for row in rows], np.int64)
    longest = int(lengths.max())
    if column.to is not None and longest > column.to:
        row = int(lengths.argmax())
        refuse(row, f'`to` is {column.to}, and a row has the length {longest}. Raise it, or shorten the sample')
    longest = column.to or -(-longest // column.multiple_of) * column.multiple_of
    out = _empty((len(rows), *before, longest, *after), dtype)
    out[...] = column.value
    every = (slice(None),) * axis
    for padded_row, row, length in zip(out, rows, lengths.tolist(), strict=True):
        padded_row[(*every, slice(length))] = row
    made = {column.name: torch.from_numpy(out)}
    if column.length is not None:
        made[column.length] = torch.from_numpy(lengths)
    if column.mask is not None:
        made[column.mask] = torch.from_numpy(np.arange(longest) < lengths[:, None])
    return made


def places_of(batch: Mapping[str, Any], pad: Pad) -> tuple[int, int]:
    """The places of the padded columns of a batch, and those that are padding; of columns with lengths beside them."""
    places = filled = 0
    for column in pad.columns:
        if column.length is not None:
            axis, lengths = column.axis or 0, batch[column.length]
            places += len(lengths) * batch[column.name].shape[axis + (axis >= 0)]
            filled += int(lengths.sum())
    return places, places - filled


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not shape[-1]:
        return np.empty(shape, dtype)
    return empty_in_batch((*shape[:-1], shape[-1] * dtype.itemsize)).view(dtype)


def collated_padded(samples: list[Any], pad: Pad, ids: Sequence[int], describe: Describe) -> dict[str, Any]:
    """A batch of samples by PyTorch's `default_collate`, but with padded columns; errors as those of `padded`."""
    names = [column.name for column in pad.columns]
    for row, sample in enumerate(samples):
        if not isinstance(sample, Mapping) or any(name not in sample for name in names):
            has = f'the keys {", ".join(map(str, sample))}' if isinstance(sample, Mapping) else type(sample).__name__
            raise CollateError(
                f'`pad` takes samples that are dicts with the columns {", ".join(names)}, but {describe(ids[row])}, is '
                f'{has}.'
            )
    others = [{name: value for name, value in sample.items() if name not in names} for sample in samples]
    batch = collated(others, ids, describe)
    for column in pad.columns:
        for key in column.added:
            if key in batch:
                raise CollateError(f'`pad` adds {key!r} to the batch, but samples have that key. Rename it.')
        batch.update(padded(column, [sample[column.name] for sample in samples], ids, describe))
    return batch
