"""Number of tokens in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from headrace.dataset.batch_keys import BAD_SAMPLE, has_rows
from headrace.tensors.padding import length_key

TOKEN_COLUMNS = ('input_ids', 'tokens')  # columns that hold tokens by default


def count_tokens(batch: Any, own_samples: int | None = None) -> int | Tensor | None:
    """The tokens of a batch: those in its attention mask or a loader's `pad`, or all places of its token column.

    Rows marked as bad samples do not count.

    Args:
        batch: a dict with `input_ids` or `tokens`: [rows, length] or a list of ragged rows. It may have an
            `attention_mask`, [rows, length], 1 for a token that counts, or the lengths of rows that `pad` adds.
        own_samples: number of leading rows that count; None: all.

    Returns:
        An int; a tensor of one element if the mask is on a device, to avoid a synchronisation; None for a batch without
        such a column.
    """
    if not isinstance(batch, Mapping):
        return None
    columns = cast('Mapping[Any, Any]', batch)
    name = next((name for name in TOKEN_COLUMNS if name in columns), None)
    if name is None:
        return None
    bad = columns.get(BAD_SAMPLE)
    if bad is not None:
        bad = bad[:own_samples]
        if bad.is_cpu and not bad.any():
            bad = None
    mask = columns.get('attention_mask')
    if has_rows(mask):
        if own_samples is not None and own_samples < mask.shape[0]:
            mask = mask[:own_samples]
        if bad is not None:
            mask = torch.as_tensor(mask).masked_fill(bad[:, None], 0)
        # numpy counts three times as fast as PyTorch in CPU memory.
        return int(np.count_nonzero(mask)) if getattr(mask, 'is_cpu', True) else mask.count_nonzero()
    lengths = columns.get(length_key(name))
    if isinstance(lengths, Tensor) and lengths.ndim == 1:
        lengths = lengths[:own_samples]
        total = (lengths if bad is None else lengths.masked_fill(bad, 0)).sum()
        return int(total) if total.is_cpu else total
    values = columns[name]
    if not has_rows(values) and not isinstance(values, (list, tuple)):
        return None
    rows: Any = cast('Any', values)[:own_samples]
    if bad is None:
        return count_places(rows)
    if not has_rows(rows):
        return count_places([row for row, is_bad in zip(rows, bad.tolist(), strict=True) if not is_bad])
    if rows.ndim < 2:
        return None
    tokens = (~bad).sum() * rows.shape[1]
    return int(tokens) if bad.is_cpu else tokens


def count_places(values: Any) -> int | None:
    """Places in the first two dimensions of a column, or in its ragged rows; None for a column without such places."""
    if has_rows(values):
        return int(values.shape[0] * values.shape[1]) if values.ndim > 1 else None
    if isinstance(values, (list, tuple)):
        rows = cast('Sequence[Any]', values)
        return sum(len(row) for row in rows if not isinstance(row, (str, bytes)) and hasattr(row, '__len__'))
    return None
