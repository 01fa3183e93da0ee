"""Arrow columns as MDS columns: the encoding of each type, and the conversion of arrays.

========================================================  ====================  =====================================
Arrow type                                                encoding              value
========================================================  ====================  =====================================
int8 ... uint64, float16, float32, float64                the same name         number
bool                                                      uint8                 0 or 1
string, large_string, string_view                         str                   text
binary, large_binary, binary_view, fixed_size_binary      bytes                 bytes
decimal                                                   str_decimal           `decimal.Decimal`
timestamp, date, time, duration                           int64                 number of the type's own unit
list of numbers                                           ndarray:DTYPE         array of one axis
fixed-size lists of numbers, also nested; tensors         ndarray:DTYPE:SHAPE   array
struct, map, list of other values, null                   json                  dict, list, text, number, bool, None
dictionary, run-end encoded, extension                    as the values         as the values
========================================================  ====================  =====================================

A column with nulls is ``json``: None survives. A list of numbers with nulls or empty lists is ``json``, too, since an
``ndarray`` is never empty. Inside ``json``, times are numbers of their unit and decimals are text.

Datasets of Hugging Face name the types of their columns in the schema's metadata. Their images are ``jpeg``, which
reads images of all kinds, lists of images are ``jpeg_array``, and `Array2D` to `Array5D` are ``ndarray:DTYPE:SHAPE``.
Other structs of ``bytes`` and ``path``, such as audio, are ``bytes``: the content of the file.

A conversion takes an array, which may be a slice of another, and returns as many values. Numbers stay in the array's
memory where possible. Any error of pyarrow, or ValueError, means that the array is damaged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np

from headrace.errors import FormatError, ShardError, import_optional
from headrace.format.encodings.encoding import NULL_FILE
from headrace.sources.formats import choose_columns

if TYPE_CHECKING:
    import pyarrow as pa

_Convert: TypeAlias = 'Callable[[pa.Array[Any]], Sequence[Any] | np.ndarray[Any, Any]]'
_Shape: TypeAlias = 'tuple[int, ...]'
_MEANING: Final = re.compile(
    r'\b(?:timestamp|time32|time64|duration|date32|date64)\[[^]]*\]|\bdecimal\d+\(\d+, (-?\d+)\)'
)
_UTC: Final = re.compile(r'(?<=tz=)(?:[+-]00:00|Etc/(?:UTC|GMT)|GMT|Z|utc)(?=])')  # Other names of this zone.
_MAX_DEPTH: Final = 64  # Types nested in one another.


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    name: str
    encoding: str
    convert: _Convert  # Makes values for the encoding of an Arrow array.


class _NoEncodingError(Exception):
    """No MDS encoding can store the type."""


def import_pyarrow(what: str) -> Any:
    """The module ``pyarrow``, which `what` needs, such as 'Parquet files'."""
    return import_optional('pyarrow', f'{what} need pyarrow', 'arrow')


def arrow_columns(
    schema: pa.Schema, *, columns: Collection[str] | None, with_nulls: Collection[str] = (), source: str
) -> dict[str, ArrowColumn]:
    """The columns to read of Arrow data. `with_nulls`: those that hold nulls, or empty lists.

    FormatError: no encoding can store a column; or two columns have one name. StreamError: the data lack one of
    `columns`.
    """
    features = _features(schema.metadata)
    by_name: dict[str, ArrowColumn] = {}
    for name in choose_columns(schema.names, columns, source=source):
        kind = schema.field(name).type
        try:
            encoding, convert = _column(kind, features.get(name), has_nulls=name in with_nulls)
        except _NoEncodingError as error:
            raise FormatError(
                f'A column of Arrow data has a type that an MDS column can store, but column {name!r} of {source} is '
                f'{_short(kind)}: {error}. Leave it out with `columns=`.'
            ) from None
        by_name[name] = ArrowColumn(name, encoding, convert)
    return by_name


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """The names of classes that Hugging Face's datasets note for columns of their numbers, or of lists of these."""
    names: dict[str, list[str]] = {}
    for name, feature in _features(schema.metadata).items():
        inner = feature
        while isinstance(inner, dict) and 'feature' in inner:
            inner = cast('dict[str, Any]', inner)['feature']
        if isinstance(inner, dict) and inner.get('_type') == 'ClassLabel' and inner.get('names'):
            names[name] = cast('list[str]', inner['names'])
    return names


