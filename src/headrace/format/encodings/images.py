"""Images: ``pil``, ``jpeg``, ``png``, lists of them, and ``jpeg_array``. Needs Pillow when a value is read or written.

A read decodes the whole image. So a damaged image raises at once, and no image depends on an open file.
Pillow's limit on the number of pixels (``PIL.Image.MAX_IMAGE_PIXELS``) holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Generator, Mapping
from functools import cache
from io import BytesIO
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Final, cast

from headrace.errors import FormatError, import_optional
from headrace.format.encodings.encoding import Buffer, Encoding, named, require_file, too_long, warn_once, wrong_type
from headrace.format.file_bytes import read_file

_PIL_HEAD: Final = struct.Struct('<III')  # width, height, length of the mode's text
_MAX_EMPTY_SIDE: Final = 1 << 16  # Pillow keeps a pointer per row even for an image without pixels
_MAX_MODE_BYTES: Final = 16
_EIGHT_BITS: Final = frozenset(
    {'1', 'L', 'LA', 'La', 'P', 'PA', 'RGB', 'RGBA', 'RGBX', 'RGBa', 'CMYK', 'YCbCr', 'LAB', 'HSV'}
)
_CUT: Final = re.compile('(?<!BGR);16')  # in the name of stored pixels; BGR;16 has 16 bits for all three channels


def require_pillow() -> ModuleType:
    return import_optional('PIL.Image', 'Images need Pillow', 'vision')


@cache
def _safe_formats() -> tuple[str, ...]:
    """Every format of Pillow except EPS, for which Pillow runs Ghostscript on the file."""
    image = require_pillow()
    image.init()
    return tuple(name for name in image.ID if name != 'EPS')


def open_image(name: str, data: Buffer) -> Any:
    """A PIL image of known size, not decoded; FormatError: damaged, or with more pixels than Pillow's limit."""
    image = require_pillow()
    with reading_image(name, data):
        return image.open(BytesIO(data), formats=_safe_formats())


@contextlib.contextmanager
def reading_image(name: str, data: Buffer) -> Generator[None]:
    """Turn the errors of Pillow into FormatError; arguments as those of `open_image`."""
    try:
        yield
    except FormatError:
        raise
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error, ValueError and others
        kind = type(error).__name__
        # Pillow's message of an unknown kind has the address of an object. A report is the same in each run.
        reason = 'it is of no known kind' if kind == 'UnidentifiedImageError' else error
        raise FormatError(
            f'A value of encoding `{name}` ({len(data)} bytes) cannot be read as an image: {kind}: {reason}.'
        ) from error


def _is_cut(image: Any) -> bool:
    """Whether Pillow keeps 8 of the stored 16 bits of each channel of an image that is not loaded."""
    return image.mode in _EIGHT_BITS and any(
        tile[3][-1] > 255 if tile[0] == 'ppm' else _CUT.search(str(tile[3])) for tile in getattr(image, 'tile', ())
    )


def in_mode(image: Any, mode: str) -> Any:
    """An image of Pillow with pixels of a mode of 8 bits; FormatError: it has more, which would be cut."""
    if image.mode not in _EIGHT_BITS or _is_cut(image):
        more = '16 bits a channel' if image.mode in _EIGHT_BITS else f'pixels of mode {image.mode!r}'
        raise FormatError(
            f'Images of mode {mode!r} have 8 bits a channel, but this one has {more}. Convert it when you write it, or '
            f'store its pixels as an `ndarray`.'
        )
    image.load()
    return image if image.mode == mode else image.convert(mode)


def _open(name: str, data: Buffer) -> Any:
    opened = open_image(name, data)
    if _is_cut(opened):
        warn_once(
            f'A column of encoding `{name}` has images with 16 bits in each of several channels, of which Pillow keeps '
            f'8. Store their pixels as an `ndarray:uint16` to have all.'
        )
    with reading_image(name, data):
        opened.load()
    return opened


def _check_image(name: str, obj: Any) -> None:
    if not isinstance(obj, require_pillow().Image):
        raise wrong_type(name, 'PIL images', obj)


