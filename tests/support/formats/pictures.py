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


def of_16_bits(form: str, mode: str, height: int = 4, width: int = 6) -> bytes:
    """A picture with 16 bits a channel: Pillow writes none of colours."""
    channels = {'RGB': 3, 'RGBA': 4, 'LA': 2, 'L': 1}[mode]
    pixels = np.full((height, width, channels), 40_000, '>u2')
    if form == 'PPM':
        return b'P6 %d %d 65535\n' % (width, height) + pixels.tobytes()
    if form == 'TIFF':
        data = io.BytesIO()
        Image.new('RGB', (2 * width, height)).save(data, 'TIFF')  # as many bytes of pixels
        return (
            data.getvalue()
            .replace(struct.pack('<HHII', 256, 4, 1, 2 * width), struct.pack('<HHII', 256, 4, 1, width))
            .replace(struct.pack('<HHH', 8, 8, 8), struct.pack('<HHH', 16, 16, 16))
        )

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))

    head = struct.pack('>IIBBBBB', width, height, 16, {'L': 0, 'RGB': 2, 'LA': 4, 'RGBA': 6}[mode], 0, 0, 0)
    rows = b''.join(b'\0' + row.tobytes() for row in pixels)
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        chunk(*part) for part in ((b'IHDR', head), (b'IDAT', zlib.compress(rows)), (b'IEND', b''))
    )
