"""A Composer callback that reports the data of loss spikes in files beside the checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.callbacks import CheckpointSaver
from composer.core import Callback, State
from composer.utils import dist, format_name_with_dist

from headrace.dataset import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.metrics import LossSpike, SpikeDetector, SpikeFile, SpikeReports, TrainedBatch
from headrace.packing import gather_of_ranks
from headrace.redaction import warn

if TYPE_CHECKING:
    from composer.loggers import Logger

__all__ = ['LossSpikes', 'checkpoint_folder']

_LOSS = 'loss/train/total'


class LossSpikes(Callback):
    """Writes the data of a loss spike, and the `skip` that omits it, beside the checkpoints.

    For a spike in batch 147 of the run, ``loss-spike-batch147.json`` lists every row of the global batch with its rank,
    stream, shard and place. ``loss-spike-batch147.yaml`` holds the `skip` of the resumed run, to merge over this run's
    configuration. `headrace.metrics.SpikeDetector` defines a spike. The loss is the mean over ranks and microbatches
    that Composer logs. Rank 0 writes alone, since the plan knows all rows. The trainer's loggers get the files too, and
    may upload them.

    Args:
        factor: standard deviations above the median that make a spike, by the median absolute deviation.
        window: number of remembered losses.
        warmup: batches before the first judgement.
        before: batches before a spike to skip with it.
        after: batches after a spike to skip with it.
        folder: output folder, with Composer's placeholders, such as ``{run_name}/spikes``; None: the local folder of
            `CheckpointSaver` (`save_folder`).
        stop: end the training after the spike's batch, on all ranks.
        limit: maximum number of spikes with files.

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
        self._detector = SpikeDetector(factor=factor, window=window, warmup=warmup)
        self._reports = SpikeReports(before=before, after=after, limit=limit)
        self._folder = folder
        self._stop = stop
        self._judged: dict[str, float] | None = None

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Check that the loader can be explained, and find the output folder."""
        _train_loader(state)
        self._place(state)
        self._reports.begin()
        self._judged = None

    def batch_end(self, state: State, logger: Logger) -> None:
        """Judge the loss of the batch."""
        losses = state.total_loss_dict
        # Composer makes them anew for each batch that it could train.
        if losses is self._judged or _LOSS not in losses:
            return
        self._judged = losses
        spike = self._detector.add(losses[_LOSS])
        if spike is None:
            return
        figures = {'spikes/loss': spike.loss, 'spikes/threshold': spike.threshold}
        logger.log_metrics({name: value for name, value in figures.items() if value is not None})
        if self._stop:
            state.stop_training()
        loader = _train_loader(state)
        assert loader.handed_out is not None
        batches = {'': TrainedBatch(loader, *loader.handed_out)}
        self._reports.share_documents(batches, gather_of_ranks() if dist.get_world_size() > 1 else None)
        if dist.get_global_rank() == 0:
            number = int(state.timestamp.batch) - 1
            written = self._write(spike, number, batches, state, logger)
            if not self._reports.is_over:
                warn(f'The loss of batch {number} was {spike}: {written}', stacklevel=2)

    def _write(
        self, spike: LossSpike, number: int, batches: dict[str, TrainedBatch], state: State, logger: Logger
    ) -> str:
        """Write the files of a spike; returns a line about them."""
        folder = self._place(state)
        try:
            files = self._reports.files(spike, number, batches)
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                _write_one(file, folder, logger, state.run_name)
        except Exception as error:  # no error of a logger's upload may end a training
            return f'what it was trained on could not be written: {error!r}'
        return f'see {folder / files[0].name}.' if files else 'nothing more is written of spikes.'

    def _place(self, state: State) -> Path:
        return checkpoint_folder(state, self._folder, 'LossSpikes')

    def state_dict(self) -> dict[str, Any]:
        """The remembered losses, as one text: a sharded checkpoint needs the same keys in any run."""
        return {'detector': json.dumps(self._detector.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses of a checkpoint."""
        self._detector.load_state_dict(json.loads(state.get('detector', '{}')))


def checkpoint_folder(state: State, folder: str | None, writer: str) -> Path:
    """The folder of a callback's files.

    Args:
        state: the trainer's.
        folder: as given, with Composer's placeholders; None: the local folder of `CheckpointSaver`.
        writer: the callback, for the error.

    Raises:
        ConfigError: no folder is given, and the trainer saves no checkpoints.
    """
    if folder is None:
        saver = next((found for found in state.callbacks if isinstance(found, CheckpointSaver)), None)
        if saver is None:
            raise ConfigError(
                f'{writer} writes beside the checkpoints, but this trainer saves none: give it `folder`, or the '
                f'trainer `save_folder`.'
            )
        folder = saver.folder
    return Path(format_name_with_dist(folder, state.run_name))


def _write_one(file: SpikeFile, folder: Path, logger: Logger, run_name: str) -> None:
    path = folder / file.name
    path.write_text(file.text, encoding='utf-8')
    logger.upload_file(remote_file_name=f'{run_name}/spikes/{file.name}', file_path=path, overwrite=True)


def _train_loader(state: State) -> StreamingDataLoader:
    loader = state.train_dataloader
    if not isinstance(loader, StreamingDataLoader):
        raise ConfigError(
            f'LossSpikes explains the batches of a StreamingDataLoader, but the train loader is '
            f'{type(loader).__name__}. Train on `streaming_data_spec(...)`, or remove the callback.'
        )
    return loader
