"""The opening of a dataset's streams, all at the same time: format, index, cache and selection."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.dataset.streams.columns import column_names
from headrace.dataset.streams.missing_index import explain_missing_index, missing_index
from headrace.dataset.streams.past import PastData, data_of, past_data
from headrace.dataset.streams.stream import PlacedStream, Stream
from headrace.dataset.topology import detect_topology
from headrace.errors import FormatError, ObjectNotFoundError, StreamError, TopologyError
from headrace.errors.mapping import mapping_errors
from headrace.errors.redaction import warn
from headrace.format import (
    IndexFile,
    ShardInfo,
    ShardReader,
    ShardTable,
    is_hash,
    open_shard,
    unpack_file,
    verify_file,
)
from headrace.format.compression import LONGEST_BLOCK, unpack_head
from headrace.format.costs import stored_costs
from headrace.format.entries import INDEX_NAME
from headrace.format.index import Generation
from headrace.format.mds import RESTORE
from headrace.options.dataset import DatasetOptions
from headrace.options.streams import StreamOptions
from headrace.order import StreamSize
from headrace.selection import Selection, Shards
from headrace.selection.costs import Measuring, StoredCosts, check_cost, measure_costs
from headrace.storage import (
    CacheEntry,
    CacheLimit,
    CachePart,
    CacheStats,
    LazyEntry,
    Retry,
    ShardCache,
    Store,
    local_path,
)
from headrace.storage.cache.cached_index import CachedIndex, marker_text
from headrace.storage.cache.control_folder import (
    check_owner,
    claim_private_folder,
    private_folder,
    temporary_folder,
)
from headrace.storage.cache.index_fetch import IndexCheck, IndexFetch, IndexReader, process_start
from headrace.storage.cache.locks import cannot_use
from headrace.storage.cache.ownership import SharedShards
from headrace.storage.cache.peers import Peers, StreamPeers, digest_of
from headrace.tensors.decoding import TensorColumns

if TYPE_CHECKING:
    from headrace.dataset.streams.source_data import SourceData, SourceFinder

_MEASURING: Final = Measuring()
_PATIENCE: Final = 30.0  # seconds without progress, during which a download is retried however often it fails


class ShardEntries:
    """The cache's entries of the shards of one stream: their files, and how to verify and unpack them.

    Those of all shards of the index, since all count for a limit of the cache. By number are those that are offered.
    """

    def __init__(
        self, shards: ShardTable, offered: range, first: int, validate_hash: str | None, source: SourceData | None
    ) -> None:
        self._shards, self._offered, self._hash, self._source = shards, offered, validate_hash, source
        self._first = first - offered.start
        self._make = self._of_id  # one object for all entries that keep it

    def of_file(self, name: str) -> CacheEntry | None:
        shard = self._shards.find(name)
        return None if shard is None else LazyEntry(self._of_shard(shard), self._make)

    def _of_id(self, number: int) -> CacheEntry:
        return self._of_shard(number - self._first if number >= 0 else -2 - number)

    def __getitem__(self, shard: int) -> CacheEntry:
        return self._of_shard(self._offered[shard])

    def _of_shard(self, shard: int) -> CacheEntry:
        """The entry of a shard of the index; one that is not offered has an id below -1."""
        info, number = self._shards[shard], self._first + shard if shard in self._offered else -2 - shard
        if self._source is not None:
            return CacheEntry((self._source.part(shard, info),), id=number)
        parts: list[CachePart] = []
        for file in info.files:
            packed, algorithm = file.zip, info.compression
            of_copies = self._hash or max(filter(is_hash, file.raw.hashes), default=None)  # the fast ones are xxh...
            parts.append(
                CachePart(
                    name=file.raw.basename,
                    size=file.raw.bytes,
                    packed_name=None if packed is None else packed.basename,
                    packed_size=None if packed is None else packed.bytes,
                    verify=partial(verify_file, info=file.raw, algorithm=self._hash),
                    verify_copy=partial(verify_file, info=file.raw, algorithm=of_copies) if of_copies else None,
                    verify_packed=None if packed is None else partial(verify_file, info=packed, algorithm=self._hash),
                    unpack=None if packed is None or algorithm is None else partial(unpack_file, algorithm),
                )
            )
        return CacheEntry(tuple(parts), id=number)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OpenedStream(PlacedStream):
    """A stream of a dataset: its options with the dataset's, and what opening it has found."""

    stored_shards: int  # Shards of the index.
    entries: ShardEntries  # By the number of the shard in the stream.
    cache: ShardCache
    tensor_columns: list[TensorColumns | None]  # By kind of shard.
    costs: StoredCosts | None = None  # The costs of the samples that are offered, if batches depend on them.

    @property
    def first_offered(self) -> int:
        """The number in the index of its first shard."""
        generation = Generation.of(self.fingerprint)
        return 0 if generation is None else generation.first

    def fix_of(self, info: ShardInfo) -> str:
        if self.is_local:
            return RESTORE
        if info.made_from is not None:
            return (
                f'Correct the {info.made_from} data. If they are right, `headrace cache clear {self.folder}` has the '
                f'shard made again.'
            )
        path = self.folder / info.files[0].raw.basename
        return f'Delete {path}: it is fetched again. If that does not help, write the dataset again.'

    def tensors_in(self, shard: int) -> TensorColumns | None:
        return self.tensor_columns[self.shards.kind_of[shard]]

    def size(self) -> StreamSize:
        """The stream as the order sees it: numbers of samples that are offered, and a weight."""
        return StreamSize(
            name=self.name or '',
            shard_sizes=self.shards.samples if self.row_selection is None else self.row_selection.counts,
            proportion=self.proportion,
            repeat=self.repeat,
            choose=self.choose,
            fingerprint=self.fingerprint,
        )


