"""WebDataset's tars: a run of members with one key is a sample, and each extension is a column.

The key is a member's path up to the first dot of its last name, and the extension is the rest, in lower case. Members
without an extension, and those whose path begins like ``__meta__``, are left out, as WebDataset does.

The headers lie among the data, so indexing reads a tar once. Members above some megabytes are skipped. A part is a run
of samples of 64 MiB, and is parsed again when it is read. A compressed tar is one part.

Headers are those of POSIX ustar, with GNU's long names and large numbers and the extended headers of pax. Member names
are text only: nothing is ever written under one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headrace.errors import FormatError, ShardError
from headrace.format.compression import CHUNK
from headrace.sources.formats import choose_columns, is_hidden
from headrace.sources.npy import parse_npy
from headrace.sources.protocol import Part
from headrace.sources.ranges import (
    MAX_UNPACKED,
    MemoryWindow,
    RangedWindow,
    StreamWindow,
    Window,
    compression_of,
    in_parallel,
    stream_object,
    unpack,
    unpacked,
)
from headrace.sources.source_bytes import PartTable, dump_index, load_index
from headrace.storage import ObjectInfo, Store

NAME: Final = 'webdataset'
_KEY: Final = '__key__'
_PART: Final = 64 << 20
_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 16 << 20
_MAX_COLUMNS: Final = 1000
_NAME: Final = re.compile(r'((?:.*/)?[^./][^./]*)\.([^/]*)', re.DOTALL)
_META: Final = re.compile(r'__[^/]*__(/|$)')
_ENDINGS: Final = re.compile(r'\.(tar|tgz|tar\.(gz|zst|zstd|bz2))$', re.IGNORECASE)
_ENCODINGS: Final = {
    **dict.fromkeys(('jpg', 'jpeg'), 'jpeg'),
    'png': 'png',
    **dict.fromkeys(('txt', 'text', 'transcript'), 'str'),
    **dict.fromkeys(('cls', 'cls2', 'class', 'count', 'index', 'inx', 'id'), 'int'),
    **dict.fromkeys(('json', 'jsn'), 'json'),
    'npy': 'ndarray',
}
"""By the last part of an extension; others are bytes."""


class _Sample:
    """A run of members with one key."""

    __slots__ = ('end', 'key', 'members', 'start')

    def __init__(self, key: str, start: int) -> None:
        self.key, self.start, self.end = key, start, start
        self.members: dict[str, tuple[Member, memoryview | bytes]] = {}
        """By extension: the member, and its bytes if they are wanted."""


def find(objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    return [info for info in objects if _ENDINGS.search(info.key) and not is_hidden(info.key)]


def index(
    store: Store, objects: Sequence[ObjectInfo], *, columns: Collection[str] | None, allow_unsafe_types: bool
) -> TarSource:
    """See `SourceFormat.index`. No column runs code: pickles stay bytes."""
    del allow_unsafe_types
    scans = in_parallel(lambda info: _Scan(store, info, columns), objects)
    parts = PartTable.of(part for scan in scans for part in scan.parts)
    available = [_KEY, *sorted({name for scan in scans for name in scan.seen})]
    chosen = _columns(scans, available, columns)
    return TarSource(chosen, parts, [name for name in available if name not in chosen])


def load(data: bytes) -> TarSource:
    columns, parts, _ = load_index(NAME, data)
    return TarSource(columns, parts)


@dataclass(frozen=True, slots=True)
class TarSource:
    columns: Mapping[str, str]
    parts: Sequence[Part]
    dropped: Sequence[str] = ()

    format = NAME
    meanings = MappingProxyType({})

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any]]]:
        described = self.parts[part]
        where = f'{described.key} (part {part})'
        window: Window = MemoryWindow(data, where)
        if not described.ranges:
            window = StreamWindow(unpacked(_chunks(data), described.key, where)[1], where)
        try:
            yield from self._batches(window, described, where)
        except FormatError as error:
            raise ShardError(str(error)) from error

    def _batches(self, window: Window, part: Part, where: str) -> Iterator[Mapping[str, Sequence[Any]]]:
        batch: dict[str, list[Any]] = {name: [] for name in self.columns}
        rows = size = 0
        for sample in _read_samples(window, where, self.columns, has_end=not part.ranges):
            for name, encoding in self.columns.items():
                if name == _KEY:
                    batch[name].append(sample.key)
                elif name in sample.members:
                    member, data = sample.members[name]
                    batch[name].append(_value(encoding, bytes(data), f'{member.name!r} in {part.key}'))
                    size += member.size
                else:
                    raise ShardError(f'Sample {sample.key!r} in {where} lacks {name!r}, against the index.')
            rows += 1
            if rows % _BATCH_ROWS == 0 or size >= _BATCH_BYTES:
                yield batch
                batch, size = {name: [] for name in self.columns}, 0
        if any(batch.values()):
            yield batch
        if rows != part.rows:
            raise ShardError(f'{where} has {rows} samples, but the index says {part.rows}. Restore or write it again.')

    def to_bytes(self) -> bytes:
        return dump_index(NAME, self.columns, self.parts, {})


def _chunks(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield bytes(data[start : start + CHUNK])


def _read_samples(window: Window, where: str, wanted: Collection[str], *, has_end: bool) -> Iterator[_Sample]:
    """The samples of a tar, with the bytes of the wanted columns."""
    sample: _Sample | None = None
    for member in read_members(window, where, has_end=has_end):
        match = _NAME.fullmatch(member.name)
        if match is None or _META.match(member.name):
            continue
        key, extension = match[1], match[2].lower()
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = _Sample(key, member.start)
        elif extension in sample.members:
            raise FormatError(
                f'Extensions of a sample differ, but sample {key!r} in {where} has {extension!r} twice. Give samples '
                f'that follow each other different names.'
            )
        elif len(sample.members) == _MAX_COLUMNS:
            raise FormatError(
                f'A sample has at most {_MAX_COLUMNS} extensions, but sample {key!r} in {where} has more. Name the '
                f'members of different samples differently up to the first dot.'
            )
        data: memoryview | bytes = b''
        if extension in wanted:
            data = window.take(member.data, member.size)
            if len(data) < member.size:
                raise FormatError(f'{where} ends within {member.name!r}. Restore or write it again.')
        sample.members[extension] = member, data
        sample.end = member.end
    if sample is not None:
        yield sample


class _Scan:
    """The parts of one tar, and the extensions of its samples."""

    def __init__(self, store: Store, info: ObjectInfo, columns: Collection[str] | None) -> None:
        self.parts: list[Part] = []
        self.seen: set[str] = set()
        self.lacking: dict[str, str] = {}  # An example of a sample for each extension that some lack.
        self.first = ''
        window: Window = RangedWindow(store, info)
        algorithm = compression_of(bytes(window.take(0, _BLOCK)), info.key)
        if algorithm is not None:
            window = StreamWindow(unpack(algorithm, stream_object(store, info), info.key), info.key)
        last: Collection[str] = ()
        start = end = rows = size = 0

        def finish() -> None:
            ranges = () if algorithm else ((start, end - start),)
            self.parts.append(Part(info.key, ranges, rows, size))

        for sample in _read_samples(window, info.key, (), has_end=True):
            if sample.members.keys() != last:
                last = sample.members.keys()
                self._compare(f'{sample.key!r} in {info.key}', last)
            if sample.end - sample.start > MAX_UNPACKED:
                raise FormatError(f'A sample has less than 4 GiB, but {sample.key!r} in {info.key} has more. Split it.')
            if rows and sample.end - start > _PART and algorithm is None:
                finish()
                rows = size = 0
            start = start if rows else sample.start
            end = sample.end
            rows += 1
            size += len(sample.key) + sum(
                member.size for name, (member, _) in sample.members.items() if columns is None or name in columns
            )
        if algorithm is None and end > info.size:
            raise FormatError(
                f'{info.key} ends within its last member, at byte {info.size}. Restore or write it again.'
            )
        if rows:
            finish()

    def _compare(self, sample: str, extensions: Collection[str]) -> None:
        """Take note of a sample whose extensions differ from those of the sample before it."""
        self.first = self.first or sample
        for name in self.seen.difference(extensions):
            self.lacking.setdefault(name, sample)
        new = set(extensions) - self.seen
        if self.first != sample:
            for name in new:
                self.lacking.setdefault(name, self.first)
        self.seen |= new
        if len(self.seen) > _MAX_COLUMNS:
            raise FormatError(
                f'Samples have at most {_MAX_COLUMNS} extensions, but those up to {sample} have more. Name members '
                f'key.extension.'
            )


def _columns(scans: Sequence[_Scan], available: Sequence[str], columns: Collection[str] | None) -> dict[str, str]:
    """The columns to read of those that are known, which each sample has."""
    chosen = choose_columns(available, columns, source='the samples of the tars')
    lacking: dict[str, str] = {}
    for scan in scans:
        for name in available[1:] if scan.first else ():
            sample = scan.lacking.get(name) if name in scan.seen else scan.first
            if sample is not None:
                lacking.setdefault(name, sample)
    for name in chosen:
        if name in lacking:
            common = [other for other in available if other not in lacking]
            raise FormatError(
                f'Each sample has every column, but sample {lacking[name]} has no {name!r}. Read the columns that all '
                f'samples have, with columns={common[:20]}, or write the tars again.'
            )
    return {name: 'str' if name == _KEY else _ENCODINGS.get(name.rpartition('.')[2], 'bytes') for name in chosen}


def _value(encoding: str, data: bytes, where: str) -> Any:
    """A member as its column stores it. Text, images and JSON are stored unread."""
    if encoding == 'int':
        try:
            number = int(data)
        except ValueError:
            number = None
        if number is None or not -(1 << 63) <= number < 1 << 63:
            raise ShardError(
                f'{where} is an integer of 64 bits, as its extension says, but holds {data[:40]!r}. Leave its column '
                f'out with `columns`, or give it the extension txt.'
            )
        return number
    return parse_npy(data, where) if encoding == 'ndarray' else data


_BLOCK: Final = 512
_MAX_EXTENSION: Final = 1 << 20  # Bytes of a long name or of an extended header.
_REGULAR: Final = b'0', b'\0', b'7'
_EXTENDED: Final = b'x', b'X'
_FOLDER: Final = b'5'
_LEFT_OUT: Final = _FOLDER, b'D', b'V'  # Folders, lists of their names, and the label of the tar.
_REFUSED: Final = {
    b'1': ('a hard link', ' with `tar --hard-dereference`'),
    b'2': ('a symbolic link', ' with `tar --dereference`'),
    b'S': ('a sparse file', ' without `--sparse`'),
}
"""Members that do not hold the content of a file, and how to write them with it."""


class Member(NamedTuple):
    name: str
    start: int  # Offset of its first header.
    data: int  # Offset of its bytes.
    size: int
    end: int  # Offset behind its last block.


def read_members(window: Window, where: str, *, has_end: bool) -> Iterator[Member]:
    """The files of a tar, or of several that were joined, in order. Folders are left out.

    `has_end`: whether the window has the end of the tar, and not only a run of its members. FormatError: the bytes are
    not a tar, or end too early; or a member has no content, such as a link.
    """
    at = start = 0
    name: str | None = None
    size: int | None = None
    is_sparse = is_ended = False
    while block := bytes(window.take(at, _BLOCK)):
        if not any(block):  # the end, of which joined tars have several
            if start != at:
                raise FormatError(f'{where} ends after the extended header at byte {start}. Restore or write it again.')
            at = start = at + len(block)
            is_ended = True
            continue
        is_ended = False
        head = _Header(block, at, where)
        if head.kind in {b'L', b'K', b'g', *_EXTENDED}:
            if head.size > _MAX_EXTENSION:
                raise FormatError(
                    f'{where} announces {head.size} bytes of extended header at byte {at}, but {_MAX_EXTENSION} is '
                    f'the most that is read. Write it again with shorter names.'
                )
            data = bytes(window.take(at + _BLOCK, head.size))
            if len(data) < head.size:
                raise _truncated(where, at)
            if head.kind == b'L':
                name = _text(data.partition(b'\0')[0], at, where)
            elif head.kind in _EXTENDED:
                for key, value in _pax_records(data, at, where):
                    if key == b'path':
                        name = _text(value, at, where)
                    elif key == b'size':
                        size = _decimal(value, at, where)
                    elif key.startswith(b'GNU.sparse.'):
                        is_sparse = True
            at += _BLOCK + _padded(head.size)
            continue
        full_name = head.name if name is None else name
        kind = b'S' if is_sparse else head.kind
        if kind not in _REGULAR and kind not in _LEFT_OUT:
            what, how = _REFUSED.get(kind, (f'of kind {kind!r}', ' without it'))
            raise FormatError(
                f'A member of a tar holds its content, but {full_name!r} at byte {start} of {where} is {what}. Write '
                f'the tar again{how}.'
            )
        length = 0 if kind == _FOLDER else head.size if size is None else size
        data_start = at + _BLOCK
        at = data_start + _padded(length)
        if kind in _REGULAR and not full_name.endswith('/'):
            yield Member(full_name, start, data_start, length, at)
        name = size = None
        start = at
    if has_end and not is_ended:
        raise FormatError(
            f'A tar ends with a block of zeros, but {where} ends without one at byte {at}, so members may be missing. '
            f'Restore or write it again. If it is whole, add the end: `truncate --size=+1024 FILE`.'
        )


class _Header:
    def __init__(self, block: bytes, at: int, where: str) -> None:
        if len(block) < _BLOCK:
            raise _truncated(where, at)
        field = block[148:156]
        stored = _number(field, at, where)
        # The checksum is the sum of the bytes, its own counted as spaces. Adler-32 has that sum, plus 1, modulo 65,521.
        difference = stored - 8 * 32 + sum(field) - ((zlib.adler32(block) & 0xFFFF) - 1)
        if difference % 65521 and stored != _signed_sum(block):
            raise FormatError(
                f'{where} has no valid tar header at byte {at}: its checksum is wrong. Restore or write it again.'
            )
        self.kind = block[156:157]
        self.size = _number(block[124:136], at, where)
        name = block[:100].partition(b'\0')[0]
        prefix = block[345:500].partition(b'\0')[0] if block[257:263] == b'ustar\0' else b''
        self.name = _text(prefix + b'/' + name if prefix else name, at, where)


def _signed_sum(block: bytes) -> int:
    """The checksum as some old programs made it, of signed bytes."""
    counted = block[:148] + b' ' * 8 + block[156:]
    return sum(counted) - 256 * sum(byte >= 128 for byte in counted)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _number(field: bytes, at: int, where: str) -> int:
    """A number in octal digits, or in GNU's base 256."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], 'big')
    digits = field.partition(b'\0')[0].strip()
    if not digits:
        return 0
    try:
        return int(digits if digits.isdigit() else b'', 8)
    except ValueError:
        raise FormatError(
            f'{where} has no number in the header at byte {at}, but {field!r}. Restore or write it again.'
        ) from None


