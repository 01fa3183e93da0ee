"""A Composer callback that writes the record of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer.core import Callback, State

from headrace.composer.spikes import checkpoint_folder
from headrace.dataset import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.watching import RankStatus, RunRecorder

if TYPE_CHECKING:
    from composer.loggers import Logger

__all__ = ['RunRecord']


class RunRecord(Callback):
    """Writes down which samples each step trains, for `headrace explain --run` and `headrace watch`.

    Rank 0 appends to ``headrace.record`` in the folder: topology, code and versions at the start and at each resume;
    position and mixture at each pass and checkpoint. Ids follow from the plan. A kill at any moment leaves a readable
    record. Each rank writes a small file with its rates and waits, which `headrace watch` shows. Give it to the
    trainer after `StreamingPosition`.

    Args:
        folder: the run's folder, the same after each resume, on a file system that all ranks share. It takes
            Composer's placeholders, such as ``{run_name}``; None: the local folder of `CheckpointSaver`
            (`save_folder`).
        status_every: seconds between two writes of a rank's status; None: no status, and nothing to watch.

    Raises:
        ConfigError: before the first step: the train loader is not headrace's, or the folder is unknown or cannot be
            written to.
    """

    def __init__(self, folder: str | None = None, *, status_every: float | None = 2.0) -> None:
        self._folder = folder
        self._status_every = status_every
        self._recorder: RunRecorder | None = None
        self._status: RankStatus | None = None

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Begin a segment of the run."""
        loader = state.train_dataloader
        if not isinstance(loader, StreamingDataLoader):
            raise ConfigError(
                f'RunRecord follows a StreamingDataLoader, but the train loader is {type(loader).__name__}. Train on '
                f'`streaming_data_spec(...)`, or remove the callback.'
            )
        self._end()  # of an earlier `fit`
        folder = checkpoint_folder(state, self._folder, 'RunRecord')
        self._recorder = RunRecorder(folder)
        self._recorder.begin({'': loader}, step=int(state.timestamp.batch))
        self._status = None if self._status_every is None else RankStatus(folder, every=self._status_every)
        if self._status is not None:
            self._status.begin({'': loader}, step=self._recorder.step)

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Count a batch."""
        if self._recorder is not None:
            self._recorder.batch_done()
        if self._status is not None:
            self._status.batch_done()

    def eval_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Pause the clock."""
        if self._status is not None:
            self._status.pause()

    def eval_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Resume the clock."""
        if self._status is not None:
            self._status.resume()

    def state_dict(self) -> dict[str, Any]:
        """Nothing; Composer asks when it saves a checkpoint, which is written down."""
        if self._recorder is not None:
            self._recorder.checkpoint()
        return {}

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """End the segment; a training that failed comes here without `fit_end`."""
        if self._status is not None:
            self._status.end('failed')
        self._end()

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Say that the training is over; `close` ends the segment, after the last checkpoint."""
        if self._status is not None:
            self._status.end()

    def _end(self) -> None:
        if self._recorder is not None:
            self._recorder.end()
        if self._status is not None:
            self._status.end()
        self._recorder = self._status = None
