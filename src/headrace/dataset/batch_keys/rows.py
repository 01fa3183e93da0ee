"""Rows of a batch of any structure: their number, and selections of them.

A batch is a tree. Tensors and arrays hold their rows along their first dimension. A mapping holds columns, which agree
on the number of rows. A list or tuple holds either rows, as a column of texts does, or columns, as ``(inputs, labels)``
does. An ambiguous one holds rows inside a mapping, and columns elsewhere. Numbers, texts and None belong to every row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard, cast

import numpy as np
import torch

__all__ = ['cut_rows', 'has_rows', 'outline', 'pick_rows', 'possible_rows']


def possible_rows(part: Any, *, is_column: bool = False) -> list[int] | None:
    """Possible numbers of rows of a part, the likeliest first; None: it belongs to every row."""
    if has_rows(part):
        return [int(part.shape[0])]
    if isinstance(part, Mapping):
        columns = [possible_rows(value, is_column=True) for value in cast('Mapping[Any, Any]', part).values()]
        return _common([column for column in columns if column is not None])
    if _is_sequence(part):
        inner = [possible_rows(value) for value in part]
        if not part or any(found is None for found in inner):
            return [len(part)]
        as_columns = _common([found for found in inner if found is not None]) or []
        both = [len(part), *as_columns] if is_column else [*as_columns, len(part)]
        return list(dict.fromkeys(both))
    return None


def _common(columns: list[list[int]]) -> list[int] | None:
    """Numbers of rows that all columns allow, in the order of the least ambiguous one."""
    if not columns:
        return None
    return [rows for rows in min(columns, key=len) if all(rows in column for column in columns)]


def cut_rows(part: Any, begin: int, end: int, rows: int) -> Any:
    """Rows [begin, end) of the ``rows`` that a part has. Tensors are views of the part's; mappings become dicts."""
    return _take(part, lambda column: column[begin:end], rows)


def pick_rows(part: Any, picked: list[int], rows: int) -> Any:
    """The rows of these numbers, of the ``rows`` that a part has. Tensors are copies; mappings become dicts."""

    def pick(column: Any) -> Any:
        return column[picked] if has_rows(column) else type(column)(column[row] for row in picked)

    return _take(part, pick, rows)


def _take(part: Any, take: Callable[[Any], Any], rows: int, *, is_column: bool = False) -> Any:
    """Apply `take` to each tensor, array, and list or tuple of rows."""
    if has_rows(part):
        return take(part)
    if isinstance(part, Mapping):
        columns = cast('Mapping[Any, Any]', part)
        return {key: _take(value, take, rows, is_column=True) for key, value in columns.items()}
    if not _is_sequence(part):
        return part
    inner = [possible_rows(value) for value in part]
    can_be_columns = bool(part) and all(found is not None and rows in found for found in inner)
    if len(part) == rows and (is_column or not can_be_columns):
        return take(list(part) if hasattr(part, '_fields') else part)
    values = [_take(value, take, rows) for value in part]
    if hasattr(part, '_fields'):  # a named tuple
        return cast('Any', type(part))(*values)
    return tuple(values) if isinstance(part, tuple) else values


def has_rows(part: Any) -> TypeGuard[torch.Tensor]:
    """Whether a part is a tensor or array with at least one dimension, that of its rows."""
    return isinstance(part, (torch.Tensor, np.ndarray)) and part.ndim > 0


def _is_sequence(part: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(part, (list, tuple))


def outline(batch: Any) -> str:
    """A batch's structure, for messages."""
    if has_rows(batch):
        return f'{type(batch).__name__}{list(batch.shape)}'
    if isinstance(batch, Mapping):
        items = itertools.islice(cast('Mapping[Any, Any]', batch).items(), 8)
        return '{' + ', '.join(f'{key}: {outline(value)}' for key, value in items) + '}'
    if _is_sequence(batch):
        first = outline(batch[0]) if batch else ''
        return f'{type(batch).__name__} of {len(batch)} ({first}{", …" if len(batch) > 1 else ""})'
    return type(batch).__name__
