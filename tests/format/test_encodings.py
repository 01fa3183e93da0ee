"""MDS encodings against the golden vectors, and where ours differ on purpose."""

from __future__ import annotations

import contextlib
import hashlib
import io
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from headrace.errors import ConfigError, FormatError
from headrace.format.encodings.registry import (
    get_mds_encoded_size,
    get_mds_encodings,
    is_mds_encoding,
    mds_decode,
    mds_encode,
)
from headrace.testing.encodings import EncodingCase, EncodingContract
from tests.support.formats.format_golden import NoValueError, covers, formats, load, neutral, value
from tests.support.formats.small_images import image

VECTORS = load(formats() / 'encodings.json')


# (encoding, bytes) that upstream reads although they are not what any writer writes: ours refuses them.
REFUSED = {('uint16', '01020304'), ('list[pil]', '0000000001000000'), ('list[png]', '00000000ffffffff')}


# (encoding, bytes) of large floats, which upstream stores as infinity.
CHANGED = {('float16', '007c'), ('float32', '0000807f')}


# Values that headrace encodes and MosaicML Streaming does not.
ACCEPTED = {('jpeg_array', '00000000')}


def _ids(vector: dict[str, Any]) -> str:
    return f'{vector["encoding"]}-{str(vector.get("note") or vector.get("hex", ""))[:20]}'


@pytest.mark.filterwarnings('ignore:Saving I mode images as PNG')
@pytest.mark.parametrize('vector', VECTORS['encode'], ids=_ids)
def test_encode_vectors(vector: dict[str, Any]) -> None:
    encoding = vector['encoding']
    try:
        obj = value(vector['input'])
    except NoValueError:
        pytest.skip('the vector does not hold the whole value')
    if vector['input'].get('byteorder') == 'big' and encoding == 'ndarray':
        np.testing.assert_array_equal(mds_decode('ndarray', mds_encode('ndarray', obj)), obj)
        return
    if encoding == 'str_int' and obj is True:
        with pytest.raises(AttributeError):
            mds_encode(encoding, obj)
        return
    raises = vector.get('raises')
    if raises:
        same = {'AttributeError': AttributeError, 'OverflowError': OverflowError, 'TypeError': TypeError}
        with pytest.raises((same.get(raises, ValueError), OSError if raises == 'OSError' else ValueError)):
            mds_encode(encoding, obj)
        return
    if (encoding, vector.get('hex')) in CHANGED and not np.isinf(obj):
        with pytest.raises(OverflowError, match='Give the column a wider'):
            mds_encode(encoding, obj)
        return
    data = mds_encode(encoding, obj)
    assert hashlib.sha256(data).hexdigest() == vector['sha256']
    if 'decoded' in vector:
        assert covers(vector['decoded'], neutral(mds_decode(encoding, data)))
    elif (encoding, data.hex()) not in ACCEPTED:
        with pytest.raises(FormatError):
            mds_decode(encoding, data)


@pytest.mark.parametrize('vector', VECTORS['decode'], ids=_ids)
def test_decode_vectors(vector: dict[str, Any]) -> None:
    encoding, data = vector['encoding'], bytes.fromhex(vector['hex'])
    if (encoding, vector['hex']) in ACCEPTED:
        mds_decode(encoding, data)
    elif 'raises' in vector or (encoding, vector['hex']) in REFUSED:
        with pytest.raises(FormatError):
            mds_decode(encoding, data)
    else:
        for buffer in (data, bytearray(data), memoryview(data)):
            assert covers(vector['decoded'], neutral(mds_decode(encoding, buffer)))


@pytest.mark.parametrize('vector', VECTORS['sizes'], ids=lambda vector: vector['encoding'])
def test_size_vectors(vector: dict[str, Any]) -> None:
    encoding = vector['encoding']
    assert is_mds_encoding(encoding) == vector.get('supported', False)
    if 'fixed_size' in vector:
        assert get_mds_encoded_size(encoding) == vector['fixed_size']
    else:
        with pytest.raises(ConfigError):
            get_mds_encoded_size(encoding)


