"""Throughput, waits and the mix of streams, in Composer's loggers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from composer.core import Callback, State
from composer.utils import dist

from headrace.dataset import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.metrics import BatchSpans, BottleneckWatch, DataMeter
from headrace.metrics.exporters import export_figures
from headrace.metrics.meter import print_summary
from headrace.redaction import warn

if TYPE_CHECKING:
    from composer.loggers import Logger

__all__ = ['DataStatistics']


class DataStatistics(Callback):
    """Logs throughput, waits for data, downloads and the mix of streams.

    `headrace.metrics.DataMeter.read` defines the figures. Samples, samples per second and streams are of all ranks,
    computed from the plan, and continue after a resume. Composer counts the tokens. Time in evaluation does not count.

    Args:
        every_n_batches: batches between two logs.
        per_stream: log samples, share and promised share of each stream.
        per_stream_reads: also log downloads and waits of each stream; None: if at most 32 streams are remote.
        sync_dist: add up the counters of reads and waits over all ranks, by one reduction per log. If not, each rank
            logs its own.
        detailed: log all figures; with `sync_dist`, also which rank waits most.
        summary: print one line at the end of the training, on rank 0.
        bottleneck: warn at most every 10 minutes if rank 0 waits for more than 10 % of the time, and say which part of
            the data path to change.
        exporters: functions that get each log's figures, such as a `headrace.metrics.PrometheusEndpoint`, on each rank.
        spans: makes OpenTelemetry spans of each batch, on each rank that has a provider of tracers.

    Raises:
        ConfigError: `every_n_batches` is below 1; or, before the first step, the train loader is not headrace's.
    """

    def __init__(
        self,
        every_n_batches: int = 10,
        *,
        per_stream: bool = True,
        per_stream_reads: bool | None = None,
        sync_dist: bool = False,
        detailed: bool = False,
        summary: bool = True,
        bottleneck: bool = True,
        exporters: Sequence[Callable[[Mapping[str, float]], object]] = (),
        spans: BatchSpans | None = None,
    ) -> None:
        if every_n_batches < 1:
            raise ConfigError(f'`every_n_batches` must be at least 1, got {every_n_batches}.')
        self.every_n_batches = every_n_batches
        self._per_stream = per_stream
        self._per_stream_reads = per_stream_reads
        self._sync_dist = sync_dist
        self._detailed, self._summary, self._exporters = detailed, summary, tuple(exporters)
        self._spans = spans
        self._watch = BottleneckWatch() if bottleneck and dist.get_global_rank() == 0 else None
        self._meter = DataMeter()
        self._tokens = 0

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Read the train loader from here on."""
        loader = state.train_dataloader
        if not isinstance(loader, StreamingDataLoader):
            raise ConfigError(
                f'DataStatistics reads the counters of a StreamingDataLoader, but the train loader is '
                f'{type(loader).__name__}. Train on `streaming_data_spec(...)`, or remove the callback.'
            )
        self._meter.follow({'': loader})
        self._meter.begin()
        if self._spans is not None:
            self._spans.begin(self._meter.loaders)
        self._tokens = int(state.timestamp.token)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Count a batch, and log now and then."""
        topology = self._meter.loaders[0].dataset.topology
        tokens, self._tokens = int(state.timestamp.token) - self._tokens, int(state.timestamp.token)
        # Composer's are those of all ranks together; the meter's of one.
        self._meter.batch_done(tokens // topology.replicas if tokens else None)
        if self._spans is not None:
            self._spans(self._meter.loaders)
        found = None if self._watch is None else self._watch.look({'': self._meter.loaders[0]})
        if found is not None:
            warn(str(found))
        if int(state.timestamp.batch) % self.every_n_batches:
            return
        is_summed = self._sync_dist and dist.get_world_size() > 1
        figures = self._meter.read(
            ranks=dist.get_world_size(),
            replicas=topology.replicas,
            sum_over_ranks=(lambda numbers: _sum_over_ranks(numbers, state)) if is_summed else None,
            per_stream=self._per_stream,
            per_stream_reads=self._per_stream_reads,
            detailed=self._detailed,
        )
        export_figures(self._exporters, figures)
        logger.log_metrics(figures)

    def eval_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Pause the clock."""
        self._meter.pause()

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Resume the clock."""
        self._meter.resume()
        if self._spans is not None:
            self._spans.begin(self._meter.loaders)
        if self._watch is not None:
            self._watch.skip()

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Print the line about the run."""
        if self._summary and dist.get_global_rank() == 0:
            print_summary(self._meter)

    def state_dict(self) -> dict[str, Any]:
        """The counts of streams, as one text: a sharded checkpoint needs the same keys in any run."""
        return {'counts': json.dumps(self._meter.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts of a checkpoint."""
        self._meter.load_state_dict(json.loads(state.get('counts', '{}')))


def _sum_over_ranks(numbers: Sequence[float], state: State) -> list[float]:
    values = state.device.tensor_to_device(torch.tensor(numbers, dtype=torch.float64))
    dist.all_reduce(values, reduce_operation='SUM')
    return values.tolist()
