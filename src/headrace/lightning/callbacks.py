"""Callbacks that watch a training's data: statistics for loggers, files of loss spikes, and the record of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from headrace.dataset.loader import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.errors.redaction import redact
from headrace.lightning.position_file import write_text
from headrace.metrics import BatchSpans, TrainedBatch, count_tokens
from headrace.metrics.exporters import export_figures
from headrace.metrics.observers import DataObserver, SpikeObserver
from headrace.metrics.online_mixture import MixtureObserver
from headrace.order import BatchPlan
from headrace.packing import gather_of_ranks
from headrace.watching.run_files import RunFiles

if TYPE_CHECKING:
    from headrace.metrics import PerStreamMean

_TEXT_EVERY = 1.0  # seconds
_READS, _EXPLAINS = 'DataStatistics reads the counters of', 'LossSpikes explains the batches of'


class _TrainedBatches:
    """Finds each loader's batch of a step: without a length, Lightning fetches one step ahead."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._handed_out: dict[str, tuple[BatchPlan, int] | None] = {}
        self._fetched: dict[str, TrainedBatch] = {}  # of the next step
        self._is_ahead, self._is_pass_start = False, True

    def begin_pass(self) -> None:
        self._is_pass_start = True

    def after_step(self, loaders: Mapping[str, StreamingDataLoader]) -> dict[str, TrainedBatch]:
        """The batch of each loader that this step trained; with `max_size`, an exhausted loader has none."""
        new: dict[str, TrainedBatch] = {}
        for name, loader in loaders.items():
            now, before = loader.handed_out, self._handed_out.get(name)
            if now is not None and (before is None or now[0] is not before[0] or now[1] != before[1]):
                new[name] = TrainedBatch(loader, *now)
            self._handed_out[name] = now
        if self._is_pass_start:
            # A pass begins with two fetches then.
            self._is_pass_start, self._is_ahead = False, any(batch.number for batch in new.values())
            self._fetched = {name: replace(batch, number=0) for name, batch in new.items() if batch.number}
        if not self._is_ahead:
            return new
        trained, self._fetched = self._fetched, new
        return trained


