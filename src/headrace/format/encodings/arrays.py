"""Numpy arrays: ``ndarray``, ``ndarray:<dtype>`` and ``ndarray:<dtype>:<d0>,<d1>...``.

A stored array is its dtype code (1 byte), its shape, and its values in C order, little-endian. An encoding with a fixed
dtype or shape omits that part. The shape is one byte ``ndim << 2 | k``, then ndim entries of ``2**k`` bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from headrace.errors import ConfigError, FormatError
from headrace.format.encodings.encoding import ArrayKind, Buffer, Encoding, IntArray, named, opaque, wrong_type

# Numbers on disk: never change one, never reuse one.
_DTYPE_OF_CODE: Final[dict[int, np.dtype[Any]]] = {
    8: np.dtype('<u1'),
    9: np.dtype('<i1'),
    16: np.dtype('<u2'),
    17: np.dtype('<i2'),
    18: np.dtype('<f2'),
    32: np.dtype('<u4'),
    33: np.dtype('<i4'),
    34: np.dtype('<f4'),
    64: np.dtype('<u8'),
    65: np.dtype('<i8'),
    66: np.dtype('<f8'),
}
_CODE_OF_NAME: Final[dict[str, int]] = {dtype.name: code for code, dtype in _DTYPE_OF_CODE.items()}
DTYPES: Final = tuple(_CODE_OF_NAME)  # names of the dtypes that arrays may have
_SUPPORTED: Final = ', '.join(DTYPES)

_MAX_SAMPLE_BYTES: Final = (1 << 32) - 1
_MOST_TOGETHER: Final = 1 << 20
"""Bytes of values that share memory: of more, a kept value would keep much, and numpy copies each as fast."""
_MAX_AXES: Final = 32  # numpy 1.26's limit; numpy 2 reads up to 64


@named('ndarray')
class NDArray(Encoding):
    """Numpy arrays of numbers, read back as writable. Values say their own dtype and shape where these are None."""

    checks_bytes = True

    def __init__(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        if dtype is not None and dtype not in _CODE_OF_NAME:
            raise ConfigError(
                f'`ndarray` columns hold {_SUPPORTED}, but got the dtype {dtype!r}. Convert the arrays to one of those.'
            )
        if shape is not None and (dtype is None or not shape or min(shape) < 1):
            raise ConfigError(
                f'A fixed shape of `ndarray` needs a dtype and dimensions of 1 or more, but got the dtype {dtype!r} '
                f'and the shape {shape}. Write it as `ndarray:<dtype>:<d0>,<d1>,...`.'
            )
        self.dtype: np.dtype[Any] | None = None if dtype is None else _DTYPE_OF_CODE[_CODE_OF_NAME[dtype]]
        self.shape = shape
        self.kind = ArrayKind(dtype, shape)
        self.array_type = None if self.dtype is None or shape is None else (self.dtype, shape)
        self.size = None if self.dtype is None or shape is None else math.prod(shape) * self.dtype.itemsize
        if self.size is not None and self.size > _MAX_SAMPLE_BYTES:
            raise ConfigError(f'A sample holds less than 4 GiB, but `{self.name}` needs {self.size} bytes a value.')

    @property
    def name(self) -> str:
        parts = ['ndarray']
        if self.dtype is not None:
            parts.append(self.dtype.name)
        if self.shape is not None:
            parts.append(','.join(map(str, self.shape)))
        return ':'.join(parts)

    def with_parameters(self, text: str) -> NDArray:
        dtype, _, rest = text.partition(':')
        if not dtype and not rest and ':' not in text:
            return NDArray()  # `ndarray:` means the same as `ndarray`
        if ':' not in text:
            return NDArray(dtype)
        if not re.fullmatch(r'[0-9]{1,10}(,[0-9]{1,10})*', rest, re.ASCII):
            raise ConfigError(
                f'A fixed shape of `ndarray` is numbers with commas between them, but got {rest[:60]!r} in '
                f'`ndarray:{text[:80]}`. Write it as `ndarray:<dtype>:<d0>,<d1>,...`.'
            )
        shape = tuple(int(part) for part in rest.split(','))
        if len(shape) > _MAX_AXES:
            raise ConfigError(f'An array has at most {_MAX_AXES} axes, but `ndarray:{text[:60]}` has {len(shape)}.')
        return NDArray(dtype, shape)

    def encode(self, obj: Any) -> bytes:
        """The bytes of an array or a tensor of one to 63 axes, of any memory layout, without a zero length."""
        if isinstance(obj, np.generic):
            raise ValueError(_scalar_message(obj))  # noqa: TRY004 - as for an array of shape ()
        if type(obj).__module__ == 'torch':
            obj = np.asarray(obj)
        if not isinstance(obj, np.ndarray):
            raise wrong_type(self.name, 'numpy arrays', obj)
        array: np.ndarray[Any, np.dtype[Any]] = unmasked(obj) if isinstance(obj, np.ma.MaskedArray) else obj
        if array.ndim == 0:
            raise ValueError(_scalar_message(array))
        if array.size == 0:
            raise ValueError(
                f'Attempting to encode a numpy array with 0 elements: its shape is {array.shape}. '
                f'Leave the sample out, or encode the array as `bytes`.'
            )
        code = _CODE_OF_NAME.get(array.dtype.name)
        if code is None:
            raise ValueError(
                f'`ndarray` columns hold {_SUPPORTED}, but got an array of dtype {array.dtype}. Convert it with astype.'
            )
        if self.dtype is not None and array.dtype != self.dtype:
            raise ValueError(
                f'A column of encoding `{self.name}` holds little-endian {self.dtype.name} arrays, but got dtype '
                f'{array.dtype} ({array.dtype.str}). Convert it with astype.'
            )
        if self.shape is not None and array.shape != self.shape:
            raise ValueError(
                f'A column of encoding `{self.name}` holds arrays of shape {self.shape}, but got {array.shape}. '
                f'Reshape it, or leave the shape out of the encoding.'
            )
        data = array.astype(_DTYPE_OF_CODE[code], copy=False).tobytes()
        head = self._head(code, array.shape)
        return head + data if head else data

    def encode_array(self, values: Sequence[Any] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """The arrays along the first axis of an array, which all have one dtype and shape."""
        if not isinstance(values, np.ndarray) or values.ndim < 2 or not values.size:
            return None
        array: np.ndarray[Any, np.dtype[Any]] = values
        shape, code = array.shape[1:], _CODE_OF_NAME.get(array.dtype.name)
        if code is None or (self.dtype or array.dtype) != array.dtype or (self.shape or shape) != shape:
            return None
        stored = array.astype(_DTYPE_OF_CODE[code], copy=False)
        size = math.prod(shape) * stored.itemsize
        head = self._head(code, shape)
        if not head:
            return opaque(stored, size)
        both = np.empty(len(array), [('head', f'V{len(head)}'), ('values', f'V{size}')])
        both['head'], both['values'] = np.void(head), opaque(stored, size)
        return opaque(both, both.itemsize)

    def _head(self, code: int, shape: tuple[int, ...]) -> bytes:
        head = b'' if self.dtype is not None else bytes([code])
        return head if self.shape is not None else head + _shape_bytes(shape)

    def decode(self, data: Buffer) -> np.ndarray[Any, np.dtype[Any]]:
        """The array, in native byte order, writable."""
        dtype, shape, start = self.dtype, self.shape, 0
        size = len(data)
        if dtype is None:
            dtype = _DTYPE_OF_CODE.get(data[0]) if size else None
            if dtype is None:
                got = f'code {data[0]}' if size else 'no byte'
                raise FormatError(f'An `ndarray` value starts with the code of its dtype, but got {got}.')
            start = 1
        if shape is None:
            shape, start = _read_shape(data, start)
        values = math.prod(shape)
        expected = values * dtype.itemsize
        if size - start != expected:
            raise FormatError(
                f'A value of encoding `{self.name}`, {dtype.name} of shape {_short(shape)}, has {expected} bytes of '
                f'values, but got {size - start}.'
            )
        if values == 0:
            raise FormatError(f'A value of encoding `{self.name}` has no zero-length axis, but got {_short(shape)}.')
        try:
            array = np.ndarray(shape, dtype, data, start)
        except ValueError as error:  # more axes than this numpy supports
            raise FormatError(f'A value of encoding `{self.name}` cannot be an array: {error}.') from None
        return array.copy() if dtype.isnative else array.astype(dtype.newbyteorder('='))

    def decode_all(
        self, data: memoryview, begins: IntArray, ends: IntArray
    ) -> list[np.ndarray[Any, np.dtype[Any]]] | None:
        """Arrays of one dtype with one axis, by a single copy of their values. A kept one keeps all in memory."""
        sizes = ends - begins
        if type(self).decode is not NDArray.decode or not len(sizes) or int(sizes.min()) < 2:
            return None
        if int(sizes.sum()) > _MOST_TOGETHER:
            return None
        stored, dtype = np.frombuffer(data, np.uint8), self.dtype
        if dtype is None:
            codes = stored[begins]
            dtype = _DTYPE_OF_CODE.get(int(codes[0])) if (codes == codes[0]).all() else None
            begins = begins + 1
        if dtype is None or not dtype.isnative or self.shape is not None:
            return None
        heads = stored[begins]
        begins = begins + 1
        after_head = begins + (1 << (heads & 3).astype(np.int64))
        if (heads >> 2 != 1).any() or (after_head > ends).any():
            return None
        lengths = np.empty_like(begins)
        for k in np.unique(heads & 3).tolist():
            where = np.flatnonzero(heads & 3 == k)
            places = begins[where, None] + np.arange(1 << k)
            lengths[where] = stored[places].view(f'<u{1 << k}')[:, 0].astype(np.int64)
        counts, rest = np.divmod(ends - after_head, dtype.itemsize)
        if (lengths < 1).any() or (lengths != counts).any() or rest.any():
            return None
        spans = zip(after_head.tolist(), ends.tolist(), strict=True)
        values = np.frombuffer(bytearray().join([data[begin:end] for begin, end in spans]), dtype)
        return [values[begin:end] for begin, end in pairwise([0, *np.cumsum(lengths).tolist()])]


def unmasked(array: np.ma.MaskedArray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """The values of a masked array; a ValueError if some are masked, which no encoding can store."""
    masked = int(np.ma.count_masked(array))
    if masked:
        raise ValueError(
            f'Shards hold values, not masks, but got an array with masked values: {masked} of {array.size}. Fill them '
            f'with `.filled(value)`, store the mask as a column of its own, or leave these samples out.'
        )
    return np.asarray(array.data)


def _scalar_message(obj: Any) -> str:
    return (
        f'Attempting to encode a scalar with NDArray encoding: got {obj!r}. Use a number encoding such as '
        f'`float32`, or an array of one axis.'
    )


def _short(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 8 else f'({", ".join(map(str, shape[:8]))}, ... {len(shape)} axes)'


def _shape_bytes(shape: tuple[int, ...]) -> bytes:
    largest = max(shape)
    k = 0 if largest < 1 << 8 else 1 if largest < 1 << 16 else 2 if largest < 1 << 32 else 3
    return bytes([len(shape) << 2 | k]) + b''.join(length.to_bytes(1 << k, 'little') for length in shape)


def _read_shape(data: Buffer, start: int) -> tuple[tuple[int, ...], int]:
    if start >= len(data):
        raise FormatError('An `ndarray` value says its shape, but ends before it.')
    ndim, width = data[start] >> 2, 1 << (data[start] & 3)
    start += 1
    stop = start + ndim * width
    if stop > len(data):
        raise FormatError(
            f'An `ndarray` value announces {ndim} axes of {width} bytes each, but only {len(data) - start} bytes '
            f'follow.'
        )
    if ndim == 1:
        return (int.from_bytes(data[start:stop], 'little'),), stop
    if width == 1:
        return tuple(data[start:stop]), stop
    shape = tuple(int.from_bytes(data[at : at + width], 'little') for at in range(start, stop, width))
    return shape, stop
