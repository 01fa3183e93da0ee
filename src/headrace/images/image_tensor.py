"""The settings of columns of images that are read as tensors, and the part of a picture that is kept."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from headrace.errors import StreamError
from headrace.selection import Mistake

Layout = Literal['CHW', 'HWC']
Mode = Literal['RGB', 'L']
Crop = Literal['random', 'center']
Interpolation = Literal['bilinear', 'bicubic']

_TENSOR: Final = 'tensor'
_IMAGES: Final = frozenset({'jpeg', 'png', 'pil'})
"""Encodings whose columns are read as tensors without being named."""
_FILES: Final = frozenset({*_IMAGES, 'bytes'})
_MOST_SIDE: Final = 1 << 16
_RULE: Final = (
    "must be 'tensor' or an ImageTensor for all columns of images, or a mapping from columns to these; a mapping of "
    'the keys of ImageTensor stands for one'
)


@dataclass(frozen=True, kw_only=True)
class ImageTensor:
    """A column of images as tensors of uint8, decoded, cropped, resized and flipped in one go.

    Random numbers depend on the dataset's `shuffle_seed`, the epoch and the sample's id alone, as `sample_rng` does. So
    a sample has the same crop on any number of ranks and workers, and after any resume. All images of a sample get the
    same numbers. Outside of a pass over the data, as in `dataset[i]`, crops are central and nothing is flipped.

    Args:
        layout: order of the dimensions, 'CHW' or 'HWC'. The memory is channels-last for both: a batch in 'CHW' is a
            view with the strides of `torch.channels_last`, which convolutions like.
        mode: 'RGB' for three channels, 'L' for one (grey).
        size: height and width in pixels, or one number for both. None: that of the stored image, which must be the same
            in a batch.
        crop: part of the image that is resized to `size`. 'random' takes one by `scale` and `ratio`; 'center' takes the
            largest central part of the shape of `size`, times `center_fraction`. None: all of it, stretched.
        scale: least and greatest share of the area in a random crop.
        ratio: least and greatest width of a random crop, divided by its height.
        center_fraction: side of a central crop as a share of the largest one; 0.875 is the usual 224 of 256.
        flip: probability of a horizontal flip.
        interpolation: 'bilinear' or 'bicubic'; both are antialiased.
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
        _check(self, mistakes)
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
    def plain(self) -> str | dict[str, Any]:
        """The value that YAML gives these settings with."""
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        changed = {name: value for name, (value, default) in values.items() if value != default}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()} or _TENSOR

    @property
    def kind(self) -> str:
        """The type of a column in a batch: columns of one kind can share it."""
        size = 'any size' if self.out_size is None else '{} x {}'.format(*self.out_size)
        return f'uint8 image tensor of {size}, {self.mode}, {self.layout}'


def _check(image: ImageTensor, mistakes: list[Mistake]) -> None:
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
    if not (_is_pair(image.scale, float) and 0 < image.scale[0] <= image.scale[1] <= 1):
        refuse('scale', 'must be two shares of the area, 0 < least <= greatest <= 1')
    if not (_is_pair(image.ratio, float) and 0.01 <= image.ratio[0] <= image.ratio[1] <= 100):
        refuse('ratio', 'must be two ratios of width to height, 0.01 <= least <= greatest <= 100')
    if not (_is_number(image.center_fraction) and 0 < image.center_fraction <= 1):
        refuse('center_fraction', 'must be greater than 0, and 1 at most')
    if not (_is_number(image.flip) and 0 <= image.flip <= 1):
        refuse('flip', 'must be a probability from 0 to 1')
    if not isinstance(image.scaled, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - YAML has other values
        refuse('scaled', 'must be true or false')
    if not (_is_number(image.max_pixels, int) and image.max_pixels >= 1):
        refuse('max_pixels', 'must be a whole number of at least 1')


def _is_number(value: object, kind: type = float) -> bool:
    return isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)


def _is_pair(value: object, kind: type) -> bool:
    if not isinstance(value, tuple):
        return False
    items = cast('tuple[object, ...]', value)
    return len(items) == 2 and all(_is_number(item, kind) for item in items)


Asked: TypeAlias = 'ImageTensor | Literal["tensor"] | Mapping[str, Any]'
"""Settings of one column, as users give them; a mapping has keys of ImageTensor."""

DecodeLike: TypeAlias = 'Decode | Asked | Mapping[str, Asked]'
"""Settings of a stream's columns, as users give them."""


