"""From the data sections of LLM Foundry's YAML to a `Config` that gives the same batches.

The dataclasses here list Foundry's keys, as `schema` lists ours. Keys of MosaicML Streaming are translated, with their
defaults. Keys of token pipelines (tokenising, masking, packing) are refused if they ask for a feature that headrace
lacks, and named in a warning if they have no effect. `as_native` changes a configuration to the native order.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from headrace.config.load import YamlSource
from headrace.config.problems import Path, Problem, dotted, shown
from headrace.config.schema import Config, DatasetConfig, LoaderConfig, StreamConfig, WorkerConfig
from headrace.config.validate import Validator
from headrace.errors.exclusions import BrokenRule
from headrace.errors.redaction import warn
from headrace.options.constraints import AtLeast, Count, Named, OneOf, Parsed, field_types, unwrap
from headrace.options.streams import SelectionConfig
from headrace.order.families import ALGORITHMS, PERMUTATIONS
from headrace.selection import Mistake

_KINDS = ('text', 'finetuning', 'contrastive_pairs')
_LOADERS = ('train_loader', 'eval_loader')


def config_of_foundry(
    source: str | os.PathLike[str] | Mapping[str, Any], *, overrides: Sequence[str] | Mapping[str, Any] = ()
) -> Config:
    """The configuration that gives the batches of an LLM Foundry YAML: ``train_loader``, ``eval_loader``.

    The rest of the file is for the trainer, and not looked at. The order is MosaicML Streaming's, with the defaults of
    LLM Foundry, so that batches hold the same samples in the same order. Samples come as they are stored.

    Args:
        source: Path of a YAML file for training, or its content as a mapping or an OmegaConf one.
        overrides: As in `load_config`, with Foundry's keys: ``train_loader.num_workers=8``.

    Returns:
        The configuration, as `load_config` returns it: ``train`` from ``train_loader``, ``eval`` from ``eval_loader``,
        a list of evaluation loaders named by their labels.

    Raises:
        ConfigError: With one line for everything that is wrong or that headrace does not do: file and line, key,
            value, rule.
    """
    yaml_source = YamlSource(source, overrides)
    validator = Validator(yaml_source.written)
    problems = validator.problems
    for key in yaml_source.keys:
        is_clear = key in _LOADERS or len(str(key)) > 2 * len(_LOADERS[0])
        meant = () if is_clear else difflib.get_close_matches(str(key), _LOADERS, n=1, cutoff=0.8)
        problems += [Problem((str(key),), f'unknown key; did you mean "{name}"?') for name in meant]
    plain = yaml_source.plain(problems, (*_LOADERS, *field_types(_BatchSizes)))
    sizes = validator.read(_BatchSizes, {key: value for key, value in plain.items() if key not in _LOADERS})
    sections = list(_sections(plain, problems))
    if not sections and not problems:
        problems.append(Problem((), 'names no loader; give `train_loader`, `eval_loader`, or both'))
    for section in sections:
        section.read(validator, sizes)
    yaml_source.refuse(problems)
    without_effect = [dotted(path) for section in sections for path in section.keys_without_effect()]
    if without_effect:
        warn(
            'headrace hands out samples as they are stored: it does not tokenise, truncate, pad or pack them. So '
            f'{", ".join(without_effect)} have no effect; do what is needed in your `dataset_class` or `collate_fn`.',
            stacklevel=2,
        )
    packed = [dotted((*section.path, 'dataset', 'packing_ratio')) for section in sections if section.packing_ratio > 1]
    if packed:
        warn(
            f'By {", ".join(packed)}, batches have the samples that LLM Foundry would pack into one, each rank for '
            f'itself: do so in your `collate_fn`. Or leave the ratio out for `packing`, which resumes on any ranks.',
            stacklevel=2,
        )
    evaluations = tuple(section.config(sizes) for section in sections if not section.is_training)
    return Config(
        train=next((section.config(sizes) for section in sections if section.is_training), None), eval=evaluations
    )


def _lacks(what: str, *nothing: object, instead: str = '') -> Parsed:
    """Constraint on a key for a missing feature: only values that do not ask for the feature are allowed."""

    def read(value: object, mistakes: list[Mistake]) -> None:
        if value not in nothing:
            rule = f'asks for {what}, which headrace does not have; remove the key'
            mistakes.append(Mistake((), value, f'{rule}{instead and ", and "}{instead}'))

    return Parsed(read, what)


def _read_packing_ratio(value: object, mistakes: list[Mistake]) -> float | None:
    """The samples that Foundry packs into as many sequences as the batch has, for each of these."""
    if value == 'auto':
        rule = 'asks for a ratio that is searched for, which headrace does not have; remove the key, or give the number'
        mistakes.append(Mistake((), value, rule))
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < float('inf'):
        mistakes.append(Mistake((), value, 'must be a number of at least 1'))
    else:
        return float(value)
    return None


_WITHOUT_EFFECT = Parsed(lambda value, _: value, 'any value')
"""Constraint on a key without effect: any value is allowed."""

_IN_CODE = 'do it in your `dataset_class` or `collate_fn`'


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchSizes:
    global_train_batch_size: Annotated[int, AtLeast(1)] | None = None
    device_eval_batch_size: Annotated[int, AtLeast(1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream(SelectionConfig):
    """One of ``streams``. It may have headrace's own keys, which Foundry hands on to `Stream`."""

    name: str = ''
    remote: str | None = None
    local: str | None = None
    split: str | None = None
    proportion: Annotated[float, AtLeast(0)] | None = None
    repeat: Annotated[float, AtLeast(0)] | None = None
    choose: Annotated[int, Count(least=0)] | None = None

    def config(self, split: str | None = None) -> StreamConfig:
        """Our stream; `split` is the dataset's default."""
        values: dict[str, Any] = {name: getattr(self, name) for name in field_types(_Stream)}
        values['split'] = self.split or split
        return StreamConfig(**values)

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        return self.config().cross_field_errors()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dataset(DatasetConfig):
    """The section ``dataset`` with Foundry's defaults; Foundry hands headrace's own keys on."""

    streams: Annotated[tuple[_Stream, ...], Named('stream')] = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    shuffle_algo: Annotated[str, OneOf(ALGORITHMS)] = 'py1e'
    shuffle_block_size: Annotated[float, AtLeast(1)] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    max_seq_len: Annotated[object, _WITHOUT_EFFECT] = None
    decoder_only_format: Annotated[object, _WITHOUT_EFFECT] = None
    token_encoding_type: Annotated[object, _WITHOUT_EFFECT] = None
    allow_pad_trimming: Annotated[object, _WITHOUT_EFFECT] = None
    auto_packing_replication: Annotated[object, _WITHOUT_EFFECT] = None
    max_leftover_bins_to_keep: Annotated[object, _WITHOUT_EFFECT] = None
    override_eos_token_id_mismatch_error: Annotated[object, _WITHOUT_EFFECT] = None
    override_bos_token_id_mismatch_error: Annotated[object, _WITHOUT_EFFECT] = None
    safe_load: Annotated[object, _WITHOUT_EFFECT] = None

    packing_ratio: Annotated[float, Parsed(_read_packing_ratio, 'a number of at least 1')] | None = None
    pad_to_longest: Annotated[object, _lacks('padding', False, instead=_IN_CODE)] = None
    mlm_probability: Annotated[object, _lacks('masked tokens', instead=_IN_CODE)] = None
    eos_token_id: Annotated[object, _lacks('`sequence_id` in the batch', instead=_IN_CODE)] = None
    bos_token_id: Annotated[object, _lacks('`sequence_id` in the batch', instead=_IN_CODE)] = None
    target_prompts: Annotated[object, _lacks('labels made of turns', 'none', instead=_IN_CODE)] = None
    target_responses: Annotated[object, _lacks('labels made of turns', 'last', instead=_IN_CODE)] = None
    seq_parallel_replication: Annotated[object, _lacks('sequence parallelism', 1)] = None
    hf_name: Annotated[object, _lacks('a Hugging Face dataset', instead='write it as MDS')] = None
    hf_kwargs: Annotated[object, _lacks('a Hugging Face dataset', instead='write it as MDS')] = None
    preprocessing_fn: Annotated[object, _lacks('preprocessing by name', instead=_IN_CODE)] = None
    stream_name: Annotated[object, _lacks('registered classes of streams in YAML', 'stream')] = None
    stream_config: Annotated[object, _lacks('registered classes of streams in YAML', {})] = None
    max_hard_negatives: Annotated[object, _lacks('contrastive pairs', instead=_IN_CODE)] = None
    prepend_query: Annotated[object, _lacks('contrastive pairs', '', instead=_IN_CODE)] = None
    prepend_passage: Annotated[object, _lacks('contrastive pairs', '', instead=_IN_CODE)] = None
    append_eos_token: Annotated[object, _lacks('contrastive pairs', False, instead=_IN_CODE)] = None
    append_token: Annotated[object, _lacks('contrastive pairs', '', instead=_IN_CODE)] = None
    shuffle_hard_negatives: Annotated[object, _lacks('contrastive pairs', False, instead=_IN_CODE)] = None

    def arguments(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in field_types(DatasetConfig)}
        if self.shuffle_block_size is not None:
            values['shuffle_block_size'] = int(self.shuffle_block_size)  # Foundry, too, cuts a fraction off
        if self.streams:
            values['streams'] = tuple(stream.config(self.split) for stream in self.streams)
            values['split'] = None  # it became the default of the streams
        return values

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        return DatasetConfig(**self.arguments()).cross_field_errors()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loader:
    """``train_loader`` or one of ``eval_loader``, without kind and label. The defaults are Foundry's."""

    dataset: _Dataset | None = None
    drop_last: bool = False
    num_workers: Annotated[int, AtLeast(0)] = 0
    pin_memory: bool = True
    prefetch_factor: Annotated[int, AtLeast(1)] | None = None
    persistent_workers: bool = True
    timeout: Annotated[float, AtLeast(0)] = 0

    def cross_field_errors(self) -> Iterator[BrokenRule]:
        if self.dataset is None:
            yield BrokenRule(('dataset',), 'names no data; give `dataset`')


