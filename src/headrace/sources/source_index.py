"""The index of a dataset of another format: its objects and its `Source`, as a file of the cache folder.

Part 3 of the object ``data/a.parquet`` is the shard ``data/a.parquet.3.mds`` in the cache folder. The bytes that it is
made from are ``data/a.parquet.3.part``. Names of shards with some columns only have a hash of the columns, too, so
several selections of columns share a folder. `unpack_part` makes the shard of a part batch by batch.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import mmap
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from headrace.errors import FormatError, HeadraceError, ShardError
from headrace.errors.mapping import panics_as
from headrace.format import FileInfo, MDSEncoder, Schema, ShardFile, ShardInfo, ShardTable
from headrace.format.encodings.registry import get_mds_encoded_size
from headrace.format.entries import is_utf8
from headrace.format.table import Kind, TableBuilder
from headrace.sources.formats import format_of
from headrace.sources.protocol import Part, Source
from headrace.sources.source_bytes import pack_source, unpack_source
from headrace.storage import ObjectInfo

_PACKED: Final = re.compile(r'(.*)\.(\d+)(?:-[0-9a-f]{8})?\.part', re.DOTALL)


def index_name(columns: Collection[str] | None, options: Mapping[str, Any]) -> str:
    return f'source{_tag(columns, options)}.index'


def names_of_classes(source: Source) -> dict[str, list[str]]:
    """The names of the classes of each column that is read and has some, by number. Arrow and Parquet know them."""
    class_names: dict[str, list[str]] = getattr(source, 'class_names', {})
    return {name: names for name, names in class_names.items() if name in source.columns}


def _tag(columns: Collection[str] | None, options: Mapping[str, Any]) -> str:
    if columns is None and not options:
        return ''
    chosen: Any = None if columns is None else sorted(columns)
    if options:
        chosen = [chosen, dict(options)]
    return '-' + hashlib.blake2b(json.dumps(chosen, sort_keys=True).encode(), digest_size=4).hexdigest()


class SourceIndex:
    """See the module; `objects` are all that parts are read from, `columns` those that were chosen (None: all)."""

    def __init__(
        self,
        source: Source,
        objects: Sequence[ObjectInfo],
        columns: Collection[str] | None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = source
        self.objects = {info.key: info for info in objects}
        self._columns = None if columns is None else sorted(columns)
        self._options = dict(options or {})

    def __reduce__(self) -> tuple[Any, ...]:
        reader = format_of(self.source.format)
        # A process that is spawned imports the module that registers the format.
        module = reader.__name__ if isinstance(reader, ModuleType) else type(reader).__module__
        return _restored, (module, self.to_bytes())

    def to_bytes(self) -> bytes:
        infos = self.objects.values()
        settings = {
            'format': self.source.format,
            'columns': self._columns,
            'options': self._options,
            'keys': list(self.objects),
            'etags': [info.etag for info in infos],
            'versions': [info.version for info in infos],
        }
        sizes = np.array([info.size for info in infos], np.int64)
        return pack_source(settings, {'sizes': sizes}, [self.source.to_bytes()])

    @classmethod
    def from_bytes(cls, data: bytes) -> SourceIndex:
        index = unpack_source(data)
        try:
            settings, sizes = index.settings, index.arrays['sizes'].tolist()
            infos = zip(settings['keys'], sizes, settings['etags'], settings['versions'], strict=True)
            source = format_of(settings['format']).load(bytes(index.pieces[0]))
            return cls(source, [ObjectInfo(*info) for info in infos], settings['columns'], settings.get('options'))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f'The cached index of a source is of another version of headrace, or damaged: {error!r}. Delete it: it '
                f'is made again.'
            ) from error

    @property
    def fingerprint(self) -> str:
        """The data's identity in checkpoints: names and sizes of the objects or the source's own, and rows of parts.

        It does not depend on the store, on the folder, or on the columns that are read.
        """
        objects: Any = [(key.rpartition('/')[2], info.size) for key, info in self.objects.items()]
        rows = [part.rows for part in self.source.parts]
        identity, snapshot = getattr(self.source, 'identity', ''), getattr(self.source, 'snapshot', '')
        identified: list[Any] = [self.source.format, identity or objects, rows]
        if self._options and not (snapshot or identity):
            identified.append(self._options)
        digest = hashlib.blake2b(json.dumps(identified, sort_keys=True).encode(), digest_size=8).hexdigest()
        return f'{digest} ({snapshot})' if snapshot else digest

    @cached_property
    def _numbers(self) -> tuple[list[int], dict[str, list[int]]]:
        """The number of each part among those of its object, and the parts of each object."""
        parts_of: dict[str, list[int]] = {}
        numbers: list[int] = []
        for number, part in enumerate(self.source.parts):
            same = parts_of.setdefault(part.key, [])
            numbers.append(len(same))
            same.append(number)
        return numbers, parts_of

    def shards(self) -> ShardTable:
        """The parts as shards, whose sizes are estimates."""
        columns = self.source.columns
        names = tuple(sorted(columns))
        encodings = tuple(columns[name] for name in names)
        sizes = tuple(get_mds_encoded_size(encoding) for encoding in encodings)
        meanings = tuple(self.source.meanings.get(name, '') for name in names)
        schema = Schema('mds', names, encodings, sizes, meanings=meanings)
        made_from, numbers, tag = self.source.format, self._numbers[0], _tag(self._columns, self._options)
        builder = TableBuilder()
        kind: Kind | None = None
        rows: list[tuple[Any, ...]] = []
        for number, part in zip(numbers, self.source.parts, strict=True):
            if not is_utf8(part.key):
                raise FormatError(
                    f'The name of a file is UTF-8, but {part.key!r} is not. Rename it, or leave it out with a glob in '
                    f'`remote`.'
                )
            raw, packed = f'{part.key}.{number}{tag}.mds', f'{part.key}.{number}{tag}.part'
            size = sum(size for _, _, size in self._spans(part))
            if kind is None:
                file = ShardFile(FileInfo(raw, part.size, {}), FileInfo(packed, size, {}))
                kind = Kind.of(ShardInfo('mds', part.rows, (file,), None, (), None, schema, made_from))
            rows.append((part.rows, raw, packed, part.size, size))
        if kind is not None:
            builder.add_rows(kind, rows)
        return builder.finish()

    def _spans(self, part: Part) -> list[tuple[str, int, int]]:
        ranges = part.ranges or ((0, self.objects[part.key].size),)
        return [*part.beside, *((part.key, offset, size) for offset, size in ranges)]

    def ranges(self, packed: str) -> list[tuple[ObjectInfo, int, int]]:
        """Object, offset and size of each range of a packed part. The last is of the object that names it."""
        match = _PACKED.fullmatch(packed)
        parts = [] if match is None else self._numbers[1].get(match[1], [])
        if match is None or int(match[2]) >= len(parts):
            raise FormatError(f'{packed!r:.200} is not the name of a part of this dataset.')
        spans = self._spans(self.source.parts[parts[int(match[2])]])
        return [(self.objects[key], offset, size) for key, offset, size in spans]

    def unpack(self, shard: int, packed: Path, raw: Path, most: int) -> None:
        """Make a shard of its packed part; see `unpack_part`. The limit is an estimate, and is not kept."""
        del most
        unpack_part(self.source, shard, packed, raw)

    def unproven(self, old: SourceIndex | None) -> Iterator[str]:
        """Names of the cached files whose content may differ between an old index (None: unknown) and this one."""
        shards = self.shards()
        if old is None:
            yield from (
                stored.basename for info in shards for file in info.files for stored in (file.raw, file.zip) if stored
            )
            return
        before = old.shards()
        marks, old_marks = (getattr(source, 'marks', {}) for source in (self.source, old.source))
        same_columns = dict(self.source.columns) == dict(old.source.columns) and self.source.format == old.source.format
        for number, info in enumerate(shards):
            (file,) = info.files
            was = before.find(file.raw.basename)
            part = self.source.parts[number]
            is_same = (
                same_columns
                and was is not None
                and old.source.parts[was] == part
                and marks.get(part.key) == old_marks.get(part.key)
                and all(_is_same(old.objects[key], self.objects[key]) for key, _, _ in self._spans(part))
            )
            if not is_same and file.zip is not None:
                yield from (file.raw.basename, file.zip.basename)
        for info in before:
            (file,) = info.files
            if shards.find(file.raw.basename) is None and file.zip is not None:
                yield from (file.raw.basename, file.zip.basename)


def _restored(module: str, data: bytes) -> SourceIndex:
    importlib.import_module(module)
    return SourceIndex.from_bytes(data)


def _is_same(first: ObjectInfo, other: ObjectInfo) -> bool:
    """Whether two listings surely tell of one version of an object."""
    versions = first.version or first.etag, other.version or other.etag
    return first.size == other.size and versions[0] == versions[1] != ''


_LARGEST: Final = (1 << 32) - 1  # The last offset of an MDS shard.


def size_at(rows: int) -> int:
    """Where an MDS shard of ``rows`` rows holds its size, as a little-endian u32: the last offset of its table."""
    return 4 + 4 * rows


def unpack_part(source: Source, part: int, packed: Path, raw: Path) -> None:
    """Write the rows of a part as an MDS shard.

    `packed`: the bytes of the part's ranges, one after another.
    `raw`: the file to write; replaced if it exists.
    """
    described = source.parts[part]
    rows, where = described.rows, f'Part {part} of {source.format} data, in {described.key},'
    if 8 + 4 * rows > _LARGEST:
        raise _too_large(where)
    encoder = MDSEncoder(source.columns, size_limit=None, check_bytes=False)
    offsets: list[np.ndarray[Any, Any]] = []  # of the rows that are there: an index may announce any number
    first, at = 0, 0
    raw.unlink(missing_ok=True)  # it may be a link
    with raw.open('xb') as out:
        for batch in batches_of(source, part, _mapped(packed)):
            for content in _encoded(encoder, batch, where):
                count = int.from_bytes(content[:4], 'little')
                table = np.frombuffer(content, '<u4', count + 1, 4).astype(np.int64)
                size = int(table[-1] - table[0])
                if first + count > rows:
                    raise ShardError(f'{where} has {rows} rows in its index, but more in its bytes. Restore the file.')
                if not first:
                    config = content[8 + 4 * count : table[0]]
                    at = 8 + 4 * rows + len(config)
                    offsets.append(np.array([at], '<u4'))
                    out.seek(8 + 4 * rows)
                    out.write(config)
                if at + size > _LARGEST:
                    raise _too_large(where)
                offsets.append((table[1:] - table[0] + at).astype('<u4'))
                out.write(content[table[0] :])
                first, at = first + count, at + size
        if first != rows or not rows:
            raise ShardError(f'{where} has {rows} rows in its index, but {first} in its bytes. Restore the file.')
        out.seek(0)
        out.write(rows.to_bytes(4, 'little'))
        for table in offsets:
            out.write(table.tobytes())


def batches_of(
    source: Source, part: int, data: memoryview
) -> Iterator[Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]]:
    """`Source.batches`, with a ShardError that names the part and its row in place of an error of a library."""
    row = 0
    try:
        with panics_as(RuntimeError):
            for batch in source.batches(part, data):
                yield batch
                row += min(map(len, batch.values()), default=0)
    except HeadraceError:
        raise
    except Exception as error:  # of any kind, of a parser of others
        raise ShardError(
            f'Part {part} of {source.format} data, in {source.parts[part].key}, cannot be read from its row {row} on: '
            f'{type(error).__name__}: {error!s:.400}. Restore the file, or leave it out with a glob in `remote`.'
        ) from error


def _too_large(where: str) -> ShardError:
    return ShardError(
        f'{where} takes 4 GiB or more as a shard, which has 32-bit offsets. Read fewer `columns`, or write the file in '
        f'smaller parts, such as smaller row groups.'
    )


def _encoded(
    encoder: MDSEncoder, batch: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]], where: str
) -> list[memoryview]:
    """A batch as small MDS shards, of which almost always one is enough."""
    try:
        shards = [*encoder.add_batch(batch), *encoder.finish()]
    except HeadraceError:
        raise
    except (AttributeError, TypeError, ValueError, OverflowError, KeyError) as error:
        raise ShardError(
            f'{where} holds a value that MDS cannot store: {error!s:.400} Leave its column out with `columns`, or '
            f'write the value again.'
        ) from error
    return [memoryview(shard.files[0][1]) for shard in shards]


def _mapped(path: Path) -> memoryview:
    """A file's bytes. The map ends with the last view of it."""
    with path.open('rb') as file:
        if not path.stat().st_size:
            return memoryview(b'')
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