def jpeg_bytes(grey: int) -> bytes:
    out = io.BytesIO()
    Image.new('L', (4, 4), grey).save(out, 'JPEG')
    return out.getvalue()


INTEGERS = {'wrong': (None, 'x', 1 << 70, [1, 2])}
FLOATS = {'values': (0.0, -1.5, np.float32(0.25)), 'wrong': (None, 'x', [1.0, 2.0], 1j)}
IMAGES = (image('L'), image('RGB', (3, 2)))
ARRAYS = (np.arange(6, dtype='f4').reshape(2, 3), np.ones((2, 3), 'f4'))


CASES = {
    'bytes': {'values': (b'', b'abc'), 'wrong': ('abc', bytearray(b'abc'), None)},
    'str': {'values': ('', 'übung'), 'wrong': (b'abc', 1, '\ud800')},
    'int': {'values': (0, -1, (1 << 63) - 1), **INTEGERS},
    **{f'int{bits}': {'values': (0, -1, (1 << bits - 1) - 1), **INTEGERS} for bits in (8, 16, 32, 64)},
    **{f'uint{bits}': {'values': (0, (1 << bits) - 1), **INTEGERS} for bits in (8, 16, 32, 64)},
    **{f'float{bits}': FLOATS for bits in (16, 32, 64)},
    'str_int': {'values': (0, -1, 1 << 100), 'wrong': (1.5, True, '1')},
    'str_float': {'values': (0.1, -1e300), 'wrong': (1, '1')},
    'str_decimal': {'values': (Decimal('1.20'), Decimal(-3)), 'wrong': (1, 1.5)},
    'ndarray': {'values': (*ARRAYS, np.arange(3)), 'wrong': (1, [1.0], np.zeros(()), np.zeros(0), np.array(['a']))},
    'ndarray:float32': {'values': ARRAYS, 'wrong': (np.zeros(3), np.zeros(0, 'f4'))},
    'ndarray:float32:2,3': {'values': ARRAYS, 'wrong': (np.zeros(6, 'f4'), np.zeros((2, 3)))},
    'pil': {'values': IMAGES, 'wrong': (1, b'abc'.decode())},
    'png': {'values': IMAGES, 'wrong': (1, 'abc')},
    'jpeg': {'values': IMAGES, 'wrong': (1, 'abc')},
    'list[pil]': {'values': ([], list(IMAGES)), 'wrong': (IMAGES, [1])},
    'list[png]': {'values': ([], list(IMAGES)), 'wrong': (IMAGES, [1])},
    'list[jpeg]': {'values': ([], list(IMAGES)), 'wrong': (IMAGES, [1])},
    **{
        name: {'values': ([jpeg_bytes(1)], [jpeg_bytes(2), jpeg_bytes(3)]), 'wrong': ('abc', [1])}
        for name in ('jpeg_array', 'jpegarray')
    },
    'json': {'values': ({'b': [1, None]}, [], 'x'), 'wrong': (object(), {1j})},
    'pkl': {'values': ({1, 2}, None), 'wrong': ((x for x in ()),)},
}


class TestOwnEncodings(EncodingContract):
    @pytest.fixture(params=CASES)
    def case(self, request: pytest.FixtureRequest) -> EncodingCase:
        return EncodingCase(request.param, **CASES[request.param])

    def is_same(self, value: Any, back: Any) -> bool:
        if isinstance(value, list) and value and not isinstance(value[0], int):
            return len(value) == len(back) and all(map(self.is_same, value, back))
        if isinstance(back, Image.Image):  # JPEG changes pixels
            opened = value if isinstance(value, Image.Image) else Image.open(io.BytesIO(value))
            return (opened.size, opened.mode) == (back.size, back.mode)
        return super().is_same(value, back)


def test_every_name_is_held_to_the_contract() -> None:
    assert len(get_mds_encodings()) == 28
    assert get_mds_encodings() == {name.partition(':')[0] for name in CASES}


@given(st.binary(max_size=60), st.sampled_from(sorted(get_mds_encodings() - {'pkl'})))
def test_any_bytes_decode_or_are_refused(data: bytes, encoding: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with contextlib.suppress(FormatError):
            mds_decode(encoding, data)