class _Section:
    def __init__(self, path: Path, raw: Mapping[Any, Any], name: str) -> None:
        self.path, self.name = path, name
        self._raw, self._loader = raw, _Loader()

    @property
    def is_training(self) -> bool:
        return self.path[0] == 'train_loader'

    def read(self, validator: Validator, sizes: _BatchSizes) -> None:
        own = ('name',) if self.is_training else ('name', 'label')
        raw = {key: _with_named_streams(value) for key, value in self._raw.items() if key not in own}
        kind, problems = self._raw.get('name'), validator.problems
        if kind is not None and kind not in _KINDS:
            problems.append(Problem((*self.path, 'name'), f'must be one of {", ".join(_KINDS)}', shown(kind)))
        self._loader = validator.read(_Loader, raw, self.path, also_known=own)
        key = 'global_train_batch_size' if self.is_training else 'device_eval_batch_size'
        size, replication = getattr(sizes, key), self._replication
        if size is None and not any(problem.path == (key,) for problem in problems):
            problems.append(Problem(self.path, f'has no batch size; give `{key}` at the top level'))
        elif self.is_training and size is not None and size % replication:
            rule = f'must be a multiple of `replication` of the training data, {replication}'
            problems.append(Problem((key,), rule, shown(size)))
        elif self.is_training and size is not None and size // replication * self.packing_ratio % 1:
            rule = f'must give a whole number of samples for a global batch of {size // replication}'
            problems.append(Problem((*self.path, 'dataset', 'packing_ratio'), rule, shown(self.packing_ratio)))

    def keys_without_effect(self) -> list[Path]:
        hints = field_types(_Dataset)
        ineffective = [name for name, hint in hints.items() if unwrap(hint)[1] is _WITHOUT_EFFECT]
        given = [name for name in ineffective if getattr(self._loader.dataset, name) is not None]
        return [(*self.path, 'dataset', name) for name in given]

    def config(self, sizes: _BatchSizes) -> LoaderConfig:
        assert self._loader.dataset is not None
        workers = {
            name: getattr(self._loader, name) for name in field_types(WorkerConfig) if name in field_types(_Loader)
        }
        # Foundry truncates the samples of each device to a whole number.
        size: dict[str, Any] = {'device_batch_size': int((sizes.device_eval_batch_size or 0) * self.packing_ratio)}
        if self.is_training:
            # Foundry divides by all ranks; we count ranks with the same samples once.
            sequences = (sizes.global_train_batch_size or 0) // self._replication
            size = {'global_batch_size': int(sequences * self.packing_ratio)}
        return LoaderConfig(name=self.name, loader=WorkerConfig(**workers), **size, **self._loader.dataset.arguments())

    @property
    def packing_ratio(self) -> float:
        return (self._loader.dataset and self._loader.dataset.packing_ratio) or 1

    @property
    def _replication(self) -> int:
        return (self._loader.dataset and self._loader.dataset.replication) or 1


