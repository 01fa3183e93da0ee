"""What every MDS encoding has: a fixed size or none, one way to bytes and one way back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

__all__ = ['Buffer', 'Encoding', 'wrong_type']

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What a value is decoded from: any contiguous run of bytes, a slice of a mapped file included."""


class Encoding(ABC):
    """One kind of column of an MDS shard.

    Instances hold no state but what their name says, so one instance serves all threads and shards.
    """

    size: int | None = None
    """Bytes of every value, or None when values differ in length."""

    kind: str
    """What a batch holds of such a column. Encodings of one kind can share a column of a mixture."""

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
