"""The messages of Arrow's IPC streams and files: where each one lies, its rows, its counts of nulls.

A message is 0xFFFFFFFF (not before Arrow 0.15), i32 size of its head, the head, and the body. A head is a FlatBuffers
table. A size of 0 ends a stream. A file is ``ARROW1``, two bytes of padding, and a stream; what follows the stream
repeats it.

`ArrowLayout` finds the columns with nulls or empty lists, and reads no values of record batches. The head of a batch
counts the nulls of each array. Of its body, only the offsets of lists are read.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import FormatError
from headrace.sources.arrow_types import import_pyarrow
from headrace.sources.ranges import RangedWindow, refuse_packed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headrace.sources.ranges import Window

SCHEMA: Final = 1
DICTIONARY: Final = 2
BATCH: Final = 3  # Kinds of messages that are read.
MAGIC: Final = b'ARROW1'  # The first and the last bytes of a file.
_MAX_HEAD: Final = 64 << 20
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_NONE: Final[_Numbers] = np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class Message:
    kind: int
    start: int  # Offset of its first byte.
    body: int
    end: int
    rows: int = 0  # Rows of a record batch.
    nodes: _Numbers = field(default_factory=lambda: _NONE)
    """int64[arrays, 2], of a record batch: length and number of nulls of each array, parents before children."""
    buffers: _Numbers = field(default_factory=lambda: _NONE)
    """int64[buffers, 2], of a record batch: offset in the body and size of each buffer."""
    dictionary: int = 0  # Id of a dictionary.
    is_delta: bool = False  # Whether a dictionary adds to that before it, and does not replace it.
    codec: str | None = None  # Compression of the buffers of a record batch: 'lz4', 'zstd', or None.


def read_messages(window: Window, where: str) -> Iterator[Message]:
    """The messages of an IPC file, or of one or several IPC streams, in order."""
    first = bytes(window.take(0, 64))
    refuse_packed(first, where)
    is_file = first.startswith(MAGIC)
    at = 8 if is_file else 0
    is_ended = False
    while True:
        start = at
        prefix = bytes(window.take(at, 8))
        at += 4
        if prefix[:4] == b'\xff\xff\xff\xff':
            prefix = prefix[4:]
            at += 4
        size = int.from_bytes(prefix[:4], 'little', signed=True)
        if is_ended and not prefix:
            return
        if not prefix:
            raise FormatError(
                f'{where} ends at byte {start} without an end mark, so records may be missing. Restore it, or write it '
                f'again.'
            )
        is_ended = size == 0
        if is_ended and is_file:
            return
        if is_ended:
            continue
        if not 0 < size <= _MAX_HEAD or len(prefix) < 4:
            raise _damaged(where, start, f'its head has {size} bytes')
        head = bytes(window.take(at, size))
        if len(head) < size:
            raise _damaged(where, start, 'it ends within its head')
        try:
            message = _message(head, start, at + size)
        except (struct.error, ValueError) as error:
            raise _damaged(where, start, str(error)) from None
        at = message.end
        window.take(at, 0)  # refuses a body beyond the end
        yield message


def _message(head: bytes, start: int, body: int) -> Message:
    table = _Table.root(head)
    kind = table.number(1, 'B')
    size = table.number(3, 'q')
    if size < 0:
        raise ValueError(f'its body has {size} bytes')
    end = body + size
    if kind == DICTIONARY:
        header = table.table(2)
        return Message(kind, start, body, end, dictionary=header.number(0, 'q'), is_delta=bool(header.number(2, 'B')))
    if kind != BATCH:
        return Message(kind, start, body, end)
    batch = table.table(2)
    rows = batch.number(0, 'q')
    compression = batch.child(3)
    codec = None
    if compression is not None:
        codec = {0: 'lz4', 1: 'zstd'}.get(compression.number(0, 'b'))
        if codec is None:
            raise ValueError('it has an unknown compression')
    nodes, buffers = batch.pairs(1), batch.pairs(2)
    if not 0 <= rows < 1 << 32:
        raise ValueError(f'it has {rows} rows')
    if len(buffers) and (buffers.min() < 0 or buffers.max() > size or buffers.sum(axis=1).max() > size):
        raise ValueError('its buffers lie outside of it')
    return Message(kind, start, body, end, rows, nodes, buffers, codec=codec)


class _Table:
    """A table of FlatBuffers: a signed offset back to u16 sizes and offsets of its fields."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._read('i', at)
        self._size = self._read('H', self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """The table that the data begin with the offset of."""
        return cls(data, int.from_bytes(data[:4], 'little'))

    def number(self, field: int, kind: str) -> int:
        """The number of a field; 0 if it is absent."""
        at = self._place(field)
        return 0 if at is None else self._read(kind, at)

    def child(self, field: int) -> _Table | None:
        at = self._place(field)
        return None if at is None else _Table(self._data, at + self._read('I', at))

    def table(self, field: int) -> _Table:
        child = self.child(field)
        if child is None:
            raise ValueError('its head lacks a field')
        return child

    def pairs(self, field: int) -> _Numbers:
        """The structs of two int64 of a field."""
        at = self._place(field)
        if at is None:
            return _NONE
        at += self._read('I', at)
        count = self._read('I', at)
        if count * 16 > len(self._data) - at - 4:
            raise ValueError('its head is too short')
        return np.frombuffer(self._data, '<i8', 2 * count, at + 4).reshape(-1, 2)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = self._read('H', self._fields + entry) if entry + 2 <= self._size else 0
        return self._at + offset if offset else None

    def _read(self, kind: str, at: int) -> int:
        if at < 0:
            raise ValueError('its head has an offset before its beginning')
        return struct.unpack_from(f'<{kind}', self._data, at)[0]


def _damaged(where: str, at: int, reason: str) -> FormatError:
    return FormatError(
        f'{where} has no message of Arrow data at byte {at}: {reason}. Restore it, or give the `format` of the data.'
    )


class ArrowLayout:
    """The columns of a schema, and the arrays and buffers of a record batch that belong to each."""

    def __init__(self, schema: pa.Schema, columns: Collection[str] | None) -> None:
        self._nodes: list[tuple[str, list[int]]] = []
        """For each column the numbers of its arrays that should have no nulls."""
        self._lists: list[tuple[str, int, int, np.dtype[Any]]] = []
        """For each column of lists of numbers: its array, the buffer of its offsets, and their dtype."""
        self._count = self._buffers = 0
        self._known = True  # Whether all types so far have a known number of buffers.
        for column in schema:
            kind, node, buffer = column.type, self._count, self._buffers
            nodes: list[int] = []
            self._walk(kind, nodes)
            if columns is not None and column.name not in columns:
                continue
            self._nodes.append((column.name, nodes))
            if self._known and (dtype := _offsets_of(kind)) is not None:
                self._lists.append((column.name, node, buffer + 1, dtype))

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

    def with_nulls(self, message: Message, seen: Collection[str], window: RangedWindow, where: str) -> set[str]:
        """The columns of a record batch that hold nulls or empty lists, other than known ones."""
        if len(message.nodes) != self._count:
            raise FormatError(
                f'A record batch of {where} has {len(message.nodes)} arrays, but its schema has {self._count}. Restore '
                f'the file.'
            )
        nulls = message.nodes[:, 1] != 0
        new = {name for name, nodes in self._nodes if name not in seen and nulls[nodes].any()}
        for name, node, buffer, dtype in self._lists:
            if name not in seen and name not in new and buffer < len(message.buffers):
                lists = int(message.nodes[node, 0])
                if _has_empty(message, buffer, dtype, lists, window, where):
                    new.add(name)
        return new


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
