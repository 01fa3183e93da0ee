"""Pictures whose size is known before their pixels are decoded: JPEGs by libjpeg-turbo, all others by Pillow."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import FormatError, import_optional
from headrace.format.encodings.images import in_mode, open_image, reading_image
from headrace.format.encodings.registry import get_mds_encoding
from headrace.images.image_tensor import Mode

Pixels = npt.NDArray[np.uint8]  # uint8[height, width, channels]

_JPEG: Final = b'\xff\xd8'
_CLASSES: Final = ('P', 'L', '1')  # modes of Pillow whose values may be class numbers


@cache
def _simplejpeg() -> ModuleType:
    return import_optional('simplejpeg', 'Images as tensors need simplejpeg', 'vision')


class Picture(NamedTuple):
    """A stored picture."""

    height: int
    width: int
    data: bytes
    encoding: str
    image: Any  # Pillow's image, not yet loaded; None: the JPEG is decoded by libjpeg-turbo.

    def pixels(self, mode: Mode, *, at_least: tuple[int, int] | None = None, out: Pixels | None = None) -> Pixels:
        """The decoded pixels, in `out` if that is given: contiguous memory for the whole picture.

        A JPEG may be decoded at a half, a quarter or an eighth of its size that is not below `at_least`, height and
        width.
        """
        if self.image is None and mode != 'P':
            height, width = at_least or (0, 0)
            try:
                return _simplejpeg().decode_jpeg(
                    self.data,
                    colorspace='RGB' if mode == 'RGB' else 'GRAY',
                    min_height=height,
                    min_width=width,
                    min_factor=1 if at_least is None else 2,  # others take longer than the whole picture
                    buffer=out,
                )
            except ValueError:
                pass  # Pillow says whether it is damaged, or just unusual
        image = open_image(self.encoding, self.data) if self.image is None else self.image
        found = self._converted(image, mode)
        if out is None:
            return found
        out[...] = found
        return out

    def _converted(self, image: Any, mode: Mode) -> Pixels:
        if mode == 'P' and image.mode not in _CLASSES:
            raise FormatError(
                f"`mode` 'P' reads class numbers, the values of a picture with one channel of 8 bits or a palette, but "
                f"this image has pixels of mode {image.mode!r}. Read it with `mode` 'RGB', or write its class numbers."
            )
        with reading_image(self.encoding, self.data):
            pixels = np.array(in_mode(image, image.mode if mode == 'P' else mode), np.uint8)
        return pixels.reshape(*pixels.shape[:2], -1)


def open_picture(data: bytes, encoding: str, max_pixels: int) -> Picture:
    """A picture from its stored bytes, not decoded; FormatError: it is none, or has more than `max_pixels`."""
    image: Any = None
    if encoding == 'pil':
        image = get_mds_encoding('pil').decode(data)  # as large as its bytes
        width, height = image.size
    else:
        size = _jpeg_size(data) if data[:2] == _JPEG else None
        if size is None:
            image = open_image(encoding, data)
            width, height = image.size
        else:
            height, width = size
    if height * width > max_pixels:
        raise FormatError(
            f'An image may have `max_pixels`, {max_pixels:,}, but this one says {width} x {height}. If it is right, '
            f'set `max_pixels` of its ImageTensor.'
        )
    if not height or not width:
        raise FormatError(f'An image has pixels, but this one says {width} x {height}.')
    return Picture(height, width, data, encoding, image)


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG; None if libjpeg-turbo cannot decode it to RGB."""
    try:
        height, width, colors, _ = _simplejpeg().decode_jpeg_header(data)
    except ValueError:
        return None
    return (height, width) if colors in ('YCbCr', 'RGB', 'Gray', 'GRAY') else None
