"""A callback that saves the position in every checkpoint, and corrects Lightning's counters at every resume."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from headrace.dataset.tracker import loader_entries
from headrace.lightning.callbacks import DataStatistics, streaming_loaders
from headrace.lightning.loaders import OTHER_TRAINER, check_other_loaders, has_loaders_of, rest_of_last_fit
from headrace.lightning.train_position import (
    TrainPosition,
    catch_up,
    is_position,
    pass_over,
    rewrite,
    set_batches,
    trained_batches,
    trained_epochs,
)
from headrace.metrics import DataMeter
from headrace.packing import sync_lane_states

_RNG_KEY = 'headrace.rng'
_AT_BATCH = 'at_batch'  # of a random state: it is that before a batch, which is there already


class HasPosition(Protocol):
    """The part of a `StreamingDataModule` that the callback uses."""

    @property
    def position(self) -> TrainPosition | None: ...

    def bind(self, trainer: Trainer) -> None: ...


class PositionCallback(Callback):
    """Synchronises a `StreamingDataModule` with Lightning's loops. The module adds it to its trainer by itself.

    Lightning finds a data module's state by its class name. The callback's copy of the position survives a renamed
    class, or one with other state.

    Args:
        datamodule: the module whose position it is.
        save_rng: whether to save rank 0's random generators, and to restore them on every rank.
    """

    def __init__(self, datamodule: HasPosition, *, save_rng: bool = False) -> None:
        self._datamodule = datamodule
        self.saves_rng = save_rng
        """Whether checkpoints have the random generators."""
        self._random_state: dict[str, Any] | None = None
        self._step_random_state: dict[str, Any] | None = None  # before the first batch of an optimizer step
        self._begin_epoch_loop = False
        self.empty_epochs = 0
        """Empty epochs skipped before training starts, which Lightning has not counted yet."""
        self._is_behind = False
        self._batches = 0
        self.has_new_trainer = False
        """Whether the position belonged to another trainer until now."""
        self._warnings: list[str] = []
        self._is_first_batch = False
        self._is_left = False  # the trainer trains on other data
        self._start = ''  # a line about the place where a resumed training continues
        self._meter = DataMeter()
        self.is_expected = False
        """Whether the next `fit` may be of the module's loaders, although another object gives them to Lightning."""

    @property
    @override
    def state_key(self) -> str:
        return 'headrace.position'

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the loaders their ranks, and the data module the rest of a fit that was resumed."""
        if stage != TrainerFn.FITTING:
            return
        if not self._trains_on_ours(trainer):
            self.leave()
            return
        self._is_left, position = False, self._datamodule.position
        if trainer.fit_loop._data_source.instance is not self._datamodule:
            # Loaders passed to the trainer directly were made before ranks started.
            self._datamodule.bind(trainer)
        if position is not None:
            rest = rest_of_last_fit(position)
            self._warnings = [OTHER_TRAINER] if self.has_new_trainer else [] if rest is None else [rest]
            self.has_new_trainer = False

    def join(self, trainer: Trainer) -> None:
        """Be the first callback of a trainer, and replace another module's."""
        module: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue] - set by a connector
        is_ours = module is self._datamodule and trainer.state.fn == TrainerFn.FITTING
        if is_ours and trainer.fit_loop._data_source.instance is not module:
            return  # Lightning sets the module of the last `fit` up again, whatever this one trains on
        callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        if self in callbacks:
            return
        others = [other for other in callbacks if isinstance(other, PositionCallback)]
        for other in others:
            other.leave()
        # First, so that it sees a batch or an exception before ModelCheckpoint saves.
        callbacks[:] = [self, *(other for other in callbacks if other not in others)]

    def leave(self) -> None:
        """Leave the trainer alone, because it goes on with other data."""
        if not self._is_left and self._datamodule.position is not None:
            self._datamodule.position.leave()
        self._is_left, self._is_behind = True, False

    def _trains_on_ours(self, trainer: Trainer) -> bool:
        source, position = trainer.fit_loop._data_source.instance, self._datamodule.position
        if source is self._datamodule:
            return True
        data: Any = trainer.train_dataloader
        if data is None and isinstance(source, LightningModule | LightningDataModule):
            # It may give our loaders. Lightning keeps the module of the last `fit`.
            return trainer.datamodule is not self._datamodule  # pyright: ignore[reportAttributeAccessIssue]
        if position is None:
            return False
        return has_loaders_of(source if data is None else data, position, may_be_hidden=self.is_expected)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The position of the training, as `StreamingDataModule.state_dict`; empty while other data is trained on."""
        position = self._datamodule.position
        return {} if position is None or self._is_left else position.state_dict()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._is_left:
            return
        state = self.state_dict()
        loaders = checkpoint['loops']['fit_loop']['state_dict'].get('combined_loader', [])
        if state:
            # Lightning saved the loaders' states, which count delivered batches, not trained ones.
            _replace_states(loaders, state)
        if self.saves_rng:
            position = self._datamodule.position
            is_ahead = position is not None and position.is_ahead and self._step_random_state is not None
            checkpoint[_RNG_KEY] = self._step_random_state if is_ahead else random_state()

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._warnings = []
        is_fitting = trainer.state.fn == TrainerFn.FITTING and not self._is_left
        if not is_fitting or self._datamodule.position is None or 'loops' not in checkpoint:
            return
        fit_loop = checkpoint['loops']['fit_loop']
        position = self._datamodule.position
        loaders = fit_loop['state_dict'].get('combined_loader', [])
        copies = [checkpoint.get(type(self._datamodule).__qualname__), checkpoint['callbacks'].get(self.state_key)]
        if len(loaders) == len(position.loaders):
            # The data module owns the position: a loader's own state must not be loaded after it.
            del fit_loop['state_dict']['combined_loader']
            copies += [{'position': loaders[0]}] if len(loaders) == 1 and 'sample_in_epoch' in loaders[0] else []
        state = next((copy for copy in copies if copy and is_position(copy)), None)
        if state is None:
            rank_zero_warn(
                'The checkpoint holds no position of the data: it was saved without a StreamingDataModule. Training '
                'continues at the start of an epoch.'
            )
            position.move(trained_epochs(fit_loop, is_epoch_start=True))
            state = {}
        elif state is not copies[0] or trainer.datamodule is None:  # pyright: ignore[reportAttributeAccessIssue]
            # Lightning has loaded the first copy, but only into a module that was passed to `fit`.
            position.load_state_dict(state)
        _replace_states(loaders, position.state_dict())  # beside those of other data
        batches = state.get('trainer_batches', trained_batches(fit_loop))
        if 'trainer_epoch' in state:
            # A smaller limit may have ended the epoch; the position then moved to the next one's start.
            epochs = state['trainer_epoch'] + position.rolled_over
        else:
            epochs = trained_epochs(fit_loop, is_epoch_start=position.is_epoch_start)
        steps = batches
        if pl_module.automatic_optimization:
            progress = fit_loop['epoch_loop.automatic_optimization.optim_progress']
            steps = int(progress['optimizer']['step']['total']['completed'])
        restart = position.restart(epochs=epochs, batches=batches, steps=steps)
        self._begin_epoch_loop = rewrite(fit_loop, restart)
        self._start = position.describe_start()
        self._random_state = checkpoint.get(_RNG_KEY) if self.saves_rng else None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._trains_on_ours(trainer):
            self.leave()
        self.is_expected = False
        if self._is_left:
            return
        position = self._datamodule.position
        if position is not None:
            others = check_other_loaders(position, trainer.train_dataloader, trainer.fit_loop.max_batches)
            self._warnings += [] if others is None else [others]
        for warning in self._warnings:
            rank_zero_warn(warning)
        self._warnings, self._is_first_batch = [], True
        self._meter = DataMeter()
        self._follow(trainer)
        self._meter.begin()
        if self._start:
            rank_zero_info(f'headrace: {self._start}')
        self._start = ''
        self._pass_over(trainer, self.empty_epochs)
        self.empty_epochs = 0
        if self._begin_epoch_loop:
            trainer.fit_loop.epoch_loop.restarting = False
            self._begin_epoch_loop = False
            # A new epoch draws the seeds of its loader's workers; the rest of an epoch must not draw them again.
            if self._random_state is not None and _AT_BATCH not in self._random_state:
                self._restore_random_state()

    def _follow(self, trainer: Trainer) -> None:
        self._meter.follow(dict(streaming_loaders(trainer.train_dataloader)))

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._meter.pause()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._meter.resume()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        is_said = any(isinstance(callback, DataStatistics) for callback in callbacks)
        if self._meter.loaders and not (self._is_left or is_said):
            rank_zero_info(f'headrace: {self._meter.waited()}')

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follow(trainer)  # Lightning may have replaced them
        # Lightning asks for the number of batches once. Skipped samples make an epoch shorter.
        if self._is_left:
            return
        position = self._datamodule.position
        if self._is_behind:
            catch_up(trainer.fit_loop)
            self._is_behind = False
        # A loader without a length ends by itself. Its pass has begun already, since Lightning prefetches a batch.
        has_length = trainer.fit_loop.max_batches != float('inf')
        if position is not None and has_length:
            position.take_growth()
        batches = position.length(is_begun=False) if position is not None and has_length else None
        if batches is not None:
            set_batches(trainer, batches)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        position = self._datamodule.position
        if position is not None and not self._is_left:
            self._pass_over(trainer, position.skip_empty_epochs())

    def _pass_over(self, trainer: Trainer, epochs: int) -> None:
        if epochs:
            pass_over(trainer.fit_loop, epochs)
            self._is_behind = True

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._is_left:
            return
        self._restore_random_state()
        if self._is_first_batch:
            # The scheduler acts at an epoch's start, which a resumed epoch does not repeat.
            for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue] - set by a connector
                if isinstance(callback, GradientAccumulationScheduler):
                    trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(trainer.current_epoch)
            self._is_first_batch = False
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress  # Lightning's type lacks the name
        if self.saves_rng and progress.current.processed % trainer.accumulate_grad_batches == 0:
            self._step_random_state = {**random_state(), _AT_BATCH: True}

    @override
    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        position = self._datamodule.position
        self._batches += 1
        for loader in () if position is None or self._is_left else position.loaders:
            sync_lane_states(loader.dataset, self._batches)

    def _restore_random_state(self) -> None:
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None


def _replace_states(loaders: list[Any], state: dict[str, Any]) -> None:
    """Replace the states of loaders in a checkpoint by those of a position, if they are all there."""
    entries = loader_entries(state)
    numbers = [
        number for number, loader in enumerate(loaders) if isinstance(loader, dict) and 'sample_in_epoch' in loader
    ]
    for number, entry in zip(numbers, entries.values(), strict=False) if len(numbers) == len(entries) else ():
        loaders[number] = entry['position']


def random_state() -> dict[str, Any]:
    """The states of the global generators of Python, NumPy, PyTorch and, if in use, the current GPU."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        'python': [version, list(words), gauss],
        'numpy': [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        'torch': torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    version, words, gauss = state['python']
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state((name, np.asarray(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state['torch'])
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'])
