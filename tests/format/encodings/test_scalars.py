"""Numbers of fixed width: stored exactly or refused."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.format.encodings.registry import mds_decode, mds_encode


@given(
    st.integers(-(2**70), 2**70),
    st.sampled_from(['uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64']),
)
def test_integers_are_stored_exactly_or_refused(number: int, name: str) -> None:
    limits = np.iinfo(name)
    if limits.min <= number <= limits.max:
        back = mds_decode(name, mds_encode(name, number))
        assert back == number
        assert back.dtype == name
    else:
        with pytest.raises(OverflowError):
            mds_encode(name, number)


@pytest.mark.parametrize('value', [None, [1, 2], np.zeros(2), {}, 1j, object()])
def test_what_is_no_number_is_refused(value: Any) -> None:
    for name in ('uint8', 'float32'):
        with pytest.raises(AttributeError, match='holds single numbers'):
            mds_encode(name, value)


def test_numbers_of_other_types_keep_their_value() -> None:
    assert mds_decode('uint8', mds_encode('uint8', np.int64(200))) == 200
    with pytest.raises(OverflowError):
        mds_encode('uint8', np.int64(300))
    assert mds_decode('int16', mds_encode('int16', np.array([7]))) == 7
    assert mds_encode('float64', np.uint8(3)) == struct.pack('<d', 3)
    bits = np.array([0x7FC01234], 'u4').view('f4')[0]
    assert mds_encode('float32', bits) == b'\x34\x12\xc0\x7f'