def open_streams(
    given: Sequence[Stream],
    defaults: DatasetOptions | StreamOptions,
    *,
    cache_limit: int | None,
    peers: Peers | None = None,
    allow_unsafe_types: bool,
    has_costs: bool = False,
    measuring: Measuring = _MEASURING,
    again: Sequence[OpenedStream] = (),
    generations: Mapping[str, Generation] | None = None,
    asks: bool = True,
    only_grows: bool = False,
) -> list[OpenedStream]:
    """Open the streams of one dataset at the same time. The given ones stay as they are.

    `defaults`: the dataset's values for options that are None. `cache_limit`: bytes that their folders may take
    together; None: no limit. `has_costs`: whether to measure the costs of all samples. `again`: the same streams as
    they were opened before, whose counters go on. `generations`: by name, the shards to offer of streams that have
    grown, as far as their indexes begin with them. `asks`: whether remotes are asked for their indexes of now, where
    others are cached. `only_grows`: whether data change by appending only, so that cached shards stay good.

    StreamError: a stream is one of another dataset, or its folder the cache of another remote. Or a shard lacks one of
    `columns`, a selection does not fit, or `on_changed_data` refuses changed data. EmptyDatasetError,
    ObjectNotFoundError: the index is missing or empty. FormatError: an index breaks the format's rules, or holds
    an unsafe type. CacheError, FileExistsError: a default local folder is another user's, or no folder.
    """
    if len({id(stream) for stream in given}) < len(given):
        raise StreamError('One Stream is listed twice. List each once, and set its weight by `repeat` or `proportion`.')
    for stream in given:
        if stream.shards:
            raise StreamError(
                f'Each dataset needs streams of its own, but {stream.title} is one of another dataset already. Make a '
                f'new Stream for this one.'
            )
    openings = _openings(given, defaults, allow_unsafe_types, generations or {}, asks=asks, only_grows=only_grows)
    for opening, before in zip(openings, again, strict=False):
        opening.stats = before.cache.stats
    for opening in openings:
        opening.has_costs, opening.measuring = has_costs, measuring
    _read_indexes(openings)
    limit, first = None if cache_limit is None else CacheLimit(cache_limit), 0
    for opening in openings:
        first += len(opening.open(first, limit, peers).shards)
    _at_once(_Opening.select, [opening for opening in openings if opening.selection is not None or has_costs])
    opened = [opening.opened for opening in openings]
    _opened_in.update(zip([str(stream.folder.resolve()) for stream in opened], opened, strict=True))
    return opened


def look_at_indexes(
    given: Sequence[Stream],
    defaults: DatasetOptions | StreamOptions,
    *,
    allow_unsafe_types: bool,
    generations: Mapping[str, Generation],
) -> dict[str, SourceData | IndexFile]:
    """The present indexes of a dataset's streams that only grow, by name, without opening the streams.

    Arguments and errors as those of `open_streams`.
    """
    openings = _openings(given, defaults, allow_unsafe_types, generations, asks=True, only_grows=True)
    _read_indexes(openings)
    return {opening.stream.name or '': opening.found for opening in openings}


