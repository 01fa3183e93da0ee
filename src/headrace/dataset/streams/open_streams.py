"""The opening of a dataset's streams, all at the same time: their format, their index and their selection."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.dataset.streams.columns import column_names, image_columns
from headrace.dataset.streams.missing_index import explain_missing_index, missing_index
from headrace.dataset.streams.stream import Stream
from headrace.dataset.topology import detect_topology
from headrace.error_mapping import mapping_errors
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError, StreamError, TopologyError
from headrace.format import IndexFile, ShardReader, open_shard
from headrace.format.entries import INDEX_NAME
from headrace.order import StreamSize
from headrace.order.mixture.rules import given_weights
from headrace.selection import Selection, Shards
from headrace.storage import CacheLimit, Retry, ShardCache, Store, StoreOptions, local_path, open_store
from headrace.storage.cache.cached_index import CachedIndex, marker_text
from headrace.storage.cache.control_folder import (
    check_owner,
    claim_private_folder,
    private_folder,
    temporary_folder,
)
from headrace.storage.cache.fetch import same_folder
from headrace.storage.cache.index_fetch import IndexCheck, IndexFetch, IndexReader, process_start
from headrace.storage.cache.locks import cannot_use

if TYPE_CHECKING:
    from headrace.dataset.streams.source_data import SourceData, SourceFinder

_PATIENCE: Final = 30.0  # seconds without progress, during which a download is retried however often it fails


def streams_given(streams: Sequence[Stream] | None, remote: str | None, local: str | None) -> Sequence[Stream] | None:
    """The streams that a dataset was given; None: one by `remote` and `local`.

    Raises:
        ConfigError: both were given, or no stream, or something else than streams.
    """
    if not streams and (remote or local):
        return None  # LLM Foundry passes an empty list beside the URL of the one stream
    given: Any = streams
    if given is None:
        return None
    found: list[Any] = list(given) if isinstance(given, Iterable) else []
    wrong = [type(one).__name__ for one in found if not isinstance(one, Stream)]
    if wrong or not isinstance(given, Iterable):
        held = f' with a {wrong[0]}' if wrong and not isinstance(given, str) else ''
        raise ConfigError(
            f'`streams` must be a list of Stream objects, but is a {type(given).__name__}{held}. Write '
            f'`streams=[Stream(remote=...)]`, or `remote=...` for one stream.'
        )
    if not found:
        raise ConfigError('`streams` must hold at least one Stream, but is empty.')
    if remote or local:
        got = f'{len(found)} streams, remote={remote!r}, local={local!r}'
        raise ConfigError(f'Give either `streams`, or one stream by `remote` and `local`, but got both: {got}.')
    return found


@contextlib.contextmanager
def restored_after_error(streams: Sequence[Stream]) -> Generator[None]:
    """Make a dataset of streams inside the block. If that fails, another dataset gets the streams as they were."""
    before = [(stream, vars(stream).copy()) for stream in streams]
    try:
        yield
    except BaseException:
        for stream, attributes in before:
            vars(stream).clear()
            vars(stream).update(attributes)
        raise


def open_streams(
    streams: Sequence[Stream], *, cache_limit: int | None, allow_unsafe_types: bool, **defaults: Any
) -> list[StreamSize]:
    """Open the streams of one dataset at the same time.

    Args:
        streams: the streams; each missing name or value is filled in, and each gets its shards, cache and numbers.
        cache_limit: bytes that their folders may take together; None: no limit.
        allow_unsafe_types: whether to open data with pickled columns.
        defaults: a dataset's values for arguments of its streams that are left at None; see `Stream`.

    Returns:
        The streams as the order sees them.

    Raises:
        FileNotFoundError: a remote holds no index.
        RuntimeError: no `remote`, and no index in the local folder; or an index without samples.
        json.JSONDecodeError: an index is no JSON.
        ValueError: an index breaks the format's rules, or holds an unsafe type.
        FileExistsError: a file has the name of a default local folder.
        StreamError: a local folder is the cache of another remote, a shard lacks one of `columns`, or the data have
            changed and `on_changed_data` is 'refuse'.
        CacheError: a default local folder was made by another user.
        StreamError, EmptyDatasetError: a selection does not fit the data, or leaves nothing of it.
        StreamError: a stream is one of another dataset.
    """
    for stream in streams:
        _refuse_used(stream)
    for number, stream in enumerate(streams):
        # A stream's name is part of the order's key, so it must not depend on the data's location.
        stream.name = stream.name or f'stream_{number}'
        _fill_in(stream, defaults)
    limit = None if cache_limit is None else CacheLimit(cache_limit)
    check = IndexCheck(since=first_ask([stream.folder for stream in streams]))

    def open_one(stream: Stream) -> None:
        with _naming(stream):
            _Opening(stream, stream.read_selection(), allow_unsafe_types, limit, check).run()

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
    return [stream.size() for stream in streams]


def _refuse_used(stream: Stream) -> None:
    """A dataset has filled in all weights of its streams, and reads by their numbers of shards."""
    if len(given_weights(stream)) > 1:
        raise StreamError(
            f'Each dataset needs streams of its own, but {stream.title} is one of another dataset already. Make a new '
            f'Stream for this one.'
        )


def _fill_in(stream: Stream, defaults: Mapping[str, Any]) -> None:
    """Take the dataset's values for the arguments that were left at None."""
    for key, value in defaults.items():
        if getattr(stream, key) is None:
            setattr(stream, key, value)
    stream.split = stream.split or ''  # programs join it to `local`
    seconds = stream.download_timeout
    if seconds is not None and not seconds > 0:
        raise StreamError(f'download_timeout must be above 0 seconds, got {seconds} ({stream.title}).')