def _sections(plain: Mapping[Any, Any], problems: list[Problem]) -> Iterator[_Section]:
    named: set[str] = set()
    for key in _LOADERS:
        value = plain.get(key)
        is_list = key == 'eval_loader' and isinstance(value, list)
        for index, item in enumerate(cast('list[Any]', value) if is_list else [] if value is None else [value]):
            path: Path = (key, index) if is_list else (key,)
            if not isinstance(item, Mapping):
                problems.append(Problem(path, 'must be a mapping with the keys of a loader', shown(item)))
                continue
            raw = cast('Mapping[Any, Any]', item)
            name = key.removesuffix('_loader')
            if key == 'eval_loader' and (is_list or raw.get('label') is not None):
                name = _label(raw.get('label'), path, named, problems)
            yield _Section(path, raw, name)


def _label(label: object, path: Path, others: set[str], problems: list[Problem]) -> str:
    """The name of an evaluation loader; mistakes are noted."""
    rule = None
    if not isinstance(label, str) or not label:
        rule = 'must be text: each evaluation loader of a list has a label'
    elif label in others:
        rule = 'is the label of another evaluation loader too; labels must differ'
    elif label in field_types(LoaderConfig):
        rule = 'is a key of a loader of headrace, which cannot be the name of one; choose another'
    if rule is not None:
        problems.append(Problem((*path, 'label'), rule, None if label is None else shown(label)))
    others.add(str(label))
    return str(label)


