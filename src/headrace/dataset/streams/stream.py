"""One stream: its shards, and its weight in an epoch. Classes of streams by name, for `stream_name` of a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.dataset.arguments import by_name, refuse_unused_overrides
from headrace.dataset.streams.columns import ImageColumns, column_kinds, read_columns
from headrace.display import Facts, FactsRepr, count_text, human_size
from headrace.errors import ConfigError, StreamError, UnknownNameError
from headrace.format import ShardInfo, ShardTable, unpack_file, verify_file
from headrace.format.mds import RESTORE
from headrace.images import Decode, DecodeLike
from headrace.order import RowSelection, StreamSize
from headrace.order.mixture.rules import given_weights, stream_errors
from headrace.redaction import without_credentials
from headrace.rules import path_errors
from headrace.selection import Fraction, Predicate, Selection, Subset
from headrace.sources.formats import check_format
from headrace.storage import (
    CacheEntry,
    CachePart,
    LazyEntry,
    ShardCache,
    local_path,
)
from headrace.storage.cache.control_folder import temporary_folder

if TYPE_CHECKING:
    from headrace.dataset.streams.source_data import SourceData

OnChangedData: TypeAlias = Literal['refresh', 'refuse']

_LONGEST = 300
"""Characters of the columns in a repr."""


class Stream(FactsRepr):
    """A dataset's folder of shards, local, remote or both, and its weight in a mixture.

    At most one of `proportion`, `repeat` and `choose` may be given. Arguments left at None are filled in by the
    `StreamingDataset` that the stream is given to. Each dataset needs streams of its own.

    Args:
        remote: URL or path of the folder that holds `split/index.json`; None for a local-only stream.
        local: folder to keep shards in. By default one in the system's temporary folder, named after `remote`.
        split: sub-folder of both, such as `train`.
        proportion: share of the epoch's samples, relative to the other streams' proportions.
        repeat: times that each sample is seen in an epoch; 0.5 takes half of the samples.
        choose: number of samples of this stream in an epoch.
        download_retry: retries of a failed download; 0: none. While the store is busy or out of reach, there are more,
            for half a minute.
        download_timeout: seconds without a byte after which a download counts as failed.
        validate_hash: name of a hash of the index to check files against, after their download or when a process first
            opens them. Sizes are always checked.
        keep_zip: keep the compressed files beside the unpacked ones.
        name: the stream's name in errors, metrics and checkpoints.
        endpoint_url: address of the store's server, if it is not the cloud's own.
        region: region of the store.
        anonymous: send requests unsigned.
        requester_pays: accept that the requester is billed.
        store_options: options of this kind of store, such as ``{'profile': 'x'}``; ``docs/stores.md`` lists them. All
            stores take ``connect_timeout``, the seconds for a connection (10 by default). They also take
            ``request_timeout``, the seconds for a request (300 by default), plus 1 s for each KiB of its answer.
        subset: ranges of the stream's samples in stored order, ``[[0, 1000], [5000, None]]``: only these are offered.
        fraction: ``[low, high]``, a random part of each shard, from 0 to 1; parts that only touch share no sample.
        fraction_seed: seed of the random parts; streams that split the same data need the same one. 0 by default.
        where: tests of columns, ``{'lang': 'de', 'length': {'at_least': 512}}``, or a `Where`: only samples that pass
            are offered. All samples of `subset` are read for it, once per machine.
        columns: names of the columns to read, ``['text']``; no other is decoded. None: all.
        format: 'mds' for a folder with an index.json, or the name of another format, such as 'parquet';
            ``docs/formats.md`` lists them. None: found by looking.
        decode: columns of images that are read as tensors of uint8: 'tensor' or an `ImageTensor` for all of them, or a
            mapping from columns to these. None: images are read as Pillow's.
        on_changed_data: action if the remote's data have changed since they were cached. 'refresh' takes the new data,
            and removes cached shards that may differ; 'refuse' raises.
        packing: a `headrace.packing.StreamPacking`: the column, tokenizer and so on of the stream's documents in a
            `PackedDataset`, where they are not those of its `Packing`.

    Raises:
        ArgumentError: an argument by position, of an unknown name, or of the wrong kind, such as text for a number.
        StreamError: more than one weight, a negative weight, or neither `remote` nor `local`; or a malformed `subset`,
            `fraction`, `where`, `columns` or `decode`.
    """

    @by_name
    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
        name: str | None = None,
        endpoint_url: str | None = None,
        region: str | None = None,
        anonymous: bool | None = None,
        requester_pays: bool | None = None,
        store_options: Mapping[str, Any] | None = None,
        subset: Subset | Sequence[Sequence[int | str | None]] | None = None,
        fraction: Fraction | Sequence[float | str] | None = None,
        fraction_seed: int | None = None,
        where: Predicate | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        on_changed_data: OnChangedData | None = None,
        format: str | None = None,  # noqa: A002 - the word for it
        decode: DecodeLike | None = None,
        packing: Any = None,
    ) -> None:
        refuse_unused_overrides(type(self), Stream)
        if not remote and not local:
            raise StreamError('A stream needs `remote`, `local` or both, but got neither.')
        self.remote = None if remote is None else str(remote)
        self.given_local = None if local is None else str(local)
        self.split = split
        self.proportion = proportion
        self.repeat = repeat
        self.choose = choose
        self.download_retry = download_retry
        self.download_timeout = download_timeout
        self.validate_hash = validate_hash
        self.keep_zip = keep_zip
        self.name = name
        for broken in stream_errors(self):
            raise StreamError(broken.message(given_weights(self)))
        for broken in path_errors(self):
            raise StreamError(broken.message(repr(getattr(self, broken.keys[0]))))
        self.endpoint_url = endpoint_url
        self.region = region
        self.anonymous = anonymous
        self.requester_pays = requester_pays
        self.store_options = store_options
        self.subset, self.fraction, self.fraction_seed, self.where = subset, fraction, fraction_seed, where
        self.on_changed_data = parse_on_changed_data(on_changed_data)
        self.read_selection()
        self.columns = read_columns(columns)
        self.decode = Decode.of(decode)
        self.packing = packing
        self.image_columns: list[ImageColumns] = []  # by kind of shard; empty if no images are read as tensors
        self.format = check_format(format)
        self.shards = ShardTable.empty()
        self.row_selection: RowSelection | None = None  # which rows of the shards are offered; None: all
        self.fingerprint = ''
        self.first_shard = 0  # number of this stream's first shard in the dataset
        self.source_data: SourceData | None = None  # of data that are not shards with an index.json
        self.opened_cache: ShardCache | None = None
        self._make_entry = self._entry_of_id  # one object for all entries that keep it

    def _facts(self) -> Facts:
        return stream_facts(self)

    @property
    def local(self) -> str:
        """The folder of cached shards, without the split of a given `local`."""
        if self.given_local is not None:
            return self.given_local
        return os.path.join(temporary_folder(self.remote or ''), self.split or '')  # noqa: PTH118 — '' keeps the trailing '/'

    @property
    def folder(self) -> Path:
        """The folder of the stream's index.json and shards."""
        return Path(self.local) / (self.split or '')

    @property
    def url(self) -> str | None:
        """URL of the remote with the split, or None for a local-only stream."""
        if self.remote is None:
            return None
        return f'{self.remote.rstrip("/")}/{self.split}' if self.split else self.remote

    @property
    def title(self) -> str:
        """The stream's name in errors."""
        place = self.url or str(self.folder)
        return f'{self.name} ({place})' if self.name else place

    @property
    def is_local(self) -> bool:
        """Whether the data need no fetch: there is no remote, or it is the local folder itself."""
        if self.url is None:
            return True
        path = local_path(self.url)
        return path is not None and Path(path).resolve() == self.folder.resolve()

    def fix_of(self, info: ShardInfo) -> str:
        """What helps against a damaged shard of this stream, for messages."""
        if self.is_local:
            return RESTORE
        if info.made_from is not None:
            return (
                f'Correct the {info.made_from} data. If they are right, `headrace cache clear {self.folder}` has the '
                f'shard made again.'
            )
        path = self.folder / info.files[0].raw.basename
        return f'Delete {path}: it is fetched again. If that does not help, write the dataset again.'

    def read_selection(self) -> Selection | None:
        """The rows to offer; None: all.

        Raises:
            StreamError: `subset`, `fraction` or `where` is malformed.
        """
        return Selection.read(
            subset=self.subset, fraction=self.fraction, fraction_seed=self.fraction_seed, where=self.where
        )

    def cache(self) -> ShardCache:
        """The cache over the stream's folder. It is made when a dataset opens the stream."""
        assert self.opened_cache is not None
        return self.opened_cache

    def entry_of_file(self, name: str) -> CacheEntry | None:
        """The entry of a file in the folder."""
        shard = self.shards.find(name)
        return None if shard is None else LazyEntry(self.entry(shard), self._make_entry)

    def _entry_of_id(self, number: int) -> CacheEntry:
        return self.entry(number - self.first_shard)

    def entry(self, shard: int) -> CacheEntry:
        """The cache's entry of a shard: its files, and how to verify and unpack them."""
        info = self.shards[shard]
        if self.source_data is not None:
            return CacheEntry((self.source_data.part(shard, info),), id=self.first_shard + shard)
        parts: list[CachePart] = []
        for file in info.files:
            packed, algorithm = file.zip, info.compression
            parts.append(
                CachePart(
                    name=file.raw.basename,
                    size=file.raw.bytes,
                    packed_name=None if packed is None else packed.basename,
                    packed_size=None if packed is None else packed.bytes,
                    verify=partial(verify_file, info=file.raw, algorithm=self.validate_hash),
                    verify_packed=None
                    if packed is None
                    else partial(verify_file, info=packed, algorithm=self.validate_hash),
                    unpack=None if packed is None or algorithm is None else partial(unpack_file, algorithm),
                )
            )
        return CacheEntry(tuple(parts), id=self.first_shard + shard)

    def images_in(self, shard: int) -> ImageColumns | None:
        """The columns of images of a shard that are read as tensors; None: there are none."""
        return self.image_columns[self.shards.kind_of[shard]] if self.image_columns else None

    def size(self) -> StreamSize:
        """The stream as the order sees it: numbers of samples that are offered, and a weight."""
        return StreamSize(
            name=self.name or '',
            shard_sizes=self.shard_sizes() if self.row_selection is None else self.row_selection.counts,
            proportion=self.proportion,
            repeat=self.repeat,
            choose=self.choose,
            fingerprint=self.fingerprint,
        )

    def shard_sizes(self) -> npt.NDArray[np.int64]:
        """Samples stored in each shard, int64."""
        return self.shards.samples


