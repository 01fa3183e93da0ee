"""Arrow columns as MDS columns."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import StreamingDataset
from headrace.errors import FormatError, ShardError, StreamError
from headrace.sources.arrow_types import arrow_columns, common_columns, to_columns
from tests.support.sources.arrow_columns import DAY, FILE, ONE, WITH_NULLS, read
from tests.support.suite.example_counts import scaled

pa = pytest.importorskip('pyarrow')


# An array of two rows, the encoding of its column, and what is read of it.
CASES: dict[str, tuple[Any, str, list[Any]]] = {
    **{
        name: (pa.array([1, 2], getattr(pa, name)()), name, [1, 2])
        for name in ('int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'float32', 'float64')
    },
    'float16': (pa.array(np.array([1, 2], np.float16)), 'float16', [1.0, 2.0]),
    'bool': (pa.array([True, False]), 'uint8', [1, 0]),
    'string': (pa.array(['a', 'ü']), 'str', ['a', 'ü']),
    'large_string': (pa.array(['a', ''], pa.large_string()), 'str', ['a', '']),
    'dictionary': (pa.array(['a', 'b']).dictionary_encode(), 'str', ['a', 'b']),
    'runs': (pa.RunEndEncodedArray.from_arrays([1, 2], ['a', 'b']), 'str', ['a', 'b']),
    'binary': (pa.array([b'a', b'']), 'bytes', [b'a', b'']),
    'fixed binary': (pa.array([b'ab', b'cd'], pa.binary(2)), 'bytes', [b'ab', b'cd']),
    'decimal': (pa.array([ONE, -ONE]), 'str_decimal', [ONE, -ONE]),
    'timestamp': (pa.array([DAY, DAY], pa.timestamp('ms', 'UTC')), 'int64', [1577934245000] * 2),
    'date32': (pa.array([DAY.date()] * 2, pa.date32()), 'int64', [18263] * 2),
    'date64': (pa.array([DAY.date()] * 2, pa.date64()), 'int64', [18263 * 86_400_000] * 2),
    'time32': (pa.array([DAY.time()] * 2, pa.time32('s')), 'int64', [11045] * 2),
    'duration': (pa.array([dt.timedelta(1)] * 2, pa.duration('s')), 'int64', [86400] * 2),
    'list': (pa.array([[1], [2, 3]], pa.list_(pa.int32())), 'ndarray:int32', [[1], [2, 3]]),
    'list of bools': (pa.array([[True], [False, True]]), 'ndarray:uint8', [[1], [0, 1]]),
    'fixed list': (pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), 'ndarray:float32:2', [[1, 2], [3, 4]]),
    'matrix': (
        pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 1)),
        'ndarray:int8:1,2',
        [[[1, 2]], [[3, 4]]],
    ),
    'tensor': (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.int64).reshape(2, 2, 3)),
        'ndarray:int64:2,3',
        np.arange(12).reshape(2, 2, 3).tolist(),
    ),
    'struct': (
        pa.array([{'a': 1, 't': DAY, 'd': ONE}, {'a': None, 't': None, 'd': None}]),
        'json',
        [{'a': 1, 't': 1577934245000000, 'd': '1.10'}, {'a': None, 't': None, 'd': None}],
    ),
    'list of dates': (pa.array([[DAY.date()], [None]]), 'json', [[18263], [None]]),
    'map': (pa.array([[('a', 1)], []], pa.map_(pa.string(), pa.int64())), 'json', [{'a': 1}, {}]),
    'list of text': (pa.array([['a', None], []]), 'json', [['a', None], []]),
    'lists of lists': (pa.array([[[1], []], []]), 'json', [[[1], []], []]),
    'nothing': (pa.nulls(2), 'json', [None, None]),
    'file': (pa.array([{'bytes': b'x', 'path': None}, {'bytes': b'', 'path': 'a'}], FILE), 'bytes', [b'x', b'']),
}


@pytest.mark.parametrize('name', CASES)
def test_a_type_has_its_encoding_and_keeps_its_values(name: str) -> None:
    array, encoding, values = CASES[name]
    assert read(array) == (encoding, values)
    if not isinstance(array, (pa.ExtensionArray, pa.RunEndEncodedArray)):
        twice = pa.concat_arrays([array, array])
        assert read(twice.slice(1, 2)) == (encoding, [values[1], values[0]])


@pytest.mark.parametrize('name', WITH_NULLS)
def test_nulls_that_are_known_become_none(name: str) -> None:
    array, values = WITH_NULLS[name]
    assert read(array, with_nulls=True) == ('json', values)


def test_metadata_of_hugging_face_tells_of_images_and_arrays() -> None:
    images = pa.array([{'bytes': b'x', 'path': None}, {'bytes': b'y', 'path': 'a.png'}], FILE)
    assert read(images, metadata={'_type': 'Image'}) == ('jpeg', [b'x', b'y'])
    lists = pa.array([[{'bytes': b'x', 'path': None}], []], pa.list_(FILE))
    assert read(lists, metadata={'_type': 'Sequence', 'feature': {'_type': 'Image'}}) == ('jpeg_array', [[b'x'], []])
    arrays = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.uint8())))
    found = read(arrays, metadata={'_type': 'Array2D', 'shape': [2, 2], 'dtype': 'uint8'})
    assert found == ('ndarray:uint8:2,2', [[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    with pytest.raises(ShardError, match='rows 0 to 1'):
        read(arrays, metadata={'_type': 'Array2D', 'shape': [4, 1], 'dtype': 'uint8'})


@pytest.mark.parametrize(
    'kind',
    [
        pa.list_(pa.binary()),
        pa.struct([('a', pa.list_(pa.binary()))]),
        pa.dense_union([pa.field('a', pa.int8())]),
        pa.month_day_nano_interval(),
        pa.struct([pa.field('a', pa.int8()), pa.field('a', pa.int8())]),
    ],
    ids=str,
)
def test_a_type_without_an_encoding_is_refused_by_name(kind: Any) -> None:
    with pytest.raises(FormatError, match=r"column 'c' of the test is .*Leave it out with `columns=`"):
        arrow_columns(pa.schema([pa.field('c', kind)]), columns=None, source='the test')
    good = pa.schema([pa.field('c', kind), pa.field('d', pa.int8())])
    assert list(arrow_columns(good, columns=['d'], source='the test')) == ['d']


def test_columns_are_chosen_by_their_names() -> None:
    schema = pa.schema([('a', pa.int8()), ('b', pa.int8()), ('text', pa.string())])
    assert list(arrow_columns(schema, columns=['text', 'a'], source='x')) == ['a', 'text']
    with pytest.raises(StreamError, match="asks for 'txt'.*Did you mean 'text'"):
        arrow_columns(schema, columns=['txt'], source='x')
    with pytest.raises(FormatError, match="several columns 'a'"):
        arrow_columns(pa.schema([('a', pa.int8()), ('a', pa.int8())]), columns=None, source='x')


@pytest.mark.parametrize('name', WITH_NULLS)
def test_a_null_that_nobody_told_of_is_an_error_with_its_row(name: str) -> None:
    array, values = WITH_NULLS[name]
    row = next(number for number, value in enumerate(values) if value is None or value == [])
    with pytest.raises(ShardError, match=f'Row {row} of column .c. of the test'):
        read(array)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1), min_size=1), st.data())
@settings(max_examples=scaled(30), deadline=None)
def test_slices_of_lists_are_as_python_cuts_them(rows: list[list[int]], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(rows) - 1))
    array = pa.array(rows, pa.large_list(pa.int16())).slice(begin)
    assert read(array) == ('ndarray:int16', rows[begin:])


def test_offsets_whose_differences_overflow_are_an_error() -> None:
    offsets = pa.py_buffer(np.array([0, 3 << 61, -5 << 60, 2], np.int64))
    array = pa.Array.from_buffers(
        pa.large_list(pa.int16()), 3, [None, offsets], children=[pa.array([1, 2], pa.int16())]
    )
    with pytest.raises(ShardError, match='not in order'):
        read(array)


def test_an_image_that_lies_elsewhere_is_an_error() -> None:
    with pytest.raises(ShardError, match=r"the file 'a\.png' is elsewhere"):
        read(pa.array([{'bytes': b'x', 'path': None}, {'bytes': None, 'path': 'a.png'}], FILE))


def test_numbers_are_not_copied() -> None:
    array = pa.array(np.arange(1000))
    columns = arrow_columns(pa.schema([('c', array.type)]), columns=None, source='x')
    values = to_columns(pa.RecordBatch.from_arrays([array], names=['c']), columns, source='x')['c']
    assert isinstance(values, np.ndarray)
    assert values.ctypes.data == array.buffers()[1].address


def test_text_that_is_not_utf8_is_an_error() -> None:
    array = pa.array([b'a', b'\xff']).view(pa.string())
    with pytest.raises(ShardError, match='rows 0 to 1'):
        read(array)


@pytest.mark.parametrize('suffix', ['parquet', 'feather'])
@pytest.mark.parametrize(
    ('typed', 'untyped', 'expected'),
    [
        (pa.array(['a', 'b']), pa.nulls(2), ['a', 'b']),
        (pa.array([1, 2]), pa.nulls(2), [1, 2]),
        (pa.array([True, False]), pa.nulls(2), [True, False]),
        (pa.array([10, 11], pa.timestamp('us', 'UTC')), pa.nulls(2), [10, 11]),
        (pa.array([ONE, -ONE]), pa.nulls(2), [str(ONE), str(-ONE)]),
        (pa.array([[1, 2], [3]]), pa.nulls(2), [[1, 2], [3]]),
        (pa.array([[1, 2], [3]]), pa.array([[], None]), [[1, 2], [3]]),
        (pa.array([[10], [11]], pa.list_(pa.timestamp('us'))), pa.array([[None], []]), [[10], [11]]),
        (pa.array([{'a': 1}, {'a': 2}]), pa.array([{'a': None}, None]), [{'a': 1}, {'a': 2}]),
    ],
)
def test_a_column_of_nulls_takes_its_type_from_the_other_files(
    typed: Any, untyped: Any, expected: list[Any], suffix: str, tmp_path: Path
) -> None:
    feather, pq = pytest.importorskip('pyarrow.feather'), pytest.importorskip('pyarrow.parquet')
    for number, columns in enumerate([(typed, untyped), (untyped, typed)]):  # each may come first
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, column in zip('ab', columns, strict=True):
            write = pq.write_table if suffix == 'parquet' else feather.write_feather
            write(pa.table({'x': column, 'n': pa.nulls(2)}), f'{folder}/{name}.{suffix}', compression='zstd')
        dataset = StreamingDataset(remote=str(folder), local=f'{folder}-cache', batch_size=1)
        halves = [expected, untyped.to_pylist()]
        right = [value for half in (halves if not number else halves[::-1]) for value in half]
        assert [dataset[row] for row in range(4)] == [{'x': value, 'n': None} for value in right]


def test_a_column_of_nulls_has_the_meaning_of_the_other_files() -> None:
    typed, untyped = (pa.schema({'x': kind}) for kind in (pa.timestamp('us'), pa.null()))
    other = pa.schema({'x': pa.timestamp('ms')})
    for schemas in ([typed, untyped], [untyped, typed], [untyped, typed, untyped]):
        named = [(schema, f'file {number}') for number, schema in enumerate(schemas)]
        found = common_columns(named, columns=None, with_nulls=['x'], what='Arrow')
        assert found == ({'x': 'json'}, {'x': 'timestamp[us]'})
    with pytest.raises(FormatError, match=r"'x' is `json of timestamp\[us\]` in .*`json of timestamp\[ms\]` in c"):
        common_columns([(untyped, 'a'), (typed, 'b'), (other, 'c')], columns=None, with_nulls=['x'], what='Arrow')
