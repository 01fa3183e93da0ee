"""Callbacks that watch a training's data: statistics for loggers, files of loss spikes, and the record of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from composer.callbacks import CheckpointSaver
from composer.core import Callback, State
from composer.utils import dist, format_name_with_dist

from headrace.dataset import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.errors.redaction import warn
from headrace.metrics import BatchSpans, SpikeFile, TrainedBatch
from headrace.metrics.exporters import export_figures
from headrace.metrics.observers import DataObserver, SpikeObserver
from headrace.metrics.online_mixture import MixtureObserver
from headrace.packing import gather_of_ranks
from headrace.watching.run_files import RunFiles

if TYPE_CHECKING:
    from composer.loggers import Logger

    from headrace.metrics import PerStreamMean

_LOSS = 'loss/train/total'


class DataStatistics(Callback):
    """Logs throughput, waits for data, downloads and the mix of streams.

    `headrace.metrics.DataMeter.read` defines the figures. Samples, samples per second and streams are of all ranks,
    computed from the plan, and continue after a resume. Composer counts the tokens. Time in evaluation does not count.

    Args:
        every_n_batches: batches between two logs.
        per_stream: log samples, share and promised share of each stream.
        per_stream_reads: also log downloads and waits of each stream; by default if at most 32 streams are remote.
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
        self._observer = DataObserver(
            per_stream, per_stream_reads, sync_dist, detailed, summary, bottleneck, exporters, spans
        )
        self._tokens = 0

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Read the train loader from here on."""
        self._observer.begin({'': _train_loader(state, 'DataStatistics reads the counters of')})
        self._tokens = int(state.timestamp.token)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Count a batch, and log now and then."""
        tokens, self._tokens = int(state.timestamp.token) - self._tokens, int(state.timestamp.token)
        # Composer's are those of all ranks together; the meter's of one.
        replicas = self._observer.loaders[''].dataset.topology.replicas
        self._observer.batch_done(tokens // replicas if tokens else None, is_first_rank=dist.get_global_rank() == 0)
        if int(state.timestamp.batch) % self.every_n_batches:
            return
        figures = self._observer.figures(dist.get_world_size(), lambda numbers: _sum_over_ranks(numbers, state))
        export_figures(self._observer.exporters, figures)
        logger.log_metrics(figures)

    def eval_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Pause the clock."""
        self._observer.meter.pause()

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Resume the clock."""
        self._observer.resume()

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Print the line about the run."""
        self._observer.end(is_first_rank=dist.get_global_rank() == 0)

    def state_dict(self) -> dict[str, Any]:
        """The counts of streams, as one text: a sharded checkpoint needs the same keys in any run."""
        return {'counts': json.dumps(self._observer.meter.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts of a checkpoint."""
        self._observer.meter.load_state_dict(json.loads(state.get('counts', '{}')))


def _sum_over_ranks(numbers: Sequence[float], state: State) -> list[float]:
    values = state.device.tensor_to_device(torch.tensor(numbers, dtype=torch.float64))
    dist.all_reduce(values, reduce_operation='SUM')
    return values.tolist()


class LossSpikes(Callback):
    """Writes the data of a loss spike, and the `skip` that omits it, beside the checkpoints.

    For a spike in batch 147 of the run, ``loss-spike-batch147.json`` lists every row of the global batch with its rank,
    stream, shard and place. ``loss-spike-batch147.yaml`` holds the `skip` of the resumed run, to merge over this run's
    configuration. `headrace.metrics.SpikeDetector` defines a spike. The loss is the mean over ranks and microbatches
    that Composer logs. Rank 0 writes alone, since the plan knows all rows. The trainer's loggers get the files too, and
    may upload them.

    Args:
        factor, window, warmup: see `headrace.metrics.SpikeDetector`.
        before, after, limit: see `headrace.metrics.SpikeReports`.
        folder: output folder, with Composer's placeholders, such as ``{run_name}/spikes``; by default the local folder
            of `CheckpointSaver` (`save_folder`).
        stop: end the training after the spike's batch, on all ranks.

    Raises:
        ConfigError: a number is out of range; or, before the first step, the train loader is not headrace's, or the
            folder is unknown.
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
        stop: bool = False,
        limit: int = 10,
    ) -> None:
        self._observer = SpikeObserver(
            factor=factor, window=window, warmup=warmup, before=before, after=after, limit=limit
        )
        self._folder, self._stop = folder, stop
        self._judged: dict[str, float] | None = None

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Check that the loader can be explained, and find the output folder."""
        _train_loader(state, 'LossSpikes explains the batches of')
        _run_folder(state, self._folder, 'LossSpikes')
        self._observer.reports.begin()
        self._judged = None

    def batch_end(self, state: State, logger: Logger) -> None:
        """Judge the loss of the batch."""
        losses = state.total_loss_dict
        # Composer makes new ones for each batch that it could train.
        if losses is self._judged or _LOSS not in losses:
            return
        self._judged = losses
        spike = self._observer.detector.add(losses[_LOSS])
        if spike is None:
            return
        logger.log_metrics(self._observer.figures(spike))
        if self._stop:
            state.stop_training()
        loader = _train_loader(state, 'LossSpikes explains the batches of')
        assert loader.handed_out is not None
        batches = {'': TrainedBatch(loader, *loader.handed_out)}
        self._observer.reports.share_documents(batches, gather_of_ranks() if dist.get_world_size() > 1 else None)
        if dist.get_global_rank() == 0:
            folder = _run_folder(state, self._folder, 'LossSpikes')
            text = self._observer.report(
                spike,
                int(state.timestamp.batch) - 1,
                batches,
                folder,
                lambda file: _write_one(file, folder, logger, state.run_name),
            )
            if text is not None:
                warn(text, stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """The remembered losses, as one text: a sharded checkpoint needs the same keys in any run."""
        return {'detector': json.dumps(self._observer.detector.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses of a checkpoint."""
        self._observer.detector.load_state_dict(json.loads(state.get('detector', '{}')))


def _run_folder(state: State, folder: str | None, writer: str) -> Path:
    """The folder of a callback's files, with Composer's placeholders; by default that of `CheckpointSaver`."""
    if folder is None:
        saver = next((callback for callback in state.callbacks if isinstance(callback, CheckpointSaver)), None)
        if saver is None:
            raise ConfigError(
                f'{writer} writes beside the checkpoints, but this trainer saves none: give it `folder`, or the '
                f'trainer `save_folder`.'
            )
        folder = saver.folder
    return Path(format_name_with_dist(folder, state.run_name))


def _write_one(file: SpikeFile, folder: Path, logger: Logger, run_name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file.name
    path.write_text(file.text, encoding='utf-8')
    logger.upload_file(remote_file_name=f'{run_name}/spikes/{file.name}', file_path=path, overwrite=True)


class RunRecord(Callback):
    """Writes down which samples each step trains, for `headrace explain --run` and `headrace watch`.

    Rank 0 appends to ``headrace.record`` in the folder: topology, code and versions at the start and at each resume;
    position and mixture at each pass and checkpoint. Ids follow from the plan. A kill at any moment leaves a readable
    record. Each rank writes a small file with its rates and waits, which `headrace watch` shows. Give it to the
    trainer after `StreamingPosition`.

    Args:
        folder: the run's folder, the same after each resume, on a file system that all ranks share. It takes
            Composer's placeholders, such as ``{run_name}``; by default the local folder of `CheckpointSaver`
            (`save_folder`).
        status_every: seconds between two writes of a rank's status; None writes no status to watch.

    Raises:
        ConfigError: before the first step: the train loader is not headrace's, or the folder is unknown or cannot be
            written to.
    """

    def __init__(self, folder: str | None = None, *, status_every: float | None = 2.0) -> None:
        self._folder = folder
        self._files = RunFiles(status_every)

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Begin a segment of the run."""
        loader = _train_loader(state, 'RunRecord follows')
        folder = _run_folder(state, self._folder, 'RunRecord')
        self._files.begin(folder, {'': loader}, step=int(state.timestamp.batch))

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Count a batch."""
        self._files.batch_done()

    def eval_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Pause the clock."""
        self._files.pause()

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Resume the clock."""
        self._files.resume()

    def state_dict(self) -> dict[str, Any]:
        """Record the checkpoint that Composer saves; no state."""
        self._files.checkpoint()
        return {}

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """End the segment; a training that failed comes here without `fit_end`."""
        self._files.end('failed')

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Say that the training is over; `close` ends the segment, after the last checkpoint."""
        self._files.finish()


class OnlineMixture(Callback):
    """Sets the proportions of the streams by their losses, as decisions that checkpoints hold.

    `headrace.metrics.proportions_by_loss` is the rule. A replay with the `decisions` of a run leaves this callback out.

    Args:
        metric: the `headrace.metrics.PerStreamMean` of the losses, or the name of the model's attribute. Update it in
            each `loss`. Each decision resets it.
        every_n_batches: batches between two decisions.
        rate, memory, floor, references: see `headrace.metrics.proportions_by_loss`.

    Raises:
        ConfigError: a number is out of range. At the first decision: the metric is none, or the run cannot change.
    """

    def __init__(
        self,
        metric: str | PerStreamMean,
        every_n_batches: int = 100,
        *,
        rate: float = 1.0,
        memory: float = 1.0,
        floor: float = 0.01,
        references: Mapping[str, float] | None = None,
    ) -> None:
        self._observer = MixtureObserver(
            metric, every_n_batches, rate=rate, memory=memory, floor=floor, references=references
        )

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Decide now and then."""
        if int(state.timestamp.batch) % self._observer.every == 0:
            loader = _train_loader(state, 'OnlineMixture sets the proportions of')
            self._observer.decide(loader, getattr(state.model, 'module', state.model))


def _train_loader(state: State, what: str) -> StreamingDataLoader:
    loader = state.train_dataloader
    if not isinstance(loader, StreamingDataLoader):
        raise ConfigError(
            f'{what} a StreamingDataLoader, but the train loader is {type(loader).__name__}. Train on '
            f'`streaming_data_spec(...)`, or remove the callback.'
        )
    return loader
