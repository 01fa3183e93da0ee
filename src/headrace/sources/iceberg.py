"""Iceberg tables: which Parquet files a snapshot has, with their partitions, deleted rows and the ids of columns.

`pyiceberg` parses the metadata and the manifests, whose bytes come by our stores. Paths in them are absolute: those
below the table's location are looked up below its folder, so a copied table is read, too.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import json
import re
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from headrace.errors import ConfigError, FormatError, HeadraceError, MissingDependencyError, StreamError
from headrace.errors.redaction import warn
from headrace.sources import parquet
from headrace.sources.arrow_types import import_pyarrow
from headrace.sources.parquet import ParquetSource, index_files
from headrace.sources.ranges import ByteRange, read_ranges
from headrace.sources.table_files import BY_ID, NAMES, TableFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sources.table_files import IntArray
    from headrace.storage import ObjectInfo, Store

load = parquet.load
NAME: Final = 'iceberg'
_METADATA: Final = re.compile(r'((?:.*/)?)metadata/(v?)(\d+)[^/]*?((?:\.gz)?\.metadata\.json|\.metadata\.json\.gz)')
_HINT: Final = 'version-hint.text'
_LARGEST: Final = 1 << 30  # Bytes of a metadata file, at most.
_decoding: Final = threading.Lock()


def find(objects: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """See `SourceFormat.find`: all objects of the table; FormatError: there are several tables."""
    roots = dict.fromkeys(match[1] for info in objects if (match := _METADATA.fullmatch(info.key)))
    if len(roots) > 1:
        names = ', '.join(root or 'the folder itself' for root in [*roots][:5])
        raise FormatError(f'A stream reads one Iceberg table, but here are several: {names}. Name one in `remote`.')
    return [info for root in roots for info in objects if info.key.startswith(root)]


def decisive(
    objects: Sequence[ObjectInfo], snapshot: int | None = None, metadata: str | None = None
) -> list[ObjectInfo]:
    """The objects that tell whether a cached index is right: the list of the snapshot's manifests, or the metadata."""
    _check(snapshot, metadata)
    lists = [info for info in objects if f'metadata/snap-{snapshot}-' in info.key]
    return lists or _newest(objects, metadata)[1]


@contextlib.contextmanager
def _bounded_decoder() -> Generator[None]:
    """Have pyiceberg decode in Python, 2.7 times slower. Its compiled decoder reads beyond the end of damaged bytes."""
    from pyiceberg.avro.decoder import StreamingBinaryDecoder

    file: Any = importlib.import_module('pyiceberg.avro.file')
    with _decoding:
        compiled, file.new_decoder = file.new_decoder, StreamingBinaryDecoder
        try:
            yield
        finally:
            file.new_decoder = compiled


def _check(snapshot: object, metadata: object) -> None:
    if snapshot is not None and (not isinstance(snapshot, int) or isinstance(snapshot, bool)):
        raise ConfigError(f'`snapshot` of an Iceberg table is the number of one, but is {snapshot!r:.80}. Correct it.')
    if metadata is not None and not (isinstance(metadata, str) and metadata.endswith(('.json', '.json.gz'))):
        raise ConfigError(
            f'`metadata` of an Iceberg table is the name or location of a .metadata.json, but is {metadata!r:.200}. '
            f'Correct it.'
        )


def _newest(objects: Sequence[ObjectInfo], metadata: str | None) -> tuple[str, list[ObjectInfo]]:
    """The table's folder; and the metadata file to read, with what says so, or several of the newest number."""
    named = [(match, info) for info in objects if (match := _METADATA.fullmatch(info.key))]
    root = named[0][0][1] if named else ''
    if metadata is not None:
        name = metadata.rpartition('/')[2]
        return root, [info for _, info in named if info.key.rpartition('/')[2] == name]
    last = max((int(match[3]) for match, _ in named), default=0)
    hint = [info for info in objects if info.key == f'{root}metadata/{_HINT}']
    return root, [*(info for match, info in named if int(match[3]) == last), *hint]


