"""One stream: its options, its place, and its weight in an epoch. Classes of streams by name, for `stream_name`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from headrace.dataset.arguments import by_name, refuse_unused_overrides
from headrace.dataset.streams.columns import column_kinds
from headrace.errors import ConfigError, StreamError, UnknownNameError
from headrace.errors.display import Facts, FactsRepr, count_text, human_size
from headrace.errors.exclusions import path_errors
from headrace.errors.redaction import without_credentials
from headrace.format import ShardTable
from headrace.order import RowSelection
from headrace.order.mixture.rules import given_weights, stream_errors
from headrace.selection import Fraction, Predicate, Selection, Subset
from headrace.sources.formats import check_format, check_options
from headrace.storage import Store, StoreOptions, local_path, open_store
from headrace.storage.cache.control_folder import temporary_folder
from headrace.storage.cache.fetch import same_folder
from headrace.tensors.decoding import Decode, DecodeLike

OnChangedData: TypeAlias = Literal['refresh', 'refuse']


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StreamDefaults:
    """The options that a dataset has, too. Its streams get its values where they have none."""

    remote: str | None = None
    local: str | None = None
    split: str | None = None
    download_retry: int | None = None
    download_timeout: float | None = None
    validate_hash: str | None = None
    keep_zip: bool | None = None
    endpoint_url: str | None = None
    region: str | None = None
    anonymous: bool | None = None
    requester_pays: bool | None = None
    store_options: Mapping[str, Any] | None = None
    subset: Subset | Sequence[Sequence[int | str | None]] | None = None
    fraction: Fraction | Sequence[float | str] | None = None
    fraction_seed: int | None = None
    where: Predicate | Mapping[str, Any] | None = None
    columns: Sequence[str] | None = None
    cost: str | None = None
    on_changed_data: OnChangedData | None = None
    format: str | None = None
    format_options: Mapping[str, Any] | None = None
    decode: DecodeLike | None = None

    def __post_init__(self) -> None:
        if self.on_changed_data not in (None, 'refresh', 'refuse'):
            raise ConfigError(f"`on_changed_data` must be 'refresh' or 'refuse', but is {self.on_changed_data!r}.")
        check_format(self.format)
        check_options(self.format, self.format_options)
        vars(self).update(columns=_read_columns(self.columns), decode=Decode.of(self.decode))

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> StreamDefaults:
        """The options among a dataset's arguments."""
        return cls(**{one.name: arguments[one.name] for one in fields(cls)})


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StreamOptions(StreamDefaults):
    """The options of one stream. `Stream` says what each means."""

    name: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    packing: Any = None
    has_default_folder: bool = field(init=False)
    """Whether `local` was not given. It is the folder of cached shards, without the split of a given one."""

    def __post_init__(self) -> None:
        if not self.remote and not self.local:
            raise StreamError('A stream needs `remote`, `local` or both, but got neither.')
        for broken in stream_errors(self):
            raise StreamError(broken.message(given_weights(self)))
        for broken in path_errors(self):
            raise StreamError(broken.message(repr(getattr(self, broken.keys[0]))))
        super().__post_init__()
        remote, local = None if self.remote is None else str(self.remote), self.local
        if local is None:
            local = os.path.join(temporary_folder(remote or ''), self.split or '')  # noqa: PTH118 — '' keeps the trailing '/'
        vars(self).update(remote=remote, local=str(local), has_default_folder=self.local is None)

    def filled(self, defaults: StreamDefaults, number: int) -> StreamOptions:
        """These options, with a dataset's where there are none; but `remote` and `local` are not for streams."""
        found: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(StreamOptions) if one.init}
        if self.has_default_folder:
            found['local'] = None  # the dataset's split may be its last part
        for one in fields(StreamDefaults):
            if found[one.name] is None and one.name not in ('remote', 'local'):
                found[one.name] = getattr(defaults, one.name)
        found['split'] = found['split'] or ''  # programs join it to `local`
        # A name is part of the order's key, so it must not depend on the data's location.
        found['name'] = self.name or f'stream_{number}'
        options = StreamOptions(**found)
        seconds = options.download_timeout
        if seconds is not None and not seconds > 0:
            raise StreamError(f'download_timeout must be above 0 seconds, got {seconds} ({options.title}).')
        return options

    @property
    def folder(self) -> Path:
        """The folder of the stream's index.json and shards."""
        assert self.local is not None  # since the end of the constructor
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

    def selection(self) -> Selection | None:
        """The rows to offer; None: all."""
        return Selection.read(
            subset=self.subset, fraction=self.fraction, fraction_seed=self.fraction_seed, where=self.where
        )

    def open_store(self) -> Store | None:
        """The store of the remote, before any request; None if the folder is all there is."""
        if self.is_local or self.url is None:
            return None
        store = open_store(self.url, self.for_store())
        return None if same_folder(store, self.folder) else store

    def for_store(self) -> StoreOptions:
        """The options with which the store is opened."""
        extra = dict(self.store_options or {})
        options = StoreOptions(
            endpoint_url=self.endpoint_url,
            region=self.region,
            anonymous=bool(self.anonymous),
            requester_pays=bool(self.requester_pays),
            read_timeout=float(self.download_timeout or 60),
        )
        times = {name: extra.pop(name) for name in ('connect_timeout', 'request_timeout') if name in extra}
        for name, seconds in times.items():
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
                raise StreamError(
                    f'`{name}` in `store_options` of stream {self.title} must be a number of seconds above 0, but '
                    f'is {seconds!r}.'
                )
        return replace(options, **{name: float(seconds) for name, seconds in times.items()}, extra=extra)


