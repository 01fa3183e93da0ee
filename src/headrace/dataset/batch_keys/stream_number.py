"""The mark of streams in a batch: the stream of each row, for metrics by stream."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.batch_keys.key import ReservedKey

__all__ = ['STREAM', 'STREAM_KEY', 'with_streams']

STREAM: Final = 'stream_number'
"""Key of the mark in a batch: int64[rows], the number of each row's stream, as in `StreamingDataset.streams`.

Of packed data int64[rows, S], the number of each token's stream; -1 for padding."""


STREAM_KEY: Final = ReservedKey(
    STREAM,
    '`mark_streams` marks the stream of each row in the batch',
    "Leave `mark_streams` out and take the loader's `own_streams`, or rename the column.",
)


def with_streams(batch: Any, streams: npt.NDArray[Any] | None, rows: int) -> Any:
    """The batch with the mark, if it can hold it.

    Args:
        batch: the batch; it is not changed.
        streams: stream number of each row, [rows]; None: all are of stream 0.
        rows: number of its samples, padding included.

    Raises:
        ConfigError: the key is taken.
    """
    numbers = np.zeros(rows, np.int64) if streams is None else streams.astype(np.int64)
    return STREAM_KEY.put(batch, torch.from_numpy(numbers))