def stream_facts(stream: Stream) -> Facts:
    """Name, place, sizes, weight and columns."""
    rows = [('remote', without_credentials(stream.url))] if stream.url else []
    rows.append(('local', str(stream.folder)))
    if stream.shards:
        rows += [('data', _sizes(stream)), ('columns', columns_text([stream]))]
    weight = _weight(stream)
    if weight:
        rows.append(('weight', weight))
    name = f' {stream.name!r}' if stream.name else ''
    return Facts(f'Stream{name}{"" if stream.shards else " (not opened)"}', rows)


def stream_text(stream: Stream, *, weight: bool) -> str:
    """One line about an opened stream, without its name.

    Args:
        stream: the stream.
        weight: whether to say its weight, which tells nothing of a single one.
    """
    place = without_credentials(stream.url) if stream.url else str(stream.folder)
    parts = [place, _sizes(stream), _weight(stream) if weight else '']
    return ', '.join(part for part in parts if part)


def columns_text(streams: list[Stream]) -> str:
    """The columns that are read, with their types in a batch."""
    kinds: dict[str, str] = {}
    for stream in streams:
        for schema in stream.shards.schemas:
            for name, kind in column_kinds(stream, schema).items():
                kinds.setdefault(name, kind)
    text = ', '.join(f'{name}: {kind}' for name, kind in kinds.items())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + '…'


