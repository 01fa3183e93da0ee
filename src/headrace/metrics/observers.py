"""Observers of a training's data, which know no trainer: figures for its loggers, and files of its loss spikes.

The callbacks of `headrace.lightning` and `headrace.composer` translate their trainer's hooks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headrace.dataset.loader import StreamingDataLoader
from headrace.errors.redaction import warn
from headrace.metrics.bottleneck import BottleneckWatch
from headrace.metrics.exporters import BatchSpans
from headrace.metrics.meter import DataMeter, print_line
from headrace.metrics.spikes import LossSpike, SpikeDetector, SpikeFile, SpikeReports, TrainedBatch


@dataclass(eq=False)
class DataObserver:
    """Counts the batches of a training, and gives figures of its data. `DataStatistics` describes its options."""

    per_stream: bool
    per_stream_reads: bool | None
    sync_dist: bool
    detailed: bool
    summary: bool
    bottleneck: bool
    exporters: Sequence[Callable[[Mapping[str, float]], object]]
    spans: BatchSpans | None

    def __post_init__(self) -> None:
        self.exporters = tuple(self.exporters)
        self._watch = BottleneckWatch() if self.bottleneck else None
        self.meter = DataMeter()
        self.loaders: dict[str, StreamingDataLoader] = {}

    def begin(self, loaders: dict[str, StreamingDataLoader]) -> None:
        self.follow(loaders)
        self.meter.begin()
        self._begin_spans()

    def follow(self, loaders: dict[str, StreamingDataLoader]) -> None:
        """Follow these loaders from now on, which the trainer may have replaced."""
        self.meter.follow(loaders)
        self.loaders = loaders

    def batch_done(
        self,
        tokens: int | Tensor | None,
        *,
        is_first_rank: bool,
        is_step: bool = True,
        trained: Mapping[str, TrainedBatch] | None = None,
    ) -> None:
        """A batch of each loader was trained; arguments as those of `DataMeter.batch_done`."""
        self.meter.batch_done(tokens, is_step=is_step, trained=trained)
        if self.spans is not None:
            self.spans(self.loaders.values())
        bottleneck = self._watch.look(self.loaders) if self._watch is not None and is_first_rank else None
        if bottleneck is not None:
            warn(str(bottleneck))

    def figures(self, ranks: int, sum_over_ranks: Callable[[Sequence[float]], Sequence[float]]) -> dict[str, float]:
        """The figures since the last call; see `DataMeter.read`."""
        return self.meter.read(
            ranks=ranks,
            replicas=self.meter.loaders[0].dataset.topology.replicas,
            sum_over_ranks=sum_over_ranks if self.sync_dist and ranks > 1 else None,
            per_stream=self.per_stream,
            per_stream_reads=self.per_stream_reads,
            detailed=self.detailed,
        )

    def resume(self) -> None:
        """Restart the clock after an evaluation, for which `meter.pause` stopped it."""
        self.meter.resume()
        self._begin_spans()
        if self._watch is not None:
            self._watch.skip()

    def _begin_spans(self) -> None:
        if self.spans is not None:
            self.spans.begin(self.loaders.values())

    def end(self, *, is_first_rank: bool) -> None:
        if self.summary and is_first_rank:
            print_line(self.meter.summary())


class SpikeObserver:
    def __init__(self, *, factor: float, window: int, warmup: int, before: int, after: int, limit: int) -> None:
        self.detector = SpikeDetector(factor=factor, window=window, warmup=warmup)
        self.reports = SpikeReports(before=before, after=after, limit=limit)

    @staticmethod
    def figures(spike: LossSpike) -> dict[str, float]:
        figures = {'spikes/loss': spike.loss, 'spikes/threshold': spike.threshold}
        return {name: value for name, value in figures.items() if value is not None}

    def report(
        self,
        spike: LossSpike,
        number: int,
        batches: Mapping[str, TrainedBatch],
        folder: object,
        write: Callable[[SpikeFile], Any],
        *,
        optimizer_step: int | None = None,
    ) -> str | None:
        """Write the files of a spike; a warning about it, None long after the limit: each step may be a spike."""
        try:
            files = self.reports.files(spike, number, batches, optimizer_step=optimizer_step)
            for file in files:
                write(file)
        except Exception as error:  # no error of a store or a logger may end a training
            written = f'what it was trained on could not be written: {error!r}'
        else:
            written = f'see {folder}/{files[0].name}.' if files else 'nothing more is written of spikes.'
        step = '' if optimizer_step is None else f' (step {optimizer_step})'
        return None if self.reports.is_over else f'The loss of batch {number}{step} was {spike}: {written}'
