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
from headrace.config.validate import (
    AtLeast,
    Bytes,
    Count,
    MoreThan,
    Named,
    OneOf,
    Parsed,
    read_batch_cost,
    read_decisions,
    read_peers,
    read_skip,
)
from headrace.errors import ConfigError
from headrace.errors.exclusions import BrokenRule, broken_exclusions, path_errors
from headrace.errors.redaction import redact_value, redacted_repr
from headrace.format import get_hashes
from headrace.order.config import ORDER_ARGUMENTS, BatchCost, OrderConfig
from headrace.order.lengths import check_balance
from headrace.order.mixture.rules import (
    exhaustion_errors,
    mixture_errors,
    names_errors,
    point_errors,
    schedule_errors,
    stream_errors,
)
from headrace.order.mixture.schedule import Change
from headrace.order.shuffle import ALGORITHMS
from headrace.selection import Conditions, Fraction, Subset
from headrace.sources.formats import known_formats
from headrace.storage.cache.peer_options import PeerOptions
from headrace.tensors.decoding import Decode
from headrace.tensors.padding import Pad

SOURCE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(('path', 'data', 'source', 'root'), ('remote', 'local')),
    **dict.fromkeys(('url', 'uri', 'bucket'), ('remote',)),
    **dict.fromkeys(('folder', 'dir', 'directory', 'cache', 'cache_dir', 'data_dir', 'data_path'), ('local',)),
}
"""Names of `remote` and `local` in other programs."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """Transfer of shards from the store to the cache; of one stream, or a default for all streams of a loader."""

    download_retry: Annotated[int, AtLeast(0)] | None = None
    """Further attempts after a failed download, for at least half a minute; 0: none. Default: 2."""

    download_timeout: Annotated[float, MoreThan(0)] | None = None
    """Seconds without a byte before an attempt fails. Default: 60."""

    validate_hash: Annotated[str, OneOf(tuple(sorted(get_hashes())))] | None = None
    """Hash of the shards to verify: see `docs/mds.md`. Default: sizes only."""

    keep_zip: bool | None = None
    """Keep the compressed file, too. Default: false."""

    endpoint_url: str | None = None
    """Address of the store's server. Default: the cloud's own."""

    region: str | None = None
    """Region of the bucket. Default: from the cloud's configuration."""

    anonymous: bool | None = None
    """Send no credentials, for public buckets. Default: false."""

    requester_pays: bool | None = None
    """Pay for the requests, if a bucket's owner demands it. Default: false."""

    store_options: Mapping[str, object] | None = None
    """Options of this kind of store: see `docs/stores.md`."""

    on_changed_data: Literal['refresh', 'refuse'] | None = None
    """Fetch remote data that changed since they were cached, or raise. Default: `refresh`."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig(TransferConfig):
    """Selection of stored samples and columns; of one stream, or a default for all streams of a loader."""

    subset: Annotated[Subset, Parsed(Subset.read, 'a list of ranges')] | None = None
    """Ranges of stored samples, the stop exclusive: `[[0, 1m], [5m, null]]`. Default: all."""

    fraction: Annotated[Fraction, Parsed(Fraction.read, 'two numbers from 0 to 1')] | None = None
    """Random part of each shard: `[0, 0.95]` to train, `[0.95, 1]` to validate. Default: all."""

    fraction_seed: Annotated[int, AtLeast(0)] | None = None
    """Seed of the random parts; parts of one split share it. Default: 0."""

    where: Annotated[Conditions, Parsed(Conditions.read, 'a mapping from columns to tests')] | None = None
    """Tests that a sample must pass: `{lang: [de, fr], tokens: {at_least: 512}}`."""

    columns: tuple[str, ...] | None = None
    """Columns to read, such as `[text, id]`. Default: all."""

    cost: str | None = None
    """Column whose length or number is a sample's cost, for `bucket`, `batch_cost` and `balance`."""

    decode: Annotated[Decode, Parsed(Decode.read, '`tensor`, or a mapping')] | None = None
    """Images and sound to read as tensors, such as `{image: {size: 224}}`: see `docs/images.md`."""

    format: Annotated[str, OneOf(known_formats)] | None = None
    """Format of the data: see `docs/formats.md`. Default: found by looking."""

    format_options: Mapping[str, object] | None = None
    """Options of the format, such as `{delimiter: ;}` of `csv`: see `docs/formats.md`."""


