"""Numbers of fixed width: ``int`` (int64, Python ints) and one encoding per numpy number type."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from headrace.errors import FormatError
from headrace.format.encodings.encoding import Buffer, Encoding, named, opaque, shown, warn_once, wrong_type


def _integer_bytes(name: str, number: int, size: int, signed: bool) -> bytes:
    try:
        return number.to_bytes(size, 'little', signed=signed)
    except OverflowError:
        low, high = (-(1 << (8 * size - 1)), (1 << (8 * size - 1)) - 1) if signed else (0, (1 << (8 * size)) - 1)
        raise OverflowError(
            f'A column of encoding `{name}` holds integers from {low} to {high}, but got {shown(number)}. '
            f'Give the column a wider encoding.'
        ) from None


def _whole(name: str, value: Any) -> int:
    """A number, or a text of a whole one, as a Python int. A fraction is cut off, as MosaicML Streaming does."""
    if isinstance(value, np.generic):
        value = value.item()  # a time in units of its own becomes an int
    try:
        number = int(value)
    except (ValueError, OverflowError):  # nan, an infinity, or other text
        number = None
    if number is None:
        raise ValueError(
            f'A column of encoding `{name}` holds whole numbers, but got {shown(value, str)}. Round it, or give the '
            f'column an encoding of floats.'
        )
    if not isinstance(value, str) and number != value:
        warn_once(
            f'A column of encoding `{name}` holds whole numbers, so fractions of its floats were cut off. Round them, '
            f'or give the column an encoding of floats.'
        )
    return number


def _check_size(name: str, size: int, data: Buffer) -> None:
    if len(data) != size:
        raise FormatError(f'A value of encoding `{name}` has {size} bytes, but got {len(data)}.')


def _numbers(values: Sequence[Any] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """An array ``[n]`` of integers, bools or floats; None if values are anything else."""
    if isinstance(values, np.ndarray):
        return values if values.ndim == 1 and values.dtype.kind in 'biuf' else None
    kinds = set(map(type, values))
    with contextlib.suppress(OverflowError):
        if kinds == {int}:
            return np.array(values, np.int64)
        if kinds == {float}:
            return np.array(values, np.float64)
    return None


def _integers(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """Integers or bools as the bytes of a dtype; None if one is out of its range."""
    if array.dtype != dtype and array.dtype.kind != 'b' and len(array):
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            return None
    return opaque(array.astype(dtype, copy=False), dtype.itemsize)


@named('int')
class Int(Encoding):
    """Python ints (and bools) as int64; read back as Python ints."""

    size = 8
    kind = 'int64'
    array_type = np.dtype('<i8'), ()

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, int):
            raise wrong_type('int', 'Python ints', obj)
        return _integer_bytes('int', int(obj), 8, signed=True)

    def encode_array(self, values: Sequence[Any] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        array = _numbers(values)
        return None if array is None or array.dtype.kind == 'f' else _integers(array, np.dtype('<i8'))

    def decode(self, data: Buffer) -> int:
        _check_size('int', 8, data)
        return int.from_bytes(data, 'little', signed=True)


class Scalar(Encoding):
    """One numpy number; read back as a numpy scalar of the same type."""

    dtype: ClassVar[np.dtype[Any]]  # the stored type, little-endian

    def __init_subclass__(cls) -> None:
        cls.kind = cls.dtype.name
        cls.array_type = cls.dtype, ()

    def encode(self, obj: Any) -> bytes:
        """The number in the column's type. A float in an integer column loses its fraction, with a warning."""
        name, dtype = self.dtype.name, self.dtype
        value = obj
        if isinstance(obj, np.ndarray):
            if obj.size != 1:
                raise wrong_type(name, 'single numbers', obj)
            value = obj.reshape(())[()]
        if value is None or isinstance(value, complex | np.complexfloating | bytes | list | tuple | dict):
            raise wrong_type(name, 'single numbers', obj)
        try:
            if dtype.kind == 'f':
                return self._float_bytes(value)
            number = _whole(name, value)
        except (TypeError, RuntimeError):  # a tensor of several numbers raises the second
            raise wrong_type(name, 'single numbers', obj) from None
        return _integer_bytes(name, number, dtype.itemsize, signed=dtype.kind == 'i')

    def _float_bytes(self, value: Any) -> bytes:
        try:
            with np.errstate(over='ignore'):
                number = np.asarray(value if isinstance(value, np.floating) else float(value), self.dtype)
        except OverflowError:  # a Python int
            number = None
        except ValueError:
            raise ValueError(
                f'A column of encoding `{self.dtype.name}` holds numbers, but got {shown(value)}. Convert '
                f'it, or make the column `str`.'
            ) from None
        if number is None or (np.isinf(number) and 'inf' not in str(value).lower()):
            raise OverflowError(
                f'A column of encoding `{self.dtype.name}` holds numbers up to {np.finfo(self.dtype).max}, infinity '
                f'and nan, but got {shown(value, str)}. Give the column a wider encoding, or scale the value.'
            )
        return number.tobytes()

    def encode_array(self, values: Sequence[Any] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Python ints or floats, or an array of numbers; not floats for an integer column."""
        array, dtype = _numbers(values), self.dtype
        if array is None or (array.dtype.kind == 'f' and dtype.kind != 'f'):
            return None
        if dtype.kind != 'f':
            return _integers(array, dtype)
        if array.dtype.kind != 'f':
            array = array.astype(np.float64)  # as `encode` does
        with np.errstate(over='ignore'):
            stored = array.astype(dtype, copy=False)
        if stored is not array and np.isinf(stored).any() and not np.isinf(array[np.isinf(stored)]).all():
            return None  # `encode` names the value
        return opaque(stored, dtype.itemsize)

    def decode(self, data: Buffer) -> Any:
        _check_size(self.dtype.name, self.dtype.itemsize, data)
        return np.frombuffer(data, self.dtype)[0]


def _scalar(title: str, code: str) -> type[Scalar]:
    dtype = np.dtype(code)
    members = {'__doc__': f'Numbers as {dtype.name}.', '__module__': __name__, 'size': dtype.itemsize, 'dtype': dtype}
    return named(dtype.name)(type(title, (Scalar,), members))


UInt8, UInt16 = _scalar('UInt8', '<u1'), _scalar('UInt16', '<u2')
UInt32, UInt64 = _scalar('UInt32', '<u4'), _scalar('UInt64', '<u8')
Int8, Int16 = _scalar('Int8', '<i1'), _scalar('Int16', '<i2')
Int32, Int64 = _scalar('Int32', '<i4'), _scalar('Int64', '<i8')  # read back as numpy scalars, unlike `Int`
Float16, Float32, Float64 = _scalar('Float16', '<f2'), _scalar('Float32', '<f4'), _scalar('Float64', '<f8')
