"""Selection of rows from a metric's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from headrace.dataset.batch_keys import has_rows
from headrace.errors import ConfigError

__all__ = ['excluded_rows', 'select_rows']


def excluded_rows(is_padding: Tensor | None, is_bad_sample: Tensor | None) -> Tensor | None:
    """bool[rows], True for a padding or bad row; None without both masks."""
    if is_padding is None or is_bad_sample is None:
        return is_bad_sample if is_padding is None else is_padding
    return is_padding | is_bad_sample.to(is_padding.device)


def select_rows(
    where: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The rows of arguments where a mask is True.

    Args:
        where: bool[rows].
        args: each with a row for each place of the mask: tensors, arrays, lists or tuples.
        kwargs: the same, or values without rows, which stay unchanged.

    Raises:
        ConfigError: an argument by position has no rows, or any has another number of them.
    """
    rows = len(where)
    for place, value in enumerate(args):
        if not _is_rows(value) or len(value) != rows:
            shape = tuple(value.shape) if isinstance(value, (Tensor, np.ndarray)) else type(value).__name__
            raise ConfigError(
                f'Every argument must have a value for each of the {rows} rows, but argument {place} has the shape '
                f"{shape}. A loss comes by row with reduction='none', averaged over other dimensions."
            )
    for name, value in kwargs.items():
        if _is_rows(value) and len(value) != rows:
            raise ConfigError(f'Argument {name} must have {rows} rows, or none, but has {len(value)}.')
    chosen = tuple(_select(where, value) for value in args)
    return chosen, {name: _select(where, value) if _is_rows(value) else value for name, value in kwargs.items()}


def _is_rows(value: Any) -> bool:
    return has_rows(value) or isinstance(value, (list, tuple))


def _select(where: Tensor, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value[where.to(value.device)]
    if isinstance(value, np.ndarray):
        return cast('Any', value)[where.cpu().numpy()]
    return type(value)(value[i] for i in torch.nonzero(where).flatten().tolist())
