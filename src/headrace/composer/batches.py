"""Rows, tokens and microbatches of a batch of any shape, for Composer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from headrace.dataset.batch_keys import cut_rows, outline, possible_rows
from headrace.errors import ConfigError
from headrace.metrics.tokens import TOKEN_COLUMNS, count_places

__all__ = ['count_composer_tokens', 'count_rows', 'first_rows', 'split_rows']


def count_rows(batch: Any, *, expected: int | None = None) -> int:
    """The number of rows.

    Args:
        batch: The batch.
        expected: The number to prefer if the shape allows several.

    Raises:
        ConfigError: The parts of the batch have no number of rows in common.
    """
    candidates = possible_rows(batch)
    if not candidates:
        raise ConfigError(
            f'The number of samples in a batch cannot be told from its shape: {outline(batch)}. Pass '
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
    return [cut_rows(batch, begin, min(begin + size, rows), rows) for begin in range(0, rows, size)]


def first_rows(batch: Any, count: int, rows: int) -> Any:
    """The first `count` of the `rows` rows that `batch` has."""
    return cut_rows(batch, 0, count, rows)


def count_composer_tokens(batch: Any, column: str | None, *, count_padding: bool = True) -> int:
    """Tokens in a batch: places of the first two dimensions, or the lengths of ragged rows.

    Args:
        batch: The batch.
        column: The column that holds tokens. None: ``input_ids`` or ``tokens``; a batch without them has 0 tokens.
        count_padding: Whether padding counts. If not, the batch must have ``attention_mask``, or ``num_tokens`` as
            packed batches have.

    Raises:
        ConfigError: `column` was given, but the batch has no such column; or padding cannot be told from tokens.
    """
    if not count_padding:
        return _count_without_padding(batch)
    if not isinstance(batch, Mapping) or (column is not None and column not in batch):
        if column is None:
            return 0
        raise ConfigError(f'`token_column` must name a column of the batch, but it is {column!r}: {outline(batch)}.')
    columns = cast('Mapping[Any, Any]', batch)
    names = [name for name in ((column,) if column is not None else TOKEN_COLUMNS) if name in columns]
    return (count_places(columns[names[0]]) or 0) if names else 0


def _count_without_padding(batch: Any) -> int:
    for name in ('num_tokens', 'attention_mask') if isinstance(batch, Mapping) else ():
        if name in batch:
            return int(cast('Mapping[Any, Any]', batch)[name].sum())
    raise ConfigError(
        f'`count_padding=False` needs `attention_mask` or `num_tokens` in the batch, which is {outline(batch)}. Put '
        f'one there, or pass `get_num_tokens_in_batch`.'
    )
