"""A Lightning callback that writes the record of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from typing_extensions import override

from headrace.errors import ConfigError
from headrace.lightning.spikes import checkpoint_folder
from headrace.lightning.statistics import streaming_loaders
from headrace.watching import RankStatus, RunRecorder

if TYPE_CHECKING:
    from pathlib import Path

    from lightning.pytorch import LightningModule, Trainer

__all__ = ['RunRecord']


class RunRecord(Callback):
    """Writes down which samples each step trains, for `headrace explain --run` and `headrace watch`.

    Rank 0 appends to ``headrace.record`` in the folder: topology, code and versions at the start and at each resume;
    position and mixture at each pass and checkpoint. Ids follow from the plan. A kill at any moment leaves a readable
    record. Each rank writes a small file with its rates and waits, which `headrace watch` shows.

    Args:
        folder: the run's folder, the same after each resume, on a file system that all ranks share; None: the first
            `ModelCheckpoint`'s, or the trainer's `default_root_dir`.
        status_every: seconds between two writes of a rank's status; None: no status, and nothing to watch.

    Raises:
        ConfigError: before the first step: no training loader is headrace's, or the folder cannot be written to.
    """

    def __init__(self, folder: str | Path | None = None, *, status_every: float | None = 2.0) -> None:
        self._folder = folder
        self._status_every = status_every
        self._recorder: RunRecorder | None = None
        self._status: RankStatus | None = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loaders = dict(streaming_loaders(trainer.train_dataloader))
        if not loaders:
            raise ConfigError(
                f'RunRecord follows a StreamingDataLoader, but the training data is '
                f'{type(trainer.train_dataloader).__name__}. Train on a StreamingDataModule or a StreamingDataLoader, '
                f'or remove the callback.'
            )
        folder = self._folder or checkpoint_folder(trainer)
        self._recorder = RunRecorder(folder)
        self._recorder.begin(loaders, step=_trained_batches(trainer))
        self._status = None if self._status_every is None else RankStatus(folder, every=self._status_every)
        if self._status is not None:
            self._status.begin(loaders, step=self._recorder.step)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loaders = dict(streaming_loaders(trainer.train_dataloader))  # Lightning may have replaced them
        if self._recorder is not None:
            self._recorder.follow(loaders)
        if self._status is not None:
            self._status.follow(loaders)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._recorder is not None:
            self._recorder.batch_done()
        if self._status is not None:
            self._status.batch_done()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._status is not None:
            self._status.pause()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._status is not None:
            self._status.resume()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._recorder is not None:
            # With accumulated gradients, the position is that of the last optimizer step.
            position = checkpoint.get('callbacks', {}).get('headrace.position', {})
            self._recorder.checkpoint(position.get('trainer_batches'))

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._end()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # `ModelCheckpoint` saves its last checkpoint in the same hook, after other callbacks: `teardown` ends.
        if self._status is not None:
            self._status.end()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # `ModelCheckpoint` may save in the same hook, after other callbacks: the record stays open.
        if self._recorder is not None:
            self._recorder.flush()
        if self._status is not None:
            self._status.end('failed')

    def _end(self) -> None:
        if self._recorder is not None:
            self._recorder.end()
        if self._status is not None:
            self._status.end()
        self._recorder = self._status = None


def _trained_batches(trainer: Trainer) -> int:
    # Lightning's types of its counters lack their names.
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    return int(progress.total.processed)
