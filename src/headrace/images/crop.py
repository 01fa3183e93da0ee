"""The part of a picture that is kept: random, central, or all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.images.image_tensor import ImageTensor

__all__ = ['NUM_DRAWS', 'Box', 'choose_box', 'is_flipped']

_TRIES: Final = 10
NUM_DRAWS: Final = 2 * _TRIES + 3
"""Random numbers that a picture takes: two for each try of a random crop, two for its place, one for the flip."""


class Box(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


def choose_box(image: ImageTensor, height: int, width: int, draws: Sequence[float] | None) -> Box:
    """The part of a picture of height x width pixels that is resized to `image.out_size`.

    Args:
        image: the settings.
        height: of the picture.
        width: of the picture.
        draws: `NUM_DRAWS` numbers from 0 to below 1; None: a random crop becomes central.
    """
    size = image.out_size
    if image.crop is None or size is None:
        return Box(0, 0, height, width)
    if image.crop == 'center' or draws is None:
        return _central(height, width, size[1] / size[0], image.center_fraction)
    return _random(image, height, width, draws)


def is_flipped(image: ImageTensor, draws: Sequence[float] | None) -> bool:
    """Whether a picture is flipped."""
    return draws is not None and draws[-1] < image.flip


def _random(image: ImageTensor, height: int, width: int, draws: Sequence[float]) -> Box:
    """A box of random area, shape and place, as Inception was trained with (Szegedy et al. 2015).

    If no try fits into the picture, which is then long and narrow, the largest central box of an allowed shape is
    taken.
    """
    (least, most), (narrowest, widest) = image.scale, image.ratio
    log_narrowest, log_widest = math.log(narrowest), math.log(widest)
    for number in range(_TRIES):
        area = height * width * (least + (most - least) * draws[2 * number])
        ratio = math.exp(log_narrowest + (log_widest - log_narrowest) * draws[2 * number + 1])
        box_height, box_width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < box_height <= height and 0 < box_width <= width:
            top, left = draws[2 * _TRIES : 2 * _TRIES + 2]
            return Box(int(top * (height - box_height + 1)), int(left * (width - box_width + 1)), box_height, box_width)
    return _central(height, width, min(max(width / height, narrowest), widest), 1.0)


def _central(height: int, width: int, ratio: float, fraction: float) -> Box:
    """The largest central box of a ratio of width to height, with sides times a fraction."""
    box_height = min(max(round(fraction * min(height, width / ratio)), 1), height)
    box_width = min(max(round(fraction * min(width, height * ratio)), 1), width)
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)
