"""The opening of a dataset's streams, all at the same time: their format, their index and their selection."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import xxhash

from headrace.dataset.cache_files.index_table import find_table, keep_table
from headrace.dataset.streams.changed_data import first_ask
from headrace.dataset.streams.columns import column_names
from headrace.dataset.streams.folder_claim import claimed_folder
from headrace.dataset.streams.images import image_columns
from headrace.dataset.streams.missing_index import in_its_place, missing_index
from headrace.dataset.streams.store_options import store_options_of
from headrace.dataset.streams.stream import Stream
from headrace.errors import ConfigError, FormatError, HeadraceError, ObjectNotFoundError, StreamError
from headrace.format import IndexKey, ShardReader, ShardTable, open_shard, parse_index
from headrace.format.entries import INDEX_NAME
from headrace.selection import Selection, Shards
from headrace.storage import CacheLimit, Retry, ShardCache, Store, local_path, open_store
from headrace.storage.cache.index_check import IndexCheck
from headrace.storage.cache.shared_file import claim_private_folder, private_folder, refuse_strangers, temporary_folder

if TYPE_CHECKING:
    from headrace.dataset.streams.source_data import SourceData, SourceFinder

__all__ = ['IndexFile', 'open_cache', 'open_stream', 'open_streams', 'streams_given']

_PATIENCE: Final = 30.0  # seconds without progress, during which a download is retried however often it fails


def streams_given(streams: Sequence[Stream] | None, remote: str | None, local: str | None) -> Sequence[Stream] | None:
    """The streams that a dataset was given; None: one by `remote` and `local`.

    Raises:
        ConfigError: both were given, or no stream.
    """
    if not streams and (remote or local):
        return None  # LLM Foundry passes an empty list beside the URL of the one stream
    if streams is not None and (remote or local):
        got = f'{len(streams)} streams, remote={remote!r}, local={local!r}'
        raise ConfigError(f'Give either `streams`, or one stream by `remote` and `local`, but got both: {got}.')
    if streams is not None and not streams:
        raise ConfigError('`streams` must hold at least one Stream, but is empty.')
    return streams


def open_streams(
    streams: Sequence[Stream], *, cache_limit: int | None, allow_unsafe_types: bool, **defaults: Any
) -> None:
    """Open the streams of one dataset at the same time.

    Args:
        streams: the streams; each missing name or value is filled in.
        cache_limit: bytes that their folders may take together; None: no limit.
        allow_unsafe_types: whether to open data with pickled columns.
        defaults: values by the names of a stream's arguments.

    Raises:
        Exception: as `open_stream`.
    """
    for number, stream in enumerate(streams):
        # A stream's name is part of the order's key, so it must not depend on the data's location.
        stream.name = stream.name or f'stream_{number}'
        _fill_in(stream, defaults)
    limit = None if cache_limit is None else CacheLimit(cache_limit)
    check = IndexCheck(since=first_ask([stream.folder for stream in streams]))
    open_one = partial(open_stream, allow_unsafe_types=allow_unsafe_types, limit=limit, check=check)
    if len(streams) == 1:  # a thread takes longer to start than a local index to read
        open_one(streams[0])
    else:
        # The threads end before workers are forked: a fork copies the locks that threads hold.
        with ThreadPoolExecutor(min(32, len(streams))) as pool:
            for _ in pool.map(open_one, streams):  # a list would keep an error, whose traceback holds the streams
                pass
    check.warn()
    first = 0
    for stream in streams:
        if stream.first_shard != first:
            stream.first_shard = first
            stream.cache().forget()  # it knows shards by older numbers
        first += len(stream.shards)


def _fill_in(stream: Stream, defaults: dict[str, Any]) -> None:
    """Take the dataset's values for the arguments that were left at None."""
    for key, value in defaults.items():
        if getattr(stream, key) is None:
            setattr(stream, key, value)
    stream.split = stream.split or ''  # programs join it to `local`
    seconds = stream.download_timeout
    if seconds is not None and not seconds > 0:
        raise StreamError(f'download_timeout must be above 0 seconds, got {seconds} ({stream.title}).')


