"""Arrow batches of an engine as columns for a writer: with encodings of the user's, or inferred ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import ConfigError
from headrace.format import is_mds_encoding
from headrace.sources.arrow_types import NullValueError, arrow_columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ['check_columns', 'columns_of', 'infer_columns']

_INTEGERS: Final = {'int', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'str_int'}
_FLOATS: Final = {'float16', 'float32', 'float64', 'str_float'}


def infer_columns(schema: pa.Schema, *, source: str) -> dict[str, str]:
    """The encoding of each column, as for Parquet (`headrace.sources.arrow_types`). Ray's tensors keep their shape.

    Args:
        schema: of the batches.
        source: what they are of, for messages.

    Raises:
        ConfigError: a column is of Python objects.
        FormatError: no encoding stores a column.
    """
    plain = arrow_columns(_plain(schema), columns=None, source=source)
    return {field.name: _engine_encoding(field, source) or plain[field.name].encoding for field in schema}


def _plain(schema: pa.Schema) -> pa.Schema:
    """The columns whose types are Arrow's own."""
    import pyarrow as pa

    return pa.schema([field for field in schema if not _is_of_engine(field.type)], schema.metadata)


def _is_of_engine(kind: pa.DataType) -> bool:
    """Whether a type is of Python code, as Ray's are."""
    import pyarrow as pa

    return isinstance(kind, pa.ExtensionType)


def _engine_encoding(field: pa.Field, source: str) -> str | None:
    """The encoding of a tensor type of Ray; None for types of Arrow."""
    if not _is_of_engine(field.type):
        return None
    kind: Any = field.type
    if not hasattr(kind, 'shape'):
        raise ConfigError(
            f'Column {field.name!r} of {source} holds Python objects, for which no encoding can be inferred. Give '
            f"`columns`, with an encoding such as 'json' or 'jpeg' for it."
        )
    # Older versions of Ray have another name for it.
    number = getattr(kind, 'value_type', None) or kind.scalar_type
    encoding = f'ndarray:{np.dtype(number.to_pandas_dtype()).name}'
    return encoding if None in kind.shape else f'{encoding}:{",".join(map(str, kind.shape))}'


def check_columns(columns: Mapping[str, str], schema: pa.Schema, *, source: str) -> None:
    """Check that the columns of a dataset are columns of the batches, with encodings for their types.

    Raises:
        ConfigError: one is not.
    """
    import pyarrow as pa

    for name, encoding in columns.items():
        if name not in schema.names:
            raise ConfigError(f'`columns` are columns of {source}, but {name!r} is none of {schema.names}.')
        field = schema.field(name)
        if _is_of_engine(field.type) and not hasattr(field.type, 'shape'):
            continue  # Python objects: the encoding says whether it stores them
        inferred = infer_columns(pa.schema([field], schema.metadata), source=source)[name]
        # The writer refuses unknown encodings.
        if is_mds_encoding(encoding) and not _stores(encoding, inferred):
            raise ConfigError(
                f'Mismatched types: column {name!r} of {source} is {field.type}, whose values an encoding '
                f'{encoding!r} does not store. Its encoding is {inferred!r}. Give that one, or cast the column first.'
            )


def _stores(encoding: str, inferred: str) -> bool:
    """Whether an encoding is for values with this inferred one. Each value is checked when it is written."""
    kind = encoding.partition(':')[0]
    if encoding == inferred or kind == 'pkl':
        return True
    if inferred in _INTEGERS:
        return kind in _INTEGERS | _FLOATS | {'json'}
    if inferred in _FLOATS:
        return kind in _FLOATS | {'json'}
    if inferred.startswith('ndarray'):
        return kind in {'ndarray', 'json'}
    if inferred == 'bytes':  # of files, such as images
        return kind not in _INTEGERS | _FLOATS | {'str', 'str_decimal', 'json'}
    return kind == 'json'


def columns_of(batch: pa.RecordBatch, columns: Mapping[str, str]) -> dict[str, Sequence[Any] | np.ndarray[Any, Any]]:
    """The values of a batch for a writer. Columns that the batch lacks are left out.

    Args:
        batch: rows, by column.
        columns: encoding of each column that is wanted.
    """
    import pyarrow as pa

    wanted = [name for name in columns if name in batch.schema.names]
    plain = _plain(batch.select(wanted).schema)
    nullable = [name for name in plain.names if columns[name] == 'json']
    inferred = arrow_columns(plain, columns=None, with_nulls=nullable, source='a batch')
    values: dict[str, Sequence[Any] | np.ndarray[Any, Any]] = {}
    for name in wanted:
        array, column, encoding = batch.column(name), inferred.get(name), columns[name]
        is_array, is_number = encoding.startswith('ndarray'), not encoding.startswith(('str_', 'json', 'pkl'))
        try:
            if column is None:
                values[name] = _as_encoding(_tensors(array), encoding) if is_array else array.to_pylist()
            elif column.encoding == encoding or (column.encoding in _INTEGERS | _FLOATS and is_number):
                values[name] = column.convert(array)
            elif column.encoding.startswith('ndarray') and is_array:
                values[name] = _as_encoding(column.convert(array), encoding)
            else:
                values[name] = array.to_pylist()
        except (NullValueError, pa.ArrowException, ValueError):
            # Row by row, so that the writer names the sample.
            values[name] = _as_encoding(list(map(_array, array)), encoding) if is_array else array.to_pylist()
    return values


def _tensors(array: Any) -> Any:
    """The values of a tensor type of Ray: one array ``[n, *shape]``, or a list of arrays."""
    return array.to_numpy_ndarray() if hasattr(array, 'to_numpy_ndarray') else list(array.to_numpy())


def _array(row: Any) -> Any:
    """The numbers of one value of a list type; other values as they are."""
    numbers = getattr(row, 'values', None)
    return row.as_py() if numbers is None or numbers.null_count else numbers.to_numpy(zero_copy_only=False)


def _as_encoding(rows: Any, encoding: str) -> Any:
    """Arrays in the dtype of their encoding, and in its shape, where that changes no number."""
    _, dtype, shape = [*encoding.split(':'), '', ''][:3]
    if isinstance(rows, np.ndarray):
        return _cast(rows, dtype)
    sizes = tuple(int(size) for size in shape.split(',')) if shape else ()
    return [_shaped(_cast(row, dtype), sizes) if isinstance(row, np.ndarray) else row for row in rows]


def _shaped(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return array.reshape(shape) if shape and array.size == math.prod(shape) else array


def _cast(numbers: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if not dtype or dtype == numbers.dtype.name:
        return numbers
    with np.errstate(invalid='ignore', over='ignore'):
        cast = numbers.astype(dtype)
    return cast if np.array_equal(cast, numbers, equal_nan=numbers.dtype.kind == 'f') else numbers
