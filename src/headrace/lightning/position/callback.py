"""A callback that saves the position in every checkpoint, and corrects Lightning's counters at every resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from headrace.dataset.tracker import loader_entries
from headrace.lightning.position.loop_progress import (
    catch_up,
    pass_over,
    rewrite,
    set_batches,
    trained_batches,
    trained_epochs,
)
from headrace.lightning.position.rng import random_state, restore_random_state
from headrace.lightning.position.train_checks import OTHER_TRAINER, rest_of_last_fit
from headrace.lightning.position.train_position import is_position
from headrace.packing import sync_lane_states

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from headrace.lightning.position.train_position import TrainPosition

__all__ = ['PositionCallback']

_RNG_KEY = 'headrace.rng'


class HasPosition(Protocol):
    """The part of a `StreamingDataModule` that the callback uses."""

    @property
    def position(self) -> TrainPosition | None:
        """The position of the training loaders; None before there are any."""
        ...

    def bind(self, trainer: Trainer) -> None:
        """Take the topology of a trainer."""
        ...


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
        self._save_rng = save_rng
        self._random_state: dict[str, Any] | None = None
        self._begin_epoch_loop = False
        self.empty_epochs = 0
        """Empty epochs skipped before training starts, which Lightning has not counted yet."""
        self._is_behind = False
        self._batches = 0
        self.has_new_trainer = False
        """Whether the position belonged to another trainer until now."""
        self._warnings: list[str] = []
        self._is_first_batch = False

    @property
    @override
    def state_key(self) -> str:
        return 'headrace.position'

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the loaders their ranks, and the data module the rest of a fit that was resumed."""
        # Loaders passed to the trainer directly were made before ranks started.
        if trainer.datamodule is None:  # pyright: ignore[reportAttributeAccessIssue] - set by a connector
            self._datamodule.bind(trainer)
        position = self._datamodule.position
        if stage == TrainerFn.FITTING and position is not None:
            rest = rest_of_last_fit(position)
            self._warnings = [OTHER_TRAINER] if self.has_new_trainer else [] if rest is None else [rest]
            self.has_new_trainer = False

    @override
    def state_dict(self) -> dict[str, Any]:
        """The position of the training, as `StreamingDataModule.state_dict`."""
        position = self._datamodule.position
        return {} if position is None else position.state_dict()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        state = self.state_dict()
        loaders = checkpoint['loops']['fit_loop']['state_dict'].get('combined_loader', [])
        entries = loader_entries(state) if state else {}
        if len(loaders) == len(entries):
            # Lightning saved the loaders' states, which count delivered batches, not trained ones.
            loaders[:] = [entry['position'] for entry in entries.values()]
        if self._save_rng:
            checkpoint[_RNG_KEY] = random_state()

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._warnings = []
        if trainer.state.fn != TrainerFn.FITTING or self._datamodule.position is None or 'loops' not in checkpoint:
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
        batches = state.get('trainer_batches', trained_batches(fit_loop))
        if 'trainer_epoch' in state:
            # A smaller limit may have ended the epoch; the position then moved to the next one's start.
            epochs = state['trainer_epoch'] + position.rolled_over
        else:
            epochs = trained_epochs(fit_loop, is_epoch_start=position.is_epoch_start)
        restart = position.restart(
            epochs=epochs,
            batches=batches,
            steps=_optimizer_steps(fit_loop) if pl_module.automatic_optimization else batches,
        )
        self._begin_epoch_loop = rewrite(fit_loop, restart)
        self._random_state = checkpoint.get(_RNG_KEY) if self._save_rng else None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for warning in self._warnings:
            rank_zero_warn(warning)
        self._warnings, self._is_first_batch = [], True
        self._pass_over(trainer, self.empty_epochs)
        self.empty_epochs = 0
        if self._begin_epoch_loop:
            trainer.fit_loop.epoch_loop.restarting = False
            self._begin_epoch_loop = False
            # A new epoch draws the seeds of its loader's workers; the rest of an epoch must not draw them again.
            self._restore_random_state()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning asks for the number of batches once. Skipped samples make an epoch shorter.
        position = self._datamodule.position
        if self._is_behind:
            catch_up(trainer.fit_loop)
            self._is_behind = False
        # A loader without a length ends by itself. Its pass has begun already, since Lightning prefetches a batch.
        has_length = trainer.fit_loop.max_batches != float('inf')
        batches = position.length(is_begun=False) if position is not None and has_length else None
        if batches is not None:
            set_batches(trainer, batches)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        position = self._datamodule.position
        if position is not None:
            self._pass_over(trainer, position.skip_empty_epochs())

    def _pass_over(self, trainer: Trainer, epochs: int) -> None:
        if epochs:
            pass_over(trainer.fit_loop, epochs)
            self._is_behind = True

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._restore_random_state()
        if self._is_first_batch:
            # The scheduler acts at an epoch's start, which a resumed epoch does not repeat.
            for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue] - set by a connector
                if isinstance(callback, GradientAccumulationScheduler):
                    trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(trainer.current_epoch)
            self._is_first_batch = False

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        position = self._datamodule.position
        self._batches += 1
        for loader in () if position is None else position.loaders:
            sync_lane_states(loader.dataset, self._batches)

    def _restore_random_state(self) -> None:
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None


def _optimizer_steps(fit_loop: dict[str, Any]) -> int:
    progress = fit_loop['epoch_loop.automatic_optimization.optim_progress']
    return int(progress['optimizer']['step']['total']['completed'])
