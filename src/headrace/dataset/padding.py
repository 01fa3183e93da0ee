"""The mark of rows that only fill up a batch: which they are, and a batch without them.

Under ``remainder: exact`` every batch that is a dict holds the mark, those without padding too: what a batch is made of
depends on the setting alone, and not on the number of samples or of ranks. Other batches cannot hold it; their loader
says how many rows are real (`headrace.StreamingDataLoader.own_samples`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, cast

import torch

from headrace.dataset.rows import cut_rows, outline, possible_rows
from headrace.errors import ConfigError

__all__ = ['PADDING', 'check_columns', 'marked', 'marked_sample', 'without_padding']

PADDING: Final = 'is_padding'
"""Key of the mark in a batch: bool[rows], True for a row that repeats a sample which another row counts."""


def check_columns(names: Iterable[str]) -> None:
    """Check that no column has the name of the mark.

    Raises:
        ConfigError: one has.
    """
    if PADDING in names:
        raise ConfigError(
            f"remainder 'exact' marks padding in the batch under {PADDING!r}, but the data has a column of that name. "
            f"Rename the column, or choose remainder 'repeat' or 'drop'."
        )


def marked(batch: Any, *, rows: int, own_samples: int) -> Any:
    """The batch with the mark, if it is a dict or the like; otherwise the batch itself.

    Args:
        batch: what a loader is about to hand out; it is not changed.
        rows: number of its samples, padding included.
        own_samples: number of those that are no padding; they come first.

    Raises:
        ConfigError: the batch has something else under the key of the mark.
    """
    if not isinstance(batch, MutableMapping):
        return batch
    check_columns(cast('Mapping[str, Any]', batch))
    result = copy.copy(cast('MutableMapping[str, Any]', batch))
    result[PADDING] = torch.arange(rows) >= own_samples
    return result


def marked_sample(sample: Any, *, is_padding: bool) -> Any:
    """As `marked`, for one sample: collating such samples gives the mark of the batch."""
    if not isinstance(sample, MutableMapping):
        return sample
    check_columns(cast('Mapping[str, Any]', sample))
    result = copy.copy(cast('MutableMapping[str, Any]', sample))
    result[PADDING] = is_padding
    return result


def without_padding(batch: Any, own_samples: int | None = None) -> Any:
    """The rows of a batch that count, and no mark: for metrics, and for what is predicted.

    A rank that has no sample of its own in a batch is left with no rows at all: run the model on the whole batch, and
    take the padding out of what you count.

    Args:
        batch: a batch of a loader with ``remainder='exact'``. Tensors and arrays, dicts, lists and tuples of them,
            nested in any way; tensors of the result are views, mappings become dicts.
        own_samples: number of rows that count, for a batch without the mark: the loader's `own_samples`.

    Raises:
        ConfigError: the batch has no mark and `own_samples` is not given, or its rows cannot be told.
    """
    rows = None
    if isinstance(batch, Mapping) and PADDING in batch:
        columns = dict(cast('Mapping[Any, Any]', batch))
        padding = columns.pop(PADDING)
        rows, own_samples = len(padding), len(padding) - int(padding.sum())
        batch = columns
    if own_samples is None:
        raise ConfigError(
            f"The batch holds no mark under {PADDING!r}: {outline(batch)}. Read it with remainder 'exact'; if it is no "
            f'dict, pass `own_samples`, which the loader says.'
        )
    candidates = possible_rows(batch) or []
    if rows is None:
        # At most one row of a batch is padding, which decides where a shape leaves a choice.
        rows = next((rows for rows in candidates if rows - own_samples in (0, 1)), None)
    if rows is None or rows not in candidates:
        raise ConfigError(
            f'The batch must have a row for each of its samples, {own_samples} of which count, but it is '
            f'{outline(batch)}. Leave out the padding where the samples can still be told apart.'
        )
    return cut_rows(batch, 0, own_samples, rows)