StreamOptions.__init__ = by_name(StreamOptions.__init__)  # pyright: ignore[reportAttributeAccessIssue] - the same type


def _read_columns(raw: object) -> tuple[str, ...] | None:
    """The names of an argument `columns`; None for all columns."""
    if raw is None:
        return None
    names = () if isinstance(raw, (str, bytes)) or not isinstance(raw, Iterable) else tuple(cast('Iterable[Any]', raw))
    if not names or not all(isinstance(name, str) for name in names):
        fix = f' Write [{raw!r}].' if isinstance(raw, str) and raw else ''
        raise StreamError(f"`columns` must be a list of column names, such as ['text'], but is {raw!r:.100}.{fix}")
    return tuple(dict.fromkeys(names))


class Stream(StreamOptions, FactsRepr):
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
        format_options: options of the named format, such as ``{'delimiter': ';'}`` of 'csv'; ``docs/formats.md`` lists
            them.
        cost: the column that says how long a sample is, for `bucket`, `batch_cost` and `balance`: whole numbers, also
            as text, or texts, bytes or arrays of one axis, whose lengths count. All samples are read for it, once per
            machine.
        decode: columns that are read as tensors: 'tensor' or an `ImageTensor` for all columns of images, or a mapping
            from columns to these or to an `AudioTensor`. None: images are read as Pillow's, and sound as bytes.
        on_changed_data: action if the remote's data have changed since they were cached. 'refresh' takes the new data,
            and removes cached shards that may differ; 'refuse' raises.
        packing: a `headrace.packing.StreamPacking`: the column, tokenizer and so on of the stream's documents in a
            `PackedDataset`, where they are not those of its `Packing`.

    Raises:
        ArgumentError: an argument by position, of an unknown name, or of the wrong kind, such as text for a number.
        StreamError: more than one weight, a negative weight, or neither `remote` nor `local`; or a malformed `subset`,
            `fraction`, `where`, `columns` or `decode`.
    """

    local: str  # pyright: ignore[reportIncompatibleVariableOverride] - it has a default
    """The folder of cached shards, without the split of a given one."""
    shards = ShardTable.empty()
    row_selection: RowSelection | None = None
    fingerprint = ''
    first_shard = 0

    # Its user may set attributes, until a dataset opens it.
    __delattr__ = object.__delattr__

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == 'local':
            vars(self)['has_default_folder'] = False

    def __post_init__(self) -> None:
        refuse_unused_overrides(type(self), Stream)
        super().__post_init__()
        self.selection()

    def show(self, opened: StreamOptions, *, choose: int, proportion: float, repeat: float) -> None:
        """Let the attributes say what a dataset reads: programs ask for them when it is made."""
        vars(self).update(vars(opened), choose=choose, proportion=proportion, repeat=repeat)

    def shard_sizes(self) -> npt.NDArray[np.int64]:
        """Samples stored in each shard, int64[shards]."""
        return self.shards.samples

    def _facts(self) -> Facts:
        return stream_facts(self)


def streams_given(streams: Sequence[Stream] | None, remote: str | None, local: str | None) -> Sequence[Stream] | None:
    """The streams that a dataset was given; None: one by `remote` and `local`."""
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


_LONGEST = 300  # Characters of the columns in a repr.


def stream_facts(stream: Stream) -> Facts:
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
    """One line about an opened stream, without its name; a single one has no `weight`."""
    place = without_credentials(stream.url) if stream.url else str(stream.folder)
    parts = [place, _sizes(stream), _weight(stream) if weight else '']
    return ', '.join(part for part in parts if part)


def columns_text(streams: list[Stream]) -> str:
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
