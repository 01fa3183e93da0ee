"""The costs of samples: their lengths, or numbers. A writer may keep them in the head of each MDS shard.

They stand between the configuration and the first sample, where other readers do not look::

    u32 cost[n] | 16 bytes: xxh3 of the configuration and the costs | 'hrcosts1'

The key ``cost`` of the configuration names their column. So one request for the head of a shard tells the costs of its
samples, and whatever copies or changes the shard does so with its costs.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.errors import ConfigError, StreamError
from headrace.format.encodings.arrays import NDArray
from headrace.format.encodings.texts import Bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.format.mds import Layout
    from headrace.format.shards import ShardInfo

MAX_COST: Final = 2**32 - 1
TAIL: Final = 24  # bytes behind the costs of a shard
_MAGIC: Final = b'hrcosts1'
_CONFIG: Final = 4096  # bytes of a shard's configuration, mostly fewer


def check_cost_column(layout: Layout, name: str) -> np.dtype[Any] | None:
    """The type of a writer's `cost` of numbers; None if lengths are costs. ConfigError: no column, or no lengths."""
    for column in layout.columns:
        is_number = column.value_type is not None and not column.shape and column.value_type.kind in 'iu'
        has_length = column.is_text or column.shape or isinstance(column.encoding, (Bytes, NDArray))
        if column.name == name and (is_number or has_length):
            return column.value_type if is_number else None
    raise ConfigError(
        f'`cost` of a writer names a column of whole numbers, texts, bytes or arrays, but is {name!r}, and the columns '
        f'are {", ".join(column.name for column in layout.columns)}. Name another one, or add a column of numbers.'
    )


def costs_of_values(values: Any, column: str) -> npt.NDArray[np.int64]:
    """The costs int64[n] of values; StreamError: neither whole numbers from 0 to `MAX_COST`, nor with lengths."""
    if isinstance(values, np.ndarray):
        if values.ndim > 1:
            return np.full(len(values), values.shape[1], np.int64)
        costs, found = values, np.issubdtype(values.dtype, np.integer)
    else:
        try:
            return np.fromiter(map(len, values), np.int64, len(values))
        except TypeError:
            costs, found = np.array([min(_length(value), MAX_COST + 1) for value in values]), True
    wrong = (costs < 0) | (costs > MAX_COST) if found else np.ones(len(costs), np.bool_)
    if wrong.any():
        value = values[int(wrong.argmax())]
        raise StreamError(
            f'A cost is a whole number from 0 to 2^32 - 1, or the length of a text, bytes or an array, but `cost` '
            f'names the column {column!r}, which has {value!r:.60} ({type(value).__name__}). Name another column.'
        )
    return costs.astype(np.int64)


def _length(value: Any) -> int:
    return value if type(value) is int else len(value) if hasattr(value, '__len__') else -1


def costs_block(costs: npt.NDArray[np.int64], config: bytes) -> bytes:
    """The bytes between the configuration and the first sample of a shard."""
    stored = costs.astype('<u4').tobytes()
    return stored + xxhash.xxh3_128_digest(config + stored) + _MAGIC


def stored_costs(info: ShardInfo, read: Callable[[int], bytes]) -> tuple[str, npt.NDArray[np.uint32]] | None:
    """The column and costs uint32[n] of an MDS shard, None if none are sound; `read` gives its first bytes."""
    table = 8 + 4 * info.samples
    data = read(table + 4 * info.samples + _CONFIG)
    begin = int.from_bytes(data[4:8], 'little')
    if len(data) < begin <= table + 4 * info.samples + (1 << 20):
        data = read(begin)
    start, end = begin - TAIL - 4 * info.samples, begin - TAIL
    if start < table or data[end:begin] != xxhash.xxh3_128_digest(data[table:end]) + _MAGIC:
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        return json.loads(data[table:start])['cost'], np.frombuffer(data, '<u4', info.samples, start)
    return None
