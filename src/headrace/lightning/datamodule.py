"""A `LightningDataModule` whose training resumes exactly."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_args

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import default_collate
from typing_extensions import override

from headrace.config.build import loader_options
from headrace.config.schema import WorkerConfig
from headrace.dataset.arguments import documented, given_names, knows_given_names, takes_plain_numbers
from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.device import check_trainers_device
from headrace.dataset.loader import StreamingDataLoader
from headrace.dataset.reading.batch_reader import Collate
from headrace.dataset.sample_rng import each_row
from headrace.dataset.tracker import GlobalBatches, TrainMode
from headrace.errors import ConfigError
from headrace.errors.display import Facts, FactsRepr
from headrace.lightning.loaders import TrackedLoader, TrackedLoaders, check_training
from headrace.lightning.position_callback import PositionCallback
from headrace.lightning.position_file import write_position_files
from headrace.lightning.requeue import act_on_signals_between_batches
from headrace.lightning.sources import (
    SECTIONS,
    Configuration,
    LoaderSource,
    Sources,
    hyperparameters,
    module_facts,
    refuse_shared,
    sources_of_config,
    sources_of_section,
)
from headrace.lightning.topology import TopologyOverride, topology_of
from headrace.lightning.train_position import TrainPosition, is_position
from headrace.options.constraints import field_types
from headrace.order.topology import with_replication

# Attributes of the training process that are not sent to workers.
_OF_THE_TRAINING = ('_trainer', '_callback', '_sources', '_topology', '_prepare', 'position')


class HookedDataModule(LightningDataModule):
    _collate_fn: Collate | None = None

    def transform(self, sample: Any, section: str) -> Any:  # noqa: ARG002 - for subclasses
        """A sample made ready for training: override it to tokenise, augment or choose columns.

        It runs in the workers, if there are some.

        Args:
            sample: a sample of the dataset, a dict from column to value.
            section: train, val, test or predict.

        Returns:
            A value for `collate`; by default the sample itself.
        """
        return sample

    def collate(self, samples: list[Any], section: str) -> Any:  # noqa: ARG002 - for subclasses
        """A batch of samples: override it to pad, pack or build tensors. It runs where `transform` does.

        Args:
            samples: values from `transform`, one for each row.
            section: train, val, test or predict.

        Returns:
            The batch; by default from `collate_fn`, or else `torch.utils.data.default_collate`.
        """
        return (self._collate_fn or default_collate)(samples)

    def _overrides(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(HookedDataModule, method)


class SampleHooks:
    """A module's `transform` and `collate` as one `collate_fn`; spawned workers get no trainer and datasets."""

    def __init__(self, module: HookedDataModule, section: str) -> None:
        self._module = module
        self._section = section
        self.row_at_hand: int | None = None  # row whose transform raised, for the error message

    def __call__(self, samples: list[Any]) -> Any:
        module, section, self.row_at_hand = self._module, self._section, None
        with contextlib.closing(each_row()) as drawing:
            rows = list[Any]()
            try:
                for sample, _ in zip(samples, drawing, strict=False):
                    rows.append(module.transform(sample, section))
            except Exception:
                self.row_at_hand = len(rows)
                raise
        return module.collate(rows, section)

    def __getstate__(self) -> dict[str, Any]:
        module = copy.copy(self._module)
        for name in _OF_THE_TRAINING:
            vars(module).pop(name, None)
        return {'_module': module, '_section': self._section, 'row_at_hand': None}


_Loader = TypeVar('_Loader', bound=StreamingDataLoader)

_STAGES = {'fit': ('train', 'val'), 'validate': ('val',), 'test': ('test',), 'predict': ('predict',)}