def meanings_of(encodings: Mapping[str, str], schema: pa.Schema) -> dict[str, str]:
    """The meanings of columns beyond their encodings: units and zones of times, scales of decimals, bools."""
    meanings: dict[str, str] = {}
    for name, encoding in encodings.items():
        kind = _UTC.sub('UTC', str(schema.field(name).type))
        parts = [f'decimal of scale {match[1]}' if match[1] else match[0] for match in _MEANING.finditer(kind)]
        if encoding != 'json' and 'bool' in kind:
            parts = ['bool']
        if parts:
            meanings[name] = ', '.join(parts)
    return meanings


def common_columns(
    schemas: Iterable[tuple[pa.Schema, str]],
    *,
    columns: Collection[str] | None,
    with_nulls: Collection[str],
    what: str,
) -> tuple[dict[str, str], dict[str, str]]:
    """The encoding of each column that is read of the files of one dataset, and the meanings; see `meanings_of`.

    `schemas`: the different ones of files with rows, each with its first file; others as `arrow_columns`'.
    """
    encodings: dict[str, str] = {}
    meanings: dict[str, str] = {}
    home, untyped = '', set[str]()
    for schema, there in schemas:
        read = arrow_columns(schema, columns=columns, with_nulls=with_nulls, source=there)
        new_encodings = {name: column.encoding for name, column in read.items()}
        new_meanings = meanings_of(new_encodings, schema)
        if not home:
            encodings, meanings, home, untyped = new_encodings, new_meanings, there, untyped_columns(schema)
        # A column of nulls only has the type of the other files.
        of_others = untyped_columns(schema) - untyped
        new_meanings |= {name: meanings[name] for name in of_others & meanings.keys()}
        meanings |= {name: new_meanings[name] for name in untyped & new_meanings.keys()}
        untyped &= untyped_columns(schema)
        first, other = _with_meanings(encodings, meanings), _with_meanings(new_encodings, new_meanings)
        for name in [*first, *other]:
            kinds = first.get(name, 'missing'), other.get(name, 'missing')
            if kinds[0] != kinds[1]:
                shared = [name for name in first if other.get(name) == first[name]]
                fix = f'Read what they share, `columns={shared[:8]}`, or' if shared else 'Choose'
                raise FormatError(
                    f'The {what} files of one dataset have the same columns, but column {name!r} is `{kinds[0]}` in '
                    f'{home}, and `{kinds[1]}` in {there}. {fix} files of one kind with a glob in `remote`.'
                )
    return encodings, meanings


def untyped_columns(schema: pa.Schema) -> set[str]:
    """The columns of Arrow's type of nulls, or with a part of it: other files may know their type."""
    from pyarrow import types

    def is_untyped(kind: pa.DataType) -> bool:
        kind = getattr(kind, 'storage_type', kind)
        inner = (kind.field(number).type for number in range(kind.num_fields))
        return types.is_null(kind) or any(map(is_untyped, inner))

    return {field.name for field in schema if is_untyped(field.type)}


def _with_meanings(encodings: Mapping[str, str], meanings: Mapping[str, str]) -> dict[str, str]:
    """The encodings, with the meanings: numbers of different ones must not be mixed."""
    return {
        name: f'{encoding} of {meanings[name]}' if name in meanings else encoding
        for name, encoding in encodings.items()
    }


def to_columns(
    batch: pa.RecordBatch,
    columns: Mapping[str, ArrowColumn],
    *,
    source: str,
    first_row: int = 0,
    fix: str = 'Write the file again with statistics.',
) -> dict[str, Sequence[Any] | np.ndarray[Any, Any]]:
    """The values of a record batch for the encodings of its columns, as many as it has rows.

    Numbers are an array, without a copy where possible. A ShardError: a value is null in a column without nulls, or is
    damaged. `fix`: what to do about a null.
    """
    pa = import_pyarrow('Arrow data')
    values: dict[str, Sequence[Any] | np.ndarray[Any, Any]] = {}
    for name, column in columns.items():
        try:
            values[name] = column.convert(batch.column(name))
        except NullValueError as error:  # noqa: PERF203
            raise ShardError(
                f'Row {first_row + error.row} of column {name!r} of {source} is {error.what}, but a column of '
                f'encoding `{column.encoding}` stores no such value. The statistics of the file do not tell of it. '
                f'{fix} Or leave the column out with `columns=`.'
            ) from None
        except (pa.ArrowException, ValueError, TypeError, KeyError, OverflowError, IndexError) as error:
            last = first_row + batch.num_rows - 1
            raise ShardError(
                f'Column {name!r} of {source.rstrip(",")}, rows {first_row} to {last}, cannot be read as '
                f'`{column.encoding}`: {error!s:.400}. Leave it out with `columns`, or write the file again.'
            ) from error
    return values


