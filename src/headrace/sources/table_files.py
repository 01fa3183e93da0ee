"""Facts that Parquet files do not hold: values of partitions, deleted rows, and the columns of their table.

The keys of Hive partitions are in the names of folders. Delta and Iceberg name the columns of a table. Those of a file
are found by field id, if the table says so, by physical name, or by name. A column that a file lacks has one value in
all its rows, or null.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

import numpy as np

from headrace.errors import FormatError
from headrace.sources.formats import folder_of

if TYPE_CHECKING:
    import pyarrow as pa

    IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_HIVE: Final = re.compile(r'([^=/]+)=([^/]*)')
_HIVE_NULL: Final = '__HIVE_DEFAULT_PARTITION__'
_INTEGER: Final = re.compile(r'0|-?[1-9]\d{0,18}')
_IDS: Final = (b'PARQUET:field_id', b'delta.columnMapping.id')
NAMES: Final = b'headrace.names'
"""The names of a column in files without ids, as a JSON list, in the metadata of its field."""
_PHYSICAL: Final = b'delta.columnMapping.physicalName'
BY_ID: Final = {b'headrace.by_id': b'1'}
"""The metadata of a table's columns, if files have the ids of these. Ids of other files may be any numbers."""


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """Facts of a table about its files, in their order."""

    constants: pa.RecordBatch
    """A row for each file: the values of the columns that the file may lack. A file's own column is preferred."""
    schema: pa.Schema | None = None  # The columns of the table; by default those of each file, then the constants.
    deleted: Mapping[int, IntArray] = field(default_factory=dict[int, 'IntArray'])
    """int64[n], ascending numbers of deleted rows in the file, by number of the file."""
    rows_of: Sequence[int | None] = ()  # Rows of each file, deleted ones included; None if the table does not say.
    snapshot: str = ''  # The version of the table, such as 'version 5'.

    @property
    def by_id(self) -> bool:
        return self.schema is not None and BY_ID.items() <= (self.schema.metadata or {}).items()

    def columns(self, physical: pa.Schema) -> pa.Schema:
        if self.schema is not None:
            return self.schema
        for more in self.constants.schema:
            if more.name not in physical.names:
                physical = physical.append(more)
        return physical

    def rows(self, batch: pa.RecordBatch, physical: pa.Schema, wanted: pa.Schema, file: int) -> pa.RecordBatch:
        """The wanted columns of a batch.

        `batch`: rows of a file with the columns that `own_columns` names.
        `physical`: the columns of the file.
        """
        import pyarrow as pa

        arrays: list[pa.Array[Any]] = []
        for column in wanted:
            field = find_field(column, physical, by_id=self.by_id)
            if field is not None:
                arrays.append(_as_type(batch.column(field.name), column.type, by_id=self.by_id))
            elif column.name in self.constants.schema.names:
                arrays.append(pa.repeat(self.constants.column(column.name)[file], batch.num_rows))
            else:
                arrays.append(pa.nulls(batch.num_rows, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def has_nulls(self, name: str, file: int) -> bool:
        """Whether a column that a file lacks is null in it."""
        return name not in self.constants.schema.names or not self.constants.column(name)[file].is_valid

    def marks(self, files: Sequence[str]) -> dict[str, str]:
        """A digest of the table's facts about each file."""
        import pyarrow as pa

        if self.schema is None:
            return {}  # the keys of the files say it
        columns = [self.by_id, *map(_described, self.schema)]
        same = hashlib.blake2b(json.dumps(columns).encode(), digest_size=8)
        marks: dict[str, str] = {}
        for number, key in enumerate(files):
            digest = same.copy()
            # Concatenated, since a slice is written with what surrounds it.
            (row,) = pa.Table.from_batches([self.constants.slice(number, 1)]).take([0]).combine_chunks().to_batches()
            digest.update(json.dumps(row.to_pydict(), default=str).encode())
            digest.update(self.deleted.get(number, np.zeros(0, np.int64)).tobytes())
            marks[key] = digest.hexdigest()
        return marks

    def to_pieces(self) -> list[bytes]:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.constants.schema) as writer:
            writer.write_batch(self.constants)
        return [sink.getvalue().to_pybytes(), b'' if self.schema is None else self.schema.serialize().to_pybytes()]

    @classmethod
    def of_pieces(cls, constants: memoryview, schema: memoryview, snapshot: str) -> TableFiles:
        """The inverse of `to_pieces`, without the deleted rows."""
        import pyarrow as pa

        with pa.ipc.open_stream(pa.py_buffer(constants)) as reader:
            batch = reader.read_next_batch()
        kinds = pa.ipc.read_schema(pa.py_buffer(schema)) if len(schema) else None
        return cls(constants=batch, schema=kinds, snapshot=snapshot)


def find_field(wanted: pa.Field, fields: pa.Schema | Sequence[pa.Field], *, by_id: bool) -> pa.Field | None:
    """The field of a file that holds a column, or a part of one: by its id, else by its name in files."""
    about = wanted.metadata or {}
    number = next((about[key] for key in _IDS if key in about), None) if by_id else None
    ids = {(field.metadata or {}).get(_IDS[0]): field for field in fields} if number is not None else {}
    if any(ids):
        return ids.get(number)
    names = json.loads(about[NAMES]) if NAMES in about else [about.get(_PHYSICAL, wanted.name.encode()).decode()]
    return next((field for field in fields if field.name in names), None)


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _described(column: pa.Field) -> list[Any]:
    """The facts that decide how a column is read, equal in all processes, which may order the metadata differently."""
    about, inner = column.metadata or {}, _fields(column.type)
    keys = [about.get(key, b'').decode() for key in (*_IDS, NAMES, _PHYSICAL)]
    return [column.name, column.type.id if inner else str(column.type), keys, *map(_described, inner)]


def _family(kind: pa.DataType) -> str:
    """The family of a type's values. Only values of one family stand for each other."""
    from pyarrow import types

    kind = getattr(kind, 'storage_type', kind)
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return 'number'
    return 'time' if types.is_temporal(kind) else 'truth' if types.is_boolean(kind) else 'bytes'


def _as_type(array: Any, kind: pa.DataType, *, by_id: bool) -> Any:
    """An array as another type, whose structs name other fields, or more, or fewer."""
    import pyarrow as pa
    from pyarrow import types

    stored = array.type
    if types.is_struct(kind) and types.is_struct(stored):
        inner: list[Any] = []
        for wanted in _fields(kind):
            field = find_field(wanted, _fields(stored), by_id=by_id)
            values = None if field is None else array.field(stored.get_field_index(field.name))
            lacking = values is None
            inner.append(pa.nulls(len(array), wanted.type) if lacking else _as_type(values, wanted.type, by_id=by_id))
        return pa.StructArray.from_arrays(inner, fields=_fields(kind), mask=array.is_null())
    if not (types.is_nested(kind) and any(types.is_nested(field.type) for field in _fields(kind))):
        both: list[Any] = [stored, kind]
        value, of_table = (part.field(0).type if part.num_fields else part for part in both)
        is_less = types.is_floating(value) and (not types.is_floating(of_table) or value.bit_width > of_table.bit_width)
        if not types.is_null(value) and (is_less or _family(value) != _family(of_table)):
            raise ValueError(f'it is {stored}, and {kind} in the table')
        return array if stored.equals(kind) else array.cast(kind)
    if array.offset:  # its mask may not be shifted
        array = pa.concat_arrays([array])
    if types.is_map(kind) and types.is_map(stored):
        keys = _as_type(array.keys, kind.key_type, by_id=by_id)
        items = _as_type(array.items, kind.item_type, by_id=by_id)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    if (types.is_list(stored) or types.is_large_list(stored)) and (types.is_list(kind) or types.is_large_list(kind)):
        values = _as_type(array.values, kind.value_type, by_id=by_id)
        made = type(array).from_arrays(array.offsets, values, mask=array.is_null())
        return made.cast(kind)
    raise ValueError(f'it is {stored}, and {kind} in the table')


def hive_partitions(keys: Sequence[str]) -> TableFiles | None:
    """The values that the names of folders give, such as ``year=2024/lang=en/a.parquet``; None without any.

    A column is int64 if all its values are such integers without leading zeros, else a string. FormatError: a path has
    a key twice.
    """
    import pyarrow as pa

    by_key: dict[str, dict[int, str | None]] = {}
    for number, key in enumerate(keys):
        for part in folder_of(key).split('/') if '=' in key else ():
            if (match := _HIVE.fullmatch(part)) is None:
                continue
            values = by_key.setdefault(unquote(match[1]), {})
            if number in values:
                raise FormatError(f'The folders of {key} have the key {unquote(match[1])!r} twice. Rename one.')
            values[number] = None if match[2] == _HIVE_NULL else unquote(match[2])
    if not by_key:
        return None
    arrays: dict[str, Any] = {}
    for name, values in by_key.items():
        column: list[Any] = [values.get(number) for number in range(len(keys))]
        values_set = [value for value in column if value is not None]
        if values_set and all(_INTEGER.fullmatch(value) and -(1 << 63) <= int(value) < 1 << 63 for value in values_set):
            column = [None if value is None else int(value) for value in column]
            arrays[name] = pa.array(column, pa.int64())
        else:
            arrays[name] = pa.array(column, pa.string())
    return TableFiles(constants=pa.RecordBatch.from_pydict(arrays))
