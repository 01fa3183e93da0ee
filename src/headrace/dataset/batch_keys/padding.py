"""The mark of padding, the rows that only fill up a batch, and batches without padding.

Under ``remainder: exact`` every batch that is a dict has the mark, with or without padding. So the columns of a batch
depend on the setting alone, and not on the number of samples or ranks. For other batches the loader counts the real
rows (`headrace.StreamingDataLoader.own_samples`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.batch_keys.bad_sample import BAD_SAMPLE
from headrace.dataset.batch_keys.key import ReservedKey
from headrace.dataset.batch_keys.rows import cut_rows, outline, pick_rows, possible_rows
from headrace.errors import ConfigError

__all__ = ['PADDING', 'PADDING_KEY', 'marked', 'without_padding']

PADDING: Final = 'is_padding'
"""Key of the mark in a batch: bool[rows], True for a row that repeats a sample which another row counts."""


PADDING_KEY: Final = ReservedKey(
    PADDING,
    "remainder 'exact' marks padding in the batch",
    "Rename the column, or choose remainder 'repeat' or 'drop'.",
)


def marked(batch: Any, *, rows: int, own_samples: int) -> Any:
    """The batch with the mark, if it can hold it.

    Args:
        batch: the batch; it is not changed.
        rows: number of its samples, padding included.
        own_samples: number of those that are no padding; they come first.

    Raises:
        ConfigError: the key is taken.
    """
    return PADDING_KEY.put(batch, torch.arange(rows, device='cpu') >= own_samples)


def without_padding(batch: Any, own_samples: int | None = None, bad_rows: npt.NDArray[np.bool_] | None = None) -> Any:
    """The rows of a batch that count, without marks: for metrics and predictions.

    Rows of bad samples are removed, too. A rank whose rows are all padding gets none. So run the model on the whole
    batch, and remove the padding from the values that you count.

    Args:
        batch: a batch of a loader with ``remainder='exact'`` or ``on_bad_sample='skip'``. It may nest dicts, lists and
            tuples of tensors and arrays. Tensors of the result are views unless a bad row is removed. Mappings become
            dicts.
        own_samples: number of rows that count, for a batch without the mark of padding: the loader's `own_samples`.
        bad_rows: bool[rows], for a batch without the mark of bad samples: the loader's `own_bad_rows`.

    Raises:
        ConfigError: the batch has no mark and neither argument is given, or its rows cannot be told.
    """
    rows = None
    if isinstance(batch, Mapping):
        columns = dict(cast('Mapping[Any, Any]', batch))
        if BAD_SAMPLE in columns:
            bad_rows = columns.pop(BAD_SAMPLE).cpu().numpy()
        if PADDING in columns:
            padding = columns.pop(PADDING)
            rows, own_samples = len(padding), len(padding) - int(padding.sum())
        batch = columns
    if bad_rows is not None:
        rows = len(bad_rows)
        own_samples = rows if own_samples is None else own_samples
    if own_samples is None:
        raise ConfigError(
            f"The batch holds no mark under {PADDING!r}: {outline(batch)}. Read it with remainder 'exact'; if it is no "
            f'dict, pass `own_samples`, which the loader says.'
        )
    candidates = possible_rows(batch) or []
    if rows is None:
        # A batch has one row of padding at most, which settles an ambiguous shape.
        rows = next((rows for rows in candidates if rows - own_samples in (0, 1)), None)
    if rows is None or rows not in candidates:
        raise ConfigError(
            f'The batch must have a row for each of its samples, {own_samples} of which count, but it is '
            f'{outline(batch)}. Leave out the padding where the samples can still be told apart.'
        )
    if bad_rows is not None and bad_rows[:own_samples].any():
        return pick_rows(batch, np.flatnonzero(~bad_rows[:own_samples]).tolist(), rows)
    return cut_rows(batch, 0, own_samples, rows)
