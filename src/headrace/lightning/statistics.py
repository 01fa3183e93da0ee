"""Throughput, waits and the mix of streams, in any Lightning logger and in the progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Callback
from typing_extensions import override

from headrace.dataset.loader import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.lightning.trained_batches import TrainedBatches
from headrace.metrics import BatchSpans, BottleneckWatch, DataMeter, count_tokens
from headrace.metrics.exporters import export_figures
from headrace.metrics.meter import print_summary
from headrace.redaction import warn

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ['DataStatistics', 'logged_steps', 'streaming_loaders']

_TEXT_EVERY = 1.0  # seconds


class DataStatistics(Callback):
    """Logs throughput, waits for data, downloads and the mix of streams, and shows them in the progress bar.

    `headrace.metrics.DataMeter.read` defines the figures; they are logged at Lightning's log steps. Samples, samples
    per second and streams are of all ranks, computed from the plan. They count trained batches, and continue after a
    resume. Time in validation does not count. With several training loaders, figures are sums, and streams are named
    ``mix/<loader>/<stream>/...``.

    Args:
        every_n_steps: optimizer steps between two logs; None: the trainer's `log_every_n_steps`.
        tokens: function that counts a batch's tokens, as an int or a tensor of one element; by default
            `headrace.metrics.count_tokens`.
        per_stream: log samples, share and promised share of each stream.
        per_stream_reads: also log downloads and waits of each stream; None: if at most 32 streams are remote.
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
        self._count_tokens = tokens
        self._per_stream = per_stream
        self._per_stream_reads = per_stream_reads
        self._progress_bar = progress_bar
        self._sync_dist = sync_dist
        self._detailed, self._summary, self._exporters = detailed, summary, tuple(exporters)
        self._spans = spans
        self._watch = BottleneckWatch() if bottleneck else None
        self._loaders: dict[str, StreamingDataLoader] = {}
        self._meter = DataMeter()
        self._trained = TrainedBatches()
        self._bar: Any = None
        self._texts: dict[str, str] = {}
        self._text_at = 0.0

    # -- the loaders -----------------------------------------------------------------------------------------------

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follow(trainer)
        self._meter.begin()
        self._trained.begin()
        if self._spans is not None:
            self._spans.begin(self._loaders.values())
        if self._progress_bar and trainer.is_global_zero:
            self._show_in(trainer.progress_bar_callback)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._follow(trainer)  # Lightning may have replaced them
        self._trained.begin_pass()

    def _follow(self, trainer: Trainer) -> None:
        loaders = dict(streaming_loaders(trainer.train_dataloader))
        if not loaders:
            raise ConfigError(
                f'DataStatistics reads the counters of a StreamingDataLoader, but the training data is '
                f'{type(trainer.train_dataloader).__name__}. Train on a StreamingDataModule or a StreamingDataLoader, '
                f'or remove the callback.'
            )
        self._meter.follow(loaders)
        self._loaders = loaders

    # -- batches ---------------------------------------------------------------------------------------------------

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        is_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        trained = self._trained.after_step(self._loaders)
        self._meter.batch_done(self._tokens_of(batch), is_step=is_step, trained=trained)
        if self._bar is not None and time.monotonic() - self._text_at >= _TEXT_EVERY:
            self._texts, self._text_at = self._meter.texts(), time.monotonic()
        every = self.every_n_steps or _log_every_n_steps(trainer)
        if self._spans is not None:
            self._spans(self._loaders.values())
        found = self._watch.look(self._loaders) if self._watch is not None and trainer.is_global_zero else None
        if found is not None:
            warn(str(found))
        if is_step and every and (logged_steps(trainer) + 1) % every == 0:
            self._log(trainer)

    def _tokens_of(self, batch: Any) -> int | torch.Tensor | None:
        if self._count_tokens is not None:
            return self._count_tokens(batch)
        loaders = self._meter.loaders
        if len(loaders) == 1:
            return count_tokens(batch, loaders[0].own_samples)
        parts = cast('Mapping[Any, Any]', batch).values() if isinstance(batch, Mapping) else batch
        counts = [count for part in parts if (count := count_tokens(part)) is not None]
        return sum(counts) if counts else None

    def _log(self, trainer: Trainer) -> None:
        is_summed = self._sync_dist and trainer.world_size > 1
        # All ranks must take part in a reduction, with or without a logger.
        if not (is_summed or (trainer.is_global_zero and (trainer.loggers or self._exporters))):
            return

        def sum_over_ranks(numbers: Sequence[float]) -> list[float]:
            values = torch.tensor(numbers, dtype=torch.float64, device=trainer.strategy.root_device)
            return cast('torch.Tensor', trainer.strategy.reduce(values, reduce_op='sum')).tolist()

        figures = self._meter.read(
            ranks=trainer.world_size,
            replicas=self._meter.loaders[0].dataset.topology.replicas,
            sum_over_ranks=sum_over_ranks if is_summed else None,
            per_stream=self._per_stream,
            per_stream_reads=self._per_stream_reads,
            detailed=self._detailed,
        )
        if trainer.is_global_zero:
            export_figures(self._exporters, figures)
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=logged_steps(trainer))

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._meter.pause()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._meter.resume()
        if self._spans is not None:
            self._spans.begin(self._loaders.values())
        if self._watch is not None:
            self._watch.skip()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._summary and trainer.is_global_zero:
            print_summary(self._meter)

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
        return self._meter.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._meter.load_state_dict(state_dict)


def streaming_loaders(data: Any, label: str = '') -> list[tuple[str, StreamingDataLoader]]:
    """The `StreamingDataLoader`s in a trainer's training data, with the keys that lead to them."""
    if isinstance(data, StreamingDataLoader):
        return [(label, data)]
    parts: Mapping[Any, Any] = {}
    if isinstance(data, Mapping):
        parts = cast('Mapping[Any, Any]', data)
    elif isinstance(data, (list, tuple)):
        parts = dict(enumerate(cast('Sequence[Any]', data)))
    found: list[tuple[str, StreamingDataLoader]] = []
    for key, part in parts.items():
        found += streaming_loaders(part, f'{label}/{key}' if label else str(key))
    return [('', found[0][1])] if len(found) == 1 and not label else found


def logged_steps(trainer: Trainer) -> int:
    """The number of the step under way."""
    # Lightning's loggers use this number, also after a resume.
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _log_every_n_steps(trainer: Trainer) -> int:
    return trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue] — set by a connector