def _openings(
    given: Sequence[Stream],
    defaults: DatasetOptions | StreamOptions,
    allow_unsafe_types: bool,
    generations: Mapping[str, Generation],
    *,
    asks: bool,
    only_grows: bool,
) -> list[_Opening]:
    filled, past = [stream.placed.filled(defaults, number) for number, stream in enumerate(given)], past_data()
    if past is not None:
        filled = [past.moved(stream) for stream in filled]
        then = {name: Generation.of(fingerprint) for name, fingerprint in past.fingerprints.items()}
        generations = {**{name: one for name, one in then.items() if one is not None}, **generations}
    _refuse_shared([str(stream.folder.resolve()) for stream in filled], filled)
    check = IndexCheck(since=first_ask([stream.folder for stream in filled]) if asks else 0.0)
    return [
        _Opening(
            stream=stream,
            selection=stream.selection(),
            allow_unsafe_types=allow_unsafe_types,
            check=check,
            generation=generations.get(stream.name or ''),
            only_grows=only_grows,
            past=past,
        )
        for stream in filled
    ]


def _read_indexes(openings: Sequence[_Opening]) -> None:
    _at_once(_Opening.read_index, openings)
    openings[0].check.warn()


def _at_once(step: Callable[[_Opening], None], openings: Sequence[_Opening]) -> None:
    def run(opening: _Opening) -> None:
        with _naming(opening):
            step(opening)

    if len(openings) < 2:  # a thread takes longer to start than a local index to read
        for opening in openings:
            run(opening)
        return
    # The threads end before workers are forked: a fork copies the locks that threads hold.
    with ThreadPoolExecutor(min(32, len(openings))) as pool:
        for _ in pool.map(run, openings):  # a list would keep an error, whose traceback holds the streams
            pass


@mapping_errors
def _naming(opening: _Opening) -> Generator[None]:
    """Name stream and path where the system fails while a stream is opened."""
    try:
        yield
    except OSError as error:
        # Errors without a number are those of headrace, or of a store's client.
        if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
            raise
        stream = opening.stream
        reason = cannot_use(stream.folder, error)
        raise type(reason)(f'Stream {stream.title} could not be opened: {reason}') from error


