"""Writing of MDS shards, sample by sample or by columns; `mds` describes the format."""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np

from headrace.format.costs import MAX_COST, TAIL, check_cost_column, costs_block, costs_of_values
from headrace.format.encoder import (
    DEFAULT_SIZE_LIMIT,
    MAX_OFFSET,
    EncodedRows,
    ShardEncoder,
    name_place,
    offset_table,
    python_values,
)
from headrace.format.encodings.arrays import NDArray
from headrace.format.encodings.encoding import Encoding, opaque, stored_bytes, too_long
from headrace.format.encodings.registry import (
    check_encodings,
    encoding_name,
    get_mds_encoded_size,
    get_mds_encodings,
    is_mds_encoding,
)
from headrace.format.encodings.scalars import Int, Scalar
from headrace.format.encodings.texts import Bytes, Str
from headrace.format.mds import Column, Layout, MDSReader
from headrace.format.shard_memory import Piece, framed_rows, joined_rows
from headrace.format.shards import NO_HASHES, FileInfo, IntArray, Schema, ShardFile, ShardInfo

# float16 is left to its encoding: struct does not keep the bits of a nan.
_CODES: Final = {
    'u1': 'B', 'i1': 'b', 'u2': 'H', 'i2': 'h', 'u4': 'I', 'i4': 'i', 'u8': 'Q', 'i8': 'q', 'f4': 'f', 'f8': 'd',
}  # fmt: skip

_FLOATS: Final = frozenset({float, int, bool, *(np.dtype(code).type for code in '?bhilqBHILQefd')})


def compile_encoder(layout: Layout, cost: str | None = None) -> Callable[[Mapping[str, Any]], bytes | None]:
    """A function that returns the bytes of a sample; None if a value is not of the usual type, or no `cost`.

    Its code is generated for the schema, and knows the usual types only. For all others, and for values that cannot be
    stored, the encodings decide, one by one, with their messages. Numbers and the sizes of values are packed together.
    """
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
            if column.name == cost:
                lines.append(f'if not 0 <= v{i} <= {MAX_COST}: return None')
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


_SIZE: Final = np.dtype('<u4')
_Encoded: TypeAlias = 'np.ndarray[Any, Any] | Sequence[bytes] | Sequence[str]'
"""The encoded values of a column: opaque elements of an array if all have one size, else one by one, or ASCII text."""


