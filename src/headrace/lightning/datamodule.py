"""A `LightningDataModule` whose training resumes exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.loader import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.lightning.callbacks import PositionCallback
from headrace.lightning.loaders import PassLoader
from headrace.lightning.position import TrainPosition
from headrace.lightning.position_file import write_position_files
from headrace.lightning.sources import (
    SECTIONS,
    Configuration,
    LoaderSource,
    Sources,
    loader_options,
    sources_of_config,
    sources_of_section,
)
from headrace.lightning.topology import topology_of

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

__all__ = ['StreamingDataModule']

_STAGES = {'fit': ('train', 'val'), 'validate': ('val',), 'test': ('test',), 'predict': ('predict',)}


class StreamingDataModule(LightningDataModule):
    """Streaming datasets for a Lightning trainer: from a YAML file, or from datasets and loader options.

    Ranks and nodes come from the trainer, never from the environment. Training goes on exactly where a checkpoint was
    taken, on any number of ranks, nodes and workers; evaluation loaders give the same batches in every pass. Making
    one reads at most the YAML file; datasets are opened in `setup`, unless they are given ready-made.

    Args:
        config: a YAML file, its content as a mapping, or what `headrace.mixing.load_config` returned. It says all
            about the loaders: of the arguments below, only `overrides`, `collate_fn`, `worker_init_fn`,
            `dataset_class`, `save_rng`, `position_files` and, if it gives no other value, `batch_size` go with it.
        overrides: what goes over the configuration, such as `['train.loader.num_workers=8']`.
        train: the training dataset: a `StreamingDataset`, its keyword arguments, a function that makes it, or a
            `headrace.mixing.LoaderConfig`.
        val: the same for validation; or several, in a list or by name. Lightning numbers their loaders in this order.
        test: as `val`, for tests.
        predict: as `val`, for predictions.
        batch_size: samples per device. An evaluation dataset with a batch size of its own keeps it.
        num_workers: of all loaders, as PyTorch's: processes of each that read.
        pin_memory: of all loaders, as PyTorch's.
        drop_last: of all loaders, as PyTorch's: leave out the samples after the last full global batch.
        persistent_workers: of all loaders, as PyTorch's.
        prefetch_factor: of all loaders, as PyTorch's: batches that each worker reads ahead.
        timeout: of all loaders, as PyTorch's: seconds to wait for a batch of a worker.
        multiprocessing_context: of all loaders, as PyTorch's: how workers are started.
        collate_fn: of all loaders, as PyTorch's.
        worker_init_fn: of all loaders, as PyTorch's.
        dataset_class: what to make in place of `StreamingDataset`; it takes the same keywords.
        save_rng: save the random generators of rank 0 in checkpoints, and restore them on every rank.
        position_files: write the position as JSON beside each checkpoint, for people: `epoch=1-step=120.headrace.json`.

    Raises:
        ConfigError: the configuration or the arguments break a rule, or contradict each other.
    """

    batch_size: int | None
    """Samples per device and training step. May be set: by `BatchSizeFinder`, or by hand. None: not known before
    `setup`."""

    def __init__(
        self,
        config: Configuration | None = None,
        *,
        overrides: Sequence[str] | Mapping[str, Any] = (),
        train: Sources | None = None,
        val: Sources | None = None,
        test: Sources | None = None,
        predict: Sources | None = None,
        batch_size: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        drop_last: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        multiprocessing_context: str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        dataset_class: type[StreamingDataset] | Callable[..., StreamingDataset] | None = None,
        save_rng: bool = False,
        position_files: bool = True,
    ) -> None:
        self._trainer: Trainer | None = None
        super().__init__()
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f'`batch_size` must be at least 1 sample per device, got {batch_size}.')
        self.batch_size = batch_size
        callables = {'collate_fn': collate_fn, 'worker_init_fn': worker_init_fn}
        workers = {
            'num_workers': num_workers,
            'pin_memory': pin_memory,
            'drop_last': drop_last,
            'persistent_workers': persistent_workers,
            'prefetch_factor': prefetch_factor,
            'timeout': timeout,
            'multiprocessing_context': multiprocessing_context,
        }
        sections = {'train': train, 'val': val, 'test': test, 'predict': predict}
        if config is not None:
            _refuse_beside_config({**sections, **workers})
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
        if not any(self._sources.values()):
            raise ConfigError('A StreamingDataModule needs data: give `config`, or one of train, val, test, predict.')
        for section in SECTIONS:
            # Lightning takes a method that it finds for a loader that there is.
            name = f'{section}_dataloader'
            if not self._sources[section] and getattr(type(self), name) is getattr(StreamingDataModule, name):
                setattr(self, name, None)
        self._taken_batch_size: int | None = None
        self._callback = PositionCallback(self, save_rng=save_rng)
        self._position_files = position_files
        self.position: TrainPosition | None = None
        """The position of the training; None before `setup('fit')`."""

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
        """No iteration: `pytorch_lightning` takes a module that it does not know for a loader, and asks for this."""
        _refuse_pytorch_lightning()

    @override
    def setup(self, stage: str) -> None:
        """Open the datasets that a stage needs, on the trainer's ranks.

        Raises:
            TopologyError: the ranks do not divide the global batch size.
            ConfigError: no batch size is known, or two different ones are given.
        """
        trainer = self._attached()
        topology = topology_of(trainer)
        callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue] — set by a connector
        if self._callback not in callbacks:
            # First of all, so that it has seen a batch or an exception before ModelCheckpoint saves.
            callbacks[:] = [self._callback, *(other for other in callbacks if not isinstance(other, PositionCallback))]
        if self._position_files and stage == 'fit':
            write_position_files(trainer, self._callback.state_key)
        for section in _STAGES[stage]:
            for source in self._sources[section]:
                is_new = source.dataset is None or source.topology != topology
                dataset = source.open(topology)
                if section == 'train':
                    self._set_up_training(trainer, dataset, is_new=is_new)
        for section in _STAGES[stage]:
            for source in self._sources[section]:
                self._batch_size_of(source)

    def _set_up_training(self, trainer: Trainer, dataset: StreamingDataset, *, is_new: bool) -> None:
        if is_new:
            if self.batch_size is None or self.batch_size == self._taken_batch_size:
                self.batch_size = self._taken_batch_size = dataset.batch_size
            elif dataset.batch_size not in (None, self.batch_size):
                raise ConfigError(
                    f'The batch size is given twice with different values: {self.batch_size} per device to '
                    f'StreamingDataModule, and {dataset.batch_size} by the dataset or its configuration. Give it once.'
                )
        if self.position is None or self.position.trainer is not trainer:
            was_used = self.position is not None
            self.position = TrainPosition(dataset, trainer)
            if was_used:  # another trainer trains from the start; the same trainer goes on with the next epoch
                self.position.reset()
        self._set_up_position(self._sources['train'][0])

    def _set_up_position(self, source: LoaderSource) -> None:
        assert self.position is not None
        assert source.dataset is not None
        batch_size = self._batch_size_of(source)
        source.dataset.batch_size = batch_size
        self.position.global_batch_size = batch_size * source.dataset.topology.replicas
        self.position.remainder = 'drop' if source.options['drop_last'] else source.dataset.remainder or 'repeat'

    def _batch_size_of(self, source: LoaderSource) -> int:
        assert source.dataset is not None
        is_train = source in self._sources['train']
        batch_size = self.batch_size if is_train else source.dataset.batch_size or self.batch_size
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
    def train_dataloader(self) -> StreamingDataLoader:
        """A loader that goes on with the next epoch, or where a checkpoint was taken."""
        trainer, source = self._attached(), self._sources['train'][0]
        if self.position is None or source.dataset is None:
            self.setup('fit')
        assert self.position is not None
        assert source.dataset is not None
        self._set_up_position(source)
        self._callback.empty_epochs += self.position.pass_over_empty_epochs()
        return PassLoader(
            source.dataset,
            witness=self.position,
            # Lightning fits a few batches again and again: they must be the same ones.
            fixed_epoch=0 if trainer.overfit_batches > 0 else None,  # pyright: ignore[reportAttributeAccessIssue]
            batch_size=self.batch_size,
            **source.options,
        )

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
            assert source.dataset is not None
            batch_size = self._batch_size_of(source)
            options = source.options
            remainder = None if options['drop_last'] else source.dataset.evaluation_remainder
            loaders.append(
                StreamingDataLoader(
                    source.dataset, fixed_epoch=0, batch_size=batch_size, remainder=remainder, **options
                )
            )
        return loaders[0] if len(loaders) == 1 else loaders

    # -- the position ----------------------------------------------------------------------------------------------

    @override
    def state_dict(self) -> dict[str, Any]:
        """The position of the training, the same on every rank; empty where nothing is trained."""
        return {} if self.position is None else self.position.state()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the training go on where `state_dict` was taken. Without effect outside of `fit`.

        Raises:
            ResumeError: the state is no state, or belongs to other data, another mixture or another order.
        """
        is_fitting = self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING
        if self.position is not None and is_fitting and 'position' in state_dict:
            self.position.load(state_dict)


def _refuse_beside_config(arguments: Mapping[str, Any]) -> None:
    given = [name for name, value in arguments.items() if value]
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