def index(
    store: Store,
    objects: Sequence[ObjectInfo],
    *,
    columns: Collection[str] | None,
    allow_unsafe_types: bool,
    snapshot: int | None = None,
    metadata: str | None = None,
) -> ParquetSource:
    """See `SourceFormat.index`. The order of rows is that of the files' names.

    `snapshot`: the number of the snapshot, by default the current one.
    `metadata`: the name or location of a metadata file, as a catalog gives it; by default the folder's newest.
    """
    del allow_unsafe_types  # no type of Parquet runs code
    _check(snapshot, metadata)
    import_pyarrow('Iceberg tables')
    try:
        importlib.import_module('pyiceberg.table.deletion_vector')  # its newest part
    except ImportError as error:
        raise MissingDependencyError(
            f'Iceberg tables need pyiceberg, which is not installed, or too old ({error}): pip install '
            f"'headrace[iceberg]'"
        ) from error
    root, newest = _newest(objects, metadata)
    place = f'{store.url.rstrip("/")}/{root}'.rstrip('/')
    if not newest:
        what = (
            f'has no metadata file {metadata!r:.200}'
            if metadata
            else 'is read as a whole, but `split` names some files'
        )
        raise StreamError(f'The Iceberg table {place} {what}. Correct or leave out that option.')
    table = _Table(store, {info.key: info for info in objects}, root, place)
    infos, files = table.read(_chosen(table, newest, place), snapshot)
    return index_files(store, infos, columns=columns, table=files, format_name=NAME)


def _chosen(table: _Table, newest: Sequence[ObjectInfo], place: str) -> ObjectInfo:
    """The metadata file to read, of those of the newest number and the hint of a catalog without a server."""
    files = [info for info in newest if not info.key.endswith(_HINT)]
    if len(files) < len(newest):
        hint = table.bytes_of([newest[-1]])[0].strip().decode(errors='replace')
        by_version = {
            match[3]: info for info in table.objects.values() if (match := _METADATA.fullmatch(info.key)) and match[2]
        }
        if hint in by_version:
            return by_version[hint]
    if len(files) > 1:
        names = ', '.join(info.key.rpartition('/')[2] for info in files[:3])
        raise FormatError(
            f'The newest metadata of the Iceberg table {place} are not known: {names} have the same number. Say which '
            f'is right with `metadata` in `format_options`: the `metadata_location` of its catalog.'
        )
    return files[0]