def _sizes(stream: Stream) -> str:
    shards = stream.shards
    samples, stored = int(shards.samples.sum()), int(shards.stored_bytes().sum())
    text = f'{count_text(samples, "sample")} in {count_text(len(shards), "shard")} ({human_size(stored)})'
    return text if stream.row_selection is None else f'{int(np.sum(stream.row_selection.counts)):,} of {text}'


def _weight(stream: Stream) -> str:
    """The first weight that is given; opened streams have all three."""
    if stream.proportion is not None:
        return f'proportion {stream.proportion:.4g}'
    if stream.repeat is not None:
        return f'repeat {stream.repeat:.4g}'
    return '' if stream.choose is None else f'choose {stream.choose:,}'


def parse_on_changed_data(value: str | None) -> OnChangedData | None:
    """Check a value of `on_changed_data`; None: not given."""
    if value is None or value == 'refresh' or value == 'refuse':  # noqa: PLR1714 - pyright narrows these only
        return value
    raise ConfigError(f"`on_changed_data` must be 'refresh' or 'refuse', but is {value!r}.")


_ENTRY_POINTS = 'streaming_streams_registry'
"""The group of entry points by which installed packages name classes of streams, as for MosaicML Streaming."""


class StreamsRegistry:
    """Classes of streams, or functions that make streams, by name."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[..., Any]] = {'stream': Stream}

    def register(self, name: str, *, func: Callable[..., Any] | None = None) -> Any:
        """Register a class under a name, which a second call replaces. Without `func`, it decorates the class.

        Args:
            name: as `stream_name` gives it.
            func: takes the arguments of `Stream` and those of `stream_config`, by name; returns a `Stream`.
        """
        if func is None:
            return lambda found: self.register(name, func=found)
        self._makers[name] = func
        return func

    register_class = register

    def get(self, name: str) -> Callable[..., Any]:
        """The class of a name: a registered one, or an installed package's entry point.

        Raises:
            UnknownNameError: there is none.
        """
        if name not in self._makers:
            for point in entry_points(group=_ENTRY_POINTS, name=name):
                self._makers[name] = point.load()
        if name not in self._makers:
            raise UnknownNameError(
                f'`stream_name` is one of {sorted(self._makers)}, but got {name!r}. Import the module that calls '
                f'streams_registry.register({name!r}, func=...) first.'
            )
        return self._makers[name]

    def get_all(self) -> dict[str, Callable[..., Any]]:
        """The registered classes by name."""
        return dict(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def make(self, name: str, config: Mapping[str, Any] | None, **place: Any) -> Stream:
        """The stream that the class of a name makes.

        Args:
            name: as `stream_name` gives it.
            config: more arguments of the class.
            place: its `remote`, `local` and `split`.

        Raises:
            UnknownNameError: there is no such class.
            ConfigError: it made something else.
        """
        made = self.get(name)(**{**(config or {}), **place})
        if not isinstance(made, Stream):
            raise ConfigError(f'The stream class {name!r} must make a Stream, but made a {type(made).__name__}.')
        return made


streams_registry = StreamsRegistry()
"""The registry that `StreamingDataset` asks."""