def store_of(stream: Stream) -> Store | None:
    """The store of a stream's remote, before any request; None if the folder is all there is.

    Raises:
        StreamError, ConfigError: the store does not take the stream's options.
    """
    if stream.source_data is not None:
        return stream.source_data.store
    if stream.is_local or stream.url is None:
        return None
    store = open_store(stream.url, store_options_of(stream))
    return None if same_folder(store, stream.folder) else store


@mapping_errors
def _naming(stream: Stream) -> Generator[None]:
    """Name stream and path where the system fails while a stream is opened."""
    try:
        yield
    except OSError as error:
        # Errors without a number are those of headrace, or of a store's client.
        if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
            raise
        reason = cannot_use(stream.folder, error)
        raise type(reason)(f'Stream {stream.title} could not be opened: {reason}') from error


@dataclass(frozen=True, slots=True)
class _Opening:
    stream: Stream
    selection: Selection | None
    allow_unsafe_types: bool
    limit: CacheLimit | None
    """Bytes that the cache may take, with those of other streams."""
    check: IndexCheck
    """Asks the remote whether a cached index is still current."""

    def run(self) -> None:
        """Find the format of the data, and open them."""
        stream = self.stream
        if not self.has_index_of_shards():
            place = stream.remote, stream.given_local, stream.folder
            self.take_source(self.finder().known(*place, is_local=stream.is_local))
        try:
            self.open()
        except (ObjectNotFoundError, FormatError):
            if stream.source_data is not None:
                raise
            if not self.take_source(self.finder().listed(stream.remote or stream.given_local or '')):
                raise
            self.open()

    def has_index_of_shards(self) -> bool:
        """Whether an index of shards is there, so that the data need not be looked at for other formats."""
        stream = self.stream
        if stream.format is not None or not (stream.folder / INDEX_NAME).exists():
            return False
        return stream.is_local or not any(sign in (stream.remote or '') for sign in '*?[')  # which globs have

    def finder(self) -> SourceFinder:
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
        return True

    def open(self) -> None:
        """Read the index, fetched if it is remote, and the selection."""
        stream, folder = self.stream, self.stream.folder
        if stream.given_local is None and folder.exists() and not folder.is_dir():
            raise FileExistsError(
                f'Could not create a temporary local directory {folder}: something that is not a folder has that name. '
                f'Remove it, or set `local` to a folder of your own.'
            )
        if stream.given_local is None:
            check_owner(temporary_folder(stream.remote or ''))
        with claimed_folder(stream):
            store = store_of(stream)
            found = stream.source_data or self._index_file(store)
            path = folder / found.index_name
            if store is not None:
                self._fetch(CachedIndex(folder, found.index_name), store, found)
            elif path.exists():
                found.read(path)
                self._make_cache(None, None)
            else:
                raise missing_index(path, stream.remote, stream.title)
            stream.shards, stream.fingerprint = found.shards, found.fingerprint
            list(column_names(stream))  # refuses columns that a shard lacks
            stream.image_columns = image_columns(stream)
            if self.selection is not None:
                changed = path.stat().st_mtime_ns  # rewritten data can have the same index
                shards = self._shards_to_select(f'{stream.fingerprint} {changed}')
                stream.row_selection, said = self.selection.apply(shards)
                stream.fingerprint += f', {said}'

    def _index_file(self, store: Store | None) -> IndexFile:
        folder = self.stream.folder if store is None else self.stream.url
        return IndexFile(f'{folder}/{INDEX_NAME}', allow_unsafe_types=self.allow_unsafe_types)

    def _make_cache(self, store: Store | None, index: CachedIndex | None) -> ShardCache:
        stream = self.stream
        if stream.opened_cache is not None:  # it has looked for an index.json
            stream.opened_cache.read_from(store, index)
            return stream.opened_cache
        retries = 2 if stream.download_retry is None else stream.download_retry
        stream.opened_cache = ShardCache(
            stream.folder,
            store=store,
            index=index,
            limit=self.limit,
            entry_of=stream.entry_of_file,
            keep_packed=bool(stream.keep_zip),
            retry=Retry(
                attempts=1 + retries,
                patience=_PATIENCE if retries else 0.0,
                attempt_timeout=float(stream.download_timeout or 60),
            ),
            verify_present=stream.validate_hash is not None,
        )
        return stream.opened_cache

    def _fetch(self, index: CachedIndex, store: Store, reader: IndexReader) -> None:
        stream, cache = self.stream, self._make_cache(store, index)
        fetch = IndexFetch(
            index=index,
            store=store,
            reader=reader,
            check=self.check,
            refuses_changes=stream.on_changed_data == 'refuse',
            retry=cache.retry,
            stats=cache.stats,
        )
        try:
            fetch.run()
        except ObjectNotFoundError as error:
            found_there = local_path(stream.url or '')
            place = '' if found_there is None else f' {explain_missing_index(Path(found_there))}'
            raise ObjectNotFoundError(
                f'No such file or directory: the index of stream {stream.title}: {error}{place}'
            ) from None

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
            source = f'{stream.title}: {info.files[0].raw.basename}'
            yield open_shard(info, lease.buffers, source=source, fix=stream.fix_of(info))


