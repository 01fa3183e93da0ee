"""Arrays: parameters, heads, and values that come back."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace.errors import FormatError
from headrace.format.encodings.registry import get_mds_encoding, is_mds_encoding, mds_decode, mds_encode

WRONG_ARRAYS = [
    'ndarray:',
    'ndarray:int8:',
    'ndarray:int8:1,',
    'ndarray:int8:1,,2',
    'ndarray:int8: 1',
    'ndarray:int8:1_0',
    'ndarray:int8:\u0661',
    'ndarray:int8:+1',
    'ndarray::1',
    'ndarray:int8:2:3',
    'ndarray:object',
    'ndarray:<i4',
    'ndarray:uint8:' + '1,' * 32 + '1',
    'ndarray:uint8:65536,65536',
    'ndarray:uint8:' + '9' * 400,
    'ndarray:float64:' + ','.join(['4294967295'] * 30),
]


@pytest.mark.parametrize('encoding', WRONG_ARRAYS[1:])
def test_parameters_of_arrays_are_checked(encoding: str) -> None:
    assert not is_mds_encoding(encoding)


scalars = st.sampled_from(['u1', 'u2', 'u4', 'u8', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8'])


arrays = npst.arrays(
    dtype=st.builds(np.dtype, scalars), shape=npst.array_shapes(min_dims=1, max_dims=5, min_side=1, max_side=6)
)


@given(arrays, st.booleans(), st.booleans(), st.sampled_from('=<>'))
def test_arrays_come_back_as_they_were(array: np.ndarray, fixed_dtype: bool, fixed_shape: bool, order: str) -> None:
    encoding = 'ndarray'
    if fixed_dtype:
        encoding += f':{array.dtype.name}'
        if fixed_shape:
            encoding += ':' + ','.join(map(str, array.shape))
    else:
        array = array.astype(array.dtype.newbyteorder(order))
    for layout in (array, np.asfortranarray(array), array[::-1]):
        data = mds_encode(encoding, layout)
        back = mds_decode(encoding, memoryview(data))
        assert back.dtype == layout.dtype.newbyteorder('=')
        assert back.dtype.isnative
        assert back.flags.writeable
        assert back.base is None or back.base.flags.owndata
        assert back.tobytes() == layout.astype(back.dtype).tobytes()


rows = npst.arrays(st.just('u2') | st.just('i8'), st.sampled_from([1, 2, 255, 256, 70_000]))


@given(st.lists(rows | arrays, max_size=5), st.booleans(), st.data())
def test_arrays_decoded_together_are_those_decoded_one_by_one(
    found: list[np.ndarray], fixed: bool, data: st.DataObject
) -> None:
    name = 'ndarray:uint16' if fixed else 'ndarray'
    with np.errstate(invalid='ignore'):
        found = [array.astype('u2') if fixed else array for array in found]
    stored = [bytearray(mds_encode(name, array)) for array in found]
    if stored and data.draw(st.booleans()):
        damaged = data.draw(st.sampled_from(stored))
        place = data.draw(st.integers(0, min(len(damaged) - 1, 12)))
        damaged[place:] = data.draw(st.sampled_from([b'', bytes([damaged[place] ^ 1]) + damaged[place + 1 :]]))
    ends = np.cumsum([0, *map(len, stored)])
    together = get_mds_encoding(name).decode_all(memoryview(b''.join(stored)), ends[:-1], ends[1:])
    if together is not None:
        for value, one in zip(together, stored, strict=True):
            np.testing.assert_array_equal(value, mds_decode(name, one), strict=True)
            assert value.flags.writeable
        return
    with contextlib.suppress(FormatError):  # one is damaged
        kinds = {(value.dtype, value.ndim) for value in (mds_decode(name, one) for one in stored)}
        assert len(kinds) != 1 or kinds.pop()[1] > 1 or ends[-1] > 1 << 20


@given(arrays)
def test_an_array_head_is_what_the_format_says(array: np.ndarray) -> None:
    codes = {'u1': 8, 'i1': 9, 'u2': 16, 'i2': 17, 'f2': 18, 'u4': 32, 'i4': 33, 'f4': 34, 'u8': 64, 'i8': 65, 'f8': 66}
    head = bytes([codes[array.dtype.str[1:]], array.ndim << 2, *array.shape])
    assert mds_encode('ndarray', array) == head + array.tobytes()
