"""Messages `tf.train.Example`, many at a time, without TensorFlow and protobuf.

An Example maps names of features to lists of bytes, of float32 or of int64. Fields by number::

    Example   1: Features
    Features  1: entry, once for each feature
    entry     1: name, 2: Feature
    Feature   1: bytes list, 2: float list, 3: int64 list
    list      1: the values; numbers are packed in one field, or have a field each

Writers use one form: each field once, in this order, numbers packed. `Examples` reads records of that form together,
with a few operations of numpy for each feature. Records of another form are found on the way, and rewritten first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

MAX_FEATURES: Final = 1000
_MAX_NAME: Final = 1000
_CHUNK: Final = 1 << 17  # Bytes of integers that are read together: they stay in the processor's cache.
_BYTES, _FLOATS, _INTS, _MANY = 1, 2, 3, 4
"""Kinds of values: one of bytes, packed float32, packed int64, and a list of none or several of bytes."""
_ENCODINGS: Final = {1 << _BYTES: 'bytes', 1 << _FLOATS: 'float32', 1 << _INTS: 'int64'}
_KINDS: Final = {
    **dict.fromkeys(('bytes', 'str', 'jpeg', 'png'), _BYTES),
    'float32': _FLOATS,
    **dict.fromkeys(('int64', 'int', 'int8', 'int16', 'int32', 'uint8', 'uint16', 'uint32'), _INTS),
}
"""The kind of each type of values."""
_NUMBERS: Final = ((_FLOATS, 'float32'), (_INTS, 'int64'))
ENCODINGS: Final = (*_KINDS, *(f'ndarray:{name}' for name in [*_KINDS][4:] if name != 'int'), 'jpeg_array', 'json')
"""Encodings that a feature can have; arrays also with a shape."""
_Array: TypeAlias = 'np.ndarray[Any, np.dtype[Any]]'


class RecordError(Exception):
    """Record `record` of a block is not an Example, or has other values than its column; `reason` ends a sentence."""

    def __init__(self, record: int, reason: str) -> None:
        super().__init__(record, reason)
        self.record, self.reason = record, reason


@dataclass(slots=True)
class _Lists:
    """The values of one feature. Each array has an element for each record of the block."""

    kinds: _Array  # uint8; 0: the record does not have the feature.
    starts: _Array  # int64, where the bytes of the values begin.
    stops: _Array

    @classmethod
    def none(cls, count: int) -> _Lists:
        return cls(np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))

    def pieces(self, data: bytes, rows: _Array | slice = slice(None)) -> list[bytes]:
        return [data[a:b] for a, b in zip(self.starts[rows].tolist(), self.stops[rows].tolist(), strict=True)]

    def counts(self, data: bytes) -> _Array:
        """The number of values of each record: 0, 1, or 2 for more."""
        sizes = self.stops - self.starts
        counts = np.where(self.kinds == _BYTES, 1, np.minimum(sizes // 4, 2))
        for row in np.flatnonzero(self.kinds == _MANY).tolist():
            counts[row] = min(2, len(self.values_of(data, row)))
        integers = self.kinds == _INTS
        counts[integers] = np.where(sizes[integers] > 0, 2, 0)
        short = np.flatnonzero(integers & (sizes > 0) & (sizes <= 10))
        if len(short):
            is_end = np.frombuffer(b''.join(self.pieces(data, short)), np.uint8) < 0x80
            counts[short] = np.minimum(
                np.add.reduceat(is_end, np.cumsum(sizes[short]) - sizes[short], dtype=np.int64), 2
            )
        return counts

    def values_of(self, data: bytes, row: int) -> list[bytes]:
        """All values of bytes of a record."""
        piece = data[int(self.starts[row]) : int(self.stops[row])]
        if self.kinds[row] == _BYTES:
            return [piece]
        try:
            return [*_messages(piece, 1)]
        except ValueError as error:
            raise RecordError(row, f'is not a tf.train.Example: {error}') from None

    def numbers(self, data: bytes, rows: _Array, dtype: str) -> tuple[_Array, list[int]]:
        """The numbers of some records, one after another, and where those of each begin and end in them."""
        flat = np.frombuffer(b''.join(self.pieces(data, rows)), np.uint8)
        bounds = np.zeros(len(rows) + 1, np.int64)
        np.cumsum((self.stops - self.starts)[rows], out=bounds[1:])
        if dtype == 'float32':
            return flat.view('<f4').astype(np.float32, copy=False), (bounds // 4).tolist()
        some = np.flatnonzero(bounds[1:] > bounds[:-1])
        cut = some[flat[bounds[1:][some] - 1] >= 0x80]
        if len(cut):
            raise RecordError(int(rows[cut[0]]), 'is not a tf.train.Example: its last number is incomplete')
        values, places, done = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)], 0
        edges = [*np.unique(np.searchsorted(bounds[:-1], np.arange(0, max(1, len(flat)), _CHUNK))).tolist(), len(rows)]
        for first, last in pairwise(edges):
            some_bounds = bounds[first : last + 1] - bounds[first]
            numbers, ends = _integers(flat[bounds[first] : bounds[last]])
            if numbers is None:
                row = first + int(np.searchsorted(some_bounds, ends[0], 'right')) - 1
                raise RecordError(int(rows[row]), 'is not a tf.train.Example: an integer has more than 10 bytes')
            values.append(numbers)
            places.append(np.searchsorted(ends, some_bounds[1:]) + done)
            done += len(numbers)
        return np.concatenate(values), np.concatenate(places).tolist()


def _integers(flat: _Array) -> tuple[_Array | None, _Array]:
    """Packed integers, and where the last byte of each is. If one is too long: None, and where it ends."""
    ends = np.flatnonzero(flat < 0x80)
    sizes = np.diff(ends, prepend=-1)
    most = int(sizes.max(initial=0))
    if most > 10:
        return None, ends[sizes > 10]
    low = flat & 0x7F
    values = low[ends].astype(np.uint64)
    for byte in range(1, most):  # the last byte of a number has its highest bits
        more = values << np.uint64(7) | low.take(ends - byte, mode='clip')
        values = np.where(sizes > byte, more, values)
    return values.view(np.int64), ends


class Examples:
    """The features of the records of a block; RecordError: a record is not an Example.

    Records lie at `starts` to `stops` of the data, int64[records]. `wanted`: names of features; None: all.
    """

    def __init__(self, data: bytes, starts: _Array, stops: _Array, wanted: Collection[str] | None = None) -> None:
        self.count = len(starts)
        self.features: dict[str, _Lists] = {}
        self._wanted = wanted
        odd = self._walk(np.frombuffer(data, np.uint8), np.arange(self.count), starts, stops)
        if len(odd):
            usual = [_in_usual_form(data[starts[row] : stops[row]], row) for row in odd.tolist()]
            ends = np.cumsum([len(data), *map(len, usual)])
            data = b''.join([data, *usual])
            for lists in self.features.values():
                lists.kinds[odd] = lists.starts[odd] = lists.stops[odd] = 0
            odd = self._walk(np.frombuffer(data, np.uint8), odd, ends[:-1], ends[1:])
            assert not len(odd)
            self.features = {name: lists for name, lists in self.features.items() if lists.kinds.any()}
        self._data = data

    def _walk(self, data: _Array, rows: _Array, starts: _Array, stops: _Array) -> _Array:
        """Find the values of records of the usual form; returns the rows of the others."""
        at, end, good = _field(data, starts, 1)
        good &= end == stops
        odd = [rows[~good]]
        rows, at, end = rows[good], at[good], end[good]
        for _ in range(MAX_FEATURES):
            more = at < end
            rows, at, end = rows[more], at[more], end[more]
            if not len(rows):
                break
            entry, stop, good = _field(data, at, 1)
            name, name_stop, has_name = _field(data, entry, 1)
            value, value_stop, has_value = _field(data, name_stop, 2)
            kind = (data.take(value, mode='clip') >> 3).astype(np.int64)
            lists, lists_stop, has_list = _field(data, value, kind)
            good &= (stop <= end) & has_name & (name_stop - name <= _MAX_NAME) & has_value & (value_stop == stop)
            good &= has_list & (lists_stop == stop) & (kind >= _BYTES) & (kind <= _INTS)
            packed, packed_stop, is_whole = _field(data, lists, 1)
            is_whole &= packed_stop == lists_stop
            packed[~is_whole] = lists[~is_whole]
            sizes = lists_stop - packed
            good &= (kind == _BYTES) | (sizes == 0) | (is_whole & ((kind == _INTS) | (sizes % 4 == 0)))
            kind[(kind == _BYTES) & ~is_whole] = _MANY
            good[good] = self._note(
                data, rows[good], name[good], name_stop[good], kind[good], packed[good], lists_stop[good]
            )
            odd.append(rows[~good])
            rows, at, end = rows[good], stop[good], end[good]
        return np.concatenate([*odd, rows[at < end]])

    def _note(
        self,
        data: _Array,
        rows: _Array,
        names: _Array,
        name_stops: _Array,
        kinds: _Array,
        starts: _Array,
        stops: _Array,
    ) -> _Array:
        """Note a feature of each of some records; returns whether it is the first one of its name in the record."""
        is_new = np.ones(len(rows), bool)
        left = np.arange(len(rows))
        while len(left):
            first = left[0]
            text = data[names[first] : name_stops[first]]
            same = name_stops[left] - names[left] == len(text)
            same[same] = (data[names[left[same], None] + np.arange(len(text))] == text).all(axis=1)
            ours, left = left[same], left[~same]
            try:
                name = text.tobytes().decode()
            except UnicodeDecodeError:
                raise RecordError(int(rows[first]), 'has a feature whose name is not UTF-8 text') from None
            if self._wanted is not None and name not in self._wanted:
                continue
            if name not in self.features:
                if len(self.features) == MAX_FEATURES:
                    raise _too_many(int(rows[first]))
                self.features[name] = _Lists.none(self.count)
            lists, where = self.features[name], rows[ours]
            is_new[ours] = lists.kinds[where] == 0
            lists.kinds[where], lists.starts[where], lists.stops[where] = kinds[ours], starts[ours], stops[ours]
        return is_new

    def column(self, name: str, encoding: str, *, is_single: bool) -> Sequence[Any] | _Array:
        """The values of a feature for an encoding; RecordError: a record has others.

        `is_single`: whether ``json`` is a value, and not a list.
        """
        lists, data = self.features.get(name) or _Lists.none(self.count), self._data
        if encoding == 'json':
            return self._plain_values(lists, is_single=is_single)
        if encoding == 'jpeg_array':
            self._require(name, encoding, (lists.kinds == _BYTES) | (lists.kinds == _MANY), lists)
            return [lists.values_of(data, row) for row in range(self.count)]
        is_array, dtype, axes = _parsed(encoding)
        kind = _KINDS[dtype]
        self._require(name, encoding, lists.kinds == kind, lists)
        if kind == _BYTES:
            pieces = lists.pieces(data)
            return pieces if encoding != 'str' else self._texts(name, pieces)
        flat, bounds = lists.numbers(data, np.arange(self.count), dtype)
        counts = np.diff(bounds)
        if dtype not in ('float32', 'int64', 'int'):
            wide, flat = flat, flat.astype(dtype)
            lost = np.flatnonzero(wide != flat)
            if len(lost):
                row = int(np.searchsorted(bounds, lost[0], 'right')) - 1
                raise RecordError(row, f'has {wide[lost[0]]} in feature {name!r}, but its column is `{encoding}`')
        if not is_array:
            self._require(name, encoding, counts == 1, lists)
            return flat
        self._require(name, encoding, counts == math.prod(axes) if axes else counts > 0, lists)
        if axes or (counts == counts[0]).all():
            return flat.reshape(self.count, *(axes or (int(counts[0]),)))
        return [flat[a:b] for a, b in pairwise(bounds)]

    def _require(self, name: str, encoding: str, good: _Array, lists: _Lists) -> None:
        bad = np.flatnonzero(~good)
        if len(bad):
            row = int(bad[0])
            problem = {_BYTES: 'one value of bytes', _MANY: 'none or several values of bytes'}.get(
                int(lists.kinds[row])
            )
            for kind, dtype in _NUMBERS:
                if lists.kinds[row] == kind:
                    count = len(lists.numbers(self._data, bad[:1], dtype)[0])
                    problem = f'{"one value" if count == 1 else f"{count} values"} of {dtype}'
            raise RecordError(row, f'has {problem or "no values"} in feature {name!r}, but its column is `{encoding}`')

    def _texts(self, name: str, values: list[bytes]) -> list[str]:
        try:
            return [value.decode() for value in values]
        except UnicodeDecodeError:
            row = next(row for row, value in enumerate(values) if not _is_text(value))
            raise RecordError(row, f'has bytes in feature {name!r} that are not UTF-8 text') from None

    def _plain_values(self, lists: _Lists, *, is_single: bool) -> list[Any]:
        """Lists of numbers and texts; None where the record does not have the feature."""
        plain: list[Any] = [None] * self.count
        for kind, dtype in _NUMBERS:
            rows = np.flatnonzero(lists.kinds == kind)
            flat, bounds = lists.numbers(self._data, rows, dtype)
            for row, (begin, end) in zip(rows.tolist(), pairwise(bounds), strict=True):
                plain[row] = flat[begin:end].tolist()
        for row in np.flatnonzero((lists.kinds == _BYTES) | (lists.kinds == _MANY)).tolist():
            values = lists.values_of(self._data, row)
            if not all(map(_is_text, values)):
                raise RecordError(row, 'has bytes in a column of `json` that are not UTF-8 text')
            plain[row] = [value.decode() for value in values]
        if not is_single:
            return plain
        several = next((row for row, values in enumerate(plain) if values and len(values) > 1), None)
        if several is not None:
            raise RecordError(several, 'has several values in a column of one value or none')
        return [values[0] if values else None for values in plain]


def _parsed(encoding: str) -> tuple[bool, str, tuple[int, ...]]:
    """Whether an encoding is of arrays, and its type and shape."""
    parts = encoding.split(':')
    is_array = parts[0] == 'ndarray'
    return is_array, parts[is_array], tuple(map(int, parts[2].split(','))) if len(parts) > 2 else ()


@dataclass(slots=True)
class _Values:
    """The values of one feature in all records that were added."""

    kinds: int = 0  # A bit for each kind.
    records: int = 0  # Records that have the feature.
    least: int = 2  # The smallest number of values of these, up to 2.
    most: int = 0
    is_text: bool = True  # Whether all bytes are UTF-8 text.


class FeatureTypes:
    """The types of each feature, of all records that were added."""

    def __init__(self) -> None:
        self._values: dict[str, _Values] = {}
        self._records = 0

    def add(self, examples: Examples) -> None:
        self._records += examples.count
        for name, lists in examples.features.items():
            values, data = self._values.setdefault(name, _Values()), examples._data
            rows = np.flatnonzero(lists.kinds)
            counts = lists.counts(data)[rows]
            for kind in np.unique(lists.kinds[rows]).tolist():
                values.kinds |= 1 << (_BYTES if kind == _MANY else kind)
            values.records += len(rows)
            values.least, values.most = min(values.least, int(counts.min())), max(values.most, int(counts.max()))
            if values.is_text:
                single = b'\n'.join(lists.pieces(data, np.flatnonzero(lists.kinds == _BYTES)))
                many = np.flatnonzero(lists.kinds == _MANY).tolist()
                values.is_text = all(map(_is_text, [single, *(v for row in many for v in lists.values_of(data, row))]))
        if len(self._values) > MAX_FEATURES:
            raise _too_many(0)

    def encodings(self) -> dict[str, str | None]:
        """The encoding of each feature, sorted by name, or None if no encoding can hold its values."""
        return {name: self._encoding(values) for name, values in sorted(self._values.items())}

    def singles(self) -> list[str]:
        """Features with one value at most in each record."""
        return [name for name, values in self._values.items() if values.most < 2]

    def _encoding(self, values: _Values) -> str | None:
        encoding = _ENCODINGS.get(values.kinds)
        if encoding is not None and values.records == self._records and values.least > 0:
            if values.most == 1:
                return encoding
            if encoding != 'bytes':
                return f'ndarray:{encoding}'
        return None if values.kinds & 1 << _BYTES and not values.is_text else 'json'


def _too_many(record: int) -> RecordError:
    return RecordError(record, f'has features beyond the {MAX_FEATURES} that a dataset can have')


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _field(data: _Array, at: _Array, number: int | _Array) -> tuple[_Array, _Array, _Array]:
    good = data.take(at, mode='clip') == (number << 3 | 2)
    begin = at + 1
    byte = data.take(begin, mode='clip')
    size = (byte & 0x7F).astype(np.int64)
    more = np.flatnonzero(byte >= 0x80)
    for shift in range(7, 35, 7):
        if not len(more):
            break
        begin[more] += 1
        byte = data.take(begin[more], mode='clip')
        size[more] |= (byte & 0x7F).astype(np.int64) << shift
        more = more[byte >= 0x80]
    good[more] = False
    begin += 1
    return begin, begin + size, good


# Records of another form


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next one begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError('a number of it is incomplete')


def message_fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """The number, the wire type and the value of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = varint(data, at)
            yield tag >> 3, wire, value
            continue
        if wire == 2:
            size, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire, len(data))
        if size > len(data) - at:
            raise ValueError('a field of it has an unknown type, or ends too late')
        yield tag >> 3, wire, data[at : at + size]
        at += size


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    return (value for field, _, value in message_fields(data) if field == number and isinstance(value, bytes))


