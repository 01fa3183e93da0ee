"""The columns of litdata's items: trees of leaves, each stored by a serializer that the index names.

======================================================  ==============================  =============================
serializer                                              encoding                        value
======================================================  ==============================  =============================
str, text                                               str                             text
int; float; bool                                        int; float64; uint8             number; True is 1
bytes, file, audio, video, pdf, mesh, nifti, tifffile   bytes                           the stored file
image, jpeg                                             jpeg                            image of any format
pil; jpeg_array                                         the same name                   image; list of images
no_header_tensor, no_header_numpy                       ndarray:DTYPE                   array of one axis
tensor, numpy                                           ndarray, or that of a number    array; see `scalar_encodings`
json                                                    json                            list or dict
pickle                                                  pkl, if unsafe types are        any object
======================================================  ==============================  =============================

bfloat16 becomes float32, bool uint8. Items are trees of lists and dicts, whose leaves are numbered in their order.

The binary form of a list or dict (`parse_nested`) is a tag of one byte and what follows it. Texts are u32 size and
UTF-8, and numbers are little-endian. Older versions stored JSON text.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

import numpy as np

from headrace.errors import FormatError, ShardError
from headrace.format.encodings.texts import parse_json
from headrace.sources.npy import Array, storable

_ENCODINGS: Final = {
    **dict.fromkeys(('str', 'text'), 'str'),
    **dict.fromkeys(('bytes', 'file', 'audio', 'video', 'pdf', 'mesh', 'nifti', 'tifffile', 'tiff'), 'bytes'),
    **dict.fromkeys(('image', 'jpeg'), 'jpeg'),
    **{name: name for name in ('int', 'pil', 'jpeg_array', 'json')},
    'float': 'float64',
    'bool': 'uint8',
    'pickle': 'pkl',
}
_PLAIN: Final = {'str', 'text', 'int', 'float', 'bool', 'json'}  # Serializers of values that JSON can express.
_BFLOAT16: Final = 'bfloat16'
_TORCH: Final = (
    *('float32', 'float32', 'float64', 'float64', 'complex64', 'complex64', 'complex128', 'complex128'),
    *('float16', 'float16', _BFLOAT16, 'uint8', 'int8', 'int16', 'int16', 'int32', 'int32', 'int64', 'int64'),
    *('bool', 'uint16'),
)
"""dtypes of tensors by their number."""
_NUMPY: Final = (
    *('int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'float16', 'float32', 'float64'),
    *('complex64', 'complex128', 'bool'),
)
"""dtypes of numpy arrays by their number."""
_MAX_LEAVES: Final = 10_000


@dataclass(frozen=True, slots=True)
class LitdataColumn:
    name: str
    encoding: str  # Its MDS encoding; empty: none can store it.
    path: tuple[str, ...]  # The keys from the item to the node.
    node: Node
    problem: str = ''  # Why no encoding can store it.

    def leaves(self) -> list[int]:
        return _leaves_of(self.node)


def item_columns(
    config: Mapping[str, Any], scalars: Mapping[str, str], *, allow_unsafe_types: bool
) -> dict[str, LitdataColumn]:
    formats = data_formats(config)
    root = _parse_tree(config.get('data_spec'), len(formats))
    encode = _Encode(formats, scalars, allow_unsafe_types)
    if config.get('item_loader') == 'TokensLoader':
        if root != 0 or not formats[0].startswith('no_header_'):
            raise FormatError(f'Tokens of litdata are one array an item, but the index says {formats!r:.200}.')
        return {'tokens': encode.column((), 0, 'tokens')}
    if isinstance(root, int):
        return {'value': encode.column((), 0, 'value')}
    columns: dict[str, LitdataColumn] = {}
    types = config.get('types')
    rows = types if isinstance(types, dict) and isinstance(root, dict) and set(formats) <= {*_PLAIN, 'bytes'} else {}
    for key, node in children(root):
        for column in encode.columns((key,), node):
            if column.name in columns:
                raise FormatError(
                    f'Columns of litdata have different names, but two of these are {column.name!r:.200}.'
                )
            typed = cast('dict[str, Any]', rows).get(key) if len(column.path) == 1 else None
            columns[column.name] = column if typed is None else _typed(column, typed)
    for key, typed in cast('dict[str, Any]', rows).items():
        if key not in cast('dict[str, Any]', root):  # only Arrow rows have it
            columns[key] = _typed(LitdataColumn(key, 'json', (key,), None), {**_as_dict(typed), 'optional': True})
    return columns


class _Encode:
    def __init__(self, formats: Sequence[str], scalars: Mapping[str, str], allow_unsafe_types: bool) -> None:
        self._formats, self._scalars, self._unsafe = formats, scalars, allow_unsafe_types

    def columns(self, path: tuple[str, ...], node: Node) -> list[LitdataColumn]:
        """The columns of a node: one, or one for each leaf."""
        if isinstance(node, int) or all(self._formats[leaf] in _PLAIN for leaf in _leaves_of(node)):
            return [self.column(path, node, '.'.join(path))]
        return [column for key, child in children(node) for column in self.columns((*path, key), child)]

    def column(self, path: tuple[str, ...], node: Node, name: str) -> LitdataColumn:
        if not isinstance(node, int):
            return LitdataColumn(name, 'json', path, node)
        text = self._formats[node]
        kind, _, number = text.partition(':')
        if kind in {'no_header_tensor', 'no_header_numpy'}:
            dtype = _dtype(kind, int(number) if number.isdecimal() else -1)
            if dtype.startswith('complex'):
                return LitdataColumn(name, '', path, node, f'its arrays are {dtype}')
            return LitdataColumn(name, f'ndarray:{_stored_dtype(dtype)}', path, node)
        if kind in {'tensor', 'numpy'}:
            return LitdataColumn(name, self._scalars.get(str(node), 'ndarray'), path, node)
        if kind not in _ENCODINGS:
            return LitdataColumn(name, '', path, node, f'litdata stored it with its serializer {text!r}')
        if kind == 'pickle' and not self._unsafe:
            reason = 'it holds pickles, whose reading runs code. Give allow_unsafe_types=True if you trust the data'
            return LitdataColumn(name, '', path, node, reason)
        return LitdataColumn(name, _ENCODINGS[kind], path, node)


_TYPED: Final = {'str': 'str', 'int': 'int', 'float': 'float64', 'bool': 'uint8', 'bytes': 'bytes'}


def _typed(column: LitdataColumn, typed: Any) -> LitdataColumn:
    """The column with the encoding of the type that litdata found in all rows."""
    kind = _as_dict(typed)
    encoding = 'json' if kind.get('optional') else _TYPED.get(str(kind.get('type')), 'json')
    if encoding == 'json' and _holds_bytes(kind):
        return replace(
            column, encoding='', problem='JSON has no place for bytes in lists, in dicts, or that are optional'
        )
    return replace(column, encoding=encoding)


def _holds_bytes(typed: Any) -> bool:
    kind = _as_dict(typed)
    inner = [*_as_dict(kind.get('fields')).values(), kind.get('value')]
    return kind.get('type') == 'bytes' or any(_holds_bytes(child) for child in inner if child)


def _as_dict(typed: Any) -> dict[str, Any]:
    return cast('dict[str, Any]', typed) if isinstance(typed, dict) else {'type': typed}


def data_formats(config: Mapping[str, Any]) -> list[str]:
    formats = config.get('data_format')
    if not isinstance(formats, list) or not 0 < len(cast('list[Any]', formats)) <= _MAX_LEAVES:
        raise FormatError(f'`data_format` of an index of litdata is a list of names, but got {formats!r:.80}.')
    return [str(text) for text in cast('list[Any]', formats)]


def split_leaves(items: Sequence[memoryview], count: int, where: str) -> list[list[memoryview]]:
    """The bytes of each leaf of each item: u32 size[count] and the leaves."""
    head = struct.Struct(f'<{count}I')
    leaves: list[list[memoryview]] = [[] for _ in range(count)]
    for item in items:
        sizes = head.unpack_from(item) if len(item) >= head.size else ()
        at = head.size
        if len(item) != at + sum(sizes) or not sizes:
            raise ShardError(
                f'An item of {where} does not have the {len(item)} bytes of its leaves. Restore or write it again.'
            )
        for values, size in zip(leaves, sizes, strict=True):
            values.append(item[at : at + size])
            at += size
    return leaves


def leaf_values(
    column: LitdataColumn, formats: Sequence[str], leaves: Sequence[Sequence[memoryview]], rows: int, where: str
) -> Sequence[Any]:
    """The values of a column for its encoding.

    `formats`: ``data_format`` of the index.
    `leaves`: result of `split_leaves`.
    """
    place = f'column {column.name!r} of {where}'
    try:
        if not isinstance(column.node, int):
            made = {leaf: [_python(formats[leaf], data) for data in leaves[leaf]] for leaf in column.leaves()}
            return [_build(column.node, made, row) for row in range(rows)]
        values, kind = leaves[column.node], formats[column.node].partition(':')[0]
        if kind in {'int', 'float', 'bool'} and column.encoding == _ENCODINGS[kind]:
            dtype = np.dtype({'int': '<i8', 'float': '<f8', 'bool': 'u1'}[kind])
            if any(len(data) != dtype.itemsize for data in values):
                raise ValueError(f'a number has not {dtype.itemsize} bytes')
            return cast('Sequence[Any]', np.frombuffer(b''.join(values), dtype))
        if kind in {'tensor', 'numpy', 'no_header_tensor', 'no_header_numpy'}:
            arrays = [_array(formats[column.node], bytes(data)) for data in values]
            if column.encoding.startswith('ndarray'):
                what = f'a value in {place}'
                return [storable(array, what) for array in arrays]
            if any(array.ndim or _stored_dtype(str(array.dtype)) != column.encoding for array in arrays):
                raise ValueError(f'its first value is a {column.encoding}, but a later one is none')
            return [array.item() for array in arrays]
        if column.encoding == 'json' or column.encoding != _ENCODINGS[kind]:
            return [_converted(column.encoding, _python(formats[column.node], data)) for data in values]
        return [bytes(data) for data in values]
    except (FormatError, ValueError, TypeError, OverflowError, struct.error) as error:
        if isinstance(error, ShardError):
            raise
        raise ShardError(f'A value of {place} cannot be read: {error} Restore or write it again.') from None


def arrow_values(column: LitdataColumn, rows: Sequence[Any] | None, count: int, where: str) -> Sequence[Any]:
    """The values of a column for its encoding, of rows that litdata stored as Arrow data.

    `rows`: the values of the first key of its path; None if no row has it.
    """
    values: list[Any] = []
    for value in [None] * count if rows is None else rows:
        inner = value
        for key in column.path[1:]:
            inner = cast('dict[str, Any]', inner).get(key) if isinstance(inner, dict) else None
        try:
            values.append(_converted(column.encoding, inner))
        except (ValueError, TypeError, OverflowError) as error:
            raise ShardError(
                f'Column {column.name!r} of {where} is `{column.encoding}`, but a value is {inner!r:.80}: {error}. '
                f'Leave it out with `columns`.'
            ) from None
    return values


_CASTS: Final[dict[str, Callable[[Any], Any]]] = {
    'int': int,
    'float64': float,
    'uint8': int,
    'str': str,
    'bytes': bytes,
}


def _converted(encoding: str, value: Any) -> Any:
    if encoding == 'json':
        return value
    if not isinstance(value, bytes if encoding == 'bytes' else str if encoding == 'str' else int | float):
        raise TypeError('it is of another type')
    return _CASTS[encoding](value)


def _build(node: Node, made: Mapping[int, Sequence[Any]], row: int) -> Any:
    if node is None:
        return None
    if isinstance(node, int):
        return made[node][row]
    if isinstance(node, dict):
        return {key: _build(child, made, row) for key, child in node.items()}
    return [_build(child, made, row) for child in node]


def _python(kind: str, data: memoryview) -> Any:
    """The value of a plain leaf."""
    if kind in {'str', 'text'}:
        return str(data, 'utf-8')
    if kind in {'int', 'float'}:
        return struct.unpack('<q' if kind == 'int' else '<d', data)[0]
    if kind == 'bool':
        return bytes(data) != b'\0'
    return bytes(data) if kind == 'bytes' else parse_nested(bytes(data))


def scalar_encodings(config: Mapping[str, Any], leaves: Sequence[memoryview]) -> dict[str, str]:
    """The encodings of the arrays without axes in an item, by the number of the leaf, as text."""
    encodings: dict[str, str] = {}
    for number, (text, data) in enumerate(zip(data_formats(config), leaves, strict=True)):
        if text in {'tensor', 'numpy'}:
            try:
                array = _array(text, bytes(data))
            except ValueError as error:
                raise ShardError(f'An array of the first item cannot be read: {error}. Write the data again.') from None
            if array.ndim == 0 and array.dtype.kind != 'c':
                encodings[str(number)] = _stored_dtype(str(array.dtype))
    return encodings


def _dtype(kind: str, number: int) -> str:
    names = _TORCH if kind.endswith('tensor') else _NUMPY
    if not 0 <= number < len(names):
        raise FormatError(f'Arrays of litdata hold numbers, but those of serializer {kind!r} have the type {number}.')
    return names[number]


def _stored_dtype(dtype: str) -> str:
    return {_BFLOAT16: 'float32', 'bool': 'uint8'}.get(dtype, dtype)


def _array(text: str, data: bytes) -> Array:
    """The array of a leaf. Numbers in the head of a tensor are big-endian, those of a numpy array little-endian."""
    kind, _, number = text.partition(':')
    shape: tuple[int, ...] | None = None
    at = 0
    if number:
        code = int(number)
    else:
        order = '>' if kind == 'tensor' else '<'
        if len(data) < 8:
            raise ValueError('an array ends within its head')
        code, rank = struct.unpack_from(f'{order}II', data)
        at = 8 + 4 * rank
        if at > len(data) or rank > 32:
            raise ValueError(f'an array of {len(data)} bytes announces {rank} axes')
        shape = struct.unpack_from(f'{order}{rank}I', data, 8)
    name = _dtype(kind, code)
    dtype = np.dtype('uint16' if name == _BFLOAT16 else name)
    size = len(data) - at
    if size % dtype.itemsize or (shape is not None and math.prod(shape) * dtype.itemsize != size):
        raise ValueError(f'an array of {name} and shape {shape} has {size} bytes')
    array = np.frombuffer(data, dtype, offset=at) if size else np.empty(0, dtype)
    if name == _BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array if shape is None else array.reshape(shape)


Node: TypeAlias = 'int | dict[str, Node] | list[Node] | None'  # A leaf's number, a container of nodes, or nothing.

_MAX_TREE_DEPTH: Final = 64


def _parse_tree(spec: Any, leaves: int) -> Node:
    """The tree of items, of ``data_spec`` of the index: JSON text."""
    value = parse_json(spec, '`data_spec` of an index of litdata') if isinstance(spec, str) else None
    if not isinstance(value, list) or len(cast('list[Any]', value)) != 2 or cast('list[Any]', value)[0] != 1:
        raise FormatError(f'`data_spec` of an index of litdata is a tree, version 1, but got {spec!r:.80}.')
    taken = iter(range(leaves))
    root = _tree_node(cast('list[Any]', value)[1], taken, 0)
    if next(taken, None) is not None:
        raise FormatError('`data_spec` of an index of litdata has fewer leaves than `data_format`. Write it again.')
    return root


def _tree_node(value: Any, taken: Any, depth: int) -> Node:
    node = cast('dict[str, Any]', value) if isinstance(value, dict) else {}
    kind, children = node.get('type'), node.get('children_spec')
    if not isinstance(children, list) or depth > _MAX_TREE_DEPTH:
        raise FormatError('`data_spec` of an index of litdata is damaged, or nested too deeply. Write the data again.')
    if kind is None:
        leaf = next(taken, None)
        if leaf is None or children:
            raise FormatError('`data_spec` of an index of litdata has more leaves than `data_format`. Write it again.')
        return cast('int', leaf)
    nodes = [_tree_node(child, taken, depth + 1) for child in cast('list[Any]', children)]
    if kind in {'builtins.list', 'builtins.tuple', 'collections.deque'}:
        return nodes
    context = node.get('context')
    keys = parse_json(context, '`context` in an index of litdata') if isinstance(context, str) else None
    if kind not in {'builtins.dict', 'collections.OrderedDict'} or not isinstance(keys, list):
        raise FormatError(f'Items of litdata are lists, tuples and dicts of leaves, but got {kind!r:.80}.')
    names = [str(key) for key in cast('list[Any]', keys)]
    if len(set(names)) != len(nodes) or len(names) != len(nodes):
        raise FormatError('`data_spec` of an index of litdata has other keys than values. Write the data again.')
    return dict(zip(names, nodes, strict=True))


def children(node: dict[str, Node] | list[Node] | None) -> list[tuple[str, Node]]:
    """The nodes of a container, with their keys or numbers."""
    if node is None:
        return []
    return list(node.items()) if isinstance(node, dict) else [(str(n), child) for n, child in enumerate(node)]


def _leaves_of(node: Node) -> list[int]:
    return [node] if isinstance(node, int) else [leaf for _, child in children(node) for leaf in _leaves_of(child)]


_MAX_VALUE_DEPTH: Final = 200


def parse_nested(data: bytes) -> Any:
    try:
        if not data or data[0] > 0x20:  # JSON text
            return parse_json(data.decode('utf-8'), 'A value of litdata')
        reader = _ValueReader(data)
        value = reader.value(0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise FormatError(f'A value of litdata ends too early or is damaged: {error}.') from None
    if reader.at != len(data):
        raise FormatError(f'A value of litdata ends at byte {reader.at}, but has {len(data)}.')
    return value


class _ValueReader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def value(self, depth: int) -> Any:
        """The value at the position, with its tag."""
        if depth > _MAX_VALUE_DEPTH:
            raise FormatError(
                f'Values of litdata are nested at most {_MAX_VALUE_DEPTH} deep, but one is nested deeper.'
            )
        tag = self.byte()
        if tag == 0:
            return parse_json(self.text(), 'A value of litdata')
        if tag == 1:
            return [self.text() for _ in range(self.count(4))]
        if tag in {2, 3}:
            size = self.count(8)
            return np.frombuffer(self.take(8 * size), '<i8' if tag == 2 else '<f8').tolist()
        if tag == 4:
            return [byte != 0 for byte in self.take(self.count(1))]
        if tag == 5:
            return {self.text(): self.value(depth + 1) for _ in range(self.count(5))}
        if tag == 6:
            return self.records()
        return self.scalar(tag - 7, tag)

    def records(self) -> list[dict[str, Any]]:
        """Dicts with the same keys."""
        rows = self.count(0)
        keys = [self.text() for _ in range(self.count(4))]
        if not keys or rows > (len(self.data) - self.at) // len(keys):
            raise FormatError(f'A value of litdata announces {rows} records of {len(keys)} keys, which do not fit.')
        records: list[dict[str, Any]] = []
        for _ in range(rows):
            row: dict[str, Any] = {}
            for key in keys:
                tag = self.byte()
                row[key] = None if tag == 0x10 else self.scalar(tag - 0x11, tag)
            records.append(row)
        return records

    def scalar(self, kind: int, tag: int) -> Any:
        if kind == 0:
            return self.text()
        if kind in {1, 2}:
            return struct.unpack('<q' if kind == 1 else '<d', self.take(8))[0]
        if kind == 3:
            return self.byte() != 0
        if kind == 4 and tag == 11:
            return None
        raise FormatError(f'A value of litdata has an unknown tag {tag}.')

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def count(self, least: int) -> int:
        """A count of values that take at least `least` bytes each."""
        number = int.from_bytes(self.take(4), 'little')
        if number * least > len(self.data) - self.at:
            raise FormatError(f'A value of litdata announces {number} items, which do not fit into it.')
        return number

    def text(self) -> str:
        return self.take(self.count(1)).decode('utf-8')

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise FormatError('A value of litdata ends too early.')
        self.at += size
        return self.data[self.at - size : self.at]
