"""Values of Arrow arrays."""

from __future__ import annotations

import numpy as np
import pytest
from arrow_columns import FILE, WITH_NULLS, read
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import scaled
from headrace.errors import ShardError
from headrace.sources.arrow_types import arrow_columns, to_columns

pa = pytest.importorskip('pyarrow')


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


def test_an_image_that_lies_elsewhere_is_an_error() -> None:
    with pytest.raises(ShardError, match='Row 1 .*names a file elsewhere'):
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
