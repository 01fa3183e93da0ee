"""The columns with nulls or empty lists, found without the values of record batches.

The head of a record batch counts the nulls of each array. Only the offsets of lists are read from its body.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import FormatError
from headrace.sources.arrow_messages import Message
from headrace.sources.arrow_types import import_pyarrow
from headrace.sources.windows import RangedWindow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ['ArrowLayout']


class ArrowLayout:
    """The columns of a schema, and the arrays and buffers of a record batch that belong to each.

    Args:
        schema: the schema.
        columns: the columns to read; None: all.
    """

    def __init__(self, schema: pa.Schema, columns: Collection[str] | None) -> None:
        self._nodes: list[tuple[str, list[int]]] = []
        """For each column the numbers of its arrays that should have no nulls."""
        self._lists: list[tuple[str, int, int, np.dtype[Any]]] = []
        """For each column of lists of numbers: its array, the buffer of its offsets, and their dtype."""
        self._count = self._buffers = 0
        self._known = True
        """Whether all types so far have a known number of buffers."""
        for field in schema:
            kind, node, buffer = field.type, self._count, self._buffers
            nodes: list[int] = []
            self._walk(kind, nodes)
            if columns is not None and field.name not in columns:
                continue
            self._nodes.append((field.name, nodes))
            if self._known and (dtype := _offsets_of(kind)) is not None:
                self._lists.append((field.name, node, buffer + 1, dtype))

    def _walk(self, kind: Any, nodes: list[int], *, counts: bool = True) -> None:
        """Take note of the arrays and buffers of a type and its children."""
        import pyarrow as pa
        from pyarrow import types

        if isinstance(kind, pa.BaseExtensionType):
            self._walk(kind.storage_type, nodes, counts=counts)
            return
        if counts:
            nodes.append(self._count)
        self._count += 1
        buffers = _buffers_of(kind)
        self._known = self._known and buffers is not None
        self._buffers += buffers or 0
        if types.is_dictionary(kind):
            return
        children = [kind.field(number) for number in range(kind.num_fields)]
        is_file = types.is_struct(kind) and {child.name for child in children} == {'bytes', 'path'}
        for child in children:
            # The path of an image or a sound may be null: its bytes are in the data.
            self._walk(child.type, nodes, counts=counts and not (is_file and child.name == 'path'))

    def with_nulls(self, message: Message, known: Collection[str], window: RangedWindow, where: str) -> set[str]:
        """The columns of a record batch that hold nulls or empty lists, other than known ones."""
        if len(message.nodes) != self._count:
            raise FormatError(
                f'A record batch of {where} has {len(message.nodes)} arrays, but its schema has {self._count}. Restore '
                f'the file.'
            )
        nulls = message.nodes[:, 1] != 0
        found = {name for name, nodes in self._nodes if name not in known and nulls[nodes].any()}
        for name, node, buffer, dtype in self._lists:
            if name not in known and name not in found and buffer < len(message.buffers):
                lists = int(message.nodes[node, 0])
                if _has_empty(message, buffer, dtype, lists, window, where):
                    found.add(name)
        return found


def _offsets_of(kind: Any) -> np.dtype[Any] | None:
    """The dtype of the offsets of lists of numbers; None for other types."""
    from pyarrow import types

    if not (types.is_list(kind) or types.is_large_list(kind)):
        return None
    inner = kind.value_type
    if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        return None
    return np.dtype('<i4' if types.is_list(kind) else '<i8')


def _buffers_of(kind: Any) -> int | None:
    """Number of buffers of an array of a type, without its children; None: not known."""
    from pyarrow import types

    if types.is_null(kind):
        return 0
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return 3
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind) or types.is_dictionary(kind):
        return 2
    return 2 if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind) else None


def _has_empty(
    message: Message, buffer: int, dtype: np.dtype[Any], lists: int, window: RangedWindow, where: str
) -> bool:
    """Whether an array of lists has an empty one."""
    pa = import_pyarrow('Arrow files')
    offset, size = message.buffers[buffer].tolist()
    data: Any = window.take(message.body + offset, size)
    expected = (lists + 1) * dtype.itemsize
    try:
        if message.codec is not None and size >= 8:
            unpacked = int.from_bytes(data[:8], 'little', signed=True)
            data = data[8:]
            if unpacked >= 0:  # -1: not compressed
                if not expected <= unpacked <= expected + 64:
                    raise ValueError(f'its offsets have {unpacked} bytes')
                data = pa.decompress(bytes(data), unpacked, message.codec, asbytes=True)
        return bool((np.diff(np.frombuffer(data, dtype, lists + 1)) == 0).any())
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise FormatError(f'A record batch of {where} has damaged lists: {error}. Restore the file.') from error
