"""NumPy's .npy files, and arrays as the `ndarray` encoding stores them."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from numpy.lib import format as npy_format

from headrace.errors import ShardError
from headrace.format.encodings.arrays import DTYPES

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
MAGIC: Final = b'\x93NUMPY'


def read_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran's order, and dtype. numpy raises errors of many kinds for a damaged one."""
    version = npy_format.read_magic(stream)
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    return read(stream)


def parse_npy(data: bytes, where: str) -> Array:
    """The array of a .npy file. Unpickles nothing, and allocates at most the file's size."""
    stream = BytesIO(data)
    try:
        shape, fortran, dtype = read_header(stream)
        if dtype.hasobject:
            raise ValueError('it holds pickled objects')
        count = math.prod(shape)
        if count * dtype.itemsize != len(data) - stream.tell():
            raise ValueError(f'an array of {dtype} and shape {shape} has other bytes than follow its header')
        array = np.frombuffer(data, dtype, count, stream.tell()) if count else np.empty(shape, dtype)
        array = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
    except Exception as error:  # numpy reads the header as Python text: ValueError, SyntaxError, TokenError and others
        raise ShardError(f'{where} is not a readable .npy file: {error}. Write it again.') from None
    return storable(array, where)


def storable(array: Array, where: str) -> Array:
    """The array as the `ndarray` encoding stores it: bools are uint8, and a scalar has one axis of length 1."""
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    if array.dtype.name not in DTYPES:
        raise ShardError(
            f'Arrays hold {", ".join(DTYPES)}, but {where} has the dtype {array.dtype}. Leave its column out with '
            f'`columns`, or convert the data.'
        )
    if array.size == 0:
        raise ShardError(
            f'Arrays have at least one element, but {where} has the shape {array.shape}. Leave its column out with '
            f'`columns`, or convert the data.'
        )
    return array.reshape(1) if array.ndim == 0 else array