def _features(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """The types of columns that Hugging Face's datasets note."""
    try:
        features = json.loads((metadata or {})[b'huggingface'])['info']['features']
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return cast('dict[str, Any]', features) if isinstance(features, dict) else {}


def _column(kind: pa.DataType, feature: Any, *, has_nulls: bool, depth: int = 0) -> tuple[str, _Convert]:
    """The encoding of a type, and the conversion of its arrays."""
    import pyarrow as pa
    from pyarrow import types

    if depth > _MAX_DEPTH:
        raise _NoEncodingError(f'types are nested {_MAX_DEPTH} times at most')
    inner = partial(_column, has_nulls=has_nulls, depth=depth + 1)
    if isinstance(kind, pa.BaseExtensionType):
        shape = tuple(getattr(kind, 'shape', None) or ())
        if isinstance(kind, pa.FixedShapeTensorType) and shape and not has_nulls and _is_in_order(kind.permutation):
            return _after(
                lambda array: array.storage, *_fixed_arrays(kind.storage_type.value_type, (math.prod(shape),), shape)
            )
        return _after(lambda array: array.storage, *inner(kind.storage_type, feature))
    if types.is_dictionary(kind):
        return _after(lambda array: array.dictionary_decode(), *inner(kind.value_type, feature))
    if types.is_run_end_encoded(kind):
        return _after(_decode_runs, *inner(kind.value_type, feature))
    if _is_file(kind):
        return ('jpeg' if _feature_type(feature) == 'Image' else 'bytes'), _or_null(_files, has_nulls)
    if _is_list(kind) and _is_file(kind.value_type) and _feature_type(_inner_feature(feature)) == 'Image':
        return 'jpeg_array', _or_null(_lists_of_files, has_nulls)
    if not has_nulls and (array := _array(kind, feature)) is not None:
        return array
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or _is_view(kind, 'b'):
        return 'bytes', _or_null(_texts_or_bytes, has_nulls)
    if has_nulls:
        return _json(kind)
    if (dtype := _number(kind)) is not None:
        return dtype.name, _bools if types.is_boolean(kind) else _numbers
    if types.is_string(kind) or types.is_large_string(kind) or _is_view(kind, 's'):
        return 'str', _texts_or_bytes
    if types.is_decimal(kind):
        return 'str_decimal', _decimals
    if types.is_temporal(kind) and not types.is_interval(kind):
        return 'int64', _times
    return _json(kind)


def _after(before: Callable[[Any], Any], encoding: str, convert: _Convert) -> tuple[str, _Convert]:
    return encoding, lambda array: convert(before(array))


def _or_null(convert: _Convert, has_nulls: bool) -> _Convert:
    """The conversion of files, and of nulls among them to `NULL_FILE`."""

    def converted(array: Any) -> list[Any]:
        import pyarrow.compute as pc

        is_null = array.is_null()
        if _is_file(array.type):  # a file elsewhere is not null
            parts = [
                pc.call_function('struct_field', [array], pc.StructFieldOptions([name])).is_null()
                for name in ('bytes', 'path')
            ]
            is_null = pc.call_function('and', parts)
        values = iter(convert(array.filter(pc.call_function('invert', [is_null]))))
        return [NULL_FILE if null else next(values) for null in is_null.to_pylist()]

    return converted if has_nulls else convert


def _short(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= 200 else f'{text[:200]}...'


# The kinds of types


_NUMBERS: Final = {
    'bool': 'u1',
    **{f'{sign}int{bits}': f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)},
    'halffloat': 'f2',
    'float': 'f4',
    'double': 'f8',
}
"""The dtypes of Arrow's numbers, by the names of the types."""


def _number(kind: pa.DataType) -> np.dtype[Any] | None:
    """The dtype of numbers, uint8 for bools; None for other types."""
    return np.dtype(_NUMBERS[str(kind)]) if str(kind) in _NUMBERS else None


def _is_view(kind: pa.DataType, of: str) -> bool:
    """Whether a type is a view of text ('s') or bytes ('b'), which older versions of pyarrow lack."""
    return str(kind) == {'s': 'string_view', 'b': 'binary_view'}[of]


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind)


def _is_file(kind: pa.DataType) -> bool:
    """Whether a type is the struct of a file's content and its path, as Hugging Face stores images and audio."""
    from pyarrow import types

    if not types.is_struct(kind) or kind.num_fields != 2:
        return False
    names = {kind.field(i).name: kind.field(i).type for i in range(2)}
    return set(names) == {'bytes', 'path'} and (
        types.is_binary(names['bytes']) or types.is_large_binary(names['bytes'])
    )


