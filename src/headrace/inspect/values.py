"""A value of a sample for people: its type and shape, a text, and the pictures that it holds."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np

from headrace.errors import FormatError, MissingDependencyError
from headrace.format import Schema
from headrace.format.encodings import get_mds_encoding

__all__ = ['LONGEST', 'SampleValue', 'Value', 'describe_decoded', 'describe_value']

LONGEST: Final = 1000
"""Characters of a value's text."""
_NUMBERS: Final = 8
"""Numbers of an array's text."""
_PICTURES: Final = ((b'\xff\xd8\xff', 'jpg'), (b'\x89PNG\r\n\x1a\n', 'png'), (b'GIF8', 'gif'))
Value = int | float | str | None


@dataclass(frozen=True)
class SampleValue:
    """One value of a sample."""

    size: int
    """Bytes as stored."""
    shape: str
    """Dtype and shape of an array, pixels of a picture, type of another object; empty for texts and numbers."""
    value: Value
    """A number, or a text of at most 1000 characters. May hold control characters."""
    pictures: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    """The ending of its file's name, and the content, of each picture."""

    def to_json(self) -> dict[str, Any]:
        """The value without pictures."""
        return {'bytes': self.size, 'shape': self.shape, 'value': self.value}


def describe_value(schema: Schema, column: str, stored: Any) -> SampleValue:
    """Describe a value. Damaged ones and those whose optional package is missing say so; nothing runs code.

    Args:
        schema: the shard's columns.
        column: name of the column.
        stored: the value as `first_samples` gives it.
    """
    number = schema.names.index(column)
    if schema.format != 'mds':
        return describe_decoded(stored, len(str(stored).encode('utf-8', 'surrogatepass')))
    size = schema.sizes[number]
    if schema.arrays[number] is not None:
        return describe_decoded(stored, size or 0)
    data = stored if isinstance(stored, bytes) else cast('np.ndarray[Any, Any]', stored).tobytes()
    name = schema.encodings[number]
    encoding = get_mds_encoding(name)
    if not encoding.trusted_name:
        return SampleValue(len(data), '', f'({name}, which runs code when it is read)')
    try:
        return describe_decoded(encoding.decode(data), len(data), data)
    except MissingDependencyError as error:
        return SampleValue(len(data), '', f'({error})', _pictures_in(data))
    except (FormatError, RecursionError) as error:
        return SampleValue(len(data), '', f'(damaged: {error})'[:LONGEST])


def describe_decoded(value: Any, size: int = 0, stored: bytes = b'') -> SampleValue:
    """Describe a decoded value.

    Args:
        value: as a dataset gives it.
        size: bytes as stored.
        stored: the stored bytes, which may be a picture's file.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return SampleValue(size, '', _number(value))
    if isinstance(value, str):
        return SampleValue(size, '', _cut(value))
    if isinstance(value, bytes):
        pictures = _pictures_in(value)
        what = f'{pictures[0][0]} picture, {len(value)} bytes' if pictures else repr(value[:LONGEST])
        return SampleValue(size, f'{pictures[0][0]} picture' if pictures else '', _cut(what), pictures)
    if isinstance(value, np.ndarray):
        array = cast('np.ndarray[Any, np.dtype[Any]]', value)
        return SampleValue(size, f'{array.dtype} {array.shape}', _array_text(array))
    if _is_picture(value):
        return _picture(value, size, stored)
    if isinstance(value, list) and value and all(_is_picture(item) for item in cast('list[Any]', value)):
        return _picture_list(cast('list[Any]', value), size)
    return SampleValue(size, type(value).__name__, _cut(repr(value)))


def _number(value: float | None) -> Value:
    # JSON of other programs knows neither NaN nor infinity.
    is_plain = not isinstance(value, float) or np.isfinite(value)
    return value if is_plain else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'


def _array_text(array: np.ndarray[Any, np.dtype[Any]]) -> str:
    first = array.reshape(-1)[:_NUMBERS]
    more = ' …' if array.size > _NUMBERS else ''
    return '[' + ' '.join(f'{number:g}' for number in first.tolist()) + more + ']'


def _is_picture(value: Any) -> bool:
    return type(value).__module__.partition('.')[0] == 'PIL'


def _picture(picture: Any, size: int, stored: bytes) -> SampleValue:
    text = f'{picture.width} x {picture.height} {picture.mode}'
    return SampleValue(size, text, f'picture, {text}', _pictures_in(stored) or (_as_png(picture),))


def _picture_list(pictures: Sequence[Any], size: int) -> SampleValue:
    first = pictures[0]
    text = f'{len(pictures)} pictures, the first {first.width} x {first.height} {first.mode}'
    return SampleValue(size, f'{len(pictures)} pictures', text, tuple(_as_png(picture) for picture in pictures))


def _as_png(picture: Any) -> tuple[str, bytes]:
    out = io.BytesIO()
    modes = {'1', 'L', 'LA', 'I;16', 'P', 'RGB', 'RGBA'}
    (picture if picture.mode in modes else picture.convert('RGB')).save(out, format='PNG')
    return 'png', out.getvalue()


def _pictures_in(data: bytes) -> tuple[tuple[str, bytes], ...]:
    """The picture that a value's bytes are, by their beginning."""
    return tuple((ending, data) for magic, ending in _PICTURES if data.startswith(magic))