@documented(WorkerConfig)
class StreamingDataModule(FactsRepr, HookedDataModule):
    """Streaming datasets for a Lightning trainer: from a YAML file, or from datasets and loader options.

    Ranks and nodes come from the trainer, never from the environment. Training resumes exactly, on any number of ranks,
    nodes and workers. Evaluation loaders give the same batches in every pass. The constructor reads at most the YAML
    file; `setup` opens datasets that are not ready-made. Options of a loader, such as `num_workers`, are those of all.

    Args:
        config: a YAML file, its content as a mapping, or a configuration from `headrace.mixing.load_config`. It
            describes the loaders completely. So of the other arguments it allows
            only `overrides`, the callables, `topology`, `save_rng`, `position_files` and, if it has none, `batch_size`.
        overrides: changes to the configuration, such as `['train.loader.num_workers=8']`.
        train: the training dataset: a `StreamingDataset`, its keyword arguments, a function that makes it, or a
            `headrace.mixing.LoaderConfig`. Or several, in a list or by name: each step gets a list or dict with a batch
            of each, and each has its position. (To mix streams in one batch, give one dataset with several streams.)
        train_mode: end of an epoch of several training loaders, as in Lightning's `CombinedLoader`. 'max_size_cycle':
            with the longest, while the others restart. 'max_size': with the longest, while the others give None.
            'min_size': with the shortest.
        val: as `train`, for validation. Lightning numbers the loaders of several in their order.
        test: as `val`, for tests.
        predict: as `val`, for predictions.
        prepare: a function that converts or uploads data. Rank 0 of the whole run calls it before any dataset is
            opened; the other ranks wait. It runs at every start, so it must detect finished work.
        batch_size: samples per device. An evaluation dataset or one of several training datasets keeps its batch size.
        collate_fn: of all loaders, as PyTorch's.
        worker_init_fn: of all loaders, as PyTorch's.
        dataset_class: class to use instead of `StreamingDataset`; it takes the same keywords.
        topology: nodes and replication, if the trainer's strategy does not know them. A `headrace.Topology`; a
            `DeviceMesh`, whose data-parallel dimensions read different samples; fields, such as `{'replication': 2}`;
            or a function of the trainer that returns one of these, called in `setup`.
        save_rng: save the random generators of rank 0 in checkpoints, and restore them on every rank.
        position_files: write the position as JSON beside each checkpoint, for people: `epoch=1-step=120.headrace.json`.

    Raises:
        ConfigError: the configuration or the arguments break a rule, or contradict each other.
    """

    batch_size: int | None
    """Samples per device and training step. `BatchSizeFinder` and users may set it. May be None before `setup`."""

    @takes_plain_numbers
    @knows_given_names
    def __init__(
        self,
        config: Configuration | None = None,
        *,
        overrides: Sequence[str] | Mapping[str, Any] = (),
        train: Sources | None = None,
        train_mode: TrainMode = 'max_size_cycle',
        val: Sources | None = None,
        test: Sources | None = None,
        predict: Sources | None = None,
        prepare: Callable[[], object] | None = None,
        batch_size: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        drop_last: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        multiprocessing_context: str | None = None,
        mark_streams: bool = False,
        pad: Mapping[str, Any] | None = None,
        device: str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        dataset_class: type[StreamingDataset] | Callable[..., StreamingDataset] | None = None,
        topology: TopologyOverride | None = None,
        save_rng: bool = False,
        position_files: bool = True,
    ) -> None:
        given, arguments = given_names(), locals()
        self._trainer: Trainer | None = None
        super().__init__()
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f'`batch_size` must be at least 1 sample per device, got {batch_size}.')
        self.batch_size = batch_size
        if train_mode not in get_args(TrainMode):
            raise ConfigError(f'`train_mode` must be one of {", ".join(get_args(TrainMode))}, got {train_mode!r}.')
        if collate_fn is not None and self._overrides('collate'):
            raise ConfigError(
                f'`collate_fn` is given, and {type(self).__name__} overrides `collate`. Only one can make the batches.'
            )
        self._collate_fn = collate_fn
        callables = {'collate_fn': collate_fn, 'worker_init_fn': worker_init_fn}
        workers = {name: value for name, value in arguments.items() if name in field_types(WorkerConfig)}
        sections = {'train': train, 'val': val, 'test': test, 'predict': predict}
        if config is not None:
            _refuse_beside_config(
                [name for name in (*sections, 'train_mode', *workers) if name in given]
                + ['batch_size'] * ('batch_size' in given and batch_size is None)
            )
            self._sources = sources_of_config(
                config, overrides=overrides, callables=callables, dataset_class=dataset_class
            )
        else:
            if overrides:
                raise ConfigError('`overrides` go over `config`, which is not given.')
            options = loader_options({**workers, **callables})
            self._sources = {
                section: sources_of_section(section, given, options=options, dataset_class=dataset_class)
                for section, given in sections.items()
            }
            made = [source for sources in self._sources.values() for source in sources if source.is_recipe]
            if dataset_class is not None and not made:
                raise ConfigError(
                    '`dataset_class` makes datasets of keyword arguments or configurations, but all datasets are given '
                    'ready-made or by functions. Leave it out.'
                )
        refuse_shared(self._sources)
        if not any(self._sources.values()):
            raise ConfigError('A StreamingDataModule needs data: give `config`, or one of train, val, test, predict.')
        for section in SECTIONS:
            # Lightning expects a loader wherever it finds this method.
            name = f'{section}_dataloader'
            if not self._sources[section] and getattr(type(self), name) is getattr(StreamingDataModule, name):
                setattr(self, name, None)
        self._are_named = {section for section, given in sections.items() if isinstance(given, Mapping)}
        self._train_mode: TrainMode = train_mode
        self._prepare = prepare
        if prepare is not None:
            self.prepare_data_per_node = False  # one upload is enough
        # As `save_hyperparameters`, which would check the names against a subclass's arguments.
        self._set_hparams({'headrace': hyperparameters(self._sources, batch_size=batch_size, **workers)})
        self._hparams_initial = copy.deepcopy(self._hparams)
        self._log_hyperparams = True
        self._topology = topology
        self._taken_batch_size: int | None = None
        self._callback = PositionCallback(self, save_rng=save_rng)
        self._position_files = position_files
        self.position: TrainPosition | None = None
        """The position of the training; None before `setup('fit')`."""

    def _facts(self) -> Facts:
        return module_facts(type(self).__name__, self.batch_size, self._sources)

    # -- the trainer -----------------------------------------------------------------------------------------------

    @property
    def trainer(self) -> Trainer | None:
        """The trainer that this module is attached to."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if any(cls.__module__.split('.')[0] == 'pytorch_lightning' for cls in type(trainer).__mro__):
            _refuse_pytorch_lightning()
        self._trainer = trainer

    def __iter__(self) -> Iterator[Any]:
        """Raise: `pytorch_lightning` takes an unknown module for a loader, and iterates it."""
        _refuse_pytorch_lightning()

    @override
    def prepare_data(self) -> None:
        """Call `prepare`, if it was given."""
        if self._prepare is not None:
            self._prepare()

    @override
    def setup(self, stage: str) -> None:
        """Open the datasets that a stage needs, on the trainer's ranks.

        Raises:
            TopologyError: the ranks do not divide the global batch size, or `topology` is of other ranks.
            ConfigError: no batch size is known, or two different ones are given.
        """
        trainer = self._attached()
        topology = topology_of(trainer, self._topology)
        # The plan gives each worker its own batches, whatever Lightning fears.
        warnings.filterwarnings('ignore', 'Your `IterableDataset` has `__len__` defined')
        if stage == 'fit':
            self._callback.join(trainer)
            if self._position_files:
                write_position_files(trainer, self._callback.state_key)
            act_on_signals_between_batches(trainer)
        for section in _STAGES[stage]:
            sources = self._sources[section]
            is_new = any(source.dataset is None or source.topology != topology for source in sources)
            for source in sources:
                source.open(topology)
            refuse_shared(self._sources)  # a function may have returned a dataset twice
            if section == 'train' and sources:
                self._set_up_training(trainer, is_new=is_new)
        for section in _STAGES[stage]:
            for source in self._sources[section]:
                self._batch_size_of(source)

    def bind(self, trainer: Trainer) -> None:
        """Bind open datasets to a trainer's ranks, and the position to its counters.

        Only needed for loaders that you pass to the trainer yourself; `setup` binds a data module's own.
        """
        self._trainer, topology = trainer, topology_of(trainer, self._topology)
        for section in SECTIONS:
            for source in self._sources[section]:
                if source.dataset is not None:
                    source.dataset.bind(with_replication(topology, source.dataset.replication, source.label))
                    source.topology = topology
        act_on_signals_between_batches(trainer)
        if self.position is not None:
            self.position.trainer = trainer
            self._set_up_position()

    def _set_up_training(self, trainer: Trainer, *, is_new: bool) -> None:
        sources = self._sources['train']
        if is_new and len(sources) == 1:
            given = sources[0].batch_size
            if self.batch_size is None or self.batch_size == self._taken_batch_size:
                self.batch_size = self._taken_batch_size = given
            elif given not in (None, self.batch_size):
                raise ConfigError(
                    f'The batch size is given twice with different values: {self.batch_size} per device to '
                    f'StreamingDataModule, and {given} by the dataset or its configuration. Give it once.'
                )
        if self.position is None or self.position.trainer is not trainer or is_new:
            last = self.position
            batches = {source.name if len(sources) > 1 else '': self._batches_of(source) for source in sources}
            self.position = TrainPosition(batches, trainer, self._train_mode)
            if last is not None:  # another trainer starts over; the same one continues with the next epoch
                self._callback.has_new_trainer = last.has_begun and last.trainer is not trainer
                self.position.move()
            else:
                self.position.stay()
        self._set_up_position()

    def _set_up_position(self) -> None:
        assert self.position is not None
        for source, loader in zip(self._sources['train'], self.position.loaders, strict=True):
            loader.batches = self._batches_of(source)
        check_training(self.position)

    def _batches_of(self, source: LoaderSource) -> GlobalBatches:
        dataset = _opened(source)
        dataset.batch_size = batch_size = self._batch_size_of(source)
        batches = dataset.batch_spec(batch_size=batch_size, remainder='drop' if source.options['drop_last'] else None)
        return GlobalBatches(dataset, batches.global_batch_size, batches.remainder)

    def _batch_size_of(self, source: LoaderSource) -> int:
        is_only_train = [source] == self._sources['train']
        batch_size = self.batch_size if is_only_train else source.batch_size or self.batch_size
        if batch_size is None:
            raise ConfigError(
                f'No batch size is known for {source.label}. Please pass `batch_size`, in samples per device, to '
                f'StreamingDataModule.'
            )
        return batch_size

    def _attached(self) -> Trainer:
        if self._trainer is None:
            raise ConfigError(
                'A StreamingDataModule takes ranks and nodes from a trainer, but is attached to none. Pass it to '
                '`trainer.fit(model, datamodule=...)`, or set its `trainer`.'
            )
        return self._trainer

    # -- the loaders -----------------------------------------------------------------------------------------------

    @override
    def train_dataloader(self) -> StreamingDataLoader | TrackedLoaders:
        """A loader that continues with the next epoch, or where a checkpoint was taken; or several as one."""
        trainer, sources = self._attached(), self._sources['train']
        if self.position is None or any(source.dataset is None for source in sources):
            self.setup('fit')
        assert self.position is not None
        self._callback.is_expected = trainer.fit_loop._data_source.instance is not self
        self._set_up_position()
        self._callback.empty_epochs += self.position.skip_empty_epochs()
        # Lightning fits a few batches again and again: they must be the same ones.
        fixed_epoch = 0 if trainer.overfit_batches > 0 else None  # pyright: ignore[reportAttributeAccessIssue]
        options = {'fixed_epoch': fixed_epoch, 'max_epochs': None if trainer.max_epochs == -1 else trainer.max_epochs}
        if len(sources) == 1:
            return self._loader(TrackedLoader, sources[0], listener=self.position, **options)
        both = zip(sources, self.position.loaders, strict=True)
        loaders = [self._loader(TrackedLoader, source, listener=position, **options) for source, position in both]
        named = {source.name: loader for source, loader in zip(sources, loaders, strict=True)}
        collected = named if 'train' in self._are_named else loaders
        return TrackedLoaders(collected, self._train_mode, position=self.position)

    def _loader(self, loader_class: type[_Loader], source: LoaderSource, **options: Any) -> _Loader:
        options = {**source.options, **options}
        check_trainers_device(options.get('device'), self._attached().strategy.root_device)
        if self._overrides('transform') or self._overrides('collate'):
            options['collate_fn'] = SampleHooks(self, source.section)
        dataset = _opened(source)
        if self._callback.saves_rng and (source.section != 'train' or options.get('persistent_workers')):
            # A resumed run starts their workers at other times, which draws seeds: not from what is saved.
            options['generator'] = torch.Generator().manual_seed(torch.initial_seed() + dataset.topology.rank)
        return loader_class(dataset, batch_size=self._batch_size_of(source), **options)

    @override
    def val_dataloader(self) -> StreamingDataLoader | list[StreamingDataLoader]:
        """The validation loaders: the same batches in every pass."""
        return self._evaluation_loaders('val', stage='validate')

    @override
    def test_dataloader(self) -> StreamingDataLoader | list[StreamingDataLoader]:
        """The test loaders."""
        return self._evaluation_loaders('test', stage='test')

    @override
    def predict_dataloader(self) -> StreamingDataLoader | list[StreamingDataLoader]:
        """The prediction loaders."""
        return self._evaluation_loaders('predict', stage='predict')

    def _evaluation_loaders(self, section: str, *, stage: str) -> StreamingDataLoader | list[StreamingDataLoader]:
        sources = self._sources[section]
        if any(source.dataset is None for source in sources):
            self.setup(stage)
        loaders: list[StreamingDataLoader] = []
        for source in sources:
            remainder = None if source.options['drop_last'] else _opened(source).evaluation_remainder
            loaders.append(self._loader(StreamingDataLoader, source, fixed_epoch=0, remainder=remainder))
        return loaders[0] if len(loaders) == 1 else loaders

    # -- the position ----------------------------------------------------------------------------------------------

    @override
    def state_dict(self) -> dict[str, Any]:
        """The position of the training, the same on every rank; empty where nothing is trained."""
        return {} if self.position is None else self.position.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume the training from `state_dict`. Without effect outside of `fit`.

        Raises:
            ResumeError: the state is malformed, or belongs to other data, another mixture or another order.
        """
        is_fitting = self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING
        if self.position is not None and is_fitting and is_position(state_dict):
            self.position.load_state_dict(state_dict)


def _opened(source: LoaderSource) -> StreamingDataset:
    assert source.dataset is not None
    return source.dataset


def _refuse_beside_config(given: Sequence[str]) -> None:
    if given:
        raise ConfigError(
            f'With a configuration, the loaders are described there, but these arguments are given too: '
            f'{", ".join(given)}. Write them into the configuration, or into `overrides`.'
        )


def _refuse_pytorch_lightning() -> NoReturn:
    raise ConfigError(
        'StreamingDataModule works with the Trainer of `lightning`, but got one of `pytorch_lightning`. Change the '
        'import: `import lightning.pytorch as pl`, or `from lightning.pytorch import Trainer, LightningModule`.'
    )
