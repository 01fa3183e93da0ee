"""Columns of images as uint8 tensors: their settings, the part of a picture to keep, and its decoding into memory.

The size of a picture is known before its pixels are decoded. JPEGs are decoded by libjpeg-turbo, all others by Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, Final, Literal, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt

from headrace.errors import FormatError, StreamError, import_optional
from headrace.format.encodings.images import in_mode, open_image, reading_image
from headrace.format.encodings.registry import get_mds_encoding
from headrace.selection import Mistake

Layout = Literal['CHW', 'HWC']
Mode = Literal['RGB', 'L', 'P']
Crop = Literal['random', 'center']
Interpolation = Literal['bilinear', 'bicubic', 'nearest']

Pixels = npt.NDArray[np.uint8]  # uint8[height, width, channels]

_MOST_SIDE: Final = 1 << 16
_JPEG: Final = b'\xff\xd8'
_CLASSES: Final = ('P', 'L', '1')  # modes of Pillow whose values may be class numbers


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

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)
    encodings: ClassVar[frozenset[str]] = frozenset({'jpeg', 'png', 'pil', 'bytes'})
    """Encodings of columns that are read so."""
    is_ragged: ClassVar[bool] = False
    """Whether each tensor of a batch may have a length of its own."""

    def __post_init__(self) -> None:
        if mistakes := self.mistakes():
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

    def mistakes(self) -> list[Mistake]:
        """The rules that the settings break. Pairs may be lists, which become tuples."""
        mistakes: list[Mistake] = []
        for name in ('size', 'scale', 'ratio'):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(cast('list[Any]', value)))

        def refuse(name: str, rule: str) -> None:
            mistakes.append(Mistake((name,), getattr(self, name), rule))

        for name, kind in (('layout', Layout), ('mode', Mode), ('interpolation', Interpolation), ('crop', Crop)):
            value, names = getattr(self, name), get_args(kind)
            if not (value in names if isinstance(value, str) else value is None and name == 'crop'):
                refuse(name, f'must be one of {", ".join(map(repr, names))}')
        size = self.out_size
        if size is not None and not (_is_pair(size, int) and all(1 <= side <= _MOST_SIDE for side in size)):
            refuse('size', f'must be a number of pixels from 1 to {_MOST_SIDE}, or a height and a width')
        if size is None and self.crop is not None:
            refuse('crop', 'needs `size`, the height and width that the crop is resized to')
        if size is None and self.scaled is True:
            refuse('scaled', 'needs `size`, which says how small an image may be decoded')
        if size is not None and self.mode == 'P' and self.interpolation != 'nearest':
            refuse(
                'interpolation', "must be 'nearest' with `mode` 'P': between two class numbers there is no other class"
            )
        if self.scaled is True and self.interpolation == 'nearest':
            refuse('scaled', "must be false with 'nearest': a JPEG that is decoded smaller has averages of its pixels")
        if not (_is_pair(self.scale, float) and 0 < self.scale[0] <= self.scale[1] <= 1):
            refuse('scale', 'must be two shares of the area, 0 < least <= greatest <= 1')
        if not (_is_pair(self.ratio, float) and 0.01 <= self.ratio[0] <= self.ratio[1] <= 100):
            refuse('ratio', 'must be two ratios of width to height, 0.01 <= least <= greatest <= 100')
        if not (is_number(self.center_fraction) and 0 < self.center_fraction <= 1):
            refuse('center_fraction', 'must be greater than 0, and 1 at most')
        if not (is_number(self.flip) and 0 <= self.flip <= 1):
            refuse('flip', 'must be a probability from 0 to 1')
        if not isinstance(self.scaled, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - YAML has other values
            refuse('scaled', 'must be true or false')
        if not (is_number(self.max_pixels, int) and self.max_pixels >= 1):
            refuse('max_pixels', 'must be a whole number of at least 1')
        return mistakes

    def open(self, data: bytes, encoding: str) -> Picture:
        """A picture from its stored bytes, not decoded; FormatError: it is none, or has more than `max_pixels`."""
        image: Any = None
        size = _jpeg_size(data) if encoding != 'pil' and data[:2] == _JPEG else None
        if size is None:
            # One of `pil` is as large as its bytes.
            image = get_mds_encoding('pil').decode(data) if encoding == 'pil' else open_image(encoding, data)
            size = image.height, image.width
        height, width = size
        if height * width > self.max_pixels:
            raise FormatError(
                f'An image may have `max_pixels`, {self.max_pixels:,}, but this one says {width} x {height}. If it is '
                f'right, set `max_pixels` of its ImageTensor.'
            )
        if not height or not width:
            raise FormatError(f'An image has pixels, but this one says {width} x {height}.')
        return Picture(height, width, data, encoding, image, self)

    def in_layout(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Pixels [..., height, width, channels] with their dimensions in the order of `layout`."""
        return array if self.layout == 'HWC' else np.moveaxis(array, -1, -3)


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
    settings: ImageTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels of what `read_into` makes."""
        return *(self.settings.out_size or (self.height, self.width)), self.settings.channels

    def read_into(self, out: Pixels, draws: Sequence[float] | None) -> None:
        """Decode, crop, resize and flip into contiguous memory of `shape`; `draws`: None, no random crop."""
        import torch
        from torch.nn.functional import interpolate

        image, (height, width) = self.settings, out.shape[:2]
        box = choose_box(image, self.height, self.width, draws)
        flipped = is_flipped(image, draws)
        if box == (0, 0, height, width) == (0, 0, self.height, self.width) and not flipped:
            self.pixels(image.mode, out=out)
            return
        at_least = None
        if image.scaled and box.height > height and box.width > width:
            # The crop keeps at least the size of the result.
            at_least = math.ceil(self.height * height / box.height), math.ceil(self.width * width / box.width)
        pixels = self.pixels(image.mode, at_least=at_least)
        box = _scaled(box, self, pixels)
        # Channels-last strides, for which uint8 has a fast path.
        kept = torch.from_numpy(pixels)[None, box.top : box.top + box.height, box.left : box.left + box.width]
        kept = kept.permute(0, 3, 1, 2)
        if box[2:] != (height, width):
            if image.interpolation == 'nearest':
                kept = interpolate(kept, (height, width), mode='nearest-exact')  # the pixel at the centre, as Pillow
            else:
                kept = interpolate(kept, (height, width), mode=image.interpolation, align_corners=False, antialias=True)
        torch.from_numpy(out).copy_((kept.flip(3) if flipped else kept)[0].permute(1, 2, 0))

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


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG; None if libjpeg-turbo cannot decode it to RGB."""
    try:
        height, width, colors, _ = _simplejpeg().decode_jpeg_header(data)
    except ValueError:
        return None
    return (height, width) if colors in ('YCbCr', 'RGB', 'Gray', 'GRAY') else None


def _scaled(box: Box, picture: Picture, pixels: Pixels) -> Box:
    """The same part of a picture that was decoded at another size."""
    height, width = pixels.shape[:2]
    if (height, width) == (picture.height, picture.width):
        return box
    y, x = height / picture.height, width / picture.width
    top, left = round(box.top * y), round(box.left * x)
    bottom, right = round((box.top + box.height) * y), round((box.left + box.width) * x)
    return Box(top, left, max(bottom - top, 1), max(right - left, 1))
