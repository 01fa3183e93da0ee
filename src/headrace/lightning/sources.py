"""Datasets and loader options from the data module's arguments, and their descriptions for people and loggers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from headrace.config.build import loader_options
from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.facts import dataset_facts
from headrace.errors import ConfigError
from headrace.errors.display import Facts
from headrace.errors.redaction import redact_value
from headrace.mixing import Config, LoaderConfig, build_dataset, load_config, to_mapping
from headrace.order.topology import with_replication
from headrace.packing import PackedDataset

if TYPE_CHECKING:
    from headrace.order import Topology

if TYPE_CHECKING:
    Source: TypeAlias = StreamingDataset | LoaderConfig | Mapping[str, Any] | Callable[[], StreamingDataset]
    """A dataset, or a recipe to make it once ranks are known: a configuration, keyword arguments, or a function."""

    Sources: TypeAlias = Source | Mapping[str, Source] | Sequence[Source]
    """One source, or several, with names or without."""

    Configuration: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Config
    """A YAML file, its content as a mapping (OmegaConf's too), or its `Config`."""
else:
    # LightningCLI turns signatures into command line arguments, and would build an object for each class named here.
    # Datasets would then open before the ranks are known, and saved configurations would hold their contents.
    Source = Mapping[str, Any] | Callable[[], StreamingDataset]
    Sources = Source
    Configuration = str | Mapping[str, Any]

SECTIONS = ('train', 'val', 'test', 'predict')


@dataclasses.dataclass(slots=True)
class LoaderSource:
    section: str  # the argument that named it
    name: str  # its name or number among several of the section; empty for the only one
    source: Source
    options: Mapping[str, Any]  # loader options without the batch size
    dataset_class: Callable[..., StreamingDataset] | None = None
    dataset: StreamingDataset | None = None  # the dataset, once it is open
    topology: Topology | None = None  # the topology that the dataset was opened on
    batch_size: int | None = None  # samples per device, from the dataset

    @property
    def label(self) -> str:
        return f'{self.section} {self.name}'.rstrip()

    @property
    def is_recipe(self) -> bool:
        return isinstance(self.source, LoaderConfig | Mapping)

    def open(self, topology: Topology) -> StreamingDataset:
        """The dataset, bound to the topology. A configuration opens it again for other ranks."""
        dataset = self.dataset
        if isinstance(self.source, LoaderConfig):
            if dataset is None or self.topology != topology:
                dataset = build_dataset(self.source, topology=topology, dataset_class=self.dataset_class)
        else:
            if dataset is None:
                dataset = self._make()
            dataset.bind(with_replication(topology, dataset.replication, self.label))
        if dataset is not self.dataset or dataset.global_batch_size is not None:
            self.batch_size = dataset.batch_size
        self.dataset, self.topology = dataset, topology
        return dataset

    def _make(self) -> StreamingDataset:
        if isinstance(self.source, StreamingDataset):
            return self.source
        if isinstance(self.source, Mapping):
            made_of = PackedDataset if 'packing' in self.source else StreamingDataset
            return (self.dataset_class or made_of)(**self.source)
        made = cast('Callable[[], object]', self.source)()
        if not isinstance(made, StreamingDataset):
            raise ConfigError(f'{self.label}: the function must return a StreamingDataset, got {type(made).__name__}.')
        return made


def source_of_loader(
    section: str,
    name: str,
    config: LoaderConfig,
    callables: Mapping[str, Any],
    dataset_class: Callable[..., StreamingDataset] | None,
) -> LoaderSource:
    workers = {field.name: getattr(config.loader, field.name) for field in dataclasses.fields(config.loader)}
    return LoaderSource(section, name, config, loader_options({**workers, **callables}), dataset_class)


def sources_of_config(
    config: Configuration,
    *,
    overrides: Sequence[str] | Mapping[str, Any],
    callables: Mapping[str, Any],
    dataset_class: Callable[..., StreamingDataset] | None,
) -> dict[str, list[LoaderSource]]:
    """The sources of each section of a configuration; YAML's `eval` is Lightning's `val`."""
    if not isinstance(config, Config):
        config = load_config(config, overrides=overrides)
    elif overrides:
        raise ConfigError('`overrides` go over a file or a mapping; give them to `load_config` together with it.')
    sections = {
        'train': () if config.train is None else (config.train,),
        'val': config.eval,
        'test': config.test,
        'predict': config.predict,
    }
    return {
        section: [source_of_loader(section, loader.name, loader, callables, dataset_class) for loader in loaders]
        for section, loaders in sections.items()
    }


def sources_of_section(
    section: str,
    given: Sources | None,
    *,
    options: Mapping[str, Any],
    dataset_class: Callable[..., StreamingDataset] | None,
) -> list[LoaderSource]:
    """The sources that an argument of the data module names."""
    if given is None:
        return []
    if isinstance(given, Mapping) and given and all(_is_source(value) for value in given.values()):
        named = {str(name): value for name, value in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, str):
        named = {str(number): value for number, value in enumerate(given)}
    else:
        named = {'': given}
    wrong = {
        f'{section} {name}'.rstrip(): type(value).__name__ for name, value in named.items() if not _is_source(value)
    }
    if wrong:
        raise ConfigError(
            f'A source must be a StreamingDataset, a LoaderConfig, keyword arguments of StreamingDataset, or a '
            f'function that returns one, but got {wrong}.'
        )
    if section == 'train' and not named:
        raise ConfigError('`train` names no dataset. Give one, or several in a list or by name.')
    return [LoaderSource(section, name, cast('Source', value), options, dataset_class) for name, value in named.items()]


def refuse_shared(sources: Mapping[str, Sequence[LoaderSource]]) -> None:
    """Check that no two training loaders share a dataset that exists already."""
    owners: dict[int, LoaderSource] = {}
    for source in (source for section in SECTIONS for source in sources[section]):
        dataset = source.source if source.dataset is None else source.dataset
        if isinstance(dataset, StreamingDataset):
            owner = owners.setdefault(id(dataset), source)
            if owner is not source and owner.section == 'train':
                raise ConfigError(
                    f'Each training loader needs a dataset of its own, but {owner.label} and {source.label} are the '
                    f'same StreamingDataset: the second would move the position of the first. Make a StreamingDataset '
                    f'for each.'
                )


def _is_source(value: object) -> bool:
    if isinstance(value, type):
        return False
    return isinstance(value, (StreamingDataset, LoaderConfig, Mapping)) or callable(value)


def module_facts(name: str, batch_size: int | None, sources: Mapping[str, Iterable[LoaderSource]]) -> Facts:
    """The loaders of each section; of opened datasets the streams, too."""
    rows: list[tuple[str, str]] = []
    if batch_size is not None:
        rows.append(('batch', f'{batch_size:,} samples per device'))
    for section, given in sources.items():
        for source in given:
            label = f'{section}.{source.name}' if source.name else section
            dataset = source.source if source.dataset is None else source.dataset
            if not isinstance(dataset, StreamingDataset):
                rows.append((label, 'not opened before `setup`'))
                continue
            title, facts = dataset_facts(dataset)
            rows += [(label, title), *((f'  {name}', value) for name, value in facts)]
    return Facts(name, rows)


def hyperparameters(sources: Mapping[str, Iterable[LoaderSource]], **options: Any) -> dict[str, Any]:
    """The sources by section, and the options that are not None: plain values without secrets."""
    described = {
        section: {source.name: source.source for source in given} if len(given) > 1 else given[0].source
        for section, given in ((section, list(given)) for section, given in sources.items())
        if given
    }
    return redact_value(_plain({**described, **{name: value for name, value in options.items() if value is not None}}))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Config, LoaderConfig)):
        return _plain(to_mapping(value))
    if isinstance(value, StreamingDataset):
        # The dataset is ready-made, so its arguments are unknown; the places of its data say most.
        streams = [{'name': stream.name, 'remote': stream.remote, 'local': stream.local} for stream in value.streams]
        return {'streams': _plain(streams), 'shuffle_seed': value.shuffle_seed}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast('Mapping[Any, Any]', value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast('list[Any]', value)]
    return getattr(value, '__qualname__', None) or str(value)