def _with_named_streams(dataset: Any) -> Any:
    """The section ``dataset``; unnamed streams of a list get names."""
    if not isinstance(dataset, Mapping) or not isinstance(cast('Mapping[Any, Any]', dataset).get('streams'), list):
        return dataset
    section = cast('Mapping[Any, Any]', dataset)
    streams = [
        {'name': f'stream_{index}', **cast('Mapping[Any, Any]', stream)} if isinstance(stream, Mapping) else stream
        for index, stream in enumerate(cast('list[Any]', section['streams']))
    ]
    return {**section, 'streams': streams}


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(LoaderConfig)}
_ORDER = (
    'shuffle_algo: native, in place of {}. Each global batch holds the same samples on any number of ranks, nodes and '
    'workers. A checkpoint of the order of before continues with the file of before only.'
)
_MEANINGS = {
    'num_canonical_nodes': 'which tied the order to a number of nodes. The native order has its own default, for any',
    'partition_algo': 'which dealt shards to nodes. The native order deals them in one way, to any number',
    'shuffle_block_size': 'which bounded the samples that are shuffled together. The native order chooses its own by '
    'the sizes of shards',
    'sampling_granularity': 'which took neighbours of a shard together. The native order has it with '
    '`sampling_method: fixed` only',
}


def as_native(config: Config) -> tuple[Config, list[str]]:
    """The configuration with the native order in each loader, and a line for each change, with its meaning."""
    notes: list[str] = []
    changes: dict[str, object] = {}
    for section in ('train', 'eval', 'test', 'predict'):
        value: LoaderConfig | tuple[LoaderConfig, ...] | None = getattr(config, section)
        if isinstance(value, LoaderConfig):
            changes[section] = _loader_as_native(value, section, notes)
        elif value:
            changes[section] = tuple(_loader_as_native(each, f'{section}.{each.name}', notes) for each in value)
    return dataclasses.replace(config, **changes), notes  # pyright: ignore[reportArgumentType]


def _loader_as_native(loader: LoaderConfig, name: str, notes: list[str]) -> LoaderConfig:
    if loader.shuffle_algo not in PERMUTATIONS:
        return loader
    notes.append(f'{name}: {_ORDER.format(loader.shuffle_algo)}')
    removed = list(_removed(loader))
    notes += [f'{name}: without {key}: {getattr(loader, key)}, {_MEANINGS[key]}.' for key in removed]
    return dataclasses.replace(loader, shuffle_algo='native', **{key: _DEFAULTS[key] for key in removed})


def _removed(loader: LoaderConfig) -> Iterator[str]:
    for key in _MEANINGS:
        is_kept = key == 'sampling_granularity' and loader.sampling_method == 'fixed'
        if getattr(loader, key) != _DEFAULTS[key] and not is_kept:
            yield key