class _Table:
    def __init__(self, store: Store, objects: dict[str, ObjectInfo], root: str, place: str) -> None:
        self.objects = objects
        self._store, self._root, self._place = store, root, place
        self._location = ''

    def bytes_of(self, infos: Iterable[ObjectInfo]) -> list[bytes]:
        return list(read_ranges(self._store, (ByteRange(info.key, 0, info.size, info.etag) for info in infos)))

    def read(self, chosen: ObjectInfo, snapshot: int | None) -> tuple[list[ObjectInfo], TableFiles]:
        """The files of a snapshot, and what the table says of them."""
        from pyiceberg.table.metadata import TableMetadataUtil

        try:
            (text,) = self.bytes_of([chosen])
            if text[:2] == b'\x1f\x8b':
                text = gzip.GzipFile(fileobj=io.BytesIO(text)).read(_LARGEST)
            about = TableMetadataUtil.parse_raw(text.decode())
            self._location = _plain(about.location)
            number = about.current_snapshot_id if snapshot is None else snapshot
            current = None if number is None else about.snapshot_by_id(number)
            if current is None:
                listed = ', '.join(str(entry.snapshot_id) for entry in about.snapshots[-8:]) or 'none'
                raise FormatError(
                    f'The Iceberg table {self._place} has the snapshots {listed}, but '
                    f'{"no current one" if number is None else f"`snapshot` is {number}"}. Choose one of these.'
                )
            schema = about.schema()
            if snapshot is not None and current.schema_id is not None:
                schema = about.schema_by_id(current.schema_id) or schema
            return self._files(about, schema, current)
        except HeadraceError:
            raise
        except Exception as error:  # of any kind, of a parser of others
            raise FormatError(
                f'The metadata of the Iceberg table {self._place} cannot be read: {type(error).__name__}: '
                f'{error!s:.400}. Restore them, or choose another `snapshot` or `metadata`.'
            ) from error

    def _key(self, path: str) -> str | None:
        """The key of a location, or None outside the table."""
        plain = _plain(path)
        bases = (base for base in (self._location, _plain(self._place)) if plain.startswith(f'{base}/'))
        return next((self._root + plain[len(base) + 1 :] for base in bases), None)

    def _info(self, path: str, size: int | None = None) -> ObjectInfo:
        """The object at a location. `size`: its bytes, as the metadata say, or None if they do not."""
        key = self._key(path)
        if key is None:
            raise FormatError(
                f'The Iceberg table {self._place} has the file {path}, which is not below its location '
                f'{self._location}. Rewrite its files there, or read it with a converter.'
            )
        if key not in self.objects:
            raise FormatError(
                f'The Iceberg table {self._place} has the file {key}, which is not there. Files of expired snapshots '
                f'are removed: choose another `snapshot`, or restore it.'
            )
        info = self.objects[key]
        self._require('bytes', size, info.size, key)
        return info

    def _require(self, what: str, expected: int | None, count: int, where: str) -> None:
        """Refuse a count that differs from the one that the metadata give, if they give one."""
        if expected not in (None, count):
            raise FormatError(
                f'The Iceberg table {self._place} counts {expected} {what} in {where}, but there are {count}. The copy '
                f'may be incomplete: restore the file, or choose another `snapshot`.'
            )

    def _files(self, about: Any, schema: Any, snapshot: Any) -> tuple[list[ObjectInfo], TableFiles]:
        import pyarrow as pa
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.manifest import DataFileContent, read_manifest_list

        opened = cast('Callable[[bytes], Any]', _Bytes)
        (listed,) = self.bytes_of([self._info(snapshot.manifest_list)])
        with _bounded_decoder():
            manifests = list(read_manifest_list(opened(listed)))
        contents = self.bytes_of(
            [self._info(manifest.manifest_path, manifest.manifest_length) for manifest in manifests]
        )
        entries: list[Any] = []
        for manifest, content in zip(manifests, contents, strict=True):
            with _bounded_decoder():
                files = [entry.data_file for entry in manifest.fetch_manifest_entry(opened(content))]
            added, existing = manifest.added_files_count, manifest.existing_files_count
            if added is not None and existing is not None:
                self._require('files', added + existing, len(files), manifest.manifest_path)
            entries += files
        self._check_totals(snapshot, listed, entries)
        for entry in entries:
            kind, is_data = entry.file_format.value, entry.content == DataFileContent.DATA
            if entry.content == DataFileContent.EQUALITY_DELETES:
                raise FormatError(
                    f'The Iceberg table {self._place} deletes rows by their values ({entry.file_path}), which headrace '
                    f'does not read. Compact it, such as with `rewrite_data_files` of Spark.'
                )
            if kind not in (('PARQUET',) if is_data else ('PARQUET', 'PUFFIN')):
                raise FormatError(
                    f'headrace reads Parquet files of Iceberg tables, but {entry.file_path} of {self._place} is of the '
                    f'format {kind}. Rewrite it.'
                )
        data = [
            (self._info(entry.file_path, entry.file_size_in_bytes), entry)
            for entry in entries
            if entry.content == DataFileContent.DATA
        ]
        data.sort(key=lambda pair: pair[0].key)
        gone = self._deleted([entry for entry in entries if entry.content != DataFileContent.DATA])
        infos = [info for info, _ in data]
        deleted = {file: np.unique(gone[info.key]) for file, info in enumerate(infos) if info.key in gone}
        arrow = _with_names(schema_to_pyarrow(schema), about.name_mapping())
        values: dict[str, list[Any]] = {}
        for field in schema.fields:
            if field.initial_default is not None:
                values[field.name] = [field.initial_default] * len(data)
            _refuse_inner_defaults(field.field_type, field.name)
        for file, (_, entry) in enumerate(data):
            for number, part in enumerate(about.specs()[entry.spec_id].fields):
                column = next((field for field in schema.fields if field.field_id == part.source_id), None)
                if column is not None and str(part.transform) == 'identity':
                    values.setdefault(column.name, [None] * len(data))[file] = entry.partition[number]
        arrays = {name: pa.array(column, arrow.field(name).type) for name, column in values.items()}
        arrays[''] = pa.nulls(len(data))  # the table may have no other columns
        table = TableFiles(
            constants=pa.RecordBatch.from_pydict(arrays),
            schema=arrow.with_metadata(BY_ID),
            deleted=deleted,
            rows_of=[entry.record_count for _, entry in data],
            snapshot=f'snapshot {snapshot.snapshot_id}',
        )
        return infos, table

    def _check_totals(self, snapshot: Any, listed: bytes, entries: Sequence[Any]) -> None:
        """Refuse a list of manifests that ends within a block, where pyiceberg ends it; warn if it may lack a block."""
        from pyiceberg.manifest import DataFileContent

        summary: Mapping[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
        data = [entry for entry in entries if entry.content == DataFileContent.DATA]
        counts = {
            'total-data-files': len(data),
            'total-delete-files': len(entries) - len(data),
            'total-records': sum(entry.record_count for entry in data),
        }
        # A whole file ends with the 16 bytes that also end its head. One without blocks has them there only.
        if listed.find(listed[-16:]) == len(listed) - 16 and (entries or summary.get('total-data-files') != '0'):
            raise FormatError(
                f'The list of manifests {snapshot.manifest_list} of the Iceberg table {self._place} ends within a '
                f'block, so files may be missing. Restore it, or choose another `snapshot`.'
            )
        # A writer without this total, such as an old DuckDB, may count files of deleted rows among those of data.
        totals = summary if 'total-delete-files' in summary else {}
        for name, count in counts.items():
            # Writers add to the totals of the snapshot before: one that forgets to makes all later ones too small.
            if (total := int(totals.get(name, 0))) > count:
                warn(
                    f'Snapshot {snapshot.snapshot_id} of the Iceberg table {self._place} counts {name} {total}, but '
                    f'its manifests, which are whole, have {count}. The manifests are right if the writer of the table '
                    f'miscounts, as some versions of DuckDB and ClickHouse do. Else its list of manifests may be cut: '
                    f'compare the rows with another reader.',
                    stacklevel=2,
                )

    def _deleted(self, entries: Sequence[Any]) -> dict[str, IntArray]:
        """The numbers of deleted rows by the file's key; a file of an older snapshot may be among them."""
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
        from pyiceberg.table.puffin import PuffinFile

        deleted: dict[str, list[IntArray]] = {}
        sized = ((entry.file_path, entry.file_size_in_bytes) for entry in entries)
        infos = {info.key: info for info in (self._info(path, size) for path, size in sized)}
        for key, content in zip(infos, self.bytes_of(infos.values()), strict=True):
            if not key.endswith('.parquet'):
                vectors = deletion_vectors_from_puffin_file(PuffinFile(content))
                rows = {vector.referenced_data_file: vector.to_vector().to_numpy() for vector in vectors}
            else:
                opened = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)  # no threads: workers are forked
                read = opened.read(['file_path', 'pos'], use_threads=False)
                paths, numbers = np.array(read['file_path'].to_pylist(), object), read['pos'].to_numpy()
                rows = {path: numbers[paths == path] for path in set(paths)}
            for path, gone in rows.items():
                if (file := self._key(path)) is not None:
                    deleted.setdefault(file, []).append(gone.astype(np.int64))
        return {key: np.concatenate(rows) for key, rows in deleted.items()}


