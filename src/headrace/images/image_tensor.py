"""The settings of columns of images that are read as tensors, and the part of a picture that is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from headrace.errors import StreamError
from headrace.selection import Mistake

Layout = Literal['CHW', 'HWC']
Mode = Literal['RGB', 'L', 'P']
Crop = Literal['random', 'center']
Interpolation = Literal['bilinear', 'bicubic', 'nearest']

_MOST_SIDE: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ImageTensor:
    """A column of images as tensors of uint8, decoded, cropped, resized and flipped in one go.

    Random numbers depend on the dataset's `shuffle_seed`, the epoch and the sample's id alone, as `sample_rng` does. So
    a sample has the same crop on any number of ranks and workers, and after any resume. All images of a sample get the
    same numbers. Outside of a pass over the data, as in `dataset[i]`, crops are central and nothing is flipped.

    Args:
        layout: order of the dimensions, 'CHW' or 'HWC'. The memory is channels-last for both: a batch in 'CHW' is a
            view with the strides of `torch.channels_last`, which convolutions like.
        mode: 'RGB' for three channels, 'L' for one (grey). 'P' for the class numbers of a mask: the stored values of a
            picture with one channel, which are those of a palette, not its colours.
        size: height and width in pixels, or one number for both. None: that of the stored image, which must be the same
            in a batch.
        crop: part of the image that is resized to `size`. 'random' takes one by `scale` and `ratio`; 'center' takes the
            largest central part of the shape of `size`, times `center_fraction`. None: all of it, stretched.
        scale: least and greatest share of the area in a random crop.
        ratio: least and greatest width of a random crop, divided by its height.
        center_fraction: side of a central crop as a share of the largest one; 0.875 is the usual 224 of 256.
        flip: probability of a horizontal flip.
        interpolation: 'bilinear' or 'bicubic', both antialiased, or 'nearest', which makes no new values. Class numbers
            need 'nearest'.
        scaled: decode JPEGs at a half, a quarter or an eighth of their size where the crop is still large enough for
            `size`. This is faster for large images, and changes pixels a little: see ``docs/images.md``.
        max_pixels: images with more pixels are refused before memory is taken.

    Raises:
        StreamError: an argument breaks a rule.
    """

    layout: Layout = 'CHW'
    mode: Mode = 'RGB'
    size: int | tuple[int, int] | None = None
    crop: Crop | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    center_fraction: float = 0.875
    flip: float = 0.0
    interpolation: Interpolation = 'bilinear'
    scaled: bool = False
    max_pixels: int = 89_478_485  # Pillow's own bound for a warning

    def __post_init__(self) -> None:
        mistakes: list[Mistake] = []
        check_image(self, mistakes)
        if mistakes:
            (key,), value, rule = mistakes[0]
            raise StreamError(f'`{key}` of an ImageTensor {rule}, but is {value!r:.100}.')

    @property
    def out_size(self) -> tuple[int, int] | None:
        """Height and width of the tensors; None: those of the images."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def channels(self) -> int:
        """Channels of the tensors."""
        return 3 if self.mode == 'RGB' else 1

    @property
    def kind(self) -> str:
        """The type of a column in a batch: columns of one kind can share it."""
        size = 'any size' if self.out_size is None else '{} x {}'.format(*self.out_size)
        return f'uint8 image tensor of {size}, {self.mode}, {self.layout}'


def check_image(image: ImageTensor, mistakes: list[Mistake]) -> None:
    """Add the mistakes of settings, whose pairs may be lists."""
    for name in ('size', 'scale', 'ratio'):
        value = getattr(image, name)
        if isinstance(value, list):
            object.__setattr__(image, name, tuple(cast('list[Any]', value)))

    def refuse(name: str, rule: str) -> None:
        mistakes.append(Mistake((name,), getattr(image, name), rule))

    for name, kind in (('layout', Layout), ('mode', Mode), ('interpolation', Interpolation), ('crop', Crop)):
        value, names = getattr(image, name), get_args(kind)
        if not (value in names if isinstance(value, str) else value is None and name == 'crop'):
            refuse(name, f'must be one of {", ".join(map(repr, names))}')
    size = image.out_size
    if size is not None and not (_is_pair(size, int) and all(1 <= side <= _MOST_SIDE for side in size)):
        refuse('size', f'must be a number of pixels from 1 to {_MOST_SIDE}, or a height and a width')
    if size is None and image.crop is not None:
        refuse('crop', 'needs `size`, the height and width that the crop is resized to')
    if size is None and image.scaled is True:
        refuse('scaled', 'needs `size`, which says how small an image may be decoded')
    if size is not None and image.mode == 'P' and image.interpolation != 'nearest':
        refuse('interpolation', "must be 'nearest' with `mode` 'P': between two class numbers there is no other class")
    if image.scaled is True and image.interpolation == 'nearest':
        refuse('scaled', "must be false with 'nearest': a JPEG that is decoded smaller has averages of its pixels")
    if not (_is_pair(image.scale, float) and 0 < image.scale[0] <= image.scale[1] <= 1):
        refuse('scale', 'must be two shares of the area, 0 < least <= greatest <= 1')
    if not (_is_pair(image.ratio, float) and 0.01 <= image.ratio[0] <= image.ratio[1] <= 100):
        refuse('ratio', 'must be two ratios of width to height, 0.01 <= least <= greatest <= 100')
    if not (is_number(image.center_fraction) and 0 < image.center_fraction <= 1):
        refuse('center_fraction', 'must be greater than 0, and 1 at most')
    if not (is_number(image.flip) and 0 <= image.flip <= 1):
        refuse('flip', 'must be a probability from 0 to 1')
    if not isinstance(image.scaled, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - YAML has other values
        refuse('scaled', 'must be true or false')
    if not (is_number(image.max_pixels, int) and image.max_pixels >= 1):
        refuse('max_pixels', 'must be a whole number of at least 1')


def is_number(value: object, kind: type = float) -> bool:
    return isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)


def _is_pair(value: object, kind: type) -> bool:
    if not isinstance(value, tuple):
        return False
    items = cast('tuple[object, ...]', value)
    return len(items) == 2 and all(is_number(item, kind) for item in items)


_TRIES: Final = 10
NUM_DRAWS: Final = 2 * _TRIES + 3
"""Random numbers that a picture takes: two for each try of a random crop, two for its place, one for the flip."""


class Box(NamedTuple):
    top: int
    left: int
    height: int
    width: int


def choose_box(image: ImageTensor, height: int, width: int, draws: Sequence[float] | None) -> Box:
    """The part of a picture that is resized to `image.out_size`; None: a random crop is central."""
    size = image.out_size
    if image.crop is None or size is None:
        return Box(0, 0, height, width)
    if image.crop == 'center' or draws is None:
        return _central(height, width, size[1] / size[0], image.center_fraction)
    return _random(image, height, width, draws)


def is_flipped(image: ImageTensor, draws: Sequence[float] | None) -> bool:
    return draws is not None and draws[NUM_DRAWS - 1] < image.flip


def _random(image: ImageTensor, height: int, width: int, draws: Sequence[float]) -> Box:
    """A box as Inception was trained with (Szegedy et al. 2015), or the largest central one of an allowed shape."""
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