class MDSEncoder(ShardEncoder):
    """Writes MDS shards; see ``ShardEncoder``.

    Args:
        columns: column name to encoding: a name, or an `Encoding` or its class, which is registered.
        compression: see ``ShardEncoder``.
        hashes: see ``ShardEncoder``.
        size_limit: counts the whole file.
        check_bytes: whether `bytes` that are given for text or arrays are read once. If not, a bad one is an error of
            its reader, which then is one of that sample only.
        cost: the column whose values or lengths the heads of shards hold, too; see `headrace.format.costs`.
    """

    _sample_overhead = 4

    def __init__(
        self,
        columns: Mapping[str, str | Encoding | type[Encoding]],
        *,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
        check_bytes: bool = True,
        cost: str | None = None,
    ) -> None:
        self._check_bytes, self._cost = check_bytes, cost
        if isinstance(columns, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            columns = cast('Mapping[str, str]', {name: encoding_name(name, given) for name, given in columns.items()})
        check_encodings(columns, writer='MDSWriter', is_known=is_mds_encoding, names=get_mds_encodings())
        names = tuple(sorted(columns))
        encodings = tuple(columns[name] for name in names)
        sizes = tuple(get_mds_encoded_size(encoding) for encoding in encodings)
        self._layout = Layout(Schema('mds', names, encodings, sizes))
        self._encodings = tuple((column.name, column.size, column.encoding) for column in self._layout.columns)
        self._cost_type = None if cost is None else check_cost_column(self._layout, cost)
        if cost is not None:
            self._sample_overhead = 8
        super().__init__(Schema('mds', names, encodings, sizes), compression, hashes, size_limit)
        self._encode_plain = compile_encoder(self._layout, cost)

    def _sizes_of_empty_shard(self) -> tuple[int, int]:
        return 0, 8 + len(self._config) + (0 if self._cost is None else TAIL)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **({} if self._cost is None else {'cost': self._cost})}

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        sizes: list[int] = []
        values: list[bytes] = []
        name = ''
        try:
            for name, size, encoding in self._encodings:
                value = stored_bytes(encoding, sample[name], check=self._check_bytes)
                if size is None:
                    if len(value) > MAX_OFFSET:
                        raise too_long(len(value))
                    sizes.append(len(value))
                elif len(value) != size:
                    raise _wrong_size(size, len(value))
                if not self._are_costs(name, value):
                    raise _wrong_cost(encoding.decode(value))
                values.append(value)
        except Exception:
            self._column = name
            raise
        if not sizes:
            return values[0] if len(values) == 1 else b''.join(values)
        return b''.join((self._layout.head.pack(*sizes), *values))

    def _encode_rows(self, columns: Mapping[str, Sequence[Any]], count: int, number: int) -> EncodedRows:
        layout = self._layout
        values = [self._encode_column(column, columns[column.name], number) for column in layout.columns]
        variable = [i for i, column in enumerate(layout.columns) if column.size is None]
        sizes = [_lengths(values[i], count) for i in variable]
        lengths = sum(sizes, np.full(count, layout.least, np.int64))
        if sizes:
            heads = np.stack(sizes, axis=1).astype(_SIZE)
            values.insert(0, opaque(heads, layout.head.size))
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if len(arrays) == len(values):
            rows = np.ascontiguousarray(_side_by_side(arrays, count))
            view, size = rows.view(np.uint8).data, rows.itemsize
            return EncodedRows(lengths, lambda a, b: (view[a * size : b * size],))
        values = _merged(values, count)
        texts = [value for value in values if not isinstance(value, np.ndarray)]
        if len(variable) == 1 and len(texts) == 1:
            before, after = values[0], values[2] if len(values) == 3 else None
            assert isinstance(before, np.ndarray)
            assert after is None or isinstance(after, np.ndarray)
            return EncodedRows(lengths, framed_rows(texts[0], before, after, lengths))
        width = len(values)
        pieces: list[bytes] = [b''] * (width * count)
        for i, item in enumerate(values):
            pieces[i::width] = _as_bytes(item)
        return EncodedRows(lengths, joined_rows(pieces, width, lengths))

    def _encode_column(self, column: Column, values: Sequence[Any], number: int) -> _Encoded:
        """The encoded values of a column; errors count samples from `number`."""
        stored = column.encoding.encode_array(values)
        if stored is not None and self._are_costs(column.name, stored):
            return stored
        if column.is_text:
            with contextlib.suppress(TypeError, UnicodeError):
                texts = python_values(values)
                return texts if all(map(str.isascii, texts)) else list(map(str.encode, texts))
        encoding, size = column.encoding, column.size
        done: list[bytes] = []
        try:
            for value in python_values(values):
                data = stored_bytes(encoding, value, check=self._check_bytes)
                if size is not None and len(data) != size:
                    raise _wrong_size(size, len(data))
                if len(data) > MAX_OFFSET:
                    raise too_long(len(data))
                if not self._are_costs(column.name, data):
                    raise _wrong_cost(encoding.decode(data))
                done.append(data)
        except Exception as error:
            name_place(error, f'Sample {number + len(done)}, column {column.name!r}')
            raise
        return done

    def _are_costs(self, name: str, data: bytes | np.ndarray[Any, Any]) -> bool:
        """Whether the values of a column, encoded, can be costs if they have to."""
        if name != self._cost or self._cost_type is None:
            return True
        numbers = np.frombuffer(data, self._cost_type)
        return bool(((numbers >= 0) & (numbers <= MAX_COST)).all())

    def _files(self, pieces: Sequence[Piece], sizes: array[int]) -> list[tuple[str, list[Piece]]]:
        count = len(sizes)
        start = 8 + 4 * count + len(self._config)
        if self._cost is None:
            return [('', [offset_table(sizes, start), self._config, *pieces])]
        block = 4 * count + TAIL
        data = bytearray().join([offset_table(sizes, start + block), self._config, bytes(block), *pieces])
        file = ShardFile(FileInfo('this shard', len(data), NO_HASHES), None)
        info = ShardInfo('mds', count, (file,), None, (), None, self.schema)
        values = self.schema.allocate(count, [self._cost])
        MDSReader(info, [memoryview(data)], source='this shard').gather(np.arange(count), np.arange(count), values)
        costs = costs_of_values(values.columns[self._cost], self._cost)
        data[start : start + block] = costs_block(costs, self._config)
        return [('', [memoryview(data)])]


def _wrong_size(size: int, received: int) -> ValueError:
    return ValueError(
        f'A value has {size} bytes, but got {received} bytes. Bytes are stored as they are: give the encoded value, or '
        f'the value itself.'
    )


def _wrong_cost(value: int) -> ValueError:
    return ValueError(
        f'A cost is a number from 0 to 2^32 - 1, but got {value}. Correct it, or name another column as `cost` of the '
        f'writer.'
    )


def _lengths(values: _Encoded, count: int) -> IntArray:
    if isinstance(values, np.ndarray):
        return np.full(count, values.itemsize, np.int64)
    return np.fromiter(map(len, values), np.int64, count)


def _as_bytes(values: _Encoded) -> Sequence[bytes]:
    if isinstance(values, np.ndarray):
        return cast('list[bytes]', values.tolist())
    return [value.encode() if isinstance(value, str) else value for value in values]


def _merged(columns: Sequence[_Encoded], count: int) -> list[_Encoded]:
    """The columns with each run of arrays as one."""
    merged: list[_Encoded] = []
    for column in columns:
        if merged and isinstance(column, np.ndarray) and isinstance(merged[-1], np.ndarray):
            merged[-1] = opaque(_side_by_side([merged[-1], column], count), merged[-1].itemsize + column.itemsize)
        else:
            merged.append(column)
    return merged


def _side_by_side(arrays: Sequence[np.ndarray[Any, Any]], count: int) -> np.ndarray[Any, Any]:
    if len(arrays) == 1:
        return arrays[0]
    rows = np.empty(count, [(str(i), array.dtype) for i, array in enumerate(arrays)])
    for i, values in enumerate(arrays):
        rows[str(i)] = values
    return rows