def _columns_to_store(columns: tuple[str, ...] | None, selection: Selection | None) -> tuple[str, ...] | None:
    """The columns that shards need which are made of other data: those that `where` looks at, too."""
    where = None if selection is None else selection.where
    if columns is None or where is None:
        return columns
    return None if where.columns is None else (*columns, *where.columns)


def store_options_of(stream: Stream) -> StoreOptions:
    """The options with which a stream's store is opened.

    Raises:
        StreamError: a time-out in `store_options` is no number of seconds above 0.
    """
    extra = dict(stream.store_options or {})
    options = StoreOptions(
        endpoint_url=stream.endpoint_url,
        region=stream.region,
        anonymous=bool(stream.anonymous),
        requester_pays=bool(stream.requester_pays),
        read_timeout=float(stream.download_timeout or 60),
    )
    times = {name: extra.pop(name) for name in ('connect_timeout', 'request_timeout') if name in extra}
    for name, seconds in times.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise StreamError(
                f'`{name}` in `store_options` of stream {stream.title} must be a number of seconds above 0, but '
                f'is {seconds!r}.'
            )
    return replace(options, **{name: float(seconds) for name, seconds in times.items()}, extra=extra)


# Streams alive in this process, by folder: one folder cannot be the cache of two remotes.
_folders: weakref.WeakValueDictionary[Path, Stream] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def claimed_folder(stream: Stream) -> Generator[None]:
    """Claim a folder for a stream that is opened inside the block. A failed opening ends the claim."""
    folder = stream.folder.resolve()
    other = _folders.get(folder)
    if (
        other is not None
        and other is not stream
        and marker_text(other.url or '') != marker_text(stream.url or '')  # however a folder is spelled
        and not stream.is_local
        and not other.is_local
    ):
        raise StreamError(
            f'Reused local directory: {folder} is the cache of {other.url} vs. {stream.url}. Provide a different one.'
        )
    _folders[folder] = stream
    try:
        yield
    except BaseException:
        if _folders.get(folder) is stream:
            del _folders[folder]
            if other is not None:
                _folders[folder] = other
        raise


_asked: Final = set[Path]()
"""Folders of the streams that this process has opened."""
os.register_at_fork(after_in_child=_asked.clear)


def first_ask(folders: Sequence[Path]) -> float:
    """The time, as of `time.time`, from which on an answer to another process of this machine is recent enough.

    The ranks of a node start together, so one of them asks for all. A single process asks by itself, and so does a rank
    that opens a folder again.
    """
    is_first = _asked.isdisjoint(folders)
    _asked.update(folders)
    try:
        topology = detect_topology()
    except TopologyError:  # a later use of the topology raises it
        return time.time()
    ranks_here = topology.world_size // topology.num_nodes
    return process_start() if is_first and ranks_here > 1 else time.time()
