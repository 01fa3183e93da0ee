"""The record of a run and the status of its rank, as a trainer's callback writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.dataset import StreamingDataLoader
from headrace.watching.record import RunRecorder


class RunFiles:
    """A `RunRecorder` that a callback makes when its trainer begins. Without one, calls do nothing."""

    def __init__(self, status_every: float | None) -> None:
        self._status_every = status_every
        self._recorder: RunRecorder | None = None

    def begin(self, folder: str | Path, loaders: Mapping[str, StreamingDataLoader], *, step: int) -> None:
        """Begin a segment of the run; arguments as those of `RunRecorder`."""
        self.end()
        self._recorder = RunRecorder(folder, status_every=self._status_every)
        self._recorder.begin(loaders, step=step)

    def follow(self, loaders: Mapping[str, StreamingDataLoader]) -> None:
        if self._recorder is not None:
            self._recorder.follow(loaders)

    def batch_done(self) -> None:
        if self._recorder is not None:
            self._recorder.batch_done()

    def pause(self) -> None:
        if self._recorder is not None:
            self._recorder.pause()

    def resume(self) -> None:
        if self._recorder is not None:
            self._recorder.resume()

    def checkpoint(self, step: int | None = None) -> None:
        if self._recorder is not None:
            self._recorder.checkpoint(step)

    def finish(self, state: str = 'ended') -> None:
        """The training is over, or has failed. The record stays open for the trainer's last checkpoint."""
        if self._recorder is not None:
            self._recorder.flush()
            self._recorder.end_status(state)

    def end(self, state: str = 'ended') -> None:
        """End the segment; the state counts if `finish` was not called."""
        if self._recorder is not None:
            self._recorder.end_status(state)
            self._recorder.end()
        self._recorder = None