@dataclass(slots=True, kw_only=True)
class _Opening:
    stream: PlacedStream
    selection: Selection | None
    allow_unsafe_types: bool
    check: IndexCheck  # Asks the remote whether a cached index is still current.
    generation: Generation | None  # The shards to offer; None: all.
    only_grows: bool
    past: PastData | None = None  # The expected data, or None for the current data.
    has_costs: bool = False
    measuring: Measuring = _MEASURING
    source: SourceData | None = None  # The data, if they are not shards with an index.json.
    store: Store | None = None
    index: CachedIndex | None = None
    found: SourceData | IndexFile = field(init=False)
    stats: CacheStats = field(default_factory=CacheStats)
    opened: OpenedStream = field(init=False)

    def read_index(self) -> None:
        """Find the format of the data, and read the index, which is fetched if it is remote."""
        if not self._has_index_of_shards():
            self._take_source(self._finder().known())
        try:
            self._read()
        except (ObjectNotFoundError, FormatError):
            if self.source is not None or not self._take_source(self._finder().listed()):
                raise
            self._read()

    def _has_index_of_shards(self) -> bool:
        stream = self.stream
        if stream.format is not None or not (stream.folder / INDEX_NAME).exists():
            return False
        return stream.is_local or not any(sign in (stream.remote or '') for sign in '*?[')  # which globs have

    def _finder(self) -> SourceFinder:
        from headrace.dataset.streams.source_data import SourceFinder  # local shards need none of its modules

        columns, where = self.stream.columns, None if self.selection is None else self.selection.where
        if columns is not None and where is not None:  # shards that are made of other data need what it looks at, too
            columns = None if where.columns is None else (*columns, *where.columns)
        if columns is not None and self.has_costs and self.stream.cost is not None:
            columns = (*columns, self.stream.cost)
        return SourceFinder(self.stream, columns, self.allow_unsafe_types, where is not None)

    def _take_source(self, source: SourceData | None) -> bool:
        """Read data of another format; False if there are none."""
        if source is None:
            return False
        if self.stream.is_local:
            # Unpacked shards do not belong among the data. So the data become a remote with a temporary cache.
            remote = os.path.abspath(self.stream.remote or self.stream.local or '')  # noqa: PTH100
            self.stream = PlacedStream.of(replace(self.stream.as_given(), remote=remote, local=None))
            if self.past is not None:
                self.stream = self.past.moved(self.stream)
        self.source = source
        return True

    def _read(self) -> None:
        stream, folder = self.stream, self.stream.folder
        if stream.has_default_folder:
            if folder.exists() and not folder.is_dir():
                raise FileExistsError(
                    f'Could not create a temporary local directory {folder}: something that is not a folder has that '
                    f'name. Remove it, or set `local` to a folder of your own.'
                )
            check_owner(temporary_folder(stream.remote or ''))
        self.store = stream.open_store() if self.source is None else self.source.store
        self.found = found = self.source or self._index_file()
        path = folder / found.index_name
        if self.store is not None:
            self.index = CachedIndex(folder, found.index_name)
            if self.past is None or stream.name not in self.past.lenders:
                self._fetch(self.index, self.store, found)
            else:
                self.past.mark(stream, self.store.url)
                self._fetch_past(self.past, self.index, self.store, found)
            if isinstance(found, IndexFile) and found.stored is not None:
                self.index.has_grown = found.stored.is_in
        elif path.exists():
            found.read(path)
        else:
            raise missing_index(path, stream.remote, stream.title)

    def _fetch_past(self, past: PastData, index: CachedIndex, store: Store, found: SourceData | IndexFile) -> None:
        """Read the index that a run read, or else the current one, which an error compares with it."""
        then, is_kept = data_of(past.fingerprints[self.stream.name or '']), False
        with contextlib.suppress(OSError, FormatError):
            found.read(index.path)
            is_kept = found.fingerprint == then
        if is_kept and self.source is not None:
            return
        self._fetch(index, store, found)  # what was erased since is not in the copy
        if is_kept and found.fingerprint != then:
            past.restore(self.stream)
            found.read(index.path)
            self.index = CachedIndex(self.stream.folder, found.index_name)
            self.store = None  # its shards may have the names of those, with other samples

    def _index_file(self) -> IndexFile:
        folder = self.stream.folder if self.store is None else self.stream.url
        return IndexFile(
            f'{folder}/{INDEX_NAME}',
            allow_unsafe_types=self.allow_unsafe_types,
            wanted=self.generation,
            only_grows=self.only_grows,
        )

    @property
    def _retry(self) -> Retry:
        retries = 2 if self.stream.download_retry is None else self.stream.download_retry
        return Retry(
            attempts=1 + retries,
            patience=_PATIENCE if retries else 0.0,
            attempt_timeout=float(self.stream.download_timeout or 60),
        )

    def _fetch(self, index: CachedIndex, store: Store, reader: IndexReader) -> None:
        fetch = IndexFetch(
            index=index,
            store=store,
            reader=reader,
            check=self.check,
            refuses_changes=self.stream.on_changed_data == 'refuse' and not self.only_grows and self.past is None,
            expects_changes=self.only_grows or self.past is not None,
            retry=self._retry,
            stats=self.stats,
        )
        try:
            fetch.run()
        except ObjectNotFoundError as error:
            found_there = local_path(self.stream.url or '')
            place = '' if found_there is None else f' {explain_missing_index(Path(found_there))}'
            raise ObjectNotFoundError(
                f'No such file or directory: the index of stream {self.stream.title}: {error}{place}'
            ) from None

    def open(self, first: int, limit: CacheLimit | None, peers: Peers | None) -> OpenedStream:
        """Make the stream, without its selection. `first`: number of its first shard in the dataset."""
        stream, stored, offered = self.stream, self.found.shards, self.found.offered
        shards = stored if len(offered) == len(stored) else stored.part(offered)
        entries = ShardEntries(stored, offered, first, stream.validate_hash, self.source)
        lender = None if self.past is None else self.past.lender(stream, stream.folder / self.found.index_name)
        shared_peers = None
        if peers is not None and self.store is not None and not self.past:
            digest = digest_of(self.found.fingerprint)
            shared = None if limit is None else SharedShards.of(digest, shards.keys(), shards.raw_bytes())
            shared_peers = StreamPeers(peers, digest, shared)
        if shared_peers is not None and len(shards) and entries[0].parts[0].verify_copy is None:
            warn(
                f'The index of stream {stream.title} has no hashes, so wrong bytes of a peer that have the right size '
                f'would be read as samples. Write the data with them, such as by `headrace '
                f'{"reshard" if self.source is None else "convert"} {stream.url} OUT --hashes xxh64`, or do without '
                f'`peers`.'
            )
        cache = ShardCache(
            stream.folder,
            store=self.store,
            index=self.index,
            limit=limit,
            entry_of=entries.of_file,
            keep_packed=bool(stream.keep_zip),
            retry=self._retry,
            verify_present=stream.validate_hash is not None,
            stats=self.stats,
            peers=shared_peers,
            lender=lender,
        )
        options = {option.name: getattr(stream, option.name) for option in fields(PlacedStream)}
        options.update(shards=shards, first_shard=first, fingerprint=self.found.fingerprint)
        self.opened = OpenedStream(
            **options,
            stored_shards=len(stored),
            entries=entries,
            cache=cache,
            tensor_columns=[stream.tensors_of(kind.schema) for kind in shards.kinds],
        )
        list(column_names(self.opened))  # refuses columns that a shard lacks
        if self.has_costs and self.stream.cost is not None:
            check_cost(self.stream.cost, shards, self.opened.title)
        return self.opened

    def select(self) -> None:
        stream, folder = self.opened, self.opened.folder
        changed = (folder / self.found.index_name).stat().st_mtime_ns  # rewritten data can have the same index
        identity = f'{stream.fingerprint} {changed}'
        if stream.is_local:  # the user's own folder stays as it is
            folder = private_folder()
            claim_private_folder(folder)
            identity = f'{identity} {stream.folder.resolve()}'
        shards = Shards(
            infos=stream.shards,
            sizes=stream.shards.samples,
            read=self._reading,
            lengths_of=self._lengths_of,
            title=stream.title,
            folder=folder,
            identity=identity,
        )
        if self.selection is not None:
            rows, said = self.selection.apply(shards)
            stream = replace(stream, row_selection=rows, fingerprint=f'{stream.fingerprint}, {said}')
        if self.has_costs:
            assert stream.cost is not None
            shards = replace(shards, identity=f'{identity} {stream.fingerprint}')  # also of what is selected
            stream = replace(stream, costs=measure_costs(shards, stream.cost, stream.row_selection, self.measuring))
        self.opened = stream

    def _lengths_of(self, shard: int, column: str) -> Iterable[Any] | None:
        info, is_present = self.opened.shards[shard], self.opened.cache.is_present(self.opened.entries[shard])
        array = info.schema.arrays[info.schema.names.index(column)]
        if array is not None and len(array[1]) == 1:
            return [np.full(info.samples, array[1][0])]
        if self.source is not None:
            return None if is_present else self.source.lengths_of(shard, column, self._retry)
        if info.format != 'mds':
            return None
        found = stored_costs(info, partial(self._head, info, is_present))
        return None if found is None or found[0] != column else [found[1]]

    def _head(self, info: ShardInfo, is_present: bool, size: int) -> bytes:
        """So many first bytes of a shard's raw file; fewer if it ends, or is not there and cannot be unpacked so."""
        (file,) = info.files
        if self.store is None or is_present:
            with contextlib.suppress(FileNotFoundError), (self.opened.folder / file.raw.basename).open('rb') as raw:
                return raw.read(size)
        if self.store is None:
            return b''
        from headrace.sources.ranges import ByteRange, read_range  # local shards need it not

        stored = file.zip or file.raw
        wanted = size if file.zip is None else size + LONGEST_BLOCK
        data = read_range(self.store, ByteRange(stored.basename, 0, min(wanted, stored.bytes)), retry=self._retry)
        return data if info.compression is None else unpack_head(info.compression, data, size)

    @contextlib.contextmanager
    def _reading(self, shard: int) -> Generator[ShardReader]:
        stream, info = self.opened, self.opened.shards[shard]
        with stream.cache.acquire(stream.entries[shard]) as lease:
            source = f'{stream.title}: {info.files[0].raw.basename}'
            yield open_shard(info, lease.buffers, source=source, fix=stream.fix_of(info))


# Streams alive in this process, by folder: one folder cannot be the cache of two remotes.
_opened_in: weakref.WeakValueDictionary[str, OpenedStream] = weakref.WeakValueDictionary()


def _refuse_shared(folders: Sequence[str], streams: Sequence[PlacedStream]) -> None:
    """Refuse a folder that is the cache of another remote already, however a remote is spelled."""
    here: dict[str, PlacedStream] = {}
    for folder, stream in zip(folders, streams, strict=True):
        for other in (_opened_in.get(folder), here.get(folder)):
            if (
                other is not None
                and marker_text(other.url or '') != marker_text(stream.url or '')
                and not stream.is_local
                and not other.is_local
            ):
                raise StreamError(
                    f'Reused local directory: {folder} is the cache of {other.url} vs. {stream.url}. Provide a '
                    f'different one.'
                )
        here[folder] = stream


_asked: Final = set[Path]()  # Folders of the streams that this process has opened.
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
