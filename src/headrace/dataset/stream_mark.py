"""The mark of streams in a batch: which one each row is of, for metrics by stream."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import ConfigError

__all__ = ['STREAM', 'check_stream_columns', 'with_streams']

STREAM: Final = 'stream_number'
"""Key of the mark in a batch: int64[rows], the number of each row's stream, as in `StreamingDataset.streams`."""


def check_stream_columns(names: Iterable[str]) -> None:
    """Check that no column has the name of the mark.

    Raises:
        ConfigError: one has.
    """
    if STREAM in names:
        raise ConfigError(
            f'`mark_streams` marks the stream of each row in the batch under {STREAM!r}, but the data has a column of '
            f"that name. Leave `mark_streams` out and take the loader's `own_streams`, or rename the column."
        )


def with_streams(batch: Any, streams: npt.NDArray[Any] | None, rows: int) -> Any:
    """The batch with the mark, if it is a dict or the like; otherwise the batch itself.

    Args:
        batch: what a loader is about to hand out; it is not changed.
        streams: stream number of each row, [rows]; None: all are of stream 0.
        rows: number of its samples, padding included.

    Raises:
        ConfigError: the batch has something else under the key of the mark.
    """
    if not isinstance(batch, MutableMapping):
        return batch
    check_stream_columns(cast('Mapping[str, Any]', batch))
    result = copy.copy(cast('MutableMapping[str, Any]', batch))
    result[STREAM] = torch.from_numpy(np.zeros(rows, np.int64) if streams is None else streams.astype(np.int64))
    return result
