"""Pickles of dicts, lists, numbers, texts and arrays of bytes, read without running code.

A pickle is a program: it may call any function of any module. Here its instructions are checked first. Then every
class that it names is replaced: those of NumPy's arrays by plain records, and any other is refused. So no code outside
of this module runs, NumPy's neither.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import FormatError

_OPCODES: Final = (
    'PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET PUT '
    'GET INT BININT BININT1 BININT2 LONG LONG1 BINFLOAT FLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE '
    'SHORT_BINUNICODE BINBYTES SHORT_BINBYTES EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS '
    'EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 GLOBAL STACK_GLOBAL REDUCE BUILD'
)
"""Instructions that build these values. Others make objects of further kinds, or refer to outside of the pickle."""
_ALLOWED: Final = frozenset(_OPCODES.split())
_PUTS: Final = frozenset({'PUT', 'BINPUT', 'LONG_BINPUT'})
_GETS: Final = frozenset({'GET', 'BINGET', 'LONG_BINGET'})


class _Array:
    """Stands for an array that is being built: the arguments of `numpy.ndarray.__setstate__`."""

    content: npt.NDArray[np.uint8]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        if isinstance(data, str):
            data = data.encode('latin-1')
        right = isinstance(dtype, _DType) and isinstance(data, bytes) and isinstance(shape, tuple)
        sides = cast('tuple[Any, ...]', shape) if right else ()
        if not right or is_fortran or not all(isinstance(side, int) and side >= 0 for side in sides):
            raise FormatError('An array of the pickle is not one of bytes in C order.')
        if math.prod(sides) != len(data):
            raise FormatError(f'An array of the pickle has the shape {sides}, but {len(data)} bytes.')
        self.content = np.frombuffer(data, np.uint8).reshape(sides)


class _DType:
    """Stands for the dtype of bytes."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if name not in ('u1', b'u1'):
            raise FormatError('Arrays of the pickle have the dtype u1, but one has another.')

    def __setstate__(self, state: object) -> None:
        """The byte order and such, of which bytes have none."""


class _Function:
    """Stands for a function. A pickle can call it, and cannot change it."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise FormatError('The pickle changes a function.')


class _Reconstruct(_Function):
    """Begins an array."""

    __slots__ = ()

    def __call__(self, *_: object) -> _Array:
        return _Array()


class _Encode(_Function):
    """Gives the bytes that pickles of protocol 2 hold as texts, if Python 3 wrote them."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in ('latin1', 'latin-1'):
            raise FormatError('Bytes of the pickle are in latin1, but some are in another encoding.')
        return text.encode('latin-1')


_STAND_INS: Final[Mapping[tuple[str, str], Any]] = {
    ('numpy.core.multiarray', '_reconstruct'): _Reconstruct(),
    ('numpy._core.multiarray', '_reconstruct'): _Reconstruct(),
    ('numpy', 'ndarray'): _Array,
    ('numpy', 'dtype'): _DType,
    ('_codecs', 'encode'): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        stand_in = _STAND_INS.get((module_name, global_name))
        if stand_in is None:
            raise FormatError(
                f'The pickle names {module_name}.{global_name}, which no data of this kind need: it may be an attack. '
                f'Fetch the file again, from its owners.'
            )
        return stand_in


def _check_instructions(data: bytes) -> None:
    """Refuse instructions that these data do not need, and with which few bytes take much time or memory."""
    memo: dict[int, str] = {}
    last = ''
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        # A memo with a huge number allocates all numbers before it. Tuples of one another take forever to hash.
        is_huge = name in _PUTS and cast('int', argument) > len(data)
        is_tuple_again = name in _GETS and 'TUPLE' in memo.get(cast('int', argument), '')
        if name not in _ALLOWED or is_huge or is_tuple_again:
            raise FormatError(f'The pickle has the instruction {name}, which no data of this kind need at this place.')
        if name in _PUTS:
            memo[cast('int', argument)] = last
        elif name == 'MEMOIZE':
            memo[len(memo)] = last
        else:
            last = name


def read_inert_pickle(data: bytes) -> dict[str, Any]:
    """The dict in a pickle: keys are texts, arrays are uint8, and texts of Python 2 are bytes."""
    try:
        _check_instructions(data)
        loaded: Any = _Unpickler(io.BytesIO(data), encoding='bytes').load()
        if not isinstance(loaded, dict):
            raise FormatError(f'The pickle holds a dict, but this one has {type(loaded).__name__}.')
        content: dict[str, Any] = {}
        for key, value in cast('dict[Any, Any]', loaded).items():
            if not isinstance(key, bytes | str):
                raise FormatError(f'The keys of the pickle are texts, but one is {type(key).__name__}.')
            content[key.decode() if isinstance(key, bytes) else key] = (
                value.content if isinstance(value, _Array) else value
            )
    except FormatError:
        raise
    except Exception as error:  # a damaged pickle raises errors of many classes
        raise FormatError(
            f'The file is no pickle, or is damaged: {type(error).__name__}: {error}. Fetch it again.'
        ) from error
    return content
