"""The schema of a configuration: its keys, their types and bounds, and the rules between them.

A key has the name of its argument: of ``StreamingDataset`` in a loader, of ``Stream`` in a stream, of
``torch.utils.data.DataLoader`` under ``loader``. None means that the key was omitted, unless its text says more.
``docs/configuration.md`` is generated from the annotations and from the text beneath each field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, cast

from headrace.config.packing import PackingConfig, StreamPackingConfig
from headrace.config.resolver import yaml_text
from headrace.config.validate import read_decisions
from headrace.errors import ConfigError
from headrace.errors.exclusions import BrokenRule, broken_exclusions, path_errors, settings_of
from headrace.errors.redaction import redact_value, redacted_repr
from headrace.options.constraints import AtLeast, Count, Named, Parsed
from headrace.options.dataset import DatasetOptions
from headrace.options.streams import StreamOptions
from headrace.order.config import ORDER_ARGUMENTS, OrderConfig
from headrace.order.lengths import check_balance
from headrace.order.mixture.rules import (
    mixture_errors,
    names_errors,
    point_errors,
    schedule_errors,
    stream_errors,
)
from headrace.order.mixture.schedule import Change
from headrace.tensors.padding import Pad

SOURCE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(('path', 'data', 'source', 'root'), ('remote', 'local')),
    **dict.fromkeys(('url', 'uri', 'bucket'), ('remote',)),
    **dict.fromkeys(('folder', 'dir', 'directory', 'cache', 'cache_dir', 'data_dir', 'data_path'), ('local',)),
}
"""Names of `remote` and `local` in other programs."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig(StreamOptions):
    """One stream: the place of its shards, and its weight.

    A weight is one of `proportion`, `repeat`, `choose`; a stream without one is taken once.
    """

    name: str = ''
    """Name of the stream: its key in a mapping. The order of samples depends on it."""

    packing: StreamPackingConfig | None = None
    """Column or tokenizer of its own. Default: the loader's `packing`."""

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, ...]]:
        """Names of these keys in other programs."""
        of_packing = dict.fromkeys(('column', 'tokenizer', 'token_dtype', 'eos_token_id', 'bos_token_id'), ('packing',))
        return {
            **SOURCE_NAMES,
            **of_packing,
            'weight': ('proportion', 'repeat'),
            'ratio': ('proportion',),
            'share': ('proportion',),
        }

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The rules between this stream's keys that do not hold."""
        if self.remote is None and self.local is None:
            yield BrokenRule(('remote', 'local'), 'a stream needs `remote`, `local`, or both')
        yield from stream_errors(self)
        yield from path_errors(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePointConfig:
    """Proportions from one point of the run on."""

    at: Annotated[int, Count(least=0)] = 0
    """Samples of all ranks since the beginning of the run; the first is 0."""

    proportions: Mapping[str, Annotated[float, AtLeast(0)]] = field(default_factory=dict[str, float])
    """Shares of the streams by name; a stream without one has none."""

    change: Change = 'step'
    """Reach these proportions at once, or along a line from the point before."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        yield from point_errors(self)


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig(DatasetOptions):
    """Arguments of `StreamingDataset`: the streams, the order of their samples, and the cache."""

    streams: Annotated[tuple[StreamConfig, ...], Named('stream')] = ()
    """The streams by name, or a list of streams with `name`."""

    schedule: tuple[SchedulePointConfig, ...] = ()
    """Proportions that change during the run, in place of weights."""

    decisions: Annotated[tuple[Mapping[str, Any], ...], Parsed(read_decisions, 'a list, or a JSON file')] = ()
    """Decided proportions of an earlier run, to be repeated: see `docs/mixtures.md`."""

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, ...]]:
        """Names of these keys in other programs."""
        return {**SOURCE_NAMES, 'seed': ('shuffle_seed',)}

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The rules between this loader's keys that do not hold, its streams' own excepted."""
        yield from self._broken_source_rules()
        yield from path_errors(self)
        yield from mixture_errors(self.streams, epoch_size=self.epoch_size, is_scheduled=bool(self.schedule))
        if self.schedule:
            names = [stream.name for stream in self.streams]
            yield from schedule_errors(self.schedule)
            yield from names_errors(self.schedule, names)

    def _broken_source_rules(self) -> Iterator[BrokenRule]:
        single = any(value is not None for value in (self.remote, self.local, self.split))
        if self.streams and single:
            rule = '`streams` and `remote`, `local`, `split` exclude each other; move them into the streams'
            yield BrokenRule(('remote', 'local', 'split', 'streams'), rule)
        if not self.streams and self.remote is None and self.local is None:
            rule = 'names no data; give `streams`, or `remote` and `local` of a single stream'
            yield BrokenRule(('streams', 'remote', 'local'), rule)
        folders: dict[tuple[str, str | None], StreamConfig] = {}
        for stream in self.streams:
            if stream.local is None or stream.remote in (None, stream.local):
                continue  # no folder, or no cache but the data itself
            first = folders.setdefault((stream.local, stream.split), stream)
            if first.remote != stream.remote:
                rule = (
                    f'streams {first.name} and {stream.name} would share the folder {stream.local}; give each its own'
                )
                yield BrokenRule(('streams',), rule, inner=('remote', 'local', 'split'))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Arguments of `StreamingDataLoader`. Without workers, their options are ignored."""

    num_workers: Annotated[int, AtLeast(0)] = 0
    """Processes that read, per rank. 0: the training process reads."""

    prefetch_factor: Annotated[int, AtLeast(1)] | None = None
    """Batches that each worker holds ready. Default: 2."""

    persistent_workers: bool = False
    """Keep the workers between epochs. Under `cache_limit` they prefetch the next one, if `max_epochs` is known."""

    pin_memory: bool = False
    """Copy batches into page-locked memory, for faster transfers to a GPU."""

    timeout: Annotated[float, AtLeast(0)] = 0
    """Seconds to wait for a worker's batch; 0: for ever."""

    multiprocessing_context: Literal['fork', 'spawn', 'forkserver'] | None = None
    """How workers start. Default: the platform's way."""

    drop_last: bool = False
    """`remainder: drop`, by PyTorch's name."""

    mark_streams: bool = False
    """Put the number of each row's stream into the batch, as `stream_number`."""

    pad: Annotated[Pad, Parsed(Pad.read, 'a mapping from columns to values')] | None = None
    """Columns of arrays to fill up to one length, such as `{tokens: 0}`: see `docs/samples.md`."""

    device: str | None = None
    """`cuda`: copy each batch to the GPU while the step before it computes. Default: batches stay in memory."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig(DatasetConfig):
    """One loader: a dataset, the batch size, and the processes that read."""

    name: str = ''
    """The loader's key, not written inside."""

    global_batch_size: Annotated[int, AtLeast(1)] | None = None
    """Samples per step over all ranks; the ranks must divide it, except under `uneven`."""

    device_batch_size: Annotated[int, AtLeast(1)] | None = None
    """Samples per step of one rank."""

    packing: PackingConfig | None = None
    """Pack documents into sequences of tokens; batches count sequences."""

    loader: WorkerConfig = WorkerConfig()
    """The processes that read."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The rules between this loader's keys that do not hold, its streams' own excepted."""
        yield from DatasetConfig.cross_field_errors(self)
        broken = [rule for _, rule in broken_exclusions(settings_of(self))]
        yield from broken or self._broken_value_rules()
        if self.packing is not None:
            yield from self._broken_packing_rules(self.packing)

    def _broken_value_rules(self) -> Iterator[BrokenRule]:
        """The rules of values that the order and the loader check where they are made."""
        try:
            check_balance(self.balance, OrderConfig.of(dataclasses.replace(self, shuffle_seed=self.shuffle_seed or 0)))
        except ConfigError as error:
            rule = str(error).rstrip('.')
            yield BrokenRule(tuple(name for name in ('balance', *ORDER_ARGUMENTS) if name in rule), rule)
        if self.loader.device is not None:
            from headrace.dataset.device import gpu_of  # imports PyTorch

            try:
                gpu_of(self.loader.device)
            except ConfigError as error:
                yield BrokenRule(('loader',), str(error).rstrip('.'), inner=('device',))

    def _broken_packing_rules(self, packing: PackingConfig) -> Iterator[BrokenRule]:
        for stream in self.streams:
            column = (stream.packing or StreamPackingConfig()).document_column(packing)
            columns = stream.columns or self.columns
            if columns is not None and column not in columns:
                rule = f'stream {stream.name} reads the columns {", ".join(columns)}, without {column} of its documents'
                yield BrokenRule(('streams', 'columns'), f'{rule}; add it, or name `column` in `packing`')


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole file: the loaders, and what they share."""

    global_batch_size: Annotated[int, AtLeast(1)] | None = None
    """`global_batch_size` of loaders without a batch size."""

    device_batch_size: Annotated[int, AtLeast(1)] | None = None
    """`device_batch_size` of loaders without a batch size."""

    shuffle_seed: Annotated[int, AtLeast(0)] | None = None
    """`shuffle_seed` of loaders without one. Default: the checkpoint's, or 9176."""

    train: LoaderConfig | None = None
    """The training loader."""

    eval: Annotated[tuple[LoaderConfig, ...], Named('loader', or_single=True)] = ()
    """Loaders for evaluation and validation."""

    test: Annotated[tuple[LoaderConfig, ...], Named('loader', or_single=True)] = ()
    """Loaders for testing."""

    predict: Annotated[tuple[LoaderConfig, ...], Named('loader', or_single=True)] = ()
    """Loaders for prediction."""

    def __str__(self) -> str:
        """The configuration as YAML, without defaults and secrets."""
        return yaml_text(redact_value(to_mapping(self)))

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The broken rules between the top level's keys, those broken by inheriting from it, and those of sections."""
        sizes = {'global_batch_size': self.global_batch_size, 'device_batch_size': self.device_batch_size}
        twice = [broken for _, broken in broken_exclusions(sizes)]
        yield from twice
        sections = ('train', 'eval', 'test', 'predict')
        if self.train is None and not (self.eval or self.test or self.predict):
            yield BrokenRule(sections, f'names no loader; give at least one of {", ".join(sections)}')
        for section in sections[1:]:
            for loader in _loaders(self, section):
                for _, broken in broken_exclusions({'on_growth': loader.on_growth, 'fixed_epoch': 0}):
                    yield BrokenRule((section,), broken.rule, ('on_growth',))
        if self.global_batch_size is None and self.device_batch_size is None:
            for section in sections:
                if any(_has_no_batch_size(loader) for loader in _loaders(self, section)):
                    rule = (
                        'has no batch size; give `global_batch_size` or `device_batch_size`, here or at the top level'
                    )
                    sizes = ('global_batch_size', 'device_batch_size')
                    yield BrokenRule((section, *sizes), rule, inner=sizes)
            return
        for section in sections:
            for loader in _loaders(self, section):
                told = {broken.rule for broken in (*twice, *loader.cross_field_errors())}
                for broken in self._inherit(loader).cross_field_errors():
                    if broken.rule not in told:
                        yield BrokenRule((section,), broken.rule, (*broken.keys, *broken.inner))

    def inherited(self) -> Config:
        """This configuration with the top level's batch size and seed written into the loaders that give none."""
        changes: dict[str, object] = {'train': self.train and self._inherit(self.train)}
        for section in ('eval', 'test', 'predict'):
            changes[section] = tuple(self._inherit(loader) for loader in _loaders(self, section))
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def _inherit(self, loader: LoaderConfig) -> LoaderConfig:
        if _has_no_batch_size(loader):
            sizes = {'global_batch_size': self.global_batch_size, 'device_batch_size': self.device_batch_size}
            loader = dataclasses.replace(loader, **sizes)
        seed = self.shuffle_seed if loader.shuffle_seed is None else loader.shuffle_seed
        return dataclasses.replace(loader, shuffle_seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDirectives:
    """Keys that control the reading of a file; they are not part of the configuration."""

    defaults: tuple[str, ...] = ()
    """Files to read first, relative to this one."""

    variables: Mapping[str, object] | None = None
    """Values of any shape for interpolation; no key here is checked."""


def _has_no_batch_size(config: LoaderConfig) -> bool:
    return config.global_batch_size is None and config.device_batch_size is None


def _loaders(config: Config, section: str) -> tuple[LoaderConfig, ...]:
    value: tuple[LoaderConfig, ...] | LoaderConfig | None = getattr(config, section)
    return (value,) if isinstance(value, LoaderConfig) else value or ()


def named_loaders(config: Config) -> dict[str, LoaderConfig]:
    """All loaders by name: ``train``, ``eval`` for an unnamed one, ``eval.books``."""
    found = {} if config.train is None else {'train': config.train}
    for section in ('eval', 'test', 'predict'):
        loaders = _loaders(config, section)
        found |= {section if loader.name == section else f'{section}.{loader.name}': loader for loader in loaders}
    return found


def to_yaml(config: Config) -> str:
    """The configuration as YAML that `load_config` reads back as an equal one; defaults are left out."""
    return yaml_text(to_mapping(config))


def to_mapping(config: Config | LoaderConfig) -> dict[str, Any]:
    """The configuration as plain values, as YAML would have them; defaults are left out."""
    given: dict[str, Any] = {}
    for key in dataclasses.fields(config):
        value = getattr(config, key.name)
        if key.name != 'name' and value != key.default:
            given[key.name] = _plain(value, key.name)
    return given


def _plain(value: Any, key: str = '') -> Any:
    items = cast('tuple[Any, ...]', value) if isinstance(value, tuple) else ()
    if items and hasattr(items[0], 'name'):
        named = {item.name: to_mapping(item) for item in items}
        return named[key] if list(named) == [key] and isinstance(items[0], LoaderConfig) else named
    if isinstance(value, tuple):
        return [_plain(item) for item in items]
    if (plain := getattr(value, 'plain', None)) is not None:  # of selections and pictures
        return plain
    return to_mapping(cast('Any', value)) if dataclasses.is_dataclass(value) else value
