"""Lance datasets: one version of them, which a manifest describes.

`index` reads the manifest and the end of each data file, where Lance lists the pages of each column. A part is a run of
rows of a fragment, with the pages that the rows need of the columns that are read. Lance decodes them in a process of
its own (`lance_client`) from local files, which have holes where other pages are. Files before version 2.1 do not say
the rows of pages, so a part is a whole fragment there.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from headrace.errors import ConfigError, FormatError, ShardError, StreamError
from headrace.format.encodings.registry import get_mds_encoded_size
from headrace.sources.arrow_types import arrow_columns, common_columns, import_pyarrow, to_columns
from headrace.sources.lance_client import LanceFile, ask_lance
from headrace.sources.parquet import _joined
from headrace.sources.protocol import Part
from headrace.sources.ranges import ByteRange, read_range, read_ranges
from headrace.sources.source_bytes import PartTable, pack_source, unpack_source
from headrace.sources.tf_example import message_fields, varint

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.storage import ObjectInfo, Store

NAME: Final = 'lance'
_MANIFEST: Final = re.compile(r'(.*/)?_versions/(\d+)\.manifest', re.DOTALL)
_FILE: Final = re.compile(r'(.*/)?(data/.*\.lance|_deletions/[^/]*)', re.DOTALL)
_FOOTER: Final = struct.Struct('<QQQIIHH4s')
_TAIL: Final = 1 << 16
_MOST_METADATA: Final = 1 << 28
_PART: Final = 64 << 20
_BATCH: Final = 8 << 20
_LARGEST: Final = (1 << 32) - 1
_LAYERS: Final = {1: 6, 2: 5, 3: 8, 4: 2}
"""The field that lists the levels of nulls and lists, in each layout of a page."""
_WITHOUT_NULLS: Final = frozenset({1, 2})
"""Levels without nulls and without empty lists."""
_NAME_NULLS: Final = 'Name the column in `format_options={"nulls": [...]}`, with `format="lance"`.'


def find(objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    """The manifests, data files and deletion files of Lance datasets."""
    if not any(_MANIFEST.fullmatch(info.key) for info in objects):
        return []
    return [info for info in objects if _MANIFEST.fullmatch(info.key) or _FILE.fullmatch(info.key)]


def index(
    store: Store,
    objects: Sequence[ObjectInfo],
    *,
    columns: Collection[str] | None,
    allow_unsafe_types: bool,
    version: int | None = None,
    nulls: Sequence[str] = (),
) -> LanceSource:
    """See `SourceFormat.index`.

    `version`: of the dataset, by default the latest one.
    `nulls`: columns that may hold nulls, of which files of version 2.0 do not tell.
    """
    del allow_unsafe_types  # no type of Lance runs code
    info, root, number = _choose_manifest(objects, version)
    base = store.url.rstrip('/') + f'/{root}'.rstrip('/')
    by_key = {info.key: info for info in objects}
    about = [info, *(other for other in objects if other.key.startswith(f'{root}_deletions/'))]
    ranges = (ByteRange(item.key, 0, item.size, item.etag) for item in about)
    contents = dict(zip((item.key for item in about), read_ranges(store, ranges), strict=True))
    described = _Described(base, root, contents)
    _refuse_blobs(described.schema, columns, base)
    names = list(arrow_columns(described.schema, columns=columns, source=base))
    wanted = {name: set(described.fields[name]) for name in names}
    for fragment in described.fragments:
        for file in fragment.files:
            if file.key not in by_key:
                raise FormatError(f'Version {number} of {base} has the file {file.key}, which is missing. Restore it.')
    infos = [by_key[file.key] for fragment in described.fragments for file in fragment.files]
    layouts = dict(zip((info.key for info in infos), _layouts(store, infos, base), strict=True))
    if not isinstance(nulls, list | tuple) or not all(name in described.schema.names for name in nulls):
        raise StreamError(f'`nulls` of a Lance dataset is a list of columns of {base}, but is {nulls!r:.200}.')
    with_nulls = {*nulls} & {*names}
    for fragment in described.fragments:
        has_nulls: dict[int, bool] = {}
        for file in fragment.files:
            pages = layouts[file.key].pages
            if max(file.columns.values(), default=-1) >= len(pages):
                raise FormatError(f'The file {base}/{file.key} lacks columns that its dataset has. Restore it.')
            has_nulls |= {field: pages[column].has_nulls for field, column in file.columns.items()}
        for name, ids in wanted.items():
            flags = [has_nulls[field] for field in ids if field in has_nulls]
            if any(flags) or not flags:  # it may have been added later
                with_nulls.add(name)
    encodings, meanings = common_columns(
        [(described.schema, base)], columns=columns, with_nulls=with_nulls, what='Lance'
    )
    fields = {field for ids in wanted.values() for field in ids}
    runs = [
        run for fragment in described.fragments for run in _runs(fragment, layouts, by_key, fields, encodings, base)
    ]
    return LanceSource(
        base=base,
        root=root,
        columns=encodings,
        meanings=meanings,
        with_nulls=sorted(with_nulls),
        parts=PartTable.of(run.part for run in runs),
        places=np.array([(run.fragment, run.offset) for run in runs], np.int64).reshape(-1, 2),
        sizes={
            key: by_key[key].size for run in runs for key in (run.part.key, *(other for other, _, _ in run.part.beside))
        },
        manifest_key=info.key,
        manifest=contents[info.key],
        schema=described.schema.serialize().to_pybytes(),
        dropped=[name for name in described.schema.names if name not in encodings],
    )


def load(data: bytes) -> LanceSource:
    index = unpack_source(data)
    settings, arrays = dict(index.settings), dict(index.arrays)
    parts = PartTable(settings.pop('keys'), arrays)
    manifest, schema = (bytes(piece) for piece in index.pieces)
    return LanceSource(**settings, parts=parts, places=arrays['places'], manifest=manifest, schema=schema)


@dataclass(frozen=True, kw_only=True, eq=False)
class LanceSource:
    base: str
    """The dataset's URL, for messages."""
    root: str
    """The folder of the dataset in the store, with a '/', or ''."""
    columns: Mapping[str, str]
    meanings: Mapping[str, str]
    with_nulls: Sequence[str]
    parts: PartTable
    places: np.ndarray[Any, np.dtype[np.int64]]
    """int64[parts, 2], each part's fragment, and its first row among those of the fragment that are not deleted."""
    sizes: Mapping[str, int]
    """Of the objects that parts are read from."""
    manifest_key: str
    manifest: bytes
    schema: bytes
    dropped: Sequence[str] = ()

    format = NAME

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.to_bytes(),)

    @property
    def identity(self) -> str:
        """The manifest's digest: a version of a dataset never changes."""
        return hashlib.blake2b(self.manifest, digest_size=16).hexdigest()

    def to_bytes(self) -> bytes:
        names = ('base', 'root', 'columns', 'meanings', 'with_nulls', 'sizes', 'manifest_key')
        settings = {name: getattr(self, name) for name in names}
        arrays = {**self.parts.arrays, 'places': self.places}
        return pack_source({**settings, 'keys': self.parts.keys}, arrays, [self.manifest, self.schema])

    def batches(self, part: int, data: memoryview) -> Iterator[Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]]:
        pa = import_pyarrow('Lance datasets')
        described = self.parts[part]
        fragment, offset = self.places[part].tolist()
        source = f'{self.base}, fragment {fragment}, rows {offset} to {offset + described.rows - 1},'
        spans = [*described.beside, *((described.key, begin, size) for begin, size in described.ranges)]
        if sum(size for _, _, size in spans) != len(data):
            raise ShardError(f'{source} has other bytes than its index says. Restore or write it again.')
        request = {
            'fragment': fragment,
            'columns': list(self.columns),
            'offset': offset,
            'limit': described.rows,
            'batch_size': max(1, min(described.rows, 1 << 14, described.rows * _BATCH // max(1, described.size))),
        }
        pieces: dict[str, list[tuple[int, bytes | memoryview]]] = {self.manifest_key: [(0, self.manifest)]}
        at = 0
        for key, begin, size in spans:
            pieces.setdefault(key, []).append((begin, data[at : at + size]))
            at += size
        sizes = {**self.sizes, self.manifest_key: len(self.manifest)}
        files = (LanceFile(key.removeprefix(self.root), sizes[key], content) for key, content in pieces.items())
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        columns = arrow_columns(schema, columns=self.columns, with_nulls=self.with_nulls, source=source)
        rows = 0
        for batch in ask_lance(files, request, source):
            yield to_columns(batch, columns, source=source, first_row=rows, fix=_NAME_NULLS)
            rows += batch.num_rows
        if rows != described.rows:
            raise ShardError(f'{source} has {described.rows} rows in its index, but {rows} were read. Restore it.')


# The manifest


class _File(NamedTuple):
    key: str
    columns: Mapping[int, int]
    """The number of each field's column in the file, by the field's id."""


class _Fragment(NamedTuple):
    number: int
    rows: int
    """With deleted ones."""
    files: Sequence[_File]
    deletions: str | None
    """The key of the deletion file."""
    deleted: Sequence[int]


def _choose_manifest(objects: Sequence[ObjectInfo], version: object) -> tuple[ObjectInfo, str, int]:
    """The manifest of a version, the dataset's folder, and the number of the version."""
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
        raise ConfigError(f'`version` of a Lance dataset is a number from 1 on, but is {version!r:.80}.')
    manifests: dict[int, tuple[ObjectInfo, str, int]] = {}
    roots: dict[str, None] = {}
    for info in objects:
        match = _MANIFEST.fullmatch(info.key)
        if match:
            roots[match[1] or ''] = None
            # The newer scheme counts down, so that a listing begins with the latest version.
            number = (1 << 64) - 1 - int(match[2]) if len(match[2]) == 20 else int(match[2])
            manifests[number] = info, match[1] or '', number
    if len(roots) != 1:
        raise FormatError(
            f'A stream reads one Lance dataset, but the folder has {len(roots)}: {", ".join([*roots][:8])}. Name one '
            f'in `remote`.'
        )
    chosen = max(manifests) if version is None else version
    if chosen not in manifests:
        raise FormatError(
            f'The Lance dataset has no version {chosen}, but {min(manifests)} to {max(manifests)}. Choose one of these.'
        )
    return manifests[chosen]


class _Described:
    """A manifest as Lance's process describes it; `contents` are those of the manifest and the deletion files."""

    def __init__(self, base: str, root: str, contents: Mapping[str, bytes]) -> None:
        pa = import_pyarrow('Lance datasets')
        files = (LanceFile(name.removeprefix(root), len(data), [(0, data)]) for name, data in contents.items())
        try:
            batches = list(ask_lance(files, {'fragment': None}, base))
        except ShardError as error:
            raise FormatError(str(error)) from error
        head = batches[0].schema.metadata
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(head[b'schema']))
        self.fields: Mapping[str, Sequence[int]] = json.loads(head[b'fields'])
        self.fragments: list[_Fragment] = []
        for row in (row for batch in batches for row in batch.to_pylist()):
            described = json.loads(row['fragment'])
            external = [
                file for file in (*described['files'], described['deletion_file']) if file and file.get('base_id')
            ]
            if external or described.get('overlays'):
                raise FormatError(
                    f'{base} is a shallow clone, or has overlays: its rows are in files of other datasets. headrace '
                    f'reads files of its own folder. Make a deep clone.'
                )
            data_files = [_File(f'{root}data/{file["path"]}', _columns_of(file, base)) for file in described['files']]
            deletions_key = described['deletions'] and root + described['deletions']
            self.fragments.append(
                _Fragment(described['id'], described['physical_rows'], data_files, deletions_key, row['deleted'])
            )


def _columns_of(file: Mapping[str, Any], base: str) -> dict[int, int]:
    if file['file_major_version'] < 2:
        raise FormatError(
            f'{base} has files of version {file["file_major_version"]}.{file["file_minor_version"]} of Lance, and '
            f'headrace reads version 2.0 and later. Write it again with `data_storage_version="2.1"`.'
        )
    pairs = zip(file['fields'], file['column_indices'], strict=True)
    return {field: column for field, column in pairs if field >= 0 and column >= 0}


def _refuse_blobs(schema: pa.Schema, columns: Collection[str] | None, base: str) -> None:
    for field in schema:
        about = field.metadata or {}
        is_blob = about.get(b'lance-encoding:blob') == b'true' or about.get(b'ARROW:extension:name', b'').startswith(
            b'lance.blob'
        )
        if is_blob and (columns is None or field.name in columns):
            raise FormatError(
                f'Column {field.name!r} of {base} is a blob, which Lance stores apart from its pages, and which '
                f'headrace does not read. Leave it out with `columns=`, or write it as plain `large_binary`.'
            )


# The data files


class _Pages(NamedTuple):
    """The pages of one column."""

    rows: np.ndarray[Any, np.dtype[np.int64]] | None
    """int64[pages + 1], the first row of each page, and their number; None if pages are not of rows."""
    buffers: Sequence[Sequence[tuple[int, int]]]
    """Offset and size of each buffer of each page."""
    others: Sequence[tuple[int, int]]
    """Those of the column's own buffers."""
    has_nulls: bool
    """Whether pages say that they hold nulls or empty lists."""


class _Layout(NamedTuple):
    """The places in a data file."""

    begin: int
    """Where the descriptions begin that follow the pages."""
    pages: Sequence[_Pages]


def _layouts(store: Store, infos: Sequence[ObjectInfo], base: str) -> Iterator[_Layout]:
    tails = (ByteRange(info.key, max(0, info.size - _TAIL), min(info.size, _TAIL), info.etag) for info in infos)
    for info, tail in zip(infos, read_ranges(store, tails), strict=True):
        where = f'The file {base}/{info.key}'
        try:
            *starts, num_globals, num_columns, major, minor, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
            if magic != b'LANC' or (major != 2 and (major, minor) != (0, 3)):  # the latter is 2.0
                raise ValueError('it is not a data file of Lance 2')
            begin = min(starts)
            if info.size - begin > _MOST_METADATA:
                raise ValueError(f'descriptions of {info.size - begin} bytes')
            is_short = begin >= info.size - len(tail)
            data = tail if is_short else read_range(store, ByteRange(info.key, begin, info.size - begin, info.etag))
            shift = info.size - len(data)

            def places(at: int, count: int, data: bytes = data, shift: int = shift) -> list[tuple[int, int]]:
                return [struct.unpack_from('<QQ', data, at - shift + 16 * number) for number in range(count)]

            columns = places(starts[1], num_columns)
            if any(offset < begin for offset, _ in columns):
                raise ValueError('descriptions outside their place')
            pages = [
                _pages(data[offset - shift : offset - shift + size], info.size, (major, minor) > (2, 0))
                for offset, size in columns
            ]
            begin = min([begin, *(offset for offset, _ in places(starts[2], num_globals))])
        except (struct.error, ValueError, LookupError, TypeError, OverflowError) as error:
            raise FormatError(f'{where} is damaged: {error!r}. Restore it.') from error
        yield _Layout(begin, pages)


def _pages(data: bytes, file_size: int, of_rows: bool) -> _Pages:
    """The pages of a column, from its description: a message of Protocol Buffers."""
    buffers: list[list[tuple[int, int]]] = []
    others: dict[int, list[int]] = {3: [], 4: []}
    firsts, counts = list[int](), list[int]()
    has_nulls = False
    value: Any
    for number, _, value in message_fields(data):
        if number == 2:
            page: dict[int, Any] = {1: [], 2: [], 3: 0, 4: b'', 5: 0}
            for inner, _, content in message_fields(value):
                page[inner] = [*page[inner], *_numbers(content)] if inner in (1, 2) else content
            buffers.append(list(zip(page[1], page[2], strict=True)))
            counts.append(page[3])
            firsts.append(page[5])
            has_nulls |= of_rows and not _levels(page[4]) <= _WITHOUT_NULLS
        elif number in others:
            others[number] += _numbers(value)
    outside = list(zip(others[3], others[4], strict=True))
    if any(offset + size > file_size for spans in (*buffers, outside) for offset, size in spans):
        raise ValueError('a page lies beyond the end of the file')
    rows = np.cumsum([0, *counts], dtype=np.int64)
    return _Pages(rows if of_rows and rows[:-1].tolist() == firsts else None, buffers, outside, has_nulls)


def _levels(encoding: Any) -> set[int]:
    """The levels of nulls and lists of a page."""
    for wanted in (2, 1, 2):  # described here, the message of any type, its value
        encoding = {number: value for number, _, value in message_fields(encoding)}[wanted]
    inside: Any
    ((layout, inside),) = [(number, value) for number, _, value in message_fields(encoding) if number in _LAYERS]
    return {
        level for number, _, value in message_fields(inside) if number == _LAYERS[layout] for level in _numbers(value)
    }


def _numbers(value: int | bytes) -> list[int]:
    """Numbers of a repeated field, packed or one."""
    numbers, at = [value] if isinstance(value, int) else [], 0
    while isinstance(value, bytes) and at < len(value):
        number, at = varint(value, at)
        numbers.append(number)
    return numbers


# The parts


class _Run(NamedTuple):
    part: Part
    fragment: int
    offset: int


def _runs(
    fragment: _Fragment,
    layouts: Mapping[str, _Layout],
    by_key: Mapping[str, ObjectInfo],
    fields: Collection[int],
    encodings: Mapping[str, str],
    base: str,
) -> Iterator[_Run]:
    """The parts of a fragment."""
    read = {
        file.key: [layouts[file.key].pages[column] for field, column in file.columns.items() if field in fields]
        for file in fragment.files
    }
    if not read:
        raise FormatError(
            f'Fragment {fragment.number} of {base} has {fragment.rows} rows, but no file: its columns have no values. '
            f'Write values, as by `merge`, or write the dataset again without the fragment.'
        )
    every = [pages for of_file in read.values() for pages in of_file]
    total = sum(size for pages in every for spans in pages.buffers for _, size in spans)
    can_cut = all(pages.rows is not None and pages.rows[-1] == fragment.rows for pages in every)
    if not can_cut and total > _LARGEST:
        raise FormatError(
            f'Fragment {fragment.number} of {base} has {total} bytes in the columns to read, and a shard less than '
            f'4 GiB. Read fewer `columns`, or write it again with `data_storage_version="2.1"` or smaller fragments.'
        )
    runs = min(-(-total // _PART) or 1, fragment.rows) if can_cut else 1
    cuts = np.linspace(0, fragment.rows, runs + 1).astype(np.int64).tolist()
    gone = np.searchsorted(np.array(fragment.deleted, np.int64), cuts).tolist()
    fixed = [get_mds_encoded_size(encoding) for encoding in encodings.values()]
    for first, last, before, after in zip(cuts, cuts[1:], gone, gone[1:], strict=False):
        rows = last - first - (after - before)
        if not rows:
            continue
        spans: dict[str, tuple[tuple[int, int], ...]] = {}
        for key, columns in read.items():
            begin = layouts[key].begin
            needed = [(begin, by_key[key].size - begin)]
            for pages in columns:
                needed += pages.others
                needed += (span for span in _needed(pages, first, last))
            spans[key] = _joined([span for span in needed if span[1]])
        size = sum(length for ranges in spans.values() for _, length in ranges)
        least = rows * (4 + sum(4 if size is None else size for size in fixed))
        (own, ranges), *others = spans.items()
        if fragment.deletions is not None:
            others.append((fragment.deletions, ((0, by_key[fragment.deletions].size),)))
        part = Part(
            key=own,
            ranges=ranges,
            rows=rows,
            size=min(least + (2 * size if None in fixed else 0) + 4096, _LARGEST - 1),
            beside=tuple((key, *span) for key, ranges in others for span in ranges),
        )
        yield _Run(part, fragment.number, first - before)


def _needed(pages: _Pages, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The buffers of the pages with rows from `first` to before `last`."""
    starts = pages.rows
    for number, buffers in enumerate(pages.buffers):
        if starts is None or (starts[number] < last and starts[number + 1] > first):
            yield from buffers
