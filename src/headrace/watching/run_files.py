"""Both files that a trainer's callback writes for a run: the record, and the status of its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.watching.recorder import RunRecorder
from headrace.watching.status import RankStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.dataset import StreamingDataLoader

__all__ = ['RunFiles']


class RunFiles:
    """Calls a `RunRecorder` and a `RankStatus` together. Before `begin` and after `end`, calls do nothing.

    Args:
        status_every: seconds between two writes of the status; None: no status.
    """

    def __init__(self, status_every: float | None) -> None:
        self._status_every = status_every
        self._recorder: RunRecorder | None = None
        self._status: RankStatus | None = None

    def begin(self, folder: str | Path, loaders: Mapping[str, StreamingDataLoader], *, step: int) -> None:
        """Begin a segment of the run; arguments as those of `RunRecorder`."""
        self.end()
        self._recorder = RunRecorder(folder)
        self._recorder.begin(loaders, step=step)
        if self._status_every is not None:
            self._status = RankStatus(folder, every=self._status_every)
            self._status.begin(loaders, step=step)

    def follow(self, loaders: Mapping[str, StreamingDataLoader]) -> None:
        """Follow these loaders from now on, which the trainer may have replaced."""
        for file in self._files():
            file.follow(loaders)

    def batch_done(self) -> None:
        """A batch of each loader was trained."""
        for file in self._files():
            file.batch_done()

    def pause(self) -> None:
        """Stop the clock for an evaluation."""
        if self._status is not None:
            self._status.pause()

    def resume(self) -> None:
        """Restart the clock after `pause`."""
        if self._status is not None:
            self._status.resume()

    def checkpoint(self, step: int | None = None) -> None:
        """Record a checkpoint, as `RunRecorder.checkpoint`."""
        if self._recorder is not None:
            self._recorder.checkpoint(step)

    def finish(self) -> None:
        """The training is over. The record stays open for the trainer's last checkpoint."""
        if self._status is not None:
            self._status.end()

    def fail(self) -> None:
        """The training has failed. The record stays open, since the trainer may save a checkpoint."""
        if self._recorder is not None:
            self._recorder.flush()
        if self._status is not None:
            self._status.end('failed')

    def end(self, *, failed: bool = False) -> None:
        """End the segment; `failed` counts if neither `finish` nor `fail` was called."""
        if self._recorder is not None:
            self._recorder.end()
        if self._status is not None:
            self._status.end('failed' if failed else 'ended')
        self._recorder = self._status = None

    def _files(self) -> list[RunRecorder | RankStatus]:
        return [file for file in (self._recorder, self._status) if file is not None]
