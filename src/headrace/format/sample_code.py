"""Code that encodes the samples of one MDS schema, generated when an encoder is made.

It knows the usual types of values only. For all others, and for values that cannot be stored, it returns None: then the
encodings decide, one by one, with their messages. Numbers and the sizes of values are packed together by `struct`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.format.encodings import Bytes, Int, NDArray, Str
from headrace.format.encodings.scalars import Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.format.mds import Column, Layout

__all__ = ['compile_encoder']

# float16 is left to its encoding: struct does not keep the bits of a nan.
_CODES: Final = {
    'u1': 'B', 'i1': 'b', 'u2': 'H', 'i2': 'h', 'u4': 'I', 'i4': 'i', 'u8': 'Q', 'i8': 'q', 'f4': 'f', 'f8': 'd',
}  # fmt: skip

_FLOATS: Final = frozenset({float, int, bool, *(np.dtype(code).type for code in '?bhilqBHILQefd')})


def compile_encoder(layout: Layout) -> Callable[[Mapping[str, Any]], bytes | None]:
    """A function that returns the bytes of a sample, or None if its values are not of the usual types."""
    names: dict[str, Any] = {'ndarray': np.ndarray, 'floats': _FLOATS}
    lines: list[str] = []
    formats: list[str] = []
    parts: list[list[str]] = [[]]
    """Runs of packed numbers, and between them expressions of bytes."""
    sizes = [f'len(b{i})' for i, column in enumerate(layout.columns) if column.size is None]
    parts[0] += sizes
    formats.append('I' * len(sizes))
    values: list[str] = []
    for i, column in enumerate(layout.columns):
        names[f'n{i}'] = column.name
        lines.append(f'v{i} = sample[n{i}]')
        code = _number_code(column)
        if code is not None:
            if type(column.encoding) is Int:
                lines.append(f'if type(v{i}) is not int: return None')
            elif code in 'fd':  # others have a `__float__` that may say infinity
                lines.append(f'if type(v{i}) not in floats: return None')
            parts[-1].append(f'v{i}')
            formats[-1] += code
            continue
        lines += _bytes_lines(i, column, names)
        values.append(f'b{i}')
        parts.append([])
        formats.append('')
    pieces: list[str] = []
    for i, (packed, text) in enumerate(zip(parts, formats, strict=True)):
        if packed:
            names[f'p{i}'] = struct.Struct(f'<{text}').pack
            pieces.append(f'p{i}({", ".join(packed)})')
        if i < len(values):
            pieces.append(values[i])
    result = ' + '.join(pieces) if len(pieces) <= 2 else f"b''.join(({', '.join(pieces)}))"
    body = '\n        '.join([*lines, f'return {result or repr(b"")}'])
    source = f'def encode(sample):\n    try:\n        {body}\n    except Exception:\n        return None\n'
    exec(source, names)  # noqa: S102 - of names and numbers that are made here
    return names['encode']


def _number_code(column: Column) -> str | None:
    """The code of `struct` for a column of numbers."""
    if (
        type(column.encoding) is not Int
        and type(type(column.encoding)) is type
        and not isinstance(column.encoding, Scalar)
    ):
        return None
    dtype = column.value_type
    return None if dtype is None or column.shape else _CODES.get(dtype.str[1:])


def _bytes_lines(i: int, column: Column, names: dict[str, Any]) -> list[str]:
    """Code that sets `b<i>` to the bytes of `v<i>`."""
    kind = type(column.encoding)
    if kind is Str:
        return [f'if type(v{i}) is not str: return None', f'b{i} = v{i}.encode()']
    if kind is Bytes:
        return [f'if type(v{i}) is not bytes: return None', f'b{i} = v{i}']
    if kind is NDArray and column.value_type is not None:
        names[f'd{i}'], names[f's{i}'] = np.dtype(column.value_type), column.shape
        return [
            f'if type(v{i}) is not ndarray or v{i}.dtype != d{i} or v{i}.shape != s{i}: return None',
            f'b{i} = v{i}.tobytes()',
        ]
    names[f'e{i}'] = column.encoding.encode
    if column.encoding.checks_bytes:
        return [f'if isinstance(v{i}, bytes): return None', f'b{i} = e{i}(v{i})']
    lines = [f'b{i} = v{i} if isinstance(v{i}, bytes) else e{i}(v{i})']
    return lines if column.size is None else [*lines, f'if len(b{i}) != {column.size}: return None']