def open_stream(
    stream: Stream, *, allow_unsafe_types: bool, limit: CacheLimit | None = None, check: IndexCheck | None = None
) -> None:
    """Fetch and read the index of a stream.

    Args:
        stream: the stream; it gets its shards.
        allow_unsafe_types: whether to open data with pickled columns.
        limit: bytes that the cache may take, with those of other streams.
        check: asks the remote whether a cached index is still current; None: a new one.

    Raises:
        FileNotFoundError: the remote holds no index.
        RuntimeError: no `remote`, and no index in the local folder; or an index without samples.
        json.JSONDecodeError: the index is no JSON.
        ValueError: the index breaks the format's rules, or holds an unsafe type.
        FileExistsError: a file has the name of the default local folder.
        StreamError: the local folder is the cache of another remote, a shard lacks one of `columns`, or the data
            have changed and `on_changed_data` is 'refuse'.
        CacheError: the default local folder was made by another user.
        StreamError, EmptyDatasetError: the selection does not fit the data, or leaves nothing of it.
    """
    opening = _Opening(stream, stream.read_selection(), allow_unsafe_types, limit, check)
    if not opening.has_index_of_shards():
        place = stream.remote, stream.given_local, stream.folder
        opening.take_source(opening.finder().known(*place, is_local=stream.is_local))
    try:
        opening.read()
    except (ObjectNotFoundError, FormatError):
        if stream.source_data is not None:
            raise
        if not opening.take_source(opening.finder().listed(stream.remote or stream.given_local or '')):
            raise
        opening.read()


def open_cache(stream: Stream, limit: CacheLimit | None = None) -> ShardCache:
    """The cache over a stream's folder, with the store of its remote; made at the first call, without a request.

    Raises:
        StreamError, ConfigError: the store does not take the stream's options.
    """
    if stream.opened_cache is None:
        store: Store | None = None if stream.source_data is None else stream.source_data.store
        if store is None and not stream.is_local and stream.url is not None:
            store = open_store(stream.url, store_options_of(stream))
        retries = 2 if stream.download_retry is None else stream.download_retry
        stream.opened_cache = ShardCache(
            stream.folder,
            store=store,
            limit=limit,
            entry_of=stream.entry_of_file,
            keep_packed=bool(stream.keep_zip),
            retry=Retry(attempts=1 + retries, patience=_PATIENCE if retries else 0.0),
            verify_present=stream.validate_hash is not None,
        )
    return stream.opened_cache


class IndexFile:
    """The ``index.json`` of one stream, and the table of shards that it holds."""

    def __init__(self, source: str, *, allow_unsafe_types: bool, cache: Path | None = None) -> None:
        """Touches no file.

        Args:
            source: path or URL of the index, for messages.
            allow_unsafe_types: accept `pkl` columns, which run code when they are read.
            cache: folder to keep the table in; None: nowhere.
        """
        self.shards = ShardTable.empty()
        self.fingerprint = ''
        self._source, self._allow_unsafe_types, self._cache = source, allow_unsafe_types, cache
        self._parsed: IndexKey | None = None

    def read(self, path: Path) -> None:
        """Read an index.json at this path, or the kept table of it.

        Raises:
            IndexFileError: the file is empty or is not JSON.
            FormatError: it is JSON, but breaks the format's rules.
            EmptyDatasetError: it has no samples.
        """
        kept = None
        if self._cache is not None:
            kept = find_table(self._cache, path, allow_unsafe_types=self._allow_unsafe_types)
        if kept is not None:
            (self.shards, self.fingerprint), self._parsed = kept, None
            return
        data = path.read_bytes()
        self.shards = parse_index(data, source=self._source, allow_unsafe_types=self._allow_unsafe_types)
        self.fingerprint = hashlib.blake2b(data, digest_size=8).hexdigest()
        self._parsed = IndexKey(xxhash.xxh3_128_digest(data), len(data), self.fingerprint)

    def unproven(self, cached: Path) -> Iterator[str]:
        """Files whose content may differ between a cached index and the last one read.

        A shard is the same if its entries in both indexes are equal, with checksums of its files.

        Args:
            cached: the cached index. If it cannot be read, all shards may differ.
        """
        old = ShardTable.empty()
        with contextlib.suppress(OSError, HeadraceError):
            old = parse_index(cached.read_bytes(), source=str(cached), allow_unsafe_types=True)
        for info in self.shards:
            found = old.find(info.files[0].raw.basename)
            is_same = found is not None and old[found] == info
            for file in info.files:
                for stored in (file.raw, file.zip):
                    if stored is not None and not (is_same and stored.hashes):
                        yield stored.basename
        for info in old:
            for file in info.files:
                for stored in (file.raw, file.zip):
                    if stored is not None and self.shards.find(stored.basename) is None:
                        yield stored.basename

    def keep(self) -> None:
        """Keep the table of a large index for the next process, unless it was kept already."""
        if self._cache is not None and self._parsed is not None:
            keep_table(self._cache, self.shards, self._parsed)


