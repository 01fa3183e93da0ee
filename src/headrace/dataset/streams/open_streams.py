"""The opening of a dataset's streams, all at the same time: their format, their index and their selection."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.dataset.cache_files.index_table import INDEX, IndexFile
from headrace.dataset.streams.changed_data import first_ask
from headrace.dataset.streams.columns import column_names
from headrace.dataset.streams.folder_claim import claimed_folder
from headrace.dataset.streams.images import image_columns
from headrace.dataset.streams.missing_index import in_its_place, missing_index
from headrace.dataset.streams.store_options import store_options_of
from headrace.dataset.streams.stream import Stream
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError
from headrace.format import ShardReader, open_shard
from headrace.selection import Selection, Shards
from headrace.storage import CacheLimit, local_path
from headrace.storage.cache.index_check import IndexCheck
from headrace.storage.cache.shared_file import claim_private_folder, private_folder, refuse_strangers, temporary_folder

if TYPE_CHECKING:
    from headrace.dataset.streams.source_data import SourceData, SourceFinder

__all__ = ['open_stream', 'open_streams', 'streams_given']


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
        stream.fill_in(defaults)
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
        stream.number_shards(first)
        first += len(stream.shards)


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
        stream.take_source(opening.finder().known(*place, is_local=stream.is_local))
    try:
        opening.read()
    except (ObjectNotFoundError, FormatError):
        if stream.source_data is not None:
            raise
        if not stream.take_source(opening.finder().listed(stream.remote or stream.given_local or '')):
            raise
        opening.read()


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
        if stream.format is not None or not (stream.folder / INDEX).exists():
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
            index = folder / (INDEX if found is None else found.index_name)
            if found is None:
                cache = None if stream.is_local else folder
                source = str(index) if stream.is_local else f'{stream.url}/{INDEX}'
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
            stream.cache(self.limit)
            if self.selection is not None:
                changed = index.stat().st_mtime_ns  # rewritten data can have the same index
                shards = self._shards_to_select(f'{stream.fingerprint} {changed}')
                stream.kept, said = self.selection.keep(shards)
                stream.fingerprint += f', {said}'

    def _fetch(self, name: str, found: IndexFile | SourceData) -> None:
        """Have the cache folder hold the remote's index, and read it."""
        stream, check = self.stream, self.check or IndexCheck()
        try:
            stream.cache(self.limit).fetch_index(
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
