"""TFRecord, plain or compressed (gzip, zlib), without TensorFlow.

A record has a u64 size, a masked CRC-32C of the size, the data, and a masked CRC-32C of the data. The data are a
`tf.train.Example`, whose features are columns; see `headrace.sources.tf_example`.

It has no index. `index` reads all data once, and a column has a type if all records have it. If the types are given, or
records are read as they are, it reads the heads of records only. A part is a run of records of about 32 MiB, or a
compressed file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from headrace.errors import FormatError, ShardError, StreamError, import_optional
from headrace.errors.redaction import logger_of
from headrace.format.compression import CHUNK
from headrace.format.encodings.registry import is_mds_encoding
from headrace.sources.formats import choose_columns, is_hidden
from headrace.sources.protocol import Part
from headrace.sources.ranges import (
    MemoryWindow,
    RangedWindow,
    StreamWindow,
    Window,
    compression_of,
    in_parallel,
    parts_of_records,
    read_whole,
    stream_object,
    unpack,
)
from headrace.sources.source_bytes import PartTable, dump_index, load_index
from headrace.sources.tf_example import ENCODINGS, Examples, FeatureTypes, RecordError

if TYPE_CHECKING:
    from headrace.storage import ObjectInfo, Store

NAME: Final = 'tfrecord'
_log = logger_of(__name__)
_NAMES: Final = re.compile(
    r'\.(tfrecords?|tfrec)(-\d+-of-\d+)?(\.(gz|zlib|zst|zstd|bz2))?$|(^|/)[^./]+-\d+-of-\d+$', re.IGNORECASE
)
"""Such as ``a.tfrecord-00000-of-01024``, and ``train-00000-of-01024`` of ImageNet."""
_RAW: Final = 'record'  # The column of whole records.
_HEAD: Final = 12
_FRAME: Final = 16  # Bytes of a record beside its data: the head, and the checksum behind them.
_BLOCK: Final = 2 << 20
_FIRST: Final = 1 << 16
_MOST: Final = 4096  # Records of a block.
_MAX_RECORD: Final = 1 << 30
_SIZE: Final = struct.Struct('<Q')
_HEAD_NUMBERS: Final = struct.Struct('<QI')
_HOW_RAW: Final = "To read whole records as bytes, give `format_options={'raw': True}`."
_LARGE: Final = 10 * 10**9
_RATE: Final = 2 * 10**8  # Bytes a second of indexing, about.
_Array: TypeAlias = 'np.ndarray[Any, np.dtype[Any]]'


def find(objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    return [info for info in objects if _NAMES.search(info.key) and not is_hidden(info.key)]


def index(
    store: Store,
    objects: Sequence[ObjectInfo],
    *,
    columns: Collection[str] | None,
    allow_unsafe_types: bool,
    features: Mapping[str, str] | None = None,
    raw: bool = False,
) -> TfRecordSource:
    """See `SourceFormat.index`. No column runs code.

    `features`: the encodings of the features to read; by default all features are read, and their types are found.
    `raw`: whether records are read as they are, into the column ``record``.
    """
    del allow_unsafe_types
    _crc32c()
    if not isinstance(raw, bool) or (raw and features is not None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StreamError(
            f'`raw` of TFRecord is true or false, and excludes `features`, but is {raw!r:.80}. Give one of them.'
        )
    given = {_RAW: 'bytes'} if raw else None if features is None else _checked(features)
    singles: list[str] = []
    if given is None:
        types = FeatureTypes()
        parts = list(_read_all(store, objects, types))
        encodings, singles = types.encodings(), types.singles()
        if parts and not encodings:
            raise FormatError(
                f'A record is a tf.train.Example, whose features are columns, but all records of {store.url} have '
                f'none, such as the first one of {parts[0].key}. {_HOW_RAW}'
            )
        chosen = choose_columns(list(encodings), columns, source='the TFRecord data')
        _require_encodings(encodings, chosen, store.url)
        available = encodings
        read = {name: encodings[name] or '' for name in chosen}
    else:
        parts = [part for heads in in_parallel(lambda info: _read_heads(store, info), objects) for part in heads]
        chosen = choose_columns(list(given), columns, source='`record`' if raw else '`features`')
        read = {name: given[name] for name in chosen}
        available = given if raw or not parts else {**given, **_try(store, objects, parts[0].key, read)}
    dropped = [name for name in available if name not in read]
    return TfRecordSource(read, PartTable.of(parts), raw, singles, dropped)


def load(data: bytes) -> TfRecordSource:
    columns, parts, more = load_index(NAME, data)
    return TfRecordSource(columns, parts, more['raw'], more['singles'])


@dataclass(frozen=True, slots=True)
class TfRecordSource:
    columns: Mapping[str, str]
    parts: Sequence[Part]
    raw: bool
    singles: Collection[str]  # Features with one value at most in each record.
    dropped: Sequence[str] = ()

    format = NAME
    meanings = MappingProxyType({})

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any] | _Array]]:
        described = self.parts[part]
        rows = 0
        try:
            if described.ranges:
                window: Window = MemoryWindow(data, described.key)
            else:
                _, window = _unpacked(
                    (bytes(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)), described.key
                )
            for block in _blocks(window, described.key, described.ranges[0][0] if described.ranges else 0):
                rows += len(block.starts)
                yield self._columns(block)
        except FormatError as error:
            raise ShardError(str(error)) from error
        if rows != described.rows:
            raise ShardError(
                f'{described.key} (part {part}) has {rows} records, but its index says {described.rows}. Restore it.'
            )

    def _columns(self, block: _Block) -> Mapping[str, Sequence[Any] | _Array]:
        if self.raw:
            return {_RAW: block.records()}
        with block.naming_records():
            examples = block.examples(self.columns)
            return {
                name: examples.column(name, encoding, is_single=name in self.singles)
                for name, encoding in self.columns.items()
            }

    def to_bytes(self) -> bytes:
        return dump_index(NAME, self.columns, self.parts, {'raw': self.raw, 'singles': list(self.singles)})


# Records


@dataclass(frozen=True, slots=True)
class _Block:
    """Whole records, one after another."""

    data: bytes
    at: int  # Where the bytes are in the object, or in its content.
    starts: _Array  # int64[records], where the data of each record begin in the bytes.
    stops: _Array
    where: str

    def records(self) -> list[bytes]:
        return [self.data[a:b] for a, b in zip(self.starts.tolist(), self.stops.tolist(), strict=True)]

    def examples(self, wanted: Collection[str] | None = None) -> Examples:
        return Examples(self.data, self.starts, self.stops, wanted)

    @contextmanager
    def naming_records(self) -> Generator[None]:
        """Raise FormatError, with the place of the record, for RecordError."""
        try:
            yield
        except RecordError as error:
            place = self.at + int(self.starts[error.record]) - _HEAD
            raise FormatError(f'The record at byte {place} of {self.where} {error.reason}. {_HOW_RAW}') from None


def _blocks(window: Window, where: str, begin: int = 0, most: int = _BLOCK) -> Iterator[_Block]:
    """The records of a window, whose checksums are checked.

    `where`: the object, for messages.
    `begin`: offset of the window in the object.
    `most`: bytes of a block, or one record.
    """
    at, size = 0, most
    while data := bytes(window.take(at, size)):
        begins, ends, length = _frames(data, begin + at, where)
        if len(begins):
            yield _Block(data, begin + at, begins + _HEAD, ends - 4, where)
            at, size = at + int(ends[-1]), most
        elif len(data) < size:
            raise _cut(begin + at, where)
        else:
            size = _FRAME + length


def _frames(data: bytes, at: int, where: str) -> tuple[_Array, _Array, int]:
    """Where the whole records begin and end in the data, and the size of the next one.

    `at`: where the data are in the object.
    """
    begins, ends, end, next_size = list[int](), list[int](), 0, 0
    while end + _HEAD <= len(data) and len(begins) < _MOST:
        (next_size,) = _SIZE.unpack_from(data, end)
        if next_size > len(data) - end - _FRAME:
            break
        begins.append(end)
        end += _FRAME + next_size
        ends.append(end)
    heads = np.array([*begins, end] if end + _HEAD <= len(data) else begins, np.int64)
    bad = _bad(data, heads, heads + 8)
    if len(bad):
        raise _bad_head(at + int(heads[bad[0]]), where)
    _require_size(next_size, at + end, where)
    bounds = np.array(begins, np.int64), np.array(ends, np.int64)
    bad = _bad(data, bounds[0] + _HEAD, bounds[1] - 4)
    if len(bad):
        raise FormatError(
            f'The record at byte {at + begins[bad[0]]} of {where} is damaged: the checksum of its data is wrong. '
            f'Restore or write it again.'
        )
    return *bounds, next_size


def _bad(data: bytes, starts: _Array, stops: _Array) -> _Array:
    """The numbers of the pieces of data whose masked CRC-32C is not that behind them."""
    pieces = [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    checksums = np.fromiter(map(_crc32c(), pieces), np.uint32, len(pieces))
    stored = np.frombuffer(data, np.uint8)[stops[:, None] + np.arange(4)].view('<u4')[:, 0]
    return np.flatnonzero(_masked(checksums) != stored)


def _masked(checksum: _Array | int) -> Any:
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _bad_head(at: int, where: str) -> FormatError:
    is_none = '' if at else ' It is no TFRecord, or is compressed in another way than gzip, zlib, zstd and bzip2.'
    return FormatError(
        f'The record at byte {at} of {where} is damaged: the checksum of its size is wrong.{is_none} Restore or write '
        f'it again.'
    )


def _require_size(size: int, at: int, where: str) -> None:
    if size > _MAX_RECORD:
        raise FormatError(
            f'A record has at most {_MAX_RECORD} bytes, but that at byte {at} of {where} has {size}. Write it in '
            f'several ones.'
        )


def _cut(at: int, where: str) -> FormatError:
    return FormatError(f'{where} ends within the record at byte {at}. Restore or write it again.')


def _crc32c() -> Callable[[bytes], int]:
    return import_optional('google_crc32c', 'TFRecord needs google-crc32c', 'tfrecord').value


def _algorithm(first: bytes, key: str) -> str | None:
    """The compression of an object, by its first bytes. A head with its checksum tells a record."""
    if len(first) >= _HEAD and not len(_bad(first, np.array([0]), np.array([8]))):
        return None
    if first[:1] == b'x' and int.from_bytes(first[:2], 'big') % 31 == 0:
        return 'zlib'
    return compression_of(first, key)


def _unpacked(chunks: Iterator[bytes], key: str) -> tuple[str | None, StreamWindow]:
    """The compression of an object, and its content."""
    first = next(chunks, b'')
    algorithm = _algorithm(first, key)
    return algorithm, StreamWindow(unpack(algorithm, chain([first], chunks), key), key)


# Indexing


def _read_all(store: Store, objects: Sequence[ObjectInfo], types: FeatureTypes) -> Iterator[Part]:
    """The parts of all objects, whose records are all read and added to the types."""
    size = sum(info.size for info in objects)
    if size > _LARGE:
        _log.warning(
            '%d GB of TFRecord are indexed, once: all records are read, which takes about %d minutes. Name the types '
            'of the features, `format_options={"features": {"image": "bytes"}}`, to read the heads of records only.',
            size // 10**9,
            size // _RATE // 60,
        )
    for info, pieces in read_whole(store, objects):
        algorithm, window = _unpacked(pieces, info.key)
        places = _places(_blocks(window, info.key), types)
        yield from parts_of_records(info.key, places, is_whole=algorithm is not None)


def _places(blocks: Iterator[_Block], types: FeatureTypes | None = None) -> Iterator[tuple[int, int]]:
    """Where each record begins and ends in its object."""
    for block in blocks:
        if types is not None:
            with block.naming_records():
                types.add(block.examples())
        begins, ends = block.starts + (block.at - _HEAD), block.stops + (block.at + 4)
        yield from zip(begins.tolist(), ends.tolist(), strict=True)


def _read_heads(store: Store, info: ObjectInfo) -> list[Part]:
    """The parts of an object, of which the heads of records are read. A compressed one is read whole."""
    window = RangedWindow(store, info)
    algorithm = _algorithm(bytes(window.take(0, _HEAD)), info.key)
    places = _heads(window, info)
    if algorithm is not None:
        places = _places(_blocks(_unpacked(stream_object(store, info), info.key)[1], info.key))
    return list(parts_of_records(info.key, places, is_whole=algorithm is not None))


def _heads(window: RangedWindow, info: ObjectInfo) -> Iterator[tuple[int, int]]:
    at, crc32c = 0, _crc32c()
    while head := bytes(window.take(at, _HEAD)):
        if len(head) < _HEAD:
            raise _cut(at, info.key)
        size, checksum = _HEAD_NUMBERS.unpack(head)
        if _masked(crc32c(head[:8])) != checksum:
            raise _bad_head(at, info.key)
        _require_size(size, at, info.key)
        end = at + _FRAME + size
        if end > info.size:
            raise _cut(at, info.key)
        yield at, end
        at = end


def _try(store: Store, objects: Sequence[ObjectInfo], key: str, columns: Mapping[str, str]) -> Mapping[str, str]:
    """The features of the first records of an object, in which those of the columns have their types."""
    info = next(info for info in objects if info.key == key)
    _, window = _unpacked(stream_object(store, info), key)
    block = next(_blocks(window, key, most=_FIRST))
    with block.naming_records():
        examples = block.examples()
        for name, encoding in columns.items():
            examples.column(name, encoding, is_single=False)
    return dict.fromkeys(examples.features, '')


def _checked(features: Mapping[str, str]) -> dict[str, str]:
    """`features`, checked."""
    if not isinstance(features, Mapping) or not features:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StreamError(
            f'`features` of TFRecord gives names of features their encodings, such as {{"image": "bytes", "label": '
            f'"int64"}}, but is {features!r:.200}.'
        )
    for name, encoding in features.items():
        base = ':'.join(str(encoding).split(':')[:2])
        if not isinstance(name, str) or base not in ENCODINGS or not is_mds_encoding(encoding):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StreamError(
                f'A feature of `features` has one of the encodings {", ".join(ENCODINGS)}, where arrays may have a '
                f'shape, such as ndarray:int64:2,3, but {name!r:.100} has {encoding!r:.100}.'
            )
    return dict(features)


def _require_encodings(encodings: Mapping[str, str | None], chosen: Sequence[str], url: str) -> None:
    for name in chosen:
        if encodings[name] is None:
            readable = [other for other, encoding in encodings.items() if encoding is not None]
            raise FormatError(
                f'A feature of bytes has one value in each record, or text, but {name!r} of {url} has none or several '
                f'values in some records, and bytes other than text. Read the others with columns={readable[:20]}, or '
                f'say what it is: `format_options={{"features": {{{name!r}: "jpeg_array", ...}}}}`.'
            )
