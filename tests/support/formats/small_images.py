"""Small images for tests of encodings."""

from __future__ import annotations

from PIL import Image


def image(mode: str, size: tuple[int, int] = (5, 4)) -> Image.Image:
    return Image.frombytes(mode, size, bytes(range(size[0] * size[1] * len(Image.new(mode, (1, 1)).getbands()))))