def _feature_type(feature: Any) -> str:
    return str(cast('dict[str, Any]', feature).get('_type', '')) if isinstance(feature, dict) else ''


def _inner_feature(feature: Any) -> Any:
    if isinstance(feature, list) and len(cast('list[Any]', feature)) == 1:
        return cast('list[Any]', feature)[0]
    return cast('dict[str, Any]', feature).get('feature') if isinstance(feature, dict) else None


def _array(kind: pa.DataType, feature: Any) -> tuple[str, _Convert] | None:
    """The encoding of lists of numbers, as arrays; None for other types."""
    from pyarrow import types

    if _feature_type(feature) in {'Array2D', 'Array3D', 'Array4D', 'Array5D'}:
        inner, depth = kind, 0
        while _is_list(inner) or types.is_fixed_size_list(inner):
            inner, depth = inner.value_type, depth + 1
        shape = cast('dict[str, Any]', feature).get('shape')
        if isinstance(shape, list) and len(cast('list[Any]', shape)) == depth and _are_sizes(cast('list[Any]', shape)):
            return _fixed_arrays(inner, tuple(cast('list[int]', shape)))
        return None
    if types.is_fixed_size_list(kind):
        inner, shape = kind, list[int]()
        while types.is_fixed_size_list(inner):
            shape.append(inner.list_size)
            inner = inner.value_type
        if _number(inner) is not None and _are_sizes(shape):
            return _fixed_arrays(inner, tuple(shape))
        return None
    if _is_list(kind) and (dtype := _number(kind.value_type)) is not None:
        return f'ndarray:{dtype.name}', _lists_of_numbers
    return None


def _are_sizes(shape: list[Any]) -> bool:
    return 0 < len(shape) <= 32 and all(type(size) is int and 0 < size < 1 << 31 for size in shape)


def _is_in_order(permutation: Sequence[int] | None) -> bool:
    return permutation is None or list(permutation) == list(range(len(permutation)))


def _fixed_arrays(kind: pa.DataType, lists: _Shape, shape: _Shape | None = None) -> tuple[str, _Convert]:
    """The encoding of nested lists of fixed lengths, the outermost first. `shape`: that of arrays, if it is another."""
    dtype = _number(kind)
    axes = lists if shape is None else shape
    if dtype is None:
        raise _NoEncodingError('only arrays of numbers can be stored')
    if math.prod(axes) * dtype.itemsize >= 1 << 32:
        raise _NoEncodingError('a value takes 4 GiB or more')
    return f'ndarray:{dtype.name}:{",".join(map(str, axes))}', lambda array: _shaped(array, lists, axes)


def _json(kind: pa.DataType) -> tuple[str, _Convert]:
    plain = _plain(kind, 0)
    return 'json', lambda array: _json_values(array, plain)


def _plain(kind: pa.DataType, depth: int) -> pa.DataType:
    """The type whose Python objects JSON can express, for casting to it."""
    import pyarrow as pa
    from pyarrow import types

    if depth > _MAX_DEPTH:
        raise _NoEncodingError(f'types are nested {_MAX_DEPTH} times at most')
    if isinstance(kind, pa.BaseExtensionType):
        if depth:
            raise _NoEncodingError('an extension type inside another type has no place in JSON')
        kind = kind.storage_type
    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return kind
    if types.is_floating(kind):
        return pa.float32() if types.is_float16(kind) else kind
    if types.is_string(kind) or types.is_large_string(kind) or _is_view(kind, 's') or types.is_decimal(kind):
        return pa.large_string()
    if types.is_interval(kind):
        raise _NoEncodingError('an interval of months, days and nanoseconds has no place in JSON')
    if types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if types.is_dictionary(kind):
        return _plain(kind.value_type, depth + 1)
    if types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if len(set(names)) < len(names):
            raise _NoEncodingError('the fields of a struct have different names')
        return pa.struct(
            [pa.field(f.name, _plain(f.type, depth + 1)) for f in (kind.field(i) for i in range(len(names)))]
        )
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type, depth + 1), _plain(kind.item_type, depth + 1))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type, depth + 1), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type, depth + 1))
    if types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type, depth + 1))
    raise _NoEncodingError(f'{_short(kind)} has no place in JSON')


