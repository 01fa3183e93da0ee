"""Rows of a batch of any shape: counting them, and cutting a batch between them.

A batch is a tree. Tensors and arrays hold a row at each place of their first dimension. A mapping holds columns, which
agree on the number of rows. A list or tuple is either rows, as a column of texts or of ragged values is, or columns,
as ``(inputs, labels)`` is; where its parts leave both open, it is what Composer takes it for: rows in a mapping,
columns elsewhere. Numbers, texts and None belong to every row.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast

import numpy as np
import torch

from headrace.errors import ConfigError

__all__ = ['count_rows', 'count_tokens', 'first_rows', 'split_rows']

_TOKEN_COLUMNS = ('input_ids', 'tokens')


def count_rows(batch: Any, *, expected: int | None = None) -> int:
    """The number of rows.

    Args:
        batch: The batch.
        expected: What it is where the batch leaves a choice.

    Raises:
        ConfigError: The parts of the batch have no number of rows in common.
    """
    candidates = _candidates(batch)
    if not candidates:
        raise ConfigError(
            f'The number of samples in a batch cannot be told from its shape: {_outline(batch)}. Pass '
            f'`get_num_samples_in_batch` and `split_batch` to `streaming_data_spec`.'
        )
    return expected if expected in candidates else candidates[0]


def split_rows(batch: Any, size: int | float) -> list[Any]:
    """Parts of at most `size` rows, in order. Tensors are views of the batch's.

    Raises:
        ConfigError: `size` is no whole number of rows, or the rows cannot be told.
    """
    if int(size) != size or size < 1:
        raise ConfigError(
            f'A microbatch holds a whole number of samples, at least 1, but its size is {size}. Set '
            f'`device_train_microbatch_size` so, or pass `split_batch` to `streaming_data_spec`.'
        )
    rows, size = count_rows(batch), int(size)
    if rows <= size:
        return [batch]
    return [_cut(batch, begin, min(begin + size, rows), rows) for begin in range(0, rows, size)]


def first_rows(batch: Any, count: int, rows: int) -> Any:
    """The first `count` of the `rows` rows that `batch` has."""
    return _cut(batch, 0, count, rows)


def count_tokens(batch: Any, column: str | None) -> int:
    """Tokens in a batch, padding included: places of the first two dimensions, or the lengths of ragged rows.

    Args:
        batch: The batch.
        column: The column that holds tokens. None: ``input_ids`` or ``tokens``, where one is there and holds a
            token at each place; otherwise the batch counts as none.

    Raises:
        ConfigError: `column` was given, but the batch has no such column.
    """
    if not isinstance(batch, Mapping) or (column is not None and column not in batch):
        if column is None:
            return 0
        raise ConfigError(f'`token_column` must name a column of the batch, but it is {column!r}: {_outline(batch)}.')
    columns = cast('Mapping[Any, Any]', batch)
    names = [name for name in ((column,) if column is not None else _TOKEN_COLUMNS) if name in columns]
    value = columns[names[0]] if names else None
    if _has_rows(value):
        return int(value.shape[0] * value.shape[1]) if value.ndim > 1 else 0
    if isinstance(value, (list, tuple)):
        parts = cast('Sequence[Any]', value)
        return sum(len(part) for part in parts if not isinstance(part, (str, bytes)) and hasattr(part, '__len__'))
    return 0


def _candidates(part: Any, *, is_column: bool = False) -> list[int] | None:
    """The numbers of rows that a part can be read to have, the likeliest first; None: it says nothing of rows."""
    if _has_rows(part):
        return [int(part.shape[0])]
    if isinstance(part, Mapping):
        columns = [_candidates(value, is_column=True) for value in cast('Mapping[Any, Any]', part).values()]
        return _common([column for column in columns if column is not None])
    if _is_sequence(part):
        inner = [_candidates(value) for value in part]
        if not part or any(found is None for found in inner):
            return [len(part)]
        as_columns = _common([found for found in inner if found is not None]) or []
        both = [len(part), *as_columns] if is_column else [*as_columns, len(part)]
        return list(dict.fromkeys(both))
    return None


def _common(columns: list[list[int]]) -> list[int] | None:
    """What all columns agree on, in the order of the one that leaves the least open."""
    if not columns:
        return None
    return [rows for rows in min(columns, key=len) if all(rows in column for column in columns)]


def _cut(part: Any, begin: int, end: int, rows: int, *, is_column: bool = False) -> Any:
    if _has_rows(part):
        return part[begin:end]
    if isinstance(part, Mapping):
        columns = cast('Mapping[Any, Any]', part)
        return {key: _cut(value, begin, end, rows, is_column=True) for key, value in columns.items()}
    if not _is_sequence(part):
        return part
    inner = [_candidates(value) for value in part]
    can_be_columns = bool(part) and all(found is not None and rows in found for found in inner)
    if len(part) == rows and (is_column or not can_be_columns):
        cut: Any = part[begin:end]
        return list(cut) if hasattr(part, '_fields') else cut
    values = [_cut(value, begin, end, rows) for value in part]
    if hasattr(part, '_fields'):  # a named tuple
        return cast('Any', type(part))(*values)
    return tuple(values) if isinstance(part, tuple) else values


def _has_rows(part: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(part, (torch.Tensor, np.ndarray)) and part.ndim > 0


def _is_sequence(part: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(part, (list, tuple))


def _outline(batch: Any) -> str:
    """A batch's structure, for messages."""
    if _has_rows(batch):
        return f'{type(batch).__name__}{list(batch.shape)}'
    if isinstance(batch, Mapping):
        items = itertools.islice(cast('Mapping[Any, Any]', batch).items(), 8)
        return '{' + ', '.join(f'{key}: {_outline(value)}' for key, value in items) + '}'
    if _is_sequence(batch):
        first = _outline(batch[0]) if batch else ''
        return f'{type(batch).__name__} of {len(batch)} ({first}{", …" if len(batch) > 1 else ""})'
    return type(batch).__name__
