"""The protocol of MDS encodings: name, size, `encode` and `decode`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from headrace.errors import FormatError
from headrace.errors.redaction import warn

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Buffer: TypeAlias = bytes | bytearray | memoryview
"""The stored bytes of a value: any contiguous buffer, such as a slice of a mapped file."""

NULL_FILE: Final = b'\0headrace: a null among files\0' + bytes.fromhex('9d1c5a7be24f4083b6f0d2519ae87c3e')
"""Stored instead of a null in columns of bytes and image files, as no file is."""


class NullFileError(FormatError):
    """A value of a column of bytes or files is null."""


class ArrayKind(str):
    """The kind of a column of arrays, as text. None as `dtype` or `shape`: each value says its own."""

    dtype: str | None
    shape: tuple[int, ...] | None

    def __new__(cls, dtype: str | None, shape: tuple[int, ...] | None) -> ArrayKind:
        what = 'array of any dtype' if dtype is None else f'{dtype} array'
        kind = super().__new__(cls, f'{what} of {"any shape" if shape is None else f"shape {shape}"}')
        kind.dtype, kind.shape = dtype, shape
        return kind


def do_stack(first: str, other: str) -> bool:
    """Whether values of two kinds can share a batch. An undeclared dtype or shape matches any."""
    if not (isinstance(first, ArrayKind) and isinstance(other, ArrayKind)):
        return first == other
    return all(a is None or b is None or a == b for a, b in ((first.dtype, other.dtype), (first.shape, other.shape)))


class Encoding(ABC):
    """One kind of column of an MDS shard.

    The name defines an instance completely, so one instance serves all threads and shards.
    """

    size: int | None = None
    """Bytes of every value, or None when values differ in length."""

    kind: str
    """The kind of a column in a batch. Encodings can share a column of a mixture if their kinds `do_stack`.

    The default is the name of the class.
    """

    array_type: tuple[np.dtype[Any], tuple[int, ...]] | None = None
    """Dtype (little-endian) and shape of a fixed-size value whose stored bytes are that array; else None.

    Such columns are read in many rows at once, without ``decode``.
    """

    trusted_name: bool = True
    """False if reading a value runs code (pickle)."""

    checks_bytes: bool = False
    """Whether `bytes` that are given as an encoded value are read once before they are stored."""

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, 'kind'):
            cls.kind = cls.__name__

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """The bytes stored for ``obj``.

        Raises:
            AttributeError: ``obj`` is not of the encoding's type.
            ValueError: ``obj`` is of the right type, but its value cannot be stored.
            OverflowError: a number is out of the encoding's range.
        """

    def encode_array(self, values: Sequence[Any] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """The stored bytes of many values at once; None to encode them one by one.

        Args:
            values: a list, or an array whose first axis is the value.

        Returns:
            One opaque element (dtype ``V<size>``) for each value, in memory that `values` may share. It says what
            `encode` says of each value, and never raises.
        """
        del values
        return None

    @abstractmethod
    def decode(self, data: Buffer) -> Any:
        """The value stored as ``data``. It owns its memory: it never refers to ``data``.

        Raises:
            FormatError: ``data`` is not a value of this encoding.
        """

    def decode_all(self, data: memoryview, begins: IntArray, ends: IntArray) -> Sequence[Any] | None:
        """Values at once, each in ``data[begin:end]``; None to decode them one by one.

        It never raises: it leaves damaged values to `decode`. The values may share memory, but not that of ``data``.

        Args:
            data: holds the values.
            begins: int64[n].
            ends: int64[n].
        """
        del data, begins, ends
        return None

    def with_parameters(self, text: str) -> Encoding | None:
        """The encoding of a name with parameters, such as ``ndarray:float32:3,224``; None if it has no parameters.

        Args:
            text: the part of the name after the first colon.

        Raises:
            ConfigError: the parameters are wrong.
        """
        del text
        return None


ENCODINGS: Final[dict[str, Encoding]] = {}  # encodings by name without parameters, registered ones included

_Encoding = TypeVar('_Encoding', bound=Encoding)


def named(*names: str) -> Callable[[type[_Encoding]], type[_Encoding]]:
    """A decorator that registers an encoding of this package."""

    def add(kind: type[_Encoding]) -> type[_Encoding]:
        for name in names:
            ENCODINGS[name] = kind()
        return kind

    return add


def opaque(array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """An array ``[n, *shape]`` as ``[n]`` elements of ``size`` opaque bytes, copied only if it is not contiguous."""
    return np.ndarray((len(array),), f'V{size}', np.ascontiguousarray(array))


def stored_bytes(encoding: Encoding, obj: Any, *, check: bool = True) -> bytes:
    """The bytes stored for ``obj``; a ``bytes`` object is an encoded value, which `check` decodes to be sure."""
    if not isinstance(obj, bytes):
        return encoding.encode(obj)
    if check and encoding.checks_bytes:
        try:
            encoding.decode(obj)
        except FormatError as error:
            raise ValueError(
                f'Bytes are stored as they are, so they must be an encoded value. {error} Give the value itself, or '
                f'make the column `bytes`.'
            ) from None
    return obj


def require_file(data: Buffer) -> Buffer:
    """The bytes of a file; a NullFileError if they stand for a null."""
    if len(data) == len(NULL_FILE) and data == NULL_FILE:
        raise NullFileError(
            "The value is null. Leave such rows out: give the stream `where={COLUMN: {'not': None}}` for this column."
        )
    return data


@cache
def warn_once(message: str) -> None:
    warn(message)


def too_long(size: int) -> ValueError:
    return ValueError(
        f'A shard file is smaller than 4 GiB because its offsets are 32-bit numbers, but the value has {size} bytes. '
        f'Store less in a sample.'
    )


def shown(obj: Any, write: Callable[[Any], str] = repr) -> str:
    try:
        text = write(obj)
    except ValueError:  # Python writes no integer of more than some thousand digits
        text = 'an integer of thousands of digits'
    return text if len(text) <= 60 else f'{text[:60]}...'


def wrong_type(encoding: str, holds: str, obj: Any) -> AttributeError:
    return AttributeError(
        f'A column of encoding `{encoding}` holds {holds}, but got {shown(obj)} of type '
        f'{type(obj).__name__}. Convert the value, or give the column another encoding.'
    )