def _decimal(value: bytes, at: int, where: str) -> int:
    if not value.isdigit() or len(value) > 18:
        raise FormatError(
            f'{where} has no size in the header at byte {at}, but {value[:40]!r}. Restore or write it again.'
        )
    return int(value)


def _text(name: bytes, at: int, where: str) -> str:
    try:
        return name.decode('utf-8')
    except UnicodeDecodeError:
        raise FormatError(
            f'Names in a tar are UTF-8, but that at byte {at} of {where} is {name[:80]!r}. Write it with another name.'
        ) from None


def _pax_records(data: bytes, at: int, where: str) -> Iterator[tuple[bytes, bytes]]:
    """The records of an extended header: decimal length, space, key=value, newline."""
    rest = data.rstrip(b'\0')
    while rest:
        digits, _, _ = rest.partition(b' ')
        length = int(digits) if digits.isdigit() and len(digits) <= 8 else 0
        record = rest[len(digits) + 1 : length]
        if length > len(rest) or not record.endswith(b'\n') or b'=' not in record:
            raise FormatError(f'{where} has a damaged extended header at byte {at}. Restore or write it again.')
        key, _, value = record[:-1].partition(b'=')
        yield key, value
        rest = rest[length:]


def _truncated(where: str, at: int) -> FormatError:
    return FormatError(f'{where} ends within the header at byte {at}. Restore or write it again.')
