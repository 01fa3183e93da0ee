"""The encodings of MDS columns, which turn values into bytes and back.

A name is one of ``get_mds_encodings()``, or ``ndarray:<dtype>`` or ``ndarray:<dtype>:<d0>,<d1>...``. The
decorator ``named`` registers the classes of this package; ``register_encoding`` adds others.
"""

from __future__ import annotations

from headrace.format.encodings.arrays import NDArray
from headrace.format.encodings.encoding import Encoding, do_stack
from headrace.format.encodings.images import JPEG, PIL, PNG, JPEGArray, JPEGList, PILList, PNGList
from headrace.format.encodings.registry import (
    encoding_name,
    fixed_array_type,
    get_mds_encoded_size,
    get_mds_encoding,
    get_mds_encodings,
    is_mds_encoding,
    is_mds_encoding_safe,
    mds_decode,
    mds_encode,
    register_encoding,
)
from headrace.format.encodings.scalars import (
    Float16,
    Float32,
    Float64,
    Int,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from headrace.format.encodings.texts import JSON, Bytes, Pickle, Str, StrDecimal, StrFloat, StrInt

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
    'encoding_name',
    'fixed_array_type',
    'get_mds_encoded_size',
    'get_mds_encoding',
    'get_mds_encodings',
    'is_mds_encoding',
    'is_mds_encoding_safe',
    'mds_decode',
    'mds_encode',
    'register_encoding',
]
