"""One stream: its options, its place, and its weight in an epoch. Classes of streams by name, for `stream_name`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from headrace.dataset.arguments import documented, refuse_unused_overrides, takes
from headrace.errors import ConfigError, StreamError, UnknownNameError
from headrace.errors.display import Facts, FactsRepr, count_text, human_size
from headrace.errors.exclusions import path_errors
from headrace.errors.redaction import without_credentials
from headrace.format import Schema, ShardTable
from headrace.options.dataset import DatasetOptions
from headrace.options.streams import SelectionConfig, StreamOptions
from headrace.order import RowSelection
from headrace.order.mixture.rules import given_weights, stream_errors
from headrace.selection import Selection
from headrace.sources.formats import check_format, check_options
from headrace.storage import Store, StoreOptions, local_path, open_store
from headrace.storage.cache.control_folder import temporary_folder
from headrace.storage.cache.fetch import same_folder
from headrace.tensors.decoding import Decode, TensorColumns

_NO_SHARDS: Final = ShardTable.empty()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlacedStream(StreamOptions):
    """The options of one stream after their check, with its folder."""

    local: str = ''
    columns: tuple[str, ...] | None = None
    decode: Decode | None = None
    has_default_folder: bool = False
    """Whether `local` was not given. It is the folder of cached shards, without the split of a given one."""
    shards: ShardTable = field(default_factory=lambda: _NO_SHARDS)
    """Those that are offered: all of the index, unless it has grown since the run began."""
    row_selection: RowSelection | None = None
    """The rows of the shards that are offered, or None for all."""
    fingerprint: str = ''
    """Tells data and selection from others."""
    first_shard: int = 0

    @classmethod
    def of(cls, options: StreamOptions) -> PlacedStream:
        """The stream with these options.

        Raises:
            StreamError: the place is missing, there is more than one weight; or an option is malformed.
        """
        if not options.remote and not options.local:
            raise StreamError('A stream needs `remote`, `local` or both, but got neither.')
        for broken in stream_errors(options):
            raise StreamError(broken.message(given_weights(options)))
        for broken in path_errors(options):
            raise StreamError(broken.message(repr(getattr(options, broken.keys[0]))))
        values: dict[str, Any] = {one.name: getattr(options, one.name) for one in fields(StreamOptions)}
        remote, local = None if options.remote is None else str(options.remote), options.local
        if local is None:
            local = os.path.join(temporary_folder(remote or ''), options.split or '')  # noqa: PTH118 — '' keeps the trailing '/'
        values.update(read_selection(options), remote=remote, local=str(local))
        return cls(**values, has_default_folder=options.local is None)

    def as_given(self) -> StreamOptions:
        """The options as they were given, without a default folder."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(StreamOptions)}
        values['local'] = None if self.has_default_folder else self.local
        return StreamOptions(**values)

    def filled(self, defaults: DatasetOptions | StreamOptions, number: int) -> PlacedStream:
        """These options, with a dataset's where there are none; but `remote` and `local` are not for streams."""
        given = self.as_given()
        names = [one.name for one in fields(SelectionConfig) if getattr(given, one.name) is None]
        # Programs join the split to `local`. A default folder may have the dataset's as its last part.
        split = (defaults.split if given.split is None else given.split) or ''
        # A name is part of the order's key, so it must not depend on the data's location.
        name = given.name or f'stream_{number}'
        missing = {name: getattr(defaults, name) for name in names}
        return PlacedStream.of(replace(given, **missing, split=split, name=name))

    @property
    def folder(self) -> Path:
        """The folder of the stream's index.json and shards."""
        return Path(self.local) / (self.split or '')

    @property
    def url(self) -> str | None:
        """URL of the remote with the split, or None for a local-only stream."""
        if self.remote is None:
            return None
        return f'{self.remote.removesuffix("/")}/{self.split}' if self.split else self.remote

    @property
    def title(self) -> str:
        """The stream's name in errors."""
        place = self.url or str(self.folder)
        return f'{self.name} ({place})' if self.name else place

    @property
    def is_local(self) -> bool:
        """Whether the data is already in place: the remote is missing, or is the local folder itself."""
        if self.url is None:
            return True
        path = local_path(self.url)
        return path is not None and Path(path).resolve() == self.folder.resolve()

    def selection(self) -> Selection | None:
        """The rows to offer; None: all."""
        return Selection.read(
            subset=self.subset, fraction=self.fraction, fraction_seed=self.fraction_seed, where=self.where
        )

    def tensors_of(self, schema: Schema) -> TensorColumns | None:
        """The columns of shards of a schema that are read as tensors; None without `decode`."""
        decode = Decode.of(self.decode)
        return decode and decode.columns_of(schema, self.columns, f'stream {self.title}')

    def column_kinds(self, schema: Schema) -> dict[str, str]:
        """The types of the columns to read of a schema in a batch; see `Schema.kinds`."""
        kinds, tensors = schema.kinds(self.columns), self.tensors_of(schema)
        if tensors is not None:
            kinds.update((column.name, column.settings.kind) for column in tensors.columns)
        return kinds

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


