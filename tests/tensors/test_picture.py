"""Pictures whose size is known before their pixels."""

from __future__ import annotations

import pytest

from headrace import ImageTensor
from headrace.errors import FormatError
from tests.support.formats.pictures import jpeg_that_says, picture, png_that_says, stored


@pytest.mark.parametrize('data', [jpeg_that_says(60_000, 60_000), png_that_says(60_000, 60_000)], ids=['jpeg', 'png'])
def test_size_bombs_are_refused(data):
    with pytest.raises(FormatError, match=r'max_pixels|DecompressionBomb'):
        ImageTensor().open(data, 'jpeg')


def test_more_pixels_than_allowed_are_refused_with_the_numbers():
    for form in ('JPEG', 'PNG'):
        with pytest.raises(FormatError, match=r'`max_pixels`, 1,000, but this one says 50 x 40'):
            ImageTensor(max_pixels=1000).open(stored(picture(40, 50), form), 'bytes')
    ImageTensor(max_pixels=2000).open(stored(picture(40, 50)), 'jpeg')