class _Bytes:
    """Bytes in memory as the file system, and the file, that pyiceberg reads from."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def new_input(self, _: str) -> _Bytes:
        return self

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._content)


def _plain(location: str) -> str:
    """A location without a trailing slash: a path of this machine, or a URL; s3a and s3n are S3."""
    return re.sub('^file:/*', '/', re.sub('^s3[an]://', 's3://', location)).rstrip('/')


def _with_names(schema: pa.Schema, mapping: Any) -> pa.Schema:
    """The columns with the names that they have in files without ids, if the table maps such names."""
    names_of = {str(field.field_id): list(field.names) for field in mapping.root} if mapping is not None else {}
    for at, field in enumerate(schema):
        about = dict(field.metadata)
        if names := names_of.get(about[b'PARQUET:field_id'].decode()):
            schema = schema.set(at, field.with_metadata({**about, NAMES: json.dumps(names).encode()}))
    return schema


def _refuse_inner_defaults(kind: Any, name: str) -> None:
    inner = (*getattr(kind, 'fields', ()), getattr(kind, 'element_field', None), getattr(kind, 'value_field', None))
    for field in filter(None, inner):
        if field.initial_default is not None:
            raise FormatError(
                f'Field {field.name!r} in column {name!r} has a default for older files, which headrace does not read. '
                f'Rewrite these files.'
            )
        _refuse_inner_defaults(field.field_type, name)