@named('pil')
class PIL(Encoding):
    """Raw pixels with size and mode. A palette is not kept."""

    kind = 'image'

    def encode(self, obj: Any) -> bytes:
        """Width, height, mode, pixels."""
        _check_image('pil', obj)
        mode = obj.mode.encode('utf-8')
        return _PIL_HEAD.pack(*obj.size, len(mode)) + mode + obj.tobytes()

    def decode(self, data: Buffer) -> Any:
        """A PIL image. The number of bytes is checked before pixels are allocated."""
        image = require_pillow()
        if len(data) < _PIL_HEAD.size:
            raise FormatError(f'A value of encoding `pil` has a head of 12 bytes, but got {len(data)} bytes in all.')
        view = memoryview(data)
        width, height, mode_size = _PIL_HEAD.unpack_from(view)
        if mode_size > min(_MAX_MODE_BYTES, len(view) - _PIL_HEAD.size):
            raise FormatError(f'A value of encoding `pil` announces a mode of {mode_size} bytes.')
        start = _PIL_HEAD.size + mode_size
        try:
            mode = str(view[_PIL_HEAD.size : start], 'ascii')
            expected = _raw_bytes(mode, width, height)
        except (KeyError, UnicodeDecodeError):
            got = bytes(view[_PIL_HEAD.size : start])
            raise FormatError(f'A value of encoding `pil` has a mode that Pillow does not know: {got!r}.') from None
        if len(view) - start != expected or (not expected and max(width, height) > _MAX_EMPTY_SIDE):
            raise FormatError(
                f'A value of encoding `pil`, {width} x {height} pixels of mode {mode}, has {expected} bytes of pixels, '
                f'but got {len(view) - start}.'
            )
        try:
            return image.frombytes(mode, (width, height), view[start:])
        except Exception as error:
            raise FormatError(
                f'A value of encoding `pil` cannot be read as an image: {type(error).__name__}: {error}.'
            ) from error


def _raw_bytes(mode: str, width: int, height: int) -> int:
    from PIL import ImageMode

    if mode == '1':
        return (width + 7) // 8 * height
    descriptor = ImageMode.getmode(mode)
    return width * height * len(descriptor.bands) * int(descriptor.typestr[-1])


class _ImageFile(Encoding):
    """Files of one format: kept as they are if their bytes, a path, or an image of Pillow with its file is given."""

    kind = 'image'
    name: ClassVar[str]
    begin: ClassVar[bytes]  # the first bytes of each file of the format
    save: ClassVar[Mapping[str, Any]]  # arguments of Pillow's `save`
    loss: ClassVar[str]  # how an image comes out that is encoded, for the warning

    def encode(self, obj: Any) -> bytes:
        """The bytes of the file, of a PIL image, a path or these bytes. An image without a file gets one."""
        if isinstance(obj, bytes | bytearray | memoryview):
            return bytes(obj)
        if isinstance(obj, str | os.PathLike):
            return self._read(cast('str | os.PathLike[str]', obj))
        _check_image(self.name, obj)
        data = self._file_of(obj)
        if data is not None:
            return data
        warn_once(
            f'A column of encoding `{self.name}` got a PIL image without its file, or one that was changed. It is '
            f'encoded {self.loss}. Give the bytes or the path of a file to have it kept.'
        )
        out = BytesIO()
        try:
            self._storable(obj).save(out, **self.save)
        except OSError as error:
            raise ValueError(
                f'A column of encoding `{self.name}` holds images that Pillow saves as {self.name.upper()}, but got '
                f"mode {obj.mode!r}: {error}. Convert it, as with `.convert('RGB')`, or choose another encoding."
            ) from error
        return out.getvalue()

    def decode(self, data: Buffer) -> Any:
        return _open(self.name, require_file(data))

    def _storable(self, image: Any) -> Any:
        return image

    def _read(self, path: str | os.PathLike[str]) -> bytes:
        try:
            data = read_file(path)
        except (OSError, ValueError) as error:
            raise ValueError(
                f'A column of encoding `{self.name}` holds images, bytes or paths of files, but {str(path)[:200]!r} '
                f'cannot be read: {error}.'
            ) from error
        if not data.startswith(self.begin):
            raise ValueError(
                f'A column of encoding `{self.name}` holds {self.name.upper()} files, but {str(path)[:200]!r} is none. '
                f'Open it with Pillow to have it encoded, or choose another encoding.'
            )
        return data

    def _file_of(self, obj: Any) -> bytes | None:
        """The bytes of an image's file, if it is of the format and the image is still as it is there."""
        if getattr(obj, 'format', None) not in _FORMATS[self.name]:
            return None
        data = None
        filename = getattr(obj, 'filename', '')
        opened = getattr(obj, 'fp', None)
        if filename:
            data = read_file(os.fsdecode(filename))
        elif isinstance(opened, BytesIO):  # opened from memory, and not loaded
            data = opened.getvalue()
        if data is None or not data.startswith(self.begin):
            return None
        # `thumbnail`, for one, changes an image in place.
        with require_pillow().open(BytesIO(data)) as stored:
            return data if (stored.size, stored.mode) == (obj.size, obj.mode) else None