def _in_usual_form(record: bytes, row: int) -> bytes:
    """A record in the usual form, as protobuf understands it: what comes twice is joined, or the last one counts."""
    features: dict[bytes, bytes] = {}
    try:
        if any(number == 2 and wire == 2 for number, wire, _ in message_fields(record)):
            raise RecordError(row, 'is a tf.train.SequenceExample')
        for entry in _messages(b''.join(_messages(record, 1)), 1):
            name = next(iter([*_messages(entry, 1)][::-1]), b'')
            if len(name) > _MAX_NAME:
                raise ValueError(f'a feature has a name of more than {_MAX_NAME} bytes')
            features[name] = b''.join(_messages(entry, 2))
        if len(features) > MAX_FEATURES:
            raise ValueError(f'it has more than {MAX_FEATURES} features')
        entries = [
            _packed(1, _packed(1, name) + _packed(2, values))
            for name, feature in features.items()
            if (values := _usual_list(feature))
        ]
    except ValueError as error:
        raise RecordError(row, f'is not a tf.train.Example: {error}') from None
    return _packed(1, b''.join(entries))


def _usual_list(feature: bytes) -> bytes:
    """The list of a feature in the usual form, with its field; empty if the feature has none."""
    kind, content = 0, b''
    for number, wire, value in message_fields(feature):
        if wire == 2 and 1 <= number <= 3 and isinstance(value, bytes):
            kind, content = number, content + value if number == kind else value
    if not kind:
        return b''
    if kind == _BYTES:
        return _packed(kind, b''.join(_packed(1, value) for value in _messages(content, 1)))
    numbers = bytearray()
    for number, wire, value in message_fields(content):
        if number != 1:
            continue
        if isinstance(value, int):
            numbers += _as_varint(value) if kind == _INTS else b''
        elif wire == 2 and (len(value) % 4 if kind == _FLOATS else value[-1:] >= b'\x80'):
            raise ValueError('its last number is incomplete')
        elif wire == 2 or (wire == 5 and kind == _FLOATS):
            numbers += value
    return _packed(kind, _packed(1, bytes(numbers)) if numbers else b'')


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _packed(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _as_varint(len(content)) + content