class DataStatistics(Callback):
    """Logs throughput, waits for data, downloads and the mix of streams, and shows them in the progress bar.

    `headrace.metrics.DataMeter.read` defines the figures; they are logged at Lightning's log steps. Samples, samples
    per second and streams are of all ranks, computed from the plan. They count trained batches, and continue after a
    resume. Time in validation does not count. With several training loaders, figures are sums, and streams are named
    ``mix/<loader>/<stream>/...``.

    Args:
        every_n_steps: optimizer steps between two logs; by default the trainer's `log_every_n_steps`.
        tokens: function that counts a batch's tokens, as an int or a tensor of one element; by default
            `headrace.metrics.count_tokens`.
        per_stream: log samples, share and promised share of each stream.
        per_stream_reads: also log downloads and waits of each stream; by default if at most 32 streams are remote.
        progress_bar: show downloads, waits and shares of streams in the trainer's progress bar.
        sync_dist: add up the counters of reads, waits and tokens over all ranks, by one reduction per log. If not,
            they are rank 0's, and its tokens stand for every rank's.
        detailed: log all figures; with `sync_dist`, also which rank waits most.
        summary: print one line at the end of the training, on rank 0.
        bottleneck: warn at most every 10 minutes if rank 0 waits for more than 10 % of the time, and say which part of
            the data path to change.
        exporters: functions that get each log's figures, such as a `headrace.metrics.PrometheusEndpoint`; rank 0 calls
            them, with or without a logger.
        spans: makes OpenTelemetry spans of each batch, on each rank that has a provider of tracers.

    Raises:
        ConfigError: `every_n_steps` is below 1; or, before the first step, no training loader is headrace's.
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        *,
        tokens: Callable[[Any], int | torch.Tensor] | None = None,
        per_stream: bool = True,
        per_stream_reads: bool | None = None,
        progress_bar: bool = True,
        sync_dist: bool = False,
        detailed: bool = False,
        summary: bool = True,
        bottleneck: bool = True,
        exporters: Sequence[Callable[[Mapping[str, float]], object]] = (),
        spans: BatchSpans | None = None,
    ) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ConfigError(f"`every_n_steps` must be at least 1, or None for the trainer's, got {every_n_steps}.")
        self.every_n_steps = every_n_steps
        self._count_tokens, self._progress_bar = tokens, progress_bar
        self._observer = DataObserver(
            per_stream, per_stream_reads, sync_dist, detailed, summary, bottleneck, exporters, spans
        )
        self._trained = _TrainedBatches()
        self._bar: Any = None
        self._texts: dict[str, str] = {}
        self._text_at = 0.0

    # -- the loaders -----------------------------------------------------------------------------------------------

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._observer.begin(_loaders(trainer, _READS))
        self._trained.begin()
        if self._progress_bar and trainer.is_global_zero:
            self._show_in(trainer.progress_bar_callback)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._observer.follow(_loaders(trainer, _READS))  # Lightning may have replaced them
        self._trained.begin_pass()

    # -- batches ---------------------------------------------------------------------------------------------------

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        is_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        trained = self._trained.after_step(self._observer.loaders)
        self._observer.batch_done(
            self._tokens_of(batch), is_first_rank=trainer.is_global_zero, is_step=is_step, trained=trained
        )
        if self._bar is not None and time.monotonic() - self._text_at >= _TEXT_EVERY:
            self._texts, self._text_at = self._observer.meter.texts(), time.monotonic()
        every: int = self.every_n_steps or trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue] — set by a connector
        if is_step and every and (_logged_steps(trainer) + 1) % every == 0:
            self._log(trainer)

    def _tokens_of(self, batch: Any) -> int | torch.Tensor | None:
        if self._count_tokens is not None:
            return self._count_tokens(batch)
        loaders = self._observer.meter.loaders
        if len(loaders) == 1:
            return count_tokens(batch, loaders[0].own_samples)
        parts = cast('Mapping[Any, Any]', batch).values() if isinstance(batch, Mapping) else batch
        counts = [count for part in parts if (count := count_tokens(part)) is not None]
        return sum(counts) if counts else None

    def _log(self, trainer: Trainer) -> None:
        is_summed = self._observer.sync_dist and trainer.world_size > 1
        # All ranks must take part in a reduction, with or without a logger.
        if not (is_summed or (trainer.is_global_zero and (trainer.loggers or self._observer.exporters))):
            return

        def sum_over_ranks(numbers: Sequence[float]) -> list[float]:
            values = torch.tensor(numbers, dtype=torch.float64, device=trainer.strategy.root_device)
            return cast('torch.Tensor', trainer.strategy.reduce(values, reduce_op='sum')).tolist()

        figures = self._observer.figures(trainer.world_size, sum_over_ranks)
        if trainer.is_global_zero:
            export_figures(self._observer.exporters, figures)
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=_logged_steps(trainer))

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._observer.meter.pause()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._observer.resume()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._observer.end(is_first_rank=trainer.is_global_zero)

    # -- the progress bar ------------------------------------------------------------------------------------------

    def _show_in(self, bar: Any) -> None:
        """Add the texts to a progress bar's `get_metrics`, which bars of any kind call."""
        if bar is None or self._bar is bar:
            return
        shown = bar.get_metrics

        def get_metrics(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
            return {**self._texts, **shown(trainer, pl_module)}

        bar.get_metrics = get_metrics
        self._bar = bar

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._bar is not None:
            del self._bar.get_metrics  # the class's method is visible again
            self._bar = None

    # -- across a resume -------------------------------------------------------------------------------------------

    @property
    @override
    def state_key(self) -> str:
        return 'headrace.statistics'

    @override
    def state_dict(self) -> dict[str, Any]:
        """The counts of streams, for the trainer's checkpoint."""
        return self._observer.meter.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._observer.meter.load_state_dict(state_dict)


class LossSpikes(Callback):
    """Writes the data of a loss spike, and the `skip` that omits it, beside the checkpoints.

    For a spike in batch 147 of the run, ``loss-spike-batch147.json`` lists every row of the global batch with its rank,
    stream, shard and place. ``loss-spike-batch147.yaml`` holds the `skip` of the resumed run, to merge over this run's
    configuration. `headrace.metrics.SpikeDetector` defines a spike. Each loss is judged after the next batch, without
    waiting for the device. Checkpoints keep the losses. Rank 0 writes alone, since the plan knows all rows.

    With packing, the file lists the documents of each sequence: stream, shard, place and tokens. Under `sync_dist` the
    ranks share their names; without, the file names those of rank 0.

    Args:
        factor, window, warmup: see `headrace.metrics.SpikeDetector`.
        before, after, limit: see `headrace.metrics.SpikeReports`.
        folder: output folder, a path or a URL; by default the first `ModelCheckpoint`'s, or the trainer's
            `default_root_dir`.
        monitor: name of a logged value to watch; by default the loss that `training_step` returns.
        sync_dist: watch the mean loss over all ranks, by one reduction per batch. If not, rank 0's, which ignores the
            rows of other ranks. A value of `monitor` is taken as it was logged.
        stop: end the training after a spike, as `trainer.should_stop` does.

    Raises:
        ConfigError: a number is out of range. Before the first step: no training loader is headrace's, or `stop` on
            several ranks lacks `sync_dist`. At the first batch: it has no loss to watch.
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
        self._observer = SpikeObserver(
            factor=factor, window=window, warmup=warmup, before=before, after=after, limit=limit
        )
        self._folder, self._monitor, self._sync_dist, self._stop = folder, monitor, sync_dist, stop
        self._trained = _TrainedBatches()
        self._last: _Batch | None = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._stop and not self._sync_dist and self._monitor is None and trainer.world_size > 1:
            raise ConfigError(
                'LossSpikes(stop=True) needs `sync_dist=True` on several ranks: they must all stop at the same batch, '
                'but each knows only its own loss.'
            )
        _loaders(trainer, _EXPLAINS)
        self._trained.begin()
        self._observer.reports.begin()
        self._last = None

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._judge(trainer)
        batches = self._trained.after_step(_loaders(trainer, _EXPLAINS))
        loss = self._loss(trainer, pl_module, outputs)
        if loss is not None:
            self._last = _Batch(loss, _trained_batches(trainer) - 1, _logged_steps(trainer), batches)

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
        last, self._last = self._last, None
        spike = None if last is None else self._observer.detector.add(last.loss.item())
        if last is None or spike is None:
            return
        if self._stop:
            trainer.should_stop = True
        if self._sync_dist and self._monitor is None and trainer.world_size > 1:  # all ranks see the same spike
            self._observer.reports.share_documents(last.batches, gather_of_ranks())
        if not trainer.is_global_zero:
            return
        for logger in trainer.loggers:
            logger.log_metrics(self._observer.figures(spike), step=last.optimizer_step)
        folder = self._folder or _checkpoint_folder(trainer)
        text = self._observer.report(
            spike,
            last.number,
            last.batches,
            folder,
            lambda file: write_text(f'{folder}/{file.name}', file.text),
            optimizer_step=last.optimizer_step,
        )
        if text is not None:
            rank_zero_warn(redact(text))

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
        return self._observer.detector.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._observer.detector.load_state_dict(state_dict)


@dataclass(frozen=True, slots=True)
class _Batch:
    loss: torch.Tensor
    number: int  # number in the run
    optimizer_step: int  # step number in Lightning's loggers
    batches: dict[str, TrainedBatch]


class RunRecord(Callback):
    """Writes down which samples each step trains, for `headrace explain --run` and `headrace watch`.

    Rank 0 appends to ``headrace.record`` in the folder: topology, code and versions at the start and at each resume;
    position and mixture at each pass and checkpoint. Ids follow from the plan. A kill at any moment leaves a readable
    record. Each rank writes a small file with its rates and waits, which `headrace watch` shows.

    Args:
        folder: the run's folder, the same after each resume, on a file system that all ranks share; by default the
            first `ModelCheckpoint`'s, or the trainer's `default_root_dir`.
        status_every: seconds between two writes of a rank's status; None writes no status to watch.

    Raises:
        ConfigError: before the first step: no training loader is headrace's, or the folder cannot be written to.
    """

    def __init__(self, folder: str | Path | None = None, *, status_every: float | None = 2.0) -> None:
        self._folder = folder
        self._files = RunFiles(status_every)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loaders = _loaders(trainer, 'RunRecord follows')
        self._files.begin(self._folder or _checkpoint_folder(trainer), loaders, step=_trained_batches(trainer))

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._files.follow(dict(streaming_loaders(trainer.train_dataloader)))  # Lightning may have replaced them

    @override
    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
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
        self._files.finish('failed')


class OnlineMixture(Callback):
    """Sets the proportions of the streams by their losses, as decisions that checkpoints hold.

    `headrace.metrics.proportions_by_loss` is the rule. A replay with the `decisions` of a run leaves this callback out.

    Args:
        metric: the `headrace.metrics.PerStreamMean` of the losses, or the name of the model's attribute. Update it in
            each training step. Each decision resets it.
        every_n_steps: optimizer steps between two decisions.
        rate, memory, floor, references: see `headrace.metrics.proportions_by_loss`.

    Raises:
        ConfigError: a number is out of range. At the first decision: the metric is none, or the run cannot change.
    """

    def __init__(
        self,
        metric: str | PerStreamMean,
        every_n_steps: int = 100,
        *,
        rate: float = 1.0,
        memory: float = 1.0,
        floor: float = 0.01,
        references: Mapping[str, float] | None = None,
    ) -> None:
        self._observer = MixtureObserver(
            metric, every_n_steps, rate=rate, memory=memory, floor=floor, references=references
        )

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        is_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        if is_step and (_logged_steps(trainer) + 1) % self._observer.every == 0:
            loaders = _loaders(trainer, 'OnlineMixture sets the proportions of')
            if len(loaders) > 1:
                raise ConfigError(f'OnlineMixture needs one training loader, but there are {", ".join(loaders)}.')
            self._observer.decide(next(iter(loaders.values())), pl_module)


def _trained_batches(trainer: Trainer) -> int:
    # Lightning's types of its counters lack their names.
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    return int(progress.total.processed)


def _checkpoint_folder(trainer: Trainer) -> str:
    saving: Any = trainer.checkpoint_callback
    return str(getattr(saving, 'dirpath', None) or trainer.default_root_dir)


def streaming_loaders(data: Any, label: str = '') -> list[tuple[str, StreamingDataLoader]]:
    """The `StreamingDataLoader`s in a trainer's training data, with the keys that lead to them."""
    if isinstance(data, StreamingDataLoader):
        return [(label, data)]
    parts: Mapping[Any, Any] = {}
    if isinstance(data, Mapping):
        parts = cast('Mapping[Any, Any]', data)
    elif isinstance(data, (list, tuple)):
        parts = dict(enumerate(cast('Sequence[Any]', data)))
    loaders: list[tuple[str, StreamingDataLoader]] = []
    for key, part in parts.items():
        loaders += streaming_loaders(part, f'{label}/{key}' if label else str(key))
    return [('', loaders[0][1])] if len(loaders) == 1 and not label else loaders


def _logged_steps(trainer: Trainer) -> int:
    # Lightning's loggers use this number, also after a resume.
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _loaders(trainer: Trainer, what: str) -> dict[str, StreamingDataLoader]:
    loaders = dict(streaming_loaders(trainer.train_dataloader))
    if not loaders:
        raise ConfigError(
            f'{what} a StreamingDataLoader, but the training data is {type(trainer.train_dataloader).__name__}. Train '
            f'on a StreamingDataModule or a StreamingDataLoader, or remove the callback.'
        )
    return loaders