@dataclass(frozen=True, slots=True)
class _Opening:
    """The opening of one stream; see `open_stream`."""

    stream: Stream
    selection: Selection | None
    allow_unsafe_types: bool
    limit: CacheLimit | None
    check: IndexCheck | None

    def has_index_of_shards(self) -> bool:
        """Whether an index of shards is there, so that the data need not be looked at for other formats."""
        stream = self.stream
        if stream.format is not None or not (stream.folder / INDEX_NAME).exists():
            return False
        return stream.is_local or not any(sign in (stream.remote or '') for sign in '*?[')  # which globs have

    def finder(self) -> SourceFinder:
        """Finds data of other formats."""
        from headrace.dataset.streams.source_data import SourceFinder  # local shards need none of its modules

        return SourceFinder(
            options=store_options_of(self.stream),
            split=self.stream.split,
            format_name=self.stream.format,
            columns=_columns_to_store(self.stream.columns, self.selection),
            allow_unsafe_types=self.allow_unsafe_types,
        )

    def take_source(self, source: SourceData | None) -> bool:
        """Read data of another format; False if there are none."""
        stream = self.stream
        if source is None:
            return False
        if stream.is_local:
            # Unpacked shards do not belong among the data. So the data become a remote with a temporary cache.
            stream.remote, stream.given_local = os.path.abspath(stream.remote or stream.given_local or ''), None  # noqa: PTH100
        stream.source_data = source
        if stream.opened_cache is not None:  # it has looked for an index.json
            stream.opened_cache.read_from(source.store)
        return True

    def read(self) -> None:
        """Read the index, fetched if it is remote, and the selection."""
        stream, folder = self.stream, self.stream.folder
        if stream.given_local is None and folder.exists() and not folder.is_dir():
            raise FileExistsError(
                f'Could not create a temporary local directory {folder}: something that is not a folder has that name. '
                f'Remove it, or set `local` to a folder of your own.'
            )
        if stream.given_local is None:
            refuse_strangers(temporary_folder(stream.remote or ''))
        with claimed_folder(stream):
            found = stream.source_data
            index = folder / (INDEX_NAME if found is None else found.index_name)
            if found is None:
                cache = None if stream.is_local else folder
                source = str(index) if stream.is_local else f'{stream.url}/{INDEX_NAME}'
                found = IndexFile(source, allow_unsafe_types=self.allow_unsafe_types, cache=cache)
            if not stream.is_local:
                self._fetch(index.name, found)
            elif index.exists():
                found.read(index)
            else:
                raise missing_index(index, stream.remote, stream.title)
            found.keep()
            stream.shards, stream.fingerprint = found.shards, found.fingerprint
            list(column_names(stream))  # refuses columns that a shard lacks
            stream.image_columns = image_columns(stream)
            open_cache(self.stream, self.limit)
            if self.selection is not None:
                changed = index.stat().st_mtime_ns  # rewritten data can have the same index
                shards = self._shards_to_select(f'{stream.fingerprint} {changed}')
                stream.kept, said = self.selection.keep(shards)
                stream.fingerprint += f', {said}'

    def _fetch(self, name: str, found: IndexFile | SourceData) -> None:
        """Have the cache folder hold the remote's index, and read it."""
        stream, check = self.stream, self.check or IndexCheck()
        try:
            open_cache(self.stream, self.limit).fetch_index(
                name,
                validate=found.read,
                check=check,
                refuse=stream.on_changed_data == 'refuse',
                unproven=found.unproven,
            )
        except ObjectNotFoundError as error:
            found_there = local_path(stream.url or '')
            place = '' if found_there is None else f' {in_its_place(Path(found_there))}'
            raise ObjectNotFoundError(
                f'No such file or directory: the index of stream {stream.title}: {error}{place}'
            ) from None
        if self.check is None:
            check.warn()

    def _shards_to_select(self, identity: str) -> Shards:
        stream, folder = self.stream, self.stream.folder
        if stream.is_local:  # the user's own folder stays as it is
            folder = private_folder()
            claim_private_folder(folder)
            identity = f'{identity} {stream.folder.resolve()}'
        return Shards(
            infos=stream.shards,
            sizes=stream.shard_sizes(),
            read=self._reading,
            title=stream.title,
            folder=folder,
            identity=identity,
        )

    @contextlib.contextmanager
    def _reading(self, shard: int) -> Generator[ShardReader]:
        stream, info = self.stream, self.stream.shards[shard]
        with stream.cache().acquire(stream.entry(shard)) as lease:
            yield open_shard(info, lease.buffers, source=f'{stream.title}: {info.files[0].raw.basename}')


def _columns_to_store(columns: tuple[str, ...] | None, selection: Selection | None) -> tuple[str, ...] | None:
    """The columns that shards need which are made of other data: those that `where` looks at, too."""
    where = None if selection is None else selection.where
    if columns is None or where is None:
        return columns
    return None if where.columns is None else (*columns, *where.columns)