class NullValueError(Exception):
    """A value is missing in a row of an array: `what` is 'null', or what else the encoding cannot store."""

    def __init__(self, row: int, what: str = 'null') -> None:
        super().__init__(row, what)
        self.row, self.what = row, what


def _decode_runs(array: Any) -> Any:
    import pyarrow.compute as pc

    return pc.call_function('run_end_decode', [array])


def _require_values(array: Any, rows_of: Callable[[int], int] = lambda row: row) -> None:
    if array.null_count:
        nulls = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
        raise NullValueError(rows_of(int(np.flatnonzero(nulls)[0])))


def _numbers(array: Any) -> np.ndarray[Any, Any]:
    """Numbers: a view of the array's memory."""
    _require_values(array)
    return array.to_numpy(zero_copy_only=False)


def _bools(array: Any) -> np.ndarray[Any, Any]:
    """Bools as uint8, 0 or 1."""
    _require_values(array)
    return array.to_numpy(zero_copy_only=False).view(np.uint8)


def _times(array: Any) -> np.ndarray[Any, Any]:
    """Timestamps, dates, times of day and durations as int64, in their unit."""
    _require_values(array)
    return _as_integers(array).to_numpy(zero_copy_only=False)


def _as_integers(array: Any) -> Any:
    """Times as int64, in their unit."""
    import pyarrow as pa

    return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).cast(pa.int64())


def _texts_or_bytes(array: Any) -> list[Any]:
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


def _decimals(array: Any) -> list[Any]:
    _require_values(array)
    return array.to_pylist()


def _flat(array: Any) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Any]:
    """The offsets of lists, from 0, and the values that they cut."""
    _require_values(array)
    offsets = np.asarray(array.offsets.to_numpy()).astype(np.int64)
    if len(offsets) and (offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any() or offsets[-1] > len(array.values)):
        raise ValueError('the offsets of its lists are not in order')
    first = int(offsets[0]) if len(offsets) else 0
    values = array.values.slice(first, int(offsets[-1]) - first if len(offsets) else 0)
    offsets -= first
    _require_values(values, lambda value: int(offsets.searchsorted(value, 'right')) - 1)
    return offsets, values


def _lists_of_numbers(array: Any) -> list[np.ndarray[Any, Any]]:
    """Arrays of one axis: views of the array's memory."""
    offsets, values = _flat(array)
    empty = np.flatnonzero(offsets[1:] == offsets[:-1])
    if len(empty):
        raise NullValueError(int(empty[0]), 'an empty list')
    from pyarrow import types

    flat = _bools(values) if types.is_boolean(values.type) else _numbers(values)
    ends = offsets.tolist()
    return [flat[begin:end] for begin, end in pairwise(ends)]


def _shaped(array: Any, lists: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
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
    flat = _bools(values) if types.is_boolean(values.type) else _numbers(values)
    return flat.reshape(rows, *shape)


def _row_of(rows: int, values: int) -> Callable[[int], int]:
    return lambda value: value * rows // max(1, values)


def _files(array: Any) -> list[bytes]:
    """The content of files, of structs with their paths."""
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    content = array.flatten()[names.index('bytes')]
    if content.null_count:
        row = int(np.flatnonzero(np.asarray(content.is_null().to_numpy(zero_copy_only=False)))[0])
        path = array.flatten()[1 - names.index('bytes')][row].as_py()
        if path is not None:
            raise ValueError(f'the file {path!r:.200} is elsewhere, and the data does not hold its content')
        raise NullValueError(row)
    return _texts_or_bytes(content)


def _lists_of_files(array: Any) -> list[list[bytes]]:
    """The contents of files, of lists of structs with their paths."""
    _require_values(array)
    offsets = np.asarray(array.offsets.to_numpy()).astype(np.int64)
    first = int(offsets[0]) if len(offsets) else 0
    contents = _files(array.values.slice(first, int(offsets[-1]) - first if len(offsets) else 0))
    ends = (offsets - first).tolist()
    return [contents[begin:end] for begin, end in pairwise(ends)]


def _json_values(array: Any, plain: pa.DataType) -> list[Any]:
    import pyarrow as pa
    from pyarrow import types

    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_temporal(array.type):
        array = _as_integers(array)
    elif not array.type.equals(plain):
        if _has_map(array.type):  # pyarrow 25 and older abort the process at the cast of maps of which rows were taken
            array = pa.concat_arrays([array])
        array = array.cast(plain)
    array.validate(full=True)
    if _has_map(array.type):
        return array.to_pylist(maps_as_pydicts='strict')
    return array.to_pylist()


def _has_map(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))
