"""A Composer callback that writes the record of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer.core import Callback, State

from headrace.composer.spikes import checkpoint_folder
from headrace.dataset import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.watching.run_files import RunFiles

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
        self._files = RunFiles(status_every)

    def fit_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Begin a segment of the run."""
        loader = state.train_dataloader
        if not isinstance(loader, StreamingDataLoader):
            raise ConfigError(
                f'RunRecord follows a StreamingDataLoader, but the train loader is {type(loader).__name__}. Train on '
                f'`streaming_data_spec(...)`, or remove the callback.'
            )
        folder = checkpoint_folder(state, self._folder, 'RunRecord')
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
        """Nothing; Composer asks when it saves a checkpoint, which is recorded."""
        self._files.checkpoint()
        return {}

    def close(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """End the segment; a training that failed comes here without `fit_end`."""
        self._files.end(failed=True)

    def fit_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Say that the training is over; `close` ends the segment, after the last checkpoint."""
        self._files.finish()
