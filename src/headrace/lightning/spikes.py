"""A Lightning callback that reports the data of loss spikes in files beside the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from headrace.errors import ConfigError
from headrace.lightning.position.position_file import write_text
from headrace.lightning.statistics import logged_steps, streaming_loaders
from headrace.lightning.trained_batches import TrainedBatches
from headrace.metrics import LossSpike, SpikeDetector, SpikeReports, TrainedBatch
from headrace.packing import gather_of_ranks
from headrace.redaction import redact

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from headrace.dataset import StreamingDataLoader

__all__ = ['LossSpikes', 'checkpoint_folder']


class LossSpikes(Callback):
    """Writes the data of a loss spike, and the `skip` that omits it, beside the checkpoints.

    For a spike in batch 147 of the run, ``loss-spike-batch147.json`` lists every row of the global batch with its rank,
    stream, shard and place. ``loss-spike-batch147.yaml`` holds the `skip` of the resumed run, to merge over this run's
    configuration. `headrace.metrics.SpikeDetector` defines a spike. Each loss is judged after the next batch, without
    waiting for the device. Checkpoints keep the losses. Rank 0 writes alone, since the plan knows all rows.

    With packing, the file lists the documents of each sequence: stream, shard, place and tokens. Under `sync_dist` the
    ranks share their names; without, the file names those of rank 0.

    Args:
        factor: standard deviations above the median that make a spike, by the median absolute deviation.
        window: number of remembered losses.
        warmup: batches before the first judgement.
        before: batches before a spike to skip with it.
        after: batches after a spike to skip with it.
        folder: output folder, a path or a URL; None: the first `ModelCheckpoint`'s, or the trainer's
            `default_root_dir`.
        monitor: name of a logged value to watch; None: the loss that `training_step` returns.
        sync_dist: watch the mean loss over all ranks, by one reduction per batch. If not, rank 0's, which ignores the
            rows of other ranks. A value of `monitor` is taken as it was logged.
        stop: end the training after a spike, as `trainer.should_stop` does.
        limit: maximum number of spikes with files.

    Raises:
        ConfigError: a number is out of range. Before the first step: no training loader is headrace's, or `stop` on
            several ranks lacks `sync_dist`. At the first batch: there is no loss to watch.
    """

    def __init__(
        self,
        *,
        factor: float = 10.0,
        window: int = 100,
        warmup: int = 20,
        before: int = 0,
        after: int = 0,
        folder: str | None = None,
        monitor: str | None = None,
        sync_dist: bool = True,
        stop: bool = False,
        limit: int = 10,
    ) -> None:
        self._detector = SpikeDetector(factor=factor, window=window, warmup=warmup)
        self._reports = SpikeReports(before=before, after=after, limit=limit)
        self._folder = folder
        self._monitor = monitor
        self._sync_dist = sync_dist
        self._stop = stop
        self._trained = TrainedBatches()
        self._last: _Batch | None = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._stop and not self._sync_dist and self._monitor is None and trainer.world_size > 1:
            raise ConfigError(
                'LossSpikes(stop=True) needs `sync_dist=True` on several ranks: they must all stop at the same batch, '
                'but each knows only its own loss.'
            )
        _loaders(trainer)
        self._trained.begin()
        self._reports.begin()
        self._last = None

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._judge(trainer)
        batches = self._trained.after_step(_loaders(trainer))
        loss = self._loss(trainer, pl_module, outputs)
        if loss is not None:
            # Lightning's types of its counters lack their names.
            progress: Any = trainer.fit_loop.epoch_loop.batch_progress
            number = progress.total.processed - 1
            self._last = _Batch(loss, number, logged_steps(trainer), batches)

    def _loss(self, trainer: Trainer, pl_module: LightningModule, outputs: Any) -> torch.Tensor | None:
        if self._monitor is not None:
            logged = trainer.callback_metrics
            if self._monitor not in logged:
                raise ConfigError(
                    f'LossSpikes watches {self._monitor!r}, which is not logged in each step; there are '
                    f'{sorted(logged)}. Log it in `training_step`, or leave `monitor` out.'
                )
            return logged[self._monitor].detach().float()
        loss: Any = cast('Mapping[str, Any]', outputs).get('loss') if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, torch.Tensor):
            if pl_module.automatic_optimization:
                return None  # a skipped step
            raise ConfigError(
                f'LossSpikes watches the loss that `training_step` returns, but with manual optimization it returned '
                f'{type(outputs).__name__}. Return the loss, or give `monitor`, the name of a value that is logged.'
            )
        loss = loss.detach().float().mean()
        if pl_module.automatic_optimization:
            loss = loss * trainer.accumulate_grad_batches  # Lightning divided by it
        if self._sync_dist and trainer.world_size > 1:
            loss = cast('torch.Tensor', trainer.strategy.reduce(loss, reduce_op='mean'))
        return loss

    def _judge(self, trainer: Trainer) -> None:
        """Judge the previous batch, whose loss is computed by now."""
        last, self._last = self._last, None
        spike = None if last is None else self._detector.add(last.loss.item())
        if last is None or spike is None:
            return
        if self._stop:
            trainer.should_stop = True
        if self._sync_dist and self._monitor is None and trainer.world_size > 1:  # all ranks see the same spike
            self._reports.share_documents(last.batches, gather_of_ranks())
        if not trainer.is_global_zero:
            return
        for logger in trainer.loggers:
            figures = {'spikes/loss': spike.loss, 'spikes/threshold': spike.threshold}
            logger.log_metrics({k: v for k, v in figures.items() if v is not None}, step=last.optimizer_step)
        written = self._write(spike, last, trainer)
        if not self._reports.is_over:
            rank_zero_warn(
                redact(f'The loss of batch {last.number} (step {last.optimizer_step}) was {spike}: {written}')
            )

    def _write(self, spike: LossSpike, last: _Batch, trainer: Trainer) -> str:
        """Write the files of a spike; returns a line about them."""
        folder = self._folder or checkpoint_folder(trainer)
        try:
            files = self._reports.files(spike, last.number, last.batches, optimizer_step=last.optimizer_step)
            for file in files:
                write_text(f'{folder}/{file.name}', file.text)
        except Exception as error:  # no store error may end a training
            return f'what it was trained on could not be written: {error!r}'
        return f'see {folder}/{files[0].name}.' if files else 'nothing more is written of spikes.'

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trained.begin_pass()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._judge(trainer)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._judge(trainer)  # the spike may be the cause

    @property
    @override
    def state_key(self) -> str:
        return 'headrace.loss_spikes'

    @override
    def state_dict(self) -> dict[str, Any]:
        """The losses that the next ones are compared with."""
        return self._detector.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._detector.load_state_dict(state_dict)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A trained batch that is not judged yet."""

    loss: torch.Tensor
    number: int
    """Number in the run."""
    optimizer_step: int
    """Step number in Lightning's loggers."""
    batches: dict[str, TrainedBatch]


def _loaders(trainer: Trainer) -> dict[str, StreamingDataLoader]:
    loaders = dict(streaming_loaders(trainer.train_dataloader))
    if not loaders:
        raise ConfigError(
            f'LossSpikes explains the batches of a StreamingDataLoader, but the training data is '
            f'{type(trainer.train_dataloader).__name__}. Train on a StreamingDataModule or a StreamingDataLoader, or '
            f'remove the callback.'
        )
    return loaders


def checkpoint_folder(trainer: Trainer) -> str:
    """The folder of the first `ModelCheckpoint`, or the trainer's `default_root_dir`."""
    saving: Any = trainer.checkpoint_callback
    return str(getattr(saving, 'dirpath', None) or trainer.default_root_dir)
