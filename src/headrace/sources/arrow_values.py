"""Conversions of Arrow arrays to values that suit the encodings of MDS columns.

Each takes an array, which may be a slice of another, and returns as many values. Numbers stay in the array's memory
where possible. Any error of pyarrow, or ValueError, means that the array is damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    'NullValueError',
    'bools',
    'decimals',
    'decode_dictionary',
    'decode_runs',
    'files',
    'json_values',
    'lists_of_files',
    'lists_of_numbers',
    'numbers',
    'shaped',
    'storage',
    'texts_or_bytes',
    'times',
]


class NullValueError(Exception):
    """A value is missing.

    Args:
        row: its number in the array.
        what: 'null', or what else the encoding cannot store.
    """

    def __init__(self, row: int, what: str = 'null') -> None:
        super().__init__(row, what)
        self.row, self.what = row, what


def storage(array: Any) -> Any:
    """The values of an array of an extension type."""
    return array.storage


def decode_dictionary(array: Any) -> Any:
    """The values of an array of a dictionary type."""
    return array.dictionary_decode()


def decode_runs(array: Any) -> Any:
    """The values of a run-end encoded array."""
    import pyarrow.compute as pc

    return pc.call_function('run_end_decode', [array])


def _require_values(array: Any, rows_of: Callable[[int], int] = lambda row: row) -> None:
    """Refuse an array with nulls."""
    if array.null_count:
        nulls = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
        raise NullValueError(rows_of(int(np.flatnonzero(nulls)[0])))


def numbers(array: Any) -> np.ndarray[Any, Any]:
    """Numbers: a view of the array's memory."""
    _require_values(array)
    return array.to_numpy(zero_copy_only=False)


def bools(array: Any) -> np.ndarray[Any, Any]:
    """Bools as uint8, 0 or 1."""
    _require_values(array)
    return array.to_numpy(zero_copy_only=False).view(np.uint8)


def times(array: Any) -> np.ndarray[Any, Any]:
    """Timestamps, dates, times of day and durations as int64, in their unit."""
    _require_values(array)
    return _as_integers(array).to_numpy(zero_copy_only=False)


def _as_integers(array: Any) -> Any:
    """Times as int64, in their unit."""
    import pyarrow as pa

    return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).cast(pa.int64())


def texts_or_bytes(array: Any) -> list[Any]:
    """Text as str, binary values as bytes."""
    import pyarrow as pa
    from pyarrow import types

    _require_values(array)
    if str(array.type) == 'string_view':
        array = array.cast(pa.large_string())
    elif str(array.type) == 'binary_view':
        array = array.cast(pa.large_binary())
    if types.is_string(array.type) or types.is_large_string(array.type):
        array.validate(full=True)  # UTF-8
    return array.to_numpy(zero_copy_only=False).tolist()


def decimals(array: Any) -> list[Any]:
    """`decimal.Decimal` objects."""
    _require_values(array)
    return array.to_pylist()


def _flat(array: Any) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Any]:
    """The offsets of lists, from 0, and the values that they cut."""
    _require_values(array)
    offsets = np.asarray(array.offsets.to_numpy()).astype(np.int64)
    if len(offsets) and (offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(array.values)):
        raise ValueError('the offsets of its lists are not in order')
    first = int(offsets[0]) if len(offsets) else 0
    values = array.values.slice(first, int(offsets[-1]) - first if len(offsets) else 0)
    offsets -= first
    _require_values(values, lambda value: int(offsets.searchsorted(value, 'right')) - 1)
    return offsets, values


def lists_of_numbers(array: Any) -> list[np.ndarray[Any, Any]]:
    """Arrays of one axis: views of the array's memory."""
    offsets, values = _flat(array)
    empty = np.flatnonzero(offsets[1:] == offsets[:-1])
    if len(empty):
        raise NullValueError(int(empty[0]), 'an empty list')
    from pyarrow import types

    flat = bools(values) if types.is_boolean(values.type) else numbers(values)
    ends = offsets.tolist()
    return [flat[begin:end] for begin, end in pairwise(ends)]


def shaped(array: Any, lists: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Nested lists of fixed lengths as one array ``[n, *shape]``."""
    from pyarrow import types

    rows, values = len(array), array
    for size in lists:
        if types.is_fixed_size_list(values.type):
            _require_values(values, _row_of(rows, len(values)))
            values = values.flatten()
            continue
        offsets, inner = _flat(values)
        if (np.diff(offsets) != size).any():
            raise ValueError(f'its values have the shape {shape}, but some lists do not have {size} items')
        values = inner
    _require_values(values, _row_of(rows, len(values)))
    flat = bools(values) if types.is_boolean(values.type) else numbers(values)
    return flat.reshape(rows, *shape)


def _row_of(rows: int, values: int) -> Callable[[int], int]:
    """The row of a value, if each row has as many."""
    return lambda value: value * rows // max(1, values)


def files(array: Any) -> list[bytes]:
    """The content of files, of structs with their paths."""
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    content = array.flatten()[names.index('bytes')]
    if content.null_count:
        row = int(np.flatnonzero(np.asarray(content.is_null().to_numpy(zero_copy_only=False)))[0])
        raise NullValueError(row, 'null, or names a file elsewhere')
    return texts_or_bytes(content)


def lists_of_files(array: Any) -> list[list[bytes]]:
    """The contents of files, of lists of structs with their paths."""
    _require_values(array)
    offsets = np.asarray(array.offsets.to_numpy()).astype(np.int64)
    first = int(offsets[0]) if len(offsets) else 0
    contents = files(array.values.slice(first, int(offsets[-1]) - first if len(offsets) else 0))
    ends = (offsets - first).tolist()
    return [contents[begin:end] for begin, end in pairwise(ends)]


def json_values(array: Any, plain: pa.DataType) -> list[Any]:
    """Objects that JSON can express."""
    import pyarrow as pa
    from pyarrow import types

    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_temporal(array.type):
        array = _as_integers(array)
    elif not array.type.equals(plain):
        array = array.cast(plain)
    array.validate(full=True)
    if _has_map(array.type):
        return array.to_pylist(maps_as_pydicts='strict')
    return array.to_pylist()


def _has_map(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))