def read_selection(options: SelectionConfig) -> dict[str, Any]:
    """The values of `columns` and `decode`, as streams read them.

    Raises:
        StreamError, UnknownNameError, ConfigError: one of them, or a format with its options, is malformed.
    """
    check_format(options.format)
    check_options(options.format, options.format_options)
    return {'columns': _read_columns(options.columns), 'decode': Decode.of(options.decode)}


def _read_columns(raw: object) -> tuple[str, ...] | None:
    """The names of an argument `columns`; None for all columns."""
    if raw is None:
        return None
    names = () if isinstance(raw, (str, bytes)) or not isinstance(raw, Iterable) else tuple(cast('Iterable[Any]', raw))
    if not names or not all(isinstance(name, str) for name in names):
        fix = f' Write [{raw!r}].' if isinstance(raw, str) and raw else ''
        raise StreamError(f"`columns` must be a list of column names, such as ['text'], but is {raw!r:.100}.{fix}")
    return tuple(dict.fromkeys(names))


@documented(StreamOptions)
class Stream(FactsRepr):
    """A dataset's folder of shards, local, remote or both, and its weight in a mixture.

    At most one of `proportion`, `repeat` and `choose` may be given. Arguments left at None are filled in by the
    `StreamingDataset` that the stream is given to. Each dataset needs streams of its own. Options are attributes; those
    of an opened stream say what the dataset reads.

    Raises:
        ArgumentError: an argument by position, of an unknown name, or of the wrong kind, such as text for a number.
        StreamError: more than one weight, a negative weight, or neither `remote` nor `local`; or a malformed `subset`,
            `fraction`, `where`, `columns` or `decode`.
    """

    placed: PlacedStream
    """Its options; of an opened stream, what the dataset reads."""

    @takes(StreamOptions, error=StreamError)
    def __init__(self, options: StreamOptions) -> None:
        refuse_unused_overrides(type(self), Stream)
        placed = PlacedStream.of(options)
        placed.selection()
        self.placed = placed
        for name in _OPTIONS & vars(self).keys():  # a subclass may store options before
            del vars(self)[name]

    @property
    def local(self) -> str:
        """The folder of cached shards, without the split of a given one."""
        return self.placed.local

    @local.setter
    def local(self, folder: str) -> None:
        self.placed = replace(self.placed, local=folder, has_default_folder=False)

    def __getattr__(self, name: str) -> Any:
        if name == 'placed' or name.startswith('__'):  # while it is copied, it has none
            raise AttributeError(name)
        return getattr(self.placed, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Its user may set options, until a dataset opens it.
        if 'placed' not in vars(self):
            vars(self)[name] = value
        elif name in _OPTIONS and name != 'local':
            self.placed = replace(self.placed, **{name: value})
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *dir(self.placed)}

    def show(self, opened: PlacedStream, *, choose: int, proportion: float, repeat: float) -> None:
        """Let the attributes say what a dataset reads: programs ask for them when it is made."""
        self.placed = replace(opened, choose=choose, proportion=proportion, repeat=repeat)

    def shard_sizes(self) -> npt.NDArray[np.int64]:
        """Samples stored in each shard, int64[shards]."""
        return self.shards.samples

    def _facts(self) -> Facts:
        return stream_facts(self)


_OPTIONS: Final = frozenset(one.name for one in fields(StreamOptions))


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
            for name, kind in stream.placed.column_kinds(schema).items():
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
            UnknownNameError: the class is not registered.
            ConfigError: it made something else.
        """
        made = self.get(name)(**{**(config or {}), **place})
        if not isinstance(made, Stream):
            raise ConfigError(f'The stream class {name!r} must make a Stream, but made a {type(made).__name__}.')
        return made


streams_registry = StreamsRegistry()
"""The registry that `StreamingDataset` asks."""
