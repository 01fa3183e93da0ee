"""Images: raw and encoded, hostile and truncated; files that are kept as they are."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from headrace.errors import FormatError
from headrace.format.encodings.registry import mds_decode, mds_encode

MODES = [
    'L',
    'RGB',
    'RGBA',
    'CMYK',
    '1',
    'I',
    'F',
    'LA',
    'YCbCr',
    'HSV',
    'I;16',
    'P',
    'LAB',
    'RGBX',
    'RGBa',
    'La',
    'PA',
]


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('size', [(1, 1), (3, 2), (9, 5)])
def test_raw_images_of_every_mode(mode: str, size: tuple[int, int]) -> None:
    image = Image.new(mode, size)
    back = mds_decode('pil', memoryview(mds_encode('pil', image)))
    assert (back.mode, back.size, back.tobytes()) == (image.mode, image.size, image.tobytes())


def test_hostile_images_allocate_nothing() -> None:
    head = struct.pack('<III', 60000, 60000, 1)
    for data in (head + b'L', head + b'1', struct.pack('<III', 0, 2**32 - 1, 1) + b'L', head + b'X', head[:11]):
        with pytest.raises(FormatError):
            mds_decode('pil', data)
    with pytest.raises(FormatError):
        mds_decode('pil', struct.pack('<III', 1, 1, 2**32 - 1) + b'L')
    for encoding in ('jpeg_array', 'list[png]', 'list[jpeg]', 'list[pil]'):
        with pytest.raises(FormatError, match='2147483648 items'):
            mds_decode(encoding, bytes(4 * encoding.startswith('list')) + struct.pack('<II', 2**31, 0))


def test_a_png_bomb_is_refused() -> None:
    png = io.BytesIO()
    Image.new('1', (20000, 20000)).save(png, 'PNG')
    with pytest.raises(FormatError, match='DecompressionBombError'):
        mds_decode('png', png.getvalue())


def test_a_truncated_image_is_refused_where_it_is_read() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    for encoding in ('png', 'jpeg'):
        data = mds_encode(encoding, Image.fromarray(noise))
        with pytest.raises(FormatError, match='cannot be read as an image'):
            mds_decode(encoding, data[: len(data) // 2])


def test_ghostscript_is_never_run() -> None:
    eps = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n'
    # Without the address of an object: reports of conversions are the same in each run.
    with pytest.raises(FormatError, match='UnidentifiedImageError: it is of no known kind'):
        mds_decode('jpeg', eps)


def test_wrong_lists_of_images() -> None:
    with pytest.raises(TypeError, match='lists of the bytes of JPEG files'):
        mds_encode('jpeg_array', 'abc')
    with pytest.raises(TypeError):
        mds_encode('jpeg_array', [Image.new('L', (1, 1))])
    with pytest.raises(AttributeError):
        mds_encode('list[png]', (Image.new('L', (1, 1)),))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, 'PIL.Image', None)
    with pytest.raises(ImportError, match=r"pip install 'headrace\[vision\]'"):
        mds_decode('png', b'')
