"""The costs of samples: their lengths, or numbers. A writer may keep them in the head of each MDS shard.

They stand between the configuration and the first sample, where other readers do not look::

    u32 cost[n] | 16 bytes: xxh3 of the configuration and the costs | 'hrcosts1'

The key ``cost`` of the configuration names their column. So one request for the head of a shard tells the costs of its
samples, and whatever copies or changes the shard does so with its costs.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from numbers import Complex, Number
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.errors import ConfigError, StreamError
from headrace.format.encodings.arrays import NDArray
from headrace.format.encodings.texts import Bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.format.mds import Layout
    from headrace.format.shards import ShardInfo

MAX_COST: Final = 2**32 - 1
TAIL: Final = 24  # bytes behind the costs of a shard
_MAGIC: Final = b'hrcosts1'
_MISSING: Final = frozenset({'', '-', 'na', 'n/a', 'nan', 'none', 'null'})
_NUMBER: Final = re.compile(r'\s*[-+]?(?:\.?[0-9][0-9.,:_]*\s*[^\W\d_]{0,8}\s*){1,3}')  # with units, as "1 min 3 s"
_LONGEST: Final = 40  # characters of such a text
_WHOLE: Final = re.compile(r'\s*\+?[0-9]{1,4000}\s*')
_CONFIG: Final = 4096  # bytes of a shard's configuration, mostly fewer


def check_cost_column(layout: Layout, name: str) -> np.dtype[Any] | None:
    """The type of a writer's `cost` of numbers; None if lengths are costs. ConfigError: no column, or no lengths."""
    for column in layout.columns:
        is_number = column.value_type is not None and not column.shape and column.value_type.kind in 'iu'
        is_array = len(column.shape) == 1 or (isinstance(column.encoding, NDArray) and not column.shape)
        has_length = column.is_text or is_array or isinstance(column.encoding, Bytes)
        if column.name == name and (is_number or has_length):
            return column.value_type if is_number else None
    raise ConfigError(
        f'`cost` of a writer names a column of whole numbers, texts, bytes or arrays of one axis, but is {name!r}, and '
        f'the columns are {", ".join(column.name for column in layout.columns)}. Name another one, or add a column of '
        f'numbers.'
    )


def costs_of_values(values: Any, column: str, place: str = 'these samples') -> npt.NDArray[np.int64]:
    """The costs int64[n] of values: whole numbers from 0 to `MAX_COST`, or lengths of arrays, bytes and texts.

    Texts that are numbers count as these. StreamError names the first value that is not a cost, and its row of `place`.
    """
    if isinstance(values, np.ndarray) and values.ndim <= 1 and values.dtype.kind in 'iu':
        costs = values
    elif isinstance(values, np.ndarray) and values.ndim == 2:
        return np.full(len(values), values.shape[1], np.int64)
    elif {*map(type, values)} == {np.ndarray} and {value.ndim for value in values} == {1}:
        return np.fromiter(map(len, values), np.int64, len(values))  # the usual case, of many rows
    else:
        is_written = _are_numbers(values)
        costs = np.array([_cost(value, is_written=is_written) for value in values], np.int64)
    wrong = (costs < 0) | (costs > MAX_COST)
    if wrong.any():
        row = int(wrong.argmax())
        raise StreamError(
            f'A cost is a whole number from 0 to 2^32 - 1, or the length of a text, of bytes, or of an array of one '
            f'axis, but `cost` names the column {column!r}, which has {_shown(values[row])} in row {row} of {place}. '
            f'Correct it, or name a column of whole numbers: add one with the lengths that the model reads.'
        )
    return costs.astype(np.int64)


def _are_numbers(values: Any) -> bool:
    """Whether most texts of a column are numbers, those of missing values aside: then the column means numbers."""
    texts = [value for value in values if isinstance(value, str) and value[:8].strip().lower() not in _MISSING]
    numbers = sum(len(text) <= _LONGEST and _NUMBER.fullmatch(text) is not None for text in texts)
    return 2 * numbers > len(texts)


def _cost(value: Any, *, is_written: bool) -> int:
    """The cost of a value, from 0 to `MAX_COST` + 1; -1: it has none."""
    cost = -1
    if isinstance(value, str):
        cost = len(value) if not is_written else int(value) if _WHOLE.fullmatch(value) else -1
    elif isinstance(value, (bytes, bytearray, memoryview)):
        cost = len(value)
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        cost = int(value)
    elif isinstance(value, Number) and not isinstance(value, Complex):  # a Decimal, whose module takes long to import
        number: Any = value
        cost = int(number) if number.is_finite() and number == int(number) else -1
    elif isinstance(value, (list, tuple)):
        items = cast('Sequence[Any]', value)
        is_nested = any(isinstance(item, (str, Mapping)) or hasattr(item, '__len__') for item in items[:1])
        cost = -1 if is_nested else len(items)
    elif len(shape := getattr(value, 'shape', ())) == 1:
        cost = shape[0]
    return min(max(cost, -1), MAX_COST + 1)


def _shown(value: Any) -> str:
    shape = getattr(value, 'shape', ())
    return f'an array of shape {list(shape)}' if len(shape) > 1 else f'{value!r:.60} ({type(value).__name__})'


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
