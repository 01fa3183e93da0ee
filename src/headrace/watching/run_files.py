"""Both files of a run that a trainer's callback writes: the record, and the status of its rank."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.dataset import StreamingDataLoader
from headrace.metrics import DataMeter
from headrace.storage.whole_file import whole_file
from headrace.watching.record import RunRecorder

STATUS_FOLDER = 'headrace-status'  # name of the folder of these files in a run's folder


class RankStatus:
    """Writes the status of a rank for `headrace watch`: a file of about 1 kB, replaced atomically.

    An error of the disk is left alone: watching must not end a training.

    Args:
        folder: the run's folder.
        every: least seconds between two writes.
        clock: seconds, from anywhere.
    """

    def __init__(
        self, folder: str | Path, *, every: float = 2.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._folder = Path(folder) / STATUS_FOLDER
        self._every, self._clock = every, clock
        self._meter = DataMeter(clock=clock)
        self._step = 0
        self._about: dict[str, Any] = {}
        self._figures: dict[str, float] = {}
        self._read_at: int | None = None  # step
        self._written_at: float | None = None

    def begin(self, loaders: Mapping[str, StreamingDataLoader], *, step: int = 0) -> None:
        """Begin a run, or continue with one.

        Args:
            loaders: the training loaders by name; a single one is ''.
            step: batches that the run has trained by then.
        """
        self._step, self._read_at = step, None
        self._meter.follow(loaders)
        self._meter.begin()
        topology = next(iter(loaders.values())).dataset.topology
        self._about = {
            'rank': topology.rank,
            'world_size': topology.world_size,
            'node': topology.physical_node,
            'host': socket.gethostname(),
            'pid': os.getpid(),
            'workers': sum(loader.num_workers for loader in loaders.values()),
            'started': time.time(),
        }
        self._write('starting')

    def follow(self, loaders: Mapping[str, StreamingDataLoader]) -> None:
        """Follow these loaders from now on, which the trainer may have replaced."""
        self._meter.follow(loaders)

    def batch_done(self) -> None:
        """A batch of each loader was trained."""
        self._step += 1
        self._meter.batch_done()
        if self._written_at is None or self._clock() - self._written_at >= self._every:
            self._write('training')

    def pause(self) -> None:
        """Stop the clock for an evaluation."""
        self._meter.pause()
        self._write('evaluating')

    def resume(self) -> None:
        """Restart the clock after `pause`."""
        self._meter.resume()
        self._write('training')

    def end(self, state: str = 'ended') -> None:
        """The training is over, or has failed; calling again changes nothing."""
        if self._about:
            self._write(state)
            self._about = {}

    def _write(self, state: str) -> None:
        self._written_at = self._clock()
        topology = self._meter.loaders[0].dataset.topology
        if self._step != self._read_at:  # an instant without a batch, after an evaluation, has no rates
            # A loader may not know its mixture before its first batch; nothing is shown of it then.
            self._figures = self._meter.read(replicas=topology.replicas, detailed=True)
            self._read_at = self._step
        decided = [loader.dataset.run.decisions for loader in self._meter.loaders]
        status = {
            **self._about,
            'state': state,
            'time': time.time(),
            'step': self._step,
            'figures': self._figures,
            'decisions': [{'count': len(all_), **all_[-1].to_json()} for all_ in decided if all_],
        }
        path = self._folder / f'rank-{topology.rank:05}.json'
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path, path.with_suffix('.tmp')) as file:
                file.write(json.dumps(status).encode())


class RunFiles:
    """Calls a `RunRecorder` and a `RankStatus` together. Before `begin` and after `end`, calls do nothing."""

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
        for file in self._files():
            file.follow(loaders)

    def batch_done(self) -> None:
        for file in self._files():
            file.batch_done()

    def pause(self) -> None:
        if self._status is not None:
            self._status.pause()

    def resume(self) -> None:
        if self._status is not None:
            self._status.resume()

    def checkpoint(self, step: int | None = None) -> None:
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
