"""The status of a rank while it trains, for `headrace watch`."""

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
