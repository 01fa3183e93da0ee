"""A stream's data of another format: its index in the cache folder, and its shards for the cache."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.dataset.streams.stream import PlacedStream
from headrace.errors import EmptyDatasetError, FormatError, StorageError
from headrace.errors.redaction import logger_of
from headrace.format import ShardInfo, ShardTable
from headrace.format.encodings.registry import is_mds_encoding_safe
from headrace.format.entries import INDEX_NAME
from headrace.sources.formats import how_to_name, refuse_null_files
from headrace.sources.source_index import SourceIndex, size_at
from headrace.sources.source_store import SourceStore, has_glob
from headrace.storage import CachePart, Retry, local_path

_log = logger_of(__name__)
_LONGEST_NAME: Final = 255  # Bytes of a file's name.
_SURELY_SHORT: Final = 200


class SourceData:
    """The data of one stream, as `IndexFile` for an index.json."""

    def __init__(self, store: SourceStore, *, allow_unsafe_types: bool, has_where: bool) -> None:
        """Make no request."""
        self.store = store
        self._allow_unsafe_types, self._has_where = allow_unsafe_types, has_where
        self.shards = ShardTable.empty()
        self.fingerprint = ''

    @property
    def index_name(self) -> str:
        return self.store.index_name

    @property
    def offered(self) -> range:
        return range(len(self.shards))

    def read(self, path: Path) -> None:
        """Read an index; FormatError: damaged, too new or old, columns that run code, or too long a name."""
        index = SourceIndex.from_bytes(path.read_bytes())
        unsafe = [name for name, encoding in index.source.columns.items() if not is_mds_encoding_safe(encoding)]
        if unsafe and not self._allow_unsafe_types:
            # Made for a run that allowed it. The format refuses it when it makes the index again.
            raise FormatError(
                f'The columns {unsafe} of {path} can run code. Set `allow_unsafe_types` if you trust them.'
            )
        if not self._has_where:
            refuse_null_files(index.source.columns, getattr(index.source, 'with_nulls', ()), source=self.store.shown)
        shards = index.shards()
        _check_lengths(index.objects, shards)
        self.store.index, self.shards, self.fingerprint = index, shards, index.fingerprint

    def unproven(self, cached: Path) -> Iterator[str]:
        """Files whose content may differ between a cached index and the last one read; see `IndexFile.unproven`."""
        assert self.store.index is not None
        old: SourceIndex | None = None
        with contextlib.suppress(OSError, FormatError):
            old = SourceIndex.from_bytes(cached.read_bytes())
        yield from self.store.index.unproven(old)

    def lengths_of(self, shard: int, column: str, retry: Retry) -> Iterable[Any] | None:
        """The values of a column of a part, or their lengths, where the source knows them without the part."""
        assert self.store.index is not None
        what, known = f'Reading {self.store.url}', getattr(self.store.index.source, 'lengths_of', None)
        if known is None:
            return None
        return known(shard, column, lambda spans: retry.call(what, lambda: self.store.read(spans)))

    def part(self, shard: int, info: ShardInfo) -> CachePart:
        """The file of a shard: fetched as ranges of an object, and made of them."""
        assert self.store.index is not None
        (file,) = info.files
        assert file.zip is not None
        return CachePart(
            name=file.raw.basename,
            size=file.raw.bytes,
            packed_name=file.zip.basename,
            packed_size=file.zip.bytes,
            unpack=partial(self.store.index.unpack, shard),
            size_at=size_at(info.samples),
        )


@dataclass(frozen=True, slots=True)
class SourceFinder:
    stream: PlacedStream
    columns: Collection[str] | None  # Those that shards need.
    allow_unsafe_types: bool
    has_where: bool

    def known(self) -> SourceData | None:
        """The data, if no request is needed to know that they are of another format; else None."""
        stream, index = self.stream, self.stream.folder / INDEX_NAME
        if stream.format == 'mds':
            return None
        found = self._data()
        if stream.format is not None or has_glob(self._place):
            return found
        if stream.is_local:
            return None if index.exists() else self.listed()
        return found if (stream.folder / found.index_name).exists() and not index.exists() else None

    def listed(self) -> SourceData | None:
        """The data, if their listing has files of a known format.

        StreamError: several formats; EmptyDatasetError: no file of the split; StorageError: a folder cannot be listed.
        """
        if self.stream.format is not None:
            return None
        found = self._data()
        try:
            format_found, listed = found.store.find()
        except StorageError:
            if local_path(self._place) is not None:
                raise
            return None  # the first error says more
        if format_found is None:
            if (hint := how_to_name(info.key for info in listed)) and local_path(self._place) is None:
                raise EmptyDatasetError(f'{found.store.url} holds neither an index.json nor files to read.{hint}')
            return None
        _log.info('%s has no shards and is read as %s, without conversion.', found.store.url, format_found.NAME)
        return found

    @property
    def _place(self) -> str:
        return self.stream.remote or self.stream.local or ''

    def _data(self) -> SourceData:
        store = SourceStore(
            self._place,
            self.stream.for_store(),
            split=self.stream.split,
            format_name=self.stream.format,
            format_options=self.stream.format_options,
            columns=self.columns,
            allow_unsafe_types=self.allow_unsafe_types,
        )
        return SourceData(store, allow_unsafe_types=self.allow_unsafe_types, has_where=self.has_where)


def _check_lengths(keys: Collection[str], shards: ShardTable) -> None:
    """Refuse objects whose parts get names that file systems do not take."""
    if all(_name_bytes(key) <= _SURELY_SHORT for key in keys):
        return
    for shard in shards:
        for stored in (shard.files[0].raw, shard.files[0].zip):
            if stored is not None and _name_bytes(stored.basename) > _LONGEST_NAME:
                name = stored.basename.rpartition('/')[2]
                raise FormatError(
                    f'The cache keeps a part of an object in a file of its name, which has at most {_LONGEST_NAME} '
                    f'bytes, but {name} has {_name_bytes(name)}. Rename the object, or convert the data: '
                    f'`headrace convert`.'
                )


def _name_bytes(key: str) -> int:
    return len(key.rpartition('/')[2].encode('utf-8', 'surrogateescape'))