@dataclass(frozen=True)
class Decode:
    """The columns of a stream that are read as tensors."""

    every: ImageTensor | None
    """For all columns of images; None: only those of `named`."""
    named: tuple[tuple[str, ImageTensor], ...] = ()
    """Columns by name."""

    @classmethod
    def read(cls, raw: object, mistakes: list[Mistake]) -> Decode | None:
        """The value of an argument or a key `decode`; None if there are mistakes, which are added."""
        if isinstance(raw, Decode):
            return raw
        if isinstance(raw, Mapping) and raw and not _is_settings(cast('Mapping[Any, Any]', raw)):
            before = len(mistakes)
            named: list[tuple[str, ImageTensor]] = []
            for name, value in cast('Mapping[Any, Any]', raw).items():
                inside: list[Mistake] = []
                found = _image_tensor(value, inside)
                if not isinstance(name, str):
                    mistakes.append(Mistake((), name, 'must be the name of a column: quote it'))
                elif found is not None:
                    named.append((name, found))
                mistakes += [mistake._replace(path=(str(name), *mistake.path)) for mistake in inside]
            return cls(None, tuple(named)) if len(mistakes) == before else None
        found = _image_tensor(raw, mistakes)
        if raw == {}:
            mistakes.append(Mistake((), raw, _RULE))
        return None if found is None or mistakes else cls(found)

    @classmethod
    def of(cls, raw: object) -> Decode | None:
        """The same for a value given in Python; None: nothing is read as a tensor.

        Raises:
            StreamError: the value breaks a rule.
        """
        if raw is None:
            return None
        mistakes: list[Mistake] = []
        found = cls.read(raw, mistakes)
        if mistakes:
            where = ''.join(f'[{part!r}]' for part in mistakes[0].path)
            raise StreamError(f'`decode{where}` {mistakes[0].rule}, but is {mistakes[0].value!r:.100}.')
        return found

    @property
    def plain(self) -> str | dict[str, Any]:
        """The value that YAML gives these settings with."""
        return {name: image.plain for name, image in self.named} if self.every is None else self.every.plain

    def columns(self, stored: Mapping[str, str], read: Sequence[str] | None, title: str) -> dict[str, ImageTensor]:
        """The columns of a shard that are read as tensors.

        Args:
            stored: the encodings of all its columns by name.
            read: columns that are read; None: all.
            title: of the stream, for messages.

        Raises:
            StreamError: a named column is not there, is not read, or holds no images; or no column holds images.
        """
        stored = {name: encoding for name, encoding in stored.items() if read is None or name in read}
        if self.every is not None:
            found = {name: self.every for name, encoding in stored.items() if encoding in _IMAGES}
            if not found:
                raise StreamError(
                    f'`decode` asks for images as tensors, but {title} has no column of images to read: '
                    f'{_listed(stored)}. Give `decode` to the streams that have, or name a column of encoding `bytes`.'
                )
            return found
        for name, _ in self.named:
            if name not in stored:
                nearest = difflib.get_close_matches(name, stored, n=1)
                meant = f' Did you mean {nearest[0]!r}?' if nearest else ''
                raise StreamError(
                    f'`decode` names the column {name!r}, but {title} has the columns to read {_listed(stored)}.{meant}'
                )
            if stored[name] not in _FILES:
                raise StreamError(
                    f'`decode` makes tensors of the encodings {", ".join(sorted(_FILES))}, but column {name!r} of '
                    f'{title} is `{stored[name]}`.'
                )
        return dict(self.named)


def _is_settings(raw: Mapping[Any, Any]) -> bool:
    """Whether a mapping has keys of ImageTensor, rather than columns: a column may have the name of a key."""
    return set(raw) <= _KEYS and not any(
        value == _TENSOR or isinstance(value, (Mapping, ImageTensor)) for value in raw.values()
    )


def _image_tensor(raw: object, mistakes: list[Mistake]) -> ImageTensor | None:
    """One column's settings."""
    if isinstance(raw, ImageTensor):
        return raw
    if raw == _TENSOR:
        return ImageTensor()
    if not isinstance(raw, Mapping):
        mistakes.append(Mistake((), raw, _RULE))
        return None
    settings = cast('Mapping[Any, Any]', raw)
    before = len(mistakes)
    for key, value in settings.items():
        if key not in _KEYS:
            nearest = difflib.get_close_matches(str(key), _KEYS, n=1)
            meant = f'; did you mean {nearest[0]}?' if nearest else ''
            mistakes.append(
                Mistake((str(key),), value, f'is no key of ImageTensor, which has {", ".join(sorted(_KEYS))}{meant}')
            )
    if len(mistakes) > before:
        return None
    try:
        return ImageTensor(**settings)
    except StreamError:
        # Again without raising, to have all mistakes with their keys.
        made = object.__new__(ImageTensor)
        for field in dataclasses.fields(ImageTensor):
            object.__setattr__(made, field.name, settings.get(field.name, field.default))
        _check(made, mistakes)
        return None


def _listed(stored: Mapping[str, str]) -> str:
    shown = [f'{name}: {encoding}' for name, encoding in stored.items()][:16]
    return ', '.join(shown) + (', …' if len(stored) > len(shown) else '')


_KEYS: Final = frozenset(field.name for field in dataclasses.fields(ImageTensor))


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