@redacted_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig(SelectionConfig):
    """One stream: the place of its shards, and its weight.

    A weight is one of `proportion`, `repeat`, `choose`; a stream without one is taken once.
    """

    name: str = ''
    """Name of the stream: its key in a mapping. The order of samples depends on it."""

    remote: str | None = None
    """URL or folder of the shards, without the split. Default: the shards are in `local`."""

    local: str | None = None
    """Cache folder. Default: a folder of the system's temporary one."""

    split: str | None = None
    """Folder of this split, under `remote` and `local`."""

    proportion: Annotated[float, AtLeast(0)] | None = None
    """Share of the epoch, relative to the sum over all streams."""

    repeat: Annotated[float, AtLeast(0)] | None = None
    """Times that an epoch takes the stream, such as 0.5 or 2."""

    choose: Annotated[int, Count(least=0)] | None = None
    """Samples that an epoch takes, such as `100k`."""

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
class DatasetConfig(SelectionConfig):
    """Arguments of `StreamingDataset`: the streams, the order of their samples, and the cache."""

    streams: Annotated[tuple[StreamConfig, ...], Named('stream')] = ()
    """The streams by name, or a list of streams with `name`."""

    remote: str | None = None
    """In place of `streams`: a single one's `remote`."""

    local: str | None = None
    """In place of `streams`: a single one's `local`."""

    split: str | None = None
    """In place of `streams`: a single one's `split`."""

    epoch_size: Annotated[int, Count()] | None = None
    """Samples per epoch; not with `repeat` or `choose`. Default: those of the streams."""

    predownload: Annotated[int, AtLeast(0)] | None = None
    """Samples that each worker prefetches. Default: 65,536 or 8 batches, the larger, in 512 MiB and 1,024 shards."""

    cache_limit: Annotated[int, Bytes()] | None = None
    """Limit of shards and indexes in this machine's cache folders. Default: none."""

    peers: Annotated[PeerOptions, Parsed(read_peers, 'a mapping')] | None = None
    """`{}` has the nodes share their caches: see `docs/tuning.md`. Default: none."""

    sampling_method: Literal['balanced', 'fixed'] = 'balanced'
    """From a stream taken in part: other samples in each epoch, or the same ones."""

    sampling_granularity: Annotated[int, AtLeast(1)] = 1
    """Samples that are taken together from a shard; above 1, the native order needs `fixed`."""

    partition_algo: Literal['orig', 'relaxed'] = 'relaxed'
    """How MosaicML Streaming's orders deal shards to nodes."""

    num_canonical_nodes: Annotated[int, AtLeast(1)] | None = None
    """Parts of the order, on any number of nodes. Default: the checkpoint's, or the algorithm's."""

    shuffle: bool = False
    """Shuffle the samples."""

    shuffle_algo: Annotated[str, OneOf(tuple(ALGORITHMS))] | None = None
    """Order of the samples: see `docs/order.md`. Default: the checkpoint's, or `native`."""

    shuffle_seed: Annotated[int, AtLeast(0)] | None = None
    """Seed of the order. Default: the top level's, the checkpoint's, or 9176."""

    shuffle_block_size: Annotated[int, Count()] | None = None
    """Samples that are shuffled among each other. Default: the algorithm's."""

    batching_method: Literal['random', 'stratified', 'per_stream', 'device_per_stream'] = 'random'
    """How streams share a batch: see `docs/mixtures.md`."""

    bucket: Annotated[int, AtLeast(1)] | None = None
    """Batches of a window whose samples are sorted by `cost`: see `docs/lengths.md`."""

    batch_cost: Annotated[BatchCost, Parsed(read_batch_cost, 'a number, or a mapping')] | None = None
    """Cut batches of a window so that rows times the longest `cost` are at most this: see `docs/lengths.md`."""

    balance: Annotated[float, MoreThan(0)] | None = None
    """Deal rows to ranks so that sums of `cost` to this power are nearly equal: 1, or 2 for attention."""

    loss_weight: Literal['samples', 'cost'] | None = None
    """Put the weight of each row into the batch, as `loss_weight`: see `docs/order.md`."""

    uneven: Literal['pad', 'ragged'] | None = None
    """Ranks that do not divide `global_batch_size`: see `docs/order.md`. Default: refused."""

    schedule: tuple[SchedulePointConfig, ...] = ()
    """Proportions that change during the run, in place of weights."""

    decisions: Annotated[tuple[Mapping[str, Any], ...], Parsed(read_decisions, 'a list, or a JSON file')] = ()
    """Decided proportions of an earlier run, to be repeated: see `docs/mixtures.md`."""

    when_exhausted: Literal['repeat', 'stop', 'drop_stream'] = 'repeat'
    """After the last sample of a stream: begin its next pass, end the epoch, or continue without it."""

    on_mixture_change: Literal['refuse', 'continue'] = 'refuse'
    """Refuse a checkpoint of another mixture, or continue each stream where it was."""

    on_growth: Literal['ignore', 'next_pass', 'delta', 'wait'] = 'ignore'
    """Shards that are appended during the run: see `docs/mixtures.md`."""

    growth_wait: Annotated[float, MoreThan(0)] = 600
    """Seconds for which `on_growth: wait` waits for new samples."""

    allow_unsafe_types: bool = False
    """Read pickles. They run code of their writer: for your own data only."""

    replication: Annotated[int, AtLeast(1)] | None = None
    """Neighbouring ranks that get the same samples, such as the tensor-parallel degree. Default: 1."""

    remainder: Literal['repeat', 'exact', 'drop'] | None = None
    """Samples after the last full global batch: fill it with repeats, mark these, or drop the samples. Default:
    `repeat`; `exact` for evaluation under Lightning."""

    skip: Annotated[tuple[tuple[int | str, int | str], ...], Parsed(read_skip, 'a list of pairs')] = ()
    """Ranges of the run to skip, the end exclusive: `[[4096, 8192], [1200ba, 1250ba], [17doc, 20doc]]`."""

    on_bad_sample: Literal['raise', 'skip'] = 'raise'
    """Raise for a sample that cannot be read, or mark its row as `is_bad_sample`."""

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
            yield from exhaustion_errors(self.when_exhausted)

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
    """Samples per step over all ranks; the ranks must divide it, but for `uneven`."""

    device_batch_size: Annotated[int, AtLeast(1)] | None = None
    """Samples per step of one rank."""

    packing: PackingConfig | None = None
    """Pack documents into sequences of tokens; batches count sequences."""

    loader: WorkerConfig = WorkerConfig()
    """The processes that read."""

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        """The rules between this loader's keys that do not hold, its streams' own excepted."""
        yield from DatasetConfig.cross_field_errors(self)
        yield from _broken_batch_size_rules(self)
        if self.uneven is not None and self.device_batch_size is not None:
            rule = '`uneven` deals a `global_batch_size`; give it in place of `device_batch_size`'
            yield BrokenRule(('uneven', 'device_batch_size'), rule)
        settings = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        broken = [rule for _, rule in broken_exclusions(settings)]
        yield from broken or self._broken_value_rules(settings)
        if self.packing is not None:
            yield from self._broken_packing_rules(self.packing)
        elif any(stream.packing is not None for stream in self.streams):
            names = ', '.join(stream.name for stream in self.streams if stream.packing is not None)
            yield BrokenRule(('streams', 'packing'), f'`packing` of stream {names} needs `packing` of the loader')
        elif any(isinstance(begin, str) and begin.endswith('doc') for begin, _ in self.skip):
            yield BrokenRule(('skip',), "counts documents, as '17doc', only with `packing`")

    def _broken_value_rules(self, settings: Mapping[str, Any]) -> Iterator[BrokenRule]:
        """The rules of values that the order and the loader check where they are made."""
        try:
            check_balance(self.balance, OrderConfig.of({**settings, 'shuffle_seed': self.shuffle_seed or 0}))
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
        """The broken rules between the top level's keys, and those broken by inheriting from it."""
        yield from _broken_batch_size_rules(self)
        sections = ('train', 'eval', 'test', 'predict')
        if self.train is None and not (self.eval or self.test or self.predict):
            yield BrokenRule(sections, f'names no loader; give at least one of {", ".join(sections)}')
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
                told = {broken.rule for broken in (*_broken_batch_size_rules(self), *loader.cross_field_errors())}
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


def _broken_batch_size_rules(config: LoaderConfig | Config) -> Iterator[BrokenRule]:
    if config.global_batch_size is not None and config.device_batch_size is not None:
        rule = '`global_batch_size` and `device_batch_size` exclude each other; keep one'
        yield BrokenRule(('global_batch_size', 'device_batch_size'), rule)


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
