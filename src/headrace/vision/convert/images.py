"""Images of a distribution: checks without a full decode, a fixed order of shuffled records, and smaller copies."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError, FormatError
from headrace.format.encodings.images import in_mode, require_pillow


def shuffled(count: int, *, shuffle: bool) -> npt.NDArray[np.int64]:
    """Numbers of records in the order in which they are written: int64 of (count,)."""
    # A seed of its own, so that a restart and any number of workers have the same order.
    return np.random.default_rng(0).permutation(count) if shuffle else np.arange(count)


_KINDS: Final = ('JPEG', 'PNG')  # formats that are tried: for some others, Pillow runs a program on the file


def check_image(data: bytes, *, kinds: tuple[str, ...] = _KINDS) -> tuple[int, int]:
    """Width and height of an image, read through. An eighth of a JPEG's size shows the same damage in half the time."""
    with _reading(data), require_pillow().open(BytesIO(data), formats=kinds) as image:
        size: tuple[int, int] = image.size
        image.draft(None, (1, 1))
        image.load()
    return size


@contextmanager
def _reading(data: bytes) -> Generator[None]:
    try:
        yield
    except FormatError:
        raise
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error, ValueError and others
        # Pillow's message of an unknown kind has the address of an object. A report is the same in each run.
        is_unknown = type(error).__name__ == 'UnidentifiedImageError'
        reason = 'they are no image of this kind' if is_unknown else f'{type(error).__name__}: {error}'
        raise FormatError(
            f'An image must be whole, but {len(data)} bytes that begin with {data[:8]!r} cannot be read: {reason}.'
        ) from error


def shrink(data: bytes, side: int, quality: int) -> bytes:
    """The image with a shorter side of at most `side` pixels, as a JPEG; the same bytes if it is not larger."""
    pillow = require_pillow()
    with _reading(data), pillow.open(BytesIO(data), formats=_KINDS) as image:
        if min(image.size) <= side:
            return data
        scale = side / min(image.size)
        size = tuple(max(1, round(length * scale)) for length in image.size)
        smaller: Any = in_mode(image, 'RGB').resize(size, pillow.Resampling.BICUBIC)
        # It says how a camera was held.
        exif = image.info.get('exif', b'')
    out = BytesIO()
    smaller.save(out, format='JPEG', quality=quality, exif=exif)
    return out.getvalue()


def check_resize(resize: int | None, quality: int) -> None:
    if (resize is not None and resize < 1) or not 1 <= quality <= 100:
        raise ConfigError(
            f'`resize` is a number of pixels from 1, or None, and `quality` is 1 to 100, but got {resize} and '
            f'{quality}.'
        )
