"""A Lightning callback that writes the record of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from typing_extensions import override

from headrace.errors import ConfigError
from headrace.lightning.spikes import checkpoint_folder
from headrace.lightning.statistics import streaming_loaders
from headrace.watching.run_files import RunFiles

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
        self._files = RunFiles(status_every)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loaders = dict(streaming_loaders(trainer.train_dataloader))
        if not loaders:
            raise ConfigError(
                f'RunRecord follows a StreamingDataLoader, but the training data is '
                f'{type(trainer.train_dataloader).__name__}. Train on a StreamingDataModule or a StreamingDataLoader, '
                f'or remove the callback.'
            )
        self._files.begin(self._folder or checkpoint_folder(trainer), loaders, step=_trained_batches(trainer))

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._files.follow(dict(streaming_loaders(trainer.train_dataloader)))  # Lightning may have replaced them

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._files.batch_done()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._files.pause()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._files.resume()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # With accumulated gradients, the position is that of the last optimizer step.
        position = checkpoint.get('callbacks', {}).get('headrace.position', {})
        self._files.checkpoint(position.get('trainer_batches'))

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._files.end()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # `ModelCheckpoint` saves its last checkpoint in the same hook, after other callbacks: `teardown` ends.
        self._files.finish()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # `ModelCheckpoint` may save in the same hook, after other callbacks: `teardown` ends.
        self._files.fail()


def _trained_batches(trainer: Trainer) -> int:
    # Lightning's types of its counters lack their names.
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    return int(progress.total.processed)
