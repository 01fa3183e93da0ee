"""Pictures of samples: thumbnails for a terminal with colours, and files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, MissingDependencyError
from headrace.inspect.describe import Description

__all__ = ['save_pictures', 'thumbnail']

COLUMNS: Final = 32
"""Columns of the terminal that a thumbnail takes at most, and twice its lines."""


def thumbnail(content: bytes, *, columns: int = COLUMNS) -> list[str]:
    """Lines of a terminal with 24-bit colours: each character is two pixels, one above the other.

    Args:
        content: a picture file.
        columns: width at most; the height is at most half as many lines.

    Raises:
        MissingDependencyError: Pillow is not installed.
        OSError, ValueError: the picture is damaged.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError(
            "Thumbnails need Pillow, which is not installed: pip install 'headrace[vision]', or use --save."
        ) from None
    picture = Image.open(io.BytesIO(content), formats=('JPEG', 'PNG', 'GIF')).convert('RGB')
    scale = min(1.0, columns / picture.width, columns / picture.height)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    small = picture.resize((width, height + height % 2))
    pixels = small.tobytes()

    def pixel(x: int, y: int) -> str:
        at = 3 * (y * width + x)
        return '{};{};{}'.format(*pixels[at : at + 3])

    return [
        ''.join(f'\x1b[38;2;{pixel(x, y)};48;2;{pixel(x, y + 1)}m▀' for x in range(width)) + '\x1b[0m'
        for y in range(0, small.height, 2)
    ]


def save_pictures(description: Description, folder: Path) -> list[Path]:
    """Write the pictures of a description's samples as files of a folder, and return their paths.

    JPEG, PNG and GIF files are written as they are stored.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _files(description):
            (folder / name).write_bytes(content)
            written.append(folder / name)
    except OSError as error:
        raise ConfigError(f'Pictures cannot be saved in {folder}: {error.strerror}. Name another folder.') from error
    return written


def _files(description: Description) -> Iterator[tuple[str, bytes]]:
    for number, sample in enumerate(description.samples):
        for column, (name, value) in enumerate(sample.items()):
            # The name of a column comes from a file: it must lead nowhere.
            plain = re.sub(r'[^A-Za-z0-9_-]', '_', name)[:60]
            for picture, (ending, content) in enumerate(value.pictures):
                yield f'{number:03}-{column}-{plain}{f"-{picture}" if picture else ""}.{ending}', content
