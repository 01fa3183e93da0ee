"""What every MDS encoding has: a fixed size or none, one way to bytes and one way back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

__all__ = ['ArrayKind', 'Buffer', 'Encoding', 'do_stack', 'wrong_type']

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What a value is decoded from: any contiguous run of bytes, a slice of a mapped file included."""


class ArrayKind(str):
    """The kind of a column of arrays, as text.

    Args:
        dtype: numpy name of the declared dtype; None: each value says its own.
        shape: the declared shape; None: each value says its own.
    """

    dtype: str | None
    shape: tuple[int, ...] | None

    def __new__(cls, dtype: str | None, shape: tuple[int, ...] | None) -> ArrayKind:
        """The text that messages show."""
        what = 'array of any dtype' if dtype is None else f'{dtype} array'
        kind = super().__new__(cls, f'{what} of {"any shape" if shape is None else f"shape {shape}"}')
        kind.dtype, kind.shape = dtype, shape
        return kind


def do_stack(one: str, other: str) -> bool:
    """Whether values of two kinds can share a batch. Dtypes and shapes that are not declared may be equal."""
    if not (isinstance(one, ArrayKind) and isinstance(other, ArrayKind)):
        return one == other
    return all(a is None or b is None or a == b for a, b in ((one.dtype, other.dtype), (one.shape, other.shape)))


class Encoding(ABC):
    """One kind of column of an MDS shard.

    Instances hold no state but what their name says, so one instance serves all threads and shards.
    """

    size: int | None = None
    """Bytes of every value, or None when values differ in length."""

    kind: str
    """What a batch holds of such a column. Encodings can share a column of a mixture if their kinds `do_stack`."""

    trusted_name: ClassVar[bool] = True
    """False for an encoding that runs code when it is read (pickle)."""

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """The bytes stored for ``obj``.

        Raises:
            AttributeError: ``obj`` is not of the encoding's type.
            ValueError: ``obj`` is of the right type, but has a value that cannot be stored.
            OverflowError: a number is out of the encoding's range.
        """

    @abstractmethod
    def decode(self, data: Buffer) -> Any:
        """The value stored as ``data``. It owns its memory: it never refers to ``data``.

        Raises:
            FormatError: ``data`` is not a value of this encoding.
        """


def wrong_type(encoding: str, holds: str, obj: Any) -> AttributeError:
    """The error for a value that does not belong into a column of this encoding."""
    text = repr(obj)
    shown = text if len(text) <= 60 else text[:60] + '...'
    return AttributeError(
        f'A column of encoding `{encoding}` holds {holds}, but got {shown} of type '
        f'{type(obj).__name__}. Convert the value, or give the column another encoding.'
    )
