"""Pictures with structure, made by code, and Pillow's decoding as a model."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def picture(height: int, width: int, number: int = 0) -> Image.Image:
    """Smooth gradients, edges and some noise, different for each number."""
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(number)
    waves = [127 + 90 * np.sin(x / (7 + 5 * c + number % 5) + y / (11 + number % 3)) for c in range(3)]
    pixels = np.stack(waves, axis=2) + rng.normal(0, 5, (height, width, 3))
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (20 * number) % 256
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def stored(image: Image.Image, form: str = 'JPEG', **options: object) -> bytes:
    """The bytes of an image's file."""
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def by_pillow(data: bytes, mode: str = 'RGB') -> Image.Image:
    """An image as Pillow decodes it."""
    return Image.open(io.BytesIO(data)).convert(mode)


def jpeg_that_says(height: int, width: int) -> bytes:
    """A small JPEG whose header gives it another size."""
    data = bytearray(stored(picture(16, 16)))
    at = data.index(b'\xff\xc0') + 5
    data[at : at + 4] = struct.pack('>HH', height, width)
    return bytes(data)


def png_that_says(height: int, width: int) -> bytes:
    """A small PNG whose header gives it another size."""
    data = bytearray(stored(picture(16, 16), 'PNG'))
    data[16:24] = struct.pack('>II', width, height)
    data[29:33] = struct.pack('>I', zlib.crc32(data[12:29]))
    return bytes(data)