@named('jpeg')
class JPEG(_ImageFile):
    name, begin = 'jpeg', b'\xff\xd8'
    save = MappingProxyType({'format': 'JPEG', 'quality': 75})
    loss = 'as a JPEG of quality 75, which loses quality'


@named('png')
class PNG(_ImageFile):
    name, begin = 'png', b'\x89PNG'
    save = MappingProxyType({'format': 'PNG'})
    loss = 'as a PNG, which loses nothing but takes long'

    def _storable(self, image: Any) -> Any:
        """The image. Integers are clipped to the 16 bits of a PNG, as Pillow did itself before version 13."""
        if image.mode != 'I':
            return image
        low, high = image.getextrema()
        if low < 0 or high >= 1 << 16:
            warn_once(
                'A column of encoding `png` holds pixels from 0 to 65535, so those of an image of mode I were clipped. '
                'Scale the pixels, or store an `ndarray:int32`.'
            )
        return image.convert('I;16')


_FORMATS: Final = {'jpeg': ('JPEG', 'MPO'), 'png': ('PNG',)}


def _join(items: list[bytes]) -> bytes:
    """u32 count, u32 size of every item, the items."""
    total = sum(map(len, items))
    if total >= 1 << 32:
        raise too_long(total)
    sizes = b''.join(len(item).to_bytes(4, 'little') for item in items)
    return len(items).to_bytes(4, 'little') + sizes + b''.join(items)


def _split(name: str, data: memoryview) -> list[memoryview]:
    """The items that ``_join`` joined; all sizes are checked before memory is allocated."""
    count = int.from_bytes(data[:4], 'little') if len(data) >= 4 else -1
    if not 0 <= count <= (len(data) - 4) // 4:
        raise FormatError(
            f'A value of encoding `{name}` holds a count and as many sizes, but announces {count} items in '
            f'{len(data)} bytes.'
        )
    sizes = struct.unpack_from(f'<{count}I', data, 4)
    start = 4 + 4 * count
    if start + sum(sizes) != len(data):
        raise FormatError(
            f'A value of encoding `{name}` holds {count} items of {sum(sizes)} bytes in all, but {len(data) - start} '
            f'bytes follow their sizes.'
        )
    items: list[memoryview] = []
    for size in sizes:
        items.append(data[start : start + size])
        start += size
    return items


class _ImageList(Encoding):
    """A list of images: u32 0, u32 count, u32 size of every image, the encoded images."""

    kind = 'list of images'
    item: ClassVar[Encoding]
    name: ClassVar[str]

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, list):
            raise wrong_type(self.name, 'lists of PIL images', obj)
        return bytes(4) + _join([self.item.encode(image) for image in obj])

    def decode(self, data: Buffer) -> list[Any]:
        view = memoryview(data)
        if len(view) < 8:
            raise FormatError(f'A value of encoding `{self.name}` has a head of 8 bytes, but got {len(view)} in all.')
        return [self.item.decode(item) for item in _split(self.name, view[4:])]


@named('list[pil]')
class PILList(_ImageList):
    item, name = PIL(), 'list[pil]'


@named('list[jpeg]')
class JPEGList(_ImageList):
    item, name = JPEG(), 'list[jpeg]'


@named('list[png]')
class PNGList(_ImageList):
    item, name = PNG(), 'list[png]'


@named('jpeg_array', 'jpegarray')
class JPEGArray(Encoding):
    """Lists of JPEG files: written from their bytes, read as PIL images."""

    kind = 'list of images'

    def encode(self, obj: Any) -> bytes:
        """The files as they are; a TypeError unless they are a list or tuple of bytes."""
        if not isinstance(obj, list | tuple) or not all(isinstance(item, bytes | bytearray) for item in obj):
            raise TypeError(
                f'A column of encoding `jpeg_array` holds lists of the bytes of JPEG files, but got a '
                f'{type(obj).__name__}. Encode the images first, or use `list[jpeg]` for PIL images.'
            )
        return _join([bytes(item) for item in obj])

    def decode(self, data: Buffer) -> list[Any]:
        return [_open('jpeg_array', item) for item in _split('jpeg_array', memoryview(require_file(data)))]
