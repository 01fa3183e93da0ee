"""The encodings of MDS columns: samples' values to bytes and back.

A name is one of ``get_mds_encodings()``, or ``ndarray:<dtype>`` or ``ndarray:<dtype>:<d0>,<d1>...``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from headrace.errors import ConfigError
from headrace.format.encodings.arrays import NDArray
from headrace.format.encodings.encoding import Buffer, Encoding, do_stack
from headrace.format.encodings.images import JPEG, PIL, PNG, JPEGArray, JPEGList, PILList, PNGList
from headrace.format.encodings.scalars import (
    Float16,
    Float32,
    Float64,
    Int,
    Int8,
    Int16,
    Int32,
    Int64,
    Scalar,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from headrace.format.encodings.texts import JSON, Bytes, Pickle, Str, StrDecimal, StrFloat, StrInt
from headrace.format.encodings.unknown import meant

__all__ = [
    'JPEG',
    'JSON',
    'PIL',
    'PNG',
    'Bytes',
    'Encoding',
    'Float16',
    'Float32',
    'Float64',
    'Int',
    'Int8',
    'Int16',
    'Int32',
    'Int64',
    'JPEGArray',
    'JPEGList',
    'NDArray',
    'PILList',
    'PNGList',
    'Pickle',
    'Str',
    'StrDecimal',
    'StrFloat',
    'StrInt',
    'UInt8',
    'UInt16',
    'UInt32',
    'UInt64',
    'do_stack',
    'fixed_array_type',
    'get_mds_encoded_size',
    'get_mds_encoding',
    'get_mds_encodings',
    'is_mds_encoding',
    'is_mds_encoding_safe',
    'mds_decode',
    'mds_encode',
]

_ENCODINGS: Final[dict[str, Encoding]] = {
    'bytes': Bytes(),
    'str': Str(),
    'int': Int(),
    'ndarray': NDArray(),
    'uint8': UInt8(),
    'uint16': UInt16(),
    'uint32': UInt32(),
    'uint64': UInt64(),
    'int8': Int8(),
    'int16': Int16(),
    'int32': Int32(),
    'int64': Int64(),
    'float16': Float16(),
    'float32': Float32(),
    'float64': Float64(),
    'str_int': StrInt(),
    'str_float': StrFloat(),
    'str_decimal': StrDecimal(),
    'pil': PIL(),
    'jpeg': JPEG(),
    'png': PNG(),
    'jpeg_array': JPEGArray(),
    'jpegarray': JPEGArray(),
    'list[pil]': PILList(),
    'list[jpeg]': JPEGList(),
    'list[png]': PNGList(),
    'pkl': Pickle(),
    'json': JSON(),
}


def get_mds_encodings() -> set[str]:
    """The 28 names of encodings, without parameters."""
    return set(_ENCODINGS)


@lru_cache(maxsize=4096)  # bounded: the names come from files
def get_mds_encoding(encoding: str) -> Encoding:
    """The encoding of this name.

    Raises:
        ConfigError: there is none, or its parameters are wrong.
    """
    found = _ENCODINGS.get(encoding)
    if found is not None:
        return found
    name, colon, parameters = encoding.partition(':')
    if name == 'ndarray' and colon:
        return NDArray.parse(parameters)
    raise ConfigError(f'{encoding[:80]!r} is not an encoding of MDS columns. {meant(encoding, _ENCODINGS)}')


def is_mds_encoding(encoding: str) -> bool:
    """Whether there is an encoding of this name, its parameters included."""
    try:
        get_mds_encoding(encoding)
    except ConfigError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    """Whether reading a value of this (existing) encoding cannot run code."""
    return get_mds_encoding(encoding).trusted_name


def mds_encode(encoding: str, obj: Any) -> bytes:
    """The bytes stored for ``obj`` in a column of this encoding.

    A ``bytes`` object is stored as it is, whatever the encoding: it is taken for an encoded value.

    Raises:
        ConfigError: no such encoding.
        AttributeError, TypeError, ValueError, OverflowError: see the encoding.
    """
    found = get_mds_encoding(encoding)
    return obj if isinstance(obj, bytes) else found.encode(obj)


def mds_decode(encoding: str, data: Buffer) -> Any:
    """The value stored as ``data`` in a column of this encoding.

    Raises:
        ConfigError: no such encoding.
        FormatError: ``data`` is not such a value.
    """
    return get_mds_encoding(encoding).decode(data)


def get_mds_encoded_size(encoding: str) -> int | None:
    """Bytes of every value of this encoding, or None when they differ in length.

    Raises:
        ConfigError: no such encoding.
    """
    return get_mds_encoding(encoding).size


def fixed_array_type(encoding: str) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Dtype (little-endian) and shape of a value of a fixed-size encoding, for reading many at once; else None.

    ``int`` is int64 of shape (); numbers have shape (); ``ndarray:<dtype>:<shape>`` its own.
    """
    found = get_mds_encoding(encoding)
    if isinstance(found, Int):
        return np.dtype('<i8'), ()
    if isinstance(found, Scalar):
        return found.dtype, ()
    if isinstance(found, NDArray) and found.dtype is not None and found.shape is not None:
        return found.dtype, found.shape
    return None
