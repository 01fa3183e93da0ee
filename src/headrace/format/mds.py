"""MDS shards: ``u32 n | u32 offset[n+1] | configuration | sample 0 | sample 1 | ...``, all little-endian.

``offset[i]`` is the position of sample i in the file, ``offset[n]`` the file's length. A sample is the u32 sizes of its
variable-size values in column order, then all values in column order. Columns are ordered by name.

The reader takes batches of rows. If all columns have fixed sizes, each column is a strided array over the map, and a
batch is one copy per column. Otherwise the sizes at the samples' heads give the positions of all values.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from headrace.errors import FormatError, ShardError
from headrace.format.encodings.encoding import Encoding
from headrace.format.encodings.registry import get_mds_encoding
from headrace.format.encodings.scalars import Int
from headrace.format.encodings.texts import Str
from headrace.format.shards import ColumnBatch, IntArray, Schema, ShardInfo

RESTORE: Final = 'Restore the file from a copy, or write the dataset again.'
"""The fix of a damaged file that comes from nowhere else."""

_KEY: Final = '__key__'  # the column that names a sample of WebDataset
_UNPACK_PAIR: Final = struct.Struct('<II').unpack_from
_SIZE: Final = np.dtype('<u4')


class Column:
    """Constants for reading one column, computed once per schema."""

    __slots__ = ('encoding', 'is_int', 'is_text', 'name', 'raw_type', 'shape', 'size', 'strides', 'value_type')

    def __init__(self, name: str, encoding: str, size: int | None, array: tuple[np.dtype[Any], tuple[int, ...]] | None):
        self.name = name
        self.encoding: Encoding = get_mds_encoding(encoding)
        self.size = size
        self.is_int = type(self.encoding) is Int  # a subclass may decode differently
        self.is_text = type(self.encoding) is Str
        self.value_type: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.strides: tuple[int, ...] = ()
        self.raw_type: np.dtype[Any] | None = None
        """The dtype for copying whole values into a batch: a number, or opaque bytes."""
        if array is not None:
            self.value_type, self.shape = array[0].newbyteorder('<'), array[1]
            self.strides = np.ndarray(self.shape, self.value_type).strides
            self.raw_type = np.dtype(f'V{size}') if self.shape else self.value_type


_Place: TypeAlias = 'tuple[int, int, np.dtype[Any], tuple[int, ...]]'


class FixedLayout(NamedTuple):
    """Places of values in samples of one size; shards of equal columns share the object, across datasets."""

    size: int
    """Bytes of a sample."""
    columns: Mapping[str, _Place]
    """By column, first byte in a sample, number of bytes, dtype (little-endian) and shape of its value."""

    @staticmethod
    def of(columns: Iterable[Column], size: int) -> FixedLayout:
        """The layout of columns that all have a dtype."""
        places: list[tuple[str, _Place]] = []
        at = 0
        for column in columns:
            assert column.size is not None
            assert column.value_type is not None
            places.append((column.name, (at, column.size, column.value_type, column.shape)))
            at += column.size
        return _shared_layout(size, tuple(places))


@lru_cache(maxsize=256)
def _shared_layout(size: int, places: tuple[tuple[str, _Place], ...]) -> FixedLayout:
    return FixedLayout(size, dict(places))


class FixedRows(NamedTuple):
    """The samples of a shard whose samples have one size."""

    samples: memoryview  # all samples, one after another; it keeps the shard mapped
    layout: FixedLayout


class Layout:
    __slots__ = ('all_arrays', 'columns', 'fixed', 'head', 'head_type', 'least', 'steps', 'unpack_head', 'variable')

    def __init__(self, schema: Schema) -> None:
        parts = zip(schema.names, schema.encodings, schema.sizes, schema.arrays, strict=True)
        self.columns = tuple(Column(*part) for part in parts)
        self.variable = sum(column.size is None for column in self.columns)
        self.all_arrays = all(column.value_type is not None for column in self.columns)
        self.head = struct.Struct(f'<{self.variable}I')
        self.unpack_head = self.head.unpack_from
        self.head_type = np.dtype(f'V{self.head.size}')
        self.steps = tuple(
            (column.name, column.size, column.raw_type, column.is_text, column.encoding.decode)
            for column in self.columns
        )
        """Each column with the attributes that reading a row needs, for speed."""
        self.least = self.head.size + sum(column.size or 0 for column in self.columns)
        """Bytes of a sample whose variable-size values are all empty."""
        self.fixed = FixedLayout.of(self.columns, self.least) if self.all_arrays else None
        """Places of the values in each sample, if they are the same in all."""


def _layout_of(schema: Schema) -> Layout:
    layout = schema.layout
    if layout is None:
        layout = Layout(schema)
        object.__setattr__(schema, 'layout', layout)  # every thread computes the same, so a race does no harm
    return layout


class MDSReader:
    def __init__(
        self,
        info: ShardInfo,
        buffers: Sequence[memoryview],
        *,
        source: str,
        columns: Collection[str] | None = None,
        fix: str = RESTORE,
    ) -> None:
        (view,) = buffers
        self.num_samples = info.samples
        self._info, self._source, self._fix = info, source, fix
        self._view = view
        self._layout = _layout_of(info.schema)
        self._wanted = columns
        self._offsets = self._check_table(None if info.made_from else info.files[0].raw.bytes)
        self._at_byte: dict[np.dtype[Any], np.ndarray[Any, Any]] = {}
        self._fixed = self._fixed_columns() if self._layout.all_arrays and info.samples else None
        self._raws = () if self._fixed is None else tuple((column.name, raw) for column, _, raw in self._fixed)
        fixed = None if self._fixed is None else self._layout.fixed
        self.fixed_rows = None if fixed is None else FixedRows(view[int(self._offsets[0]) :], fixed)
        """See ``ShardReader.fixed_rows``."""

    def _check_table(self, file_size: int | None) -> IntArray:
        """The checked offsets, int64 ``[n + 1]``; without a file size from the index, the last one tells it."""
        view, n, layout = self._view, self.num_samples, self._layout
        size = len(view)
        if file_size is not None and size != file_size:
            raise self._error(f'the index says that the file has {file_size} bytes, but it has {size}')
        if size < 8 + 4 * n:
            raise self._error(f'the table of offsets of {n} samples needs {8 + 4 * n} bytes, but the file has {size}')
        count = int.from_bytes(view[:4], 'little')
        if count != n:
            raise self._error(f'the index counts {n} samples, but the file counts {count}')
        offsets = np.frombuffer(view, '<u4', n + 1, 4).astype(np.int64)
        if offsets[0] < 8 + 4 * n or offsets[n] != size:
            raise self._error(
                f'samples begin after the table of offsets, at byte {8 + 4 * n} or later, and end with the file at '
                f'{size}, but the offsets go from {offsets[0]} to {offsets[n]}'
            )
        if n:
            sizes = offsets[1:] - offsets[:-1]
            least = layout.least
            bad = sizes.min() < least or (layout.variable == 0 and sizes.max() != least)
            if bad:
                wrong = sizes != least if layout.variable == 0 else sizes < least
                i = int(np.flatnonzero(wrong)[0])
                exactly = 'exactly' if layout.variable == 0 else 'at least'
                raise self._error(
                    f'a sample of these columns has {exactly} {least} bytes, but the offsets give sample {i} {sizes[i]}'
                )
        return offsets

    def _error(self, message: str) -> ShardError:
        return ShardError(f'Shard {self._source} is damaged: {message}. {self._fix}')

    def _fixed_columns(self) -> tuple[tuple[Column, np.ndarray[Any, Any], np.ndarray[Any, Any]], ...]:
        """Each column with its values as a typed array ``[n, *shape]`` and as ``[n]`` whole values, over the map."""
        n, stride, at = self.num_samples, self._layout.least, int(self._offsets[0])
        columns: list[tuple[Column, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        for column in self._layout.columns:
            assert column.value_type is not None
            assert column.raw_type is not None
            assert column.size is not None
            raw = np.ndarray((n,), column.raw_type, self._view, at, (stride,))
            typed = raw
            if column.shape:
                typed = np.ndarray((n, *column.shape), column.value_type, self._view, at, (stride, *column.strides))
            if self._wanted is None or column.name in self._wanted:
                columns.append((column, typed, raw))
            at += column.size
        return tuple(columns)

    def sample(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.num_samples:
            raise self._range_error(i)
        if self._fixed is not None:
            sample: dict[str, Any] = {}
            for column, typed, _ in self._fixed:
                value = typed[i]  # a copied number, or a view of an array
                sample[column.name] = value.copy() if column.shape else int(value) if column.is_int else value
            return sample
        begin, sizes = self._head(i)
        view, wanted, at, variable = self._view, self._wanted, begin + self._layout.head.size, 0
        sample = {}
        for name, size, _, _, decode in self._layout.steps:
            stop = at
            if size is None:
                stop += sizes[variable]
                variable += 1
            else:
                stop += size
            if wanted is None or name in wanted:
                try:
                    sample[name] = decode(view[at:stop])
                except FormatError as error:
                    raise self._value_error(i, name, error) from error
            at = stop
        return sample

    def _range_error(self, i: int) -> IndexError:
        return IndexError(f'Shard {self._source} has samples 0 to {self.num_samples - 1}, but got {i}.')

    def _head(self, i: int) -> tuple[int, tuple[int, ...]]:
        """The offset of sample ``i``, and the checked sizes of its variable-size values."""
        view, layout = self._view, self._layout
        begin, end = _UNPACK_PAIR(view, 4 + 4 * i)
        sizes = layout.unpack_head(view, begin)
        if begin + layout.least + sum(sizes) != end:
            raise self._sizes_error(i, end - begin, sizes)
        return begin, sizes

    def _sizes_error(self, i: int, size: int, sizes: Sequence[int]) -> ShardError:
        names = [column.name for column in self._layout.columns if column.size is None]
        listed = ', '.join(f'{name!r}: {value}' for name, value in zip(names, sizes, strict=True))
        return self._error(
            f'sample {i} has {size} bytes, of which {size - self._layout.least} are left for the values of variable '
            f'size, but it gives them the sizes {listed}'
        )

    def _value_error(self, i: int, name: str, error: Exception) -> ShardError:
        member = ''
        if name != _KEY and any(other.name == _KEY for other in self._layout.columns):
            keys = MDSReader(self._info, [self._view], source=self._source, columns=[_KEY])
            with contextlib.suppress(FormatError):
                member = f' (key {keys.sample(i)[_KEY]!r:.200})'
        return ShardError(
            f'Shard {self._source} cannot be read: sample {i}, column {name!r}{member}: {error} It is damaged, '
            f'or the value was written so. {self._fix}'
        )

    def gather(self, rows: IntArray, out_rows: IntArray, batch: ColumnBatch) -> None:
        if not len(rows):
            return
        if np.minimum.reduce(rows) < 0:  # numpy's indexing refuses rows that are too large
            raise self._range_error(int(rows.min()))
        if self._fixed is None:
            self._gather_rows(rows, out_rows, batch)
            return
        raws = batch.raw
        for name, raw in self._raws:
            if name in raws:
                raws[name][out_rows] = raw[rows]

    def _bytes_as(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """The map as an array whose element ``i`` is the value of ``dtype`` at byte ``i``."""
        array = self._at_byte.get(dtype)
        if array is None:
            count = len(self._view) - dtype.itemsize + 1
            array = self._at_byte[dtype] = np.ndarray((count,), dtype, self._view, 0, (1,))
        return array

    def gather_few(self, rows: Sequence[int], out_rows: Sequence[int], which: range, batch: ColumnBatch) -> None:
        n, columns, raws = self.num_samples, batch.columns, batch.raw
        for k in which:
            if not 0 <= rows[k] < n:
                raise self._range_error(rows[k])
        if self._fixed is not None:
            for name, raw in self._raws:
                if name in raws:
                    into = raws[name]
                    for k in which:
                        into[out_rows[k]] = raw[rows[k]]
            return
        view, layout, at_byte = self._view, self._layout, self._at_byte
        steps, unpack_head, head, least = layout.steps, layout.unpack_head, layout.head.size, layout.least
        for k in which:
            row, out = rows[k], out_rows[k]
            begin, end = _UNPACK_PAIR(view, 4 + 4 * row)
            sizes = unpack_head(view, begin)
            if begin + least + sum(sizes) != end:
                raise self._sizes_error(row, end - begin, sizes)
            at, variable = begin + head, 0
            for name, size, raw_type, is_text, decode in steps:
                stop = at
                if size is None:
                    stop += sizes[variable]
                    variable += 1
                else:
                    stop += size
                if name not in columns:
                    pass
                elif raw_type is not None:
                    values = at_byte.get(raw_type)
                    raws[name][out] = (self._bytes_as(raw_type) if values is None else values)[at]
                else:
                    try:
                        columns[name][out] = str(view[at:stop], 'utf-8') if is_text else decode(view[at:stop])
                    except (FormatError, UnicodeDecodeError):
                        self.sample(row)  # raises the error that names the column
                        raise
                at = stop

    def _gather_rows(self, rows: IntArray, out_rows: IntArray, batch: ColumnBatch) -> None:
        layout = self._layout
        begins = self._offsets[rows]
        room = self._offsets[rows + 1] - begins - layout.least
        sizes: list[IntArray]
        if layout.variable == 0:
            sizes, wrong = [], room != 0
        elif layout.variable == 1:
            sizes = [self._bytes_as(_SIZE)[begins].astype(np.int64)]
            wrong = sizes[0] != room
        else:
            heads = self._bytes_as(layout.head_type)[begins]
            table = np.ndarray((len(rows), layout.variable), _SIZE, heads.data).astype(np.int64)
            wrong = table.sum(axis=1) != room
            sizes = list(table.T)
        if np.count_nonzero(wrong):  # a fifth of the time of `any`
            i = int(np.flatnonzero(wrong)[0])
            raise self._sizes_error(
                int(rows[i]), int(room[i]) + layout.least, [int(column_sizes[i]) for column_sizes in sizes]
            )
        view, outs = self._view, out_rows.tolist()
        at, variable = begins + layout.head.size, iter(sizes)
        for column in layout.columns:
            stop = at + (next(variable) if column.size is None else column.size)
            if column.name not in batch.columns:
                at = stop
                continue
            if column.raw_type is not None:
                batch.raw[column.name][out_rows] = self._bytes_as(column.raw_type)[at]
                at = stop
                continue
            values, together = batch.columns[column.name], column.encoding.decode_all(view, at, stop)
            if together is not None:
                for out, value in zip(outs, together, strict=True):
                    values[out] = value
                at = stop
                continue
            starts, stops = at.tolist(), stop.tolist()
            try:
                if column.is_text:
                    for out, begin, end in zip(outs, starts, stops, strict=True):
                        values[out] = str(view[begin:end], 'utf-8')
                else:
                    decode = column.encoding.decode
                    for out, begin, end in zip(outs, starts, stops, strict=True):
                        values[out] = decode(view[begin:end])
            except (FormatError, UnicodeDecodeError):
                # The loops do not track their row, for speed: find it now.
                for row in rows.tolist():
                    self.sample(row)
                raise
            at = stop
