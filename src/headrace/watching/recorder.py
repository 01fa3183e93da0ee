"""Writes the record of a run: which samples each step trains, as positions; the ids follow from the plan."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.watching.loader_config import loader_config
from headrace.watching.record_file import RecordFile
from headrace.watching.versions import code_of_run, library_versions

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.order import BatchPlan

__all__ = ['RunRecorder']

_URL = re.compile(r'[A-Za-z][A-Za-z0-9+.-]+:/')  # not the drive C:/
_OF_POSITION = ('epoch', 'sample_in_epoch')
_PINNED_POSITION = ('cuts', 'count')  # of a state's `config`


@dataclass(slots=True)
class _Followed:
    """A training loader, and the pass that it is in."""

    loader: StreamingDataLoader
    config: str
    """Id of its configuration's entry."""
    plan: BatchPlan | None = None
    first_step: int = 0
    """The step of the plan's first batch."""


class RunRecorder:
    """Writes down where each step of a run is in the data, for `headrace explain --run`.

    Only rank 0 writes. A new pass, a checkpoint and a resume write a line of about 100 bytes; a new mixture or
    configuration is written once. A killed process loses at most the line that it was writing. An error of the disk
    during the run is a warning.

        record = RunRecorder('runs/a')
        record.begin({'': loader}, step=steps_of_the_checkpoint)
        for batch in loader:
            ...
            record.batch_done()
        record.end()

    Args:
        folder: the run's folder, the same after each resume.
        every: seconds after which the step is written down again without a checkpoint.
        clock: seconds, from anywhere.

    Raises:
        ConfigError: the folder is a URL; or, at `begin`, the record cannot be opened.
    """

    def __init__(self, folder: str | Path, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        if _URL.match(str(folder)):
            raise ConfigError(
                f'The record of a run is a file in a folder of this machine, got {folder}. Give a local '
                f'`folder`, the same after each resume.'
            )
        self.folder = Path(folder)
        """The run's folder."""
        self.step = 0
        """Batches trained in the run."""
        self._every, self._clock = every, clock
        self._file: RecordFile | None = None
        self._followed: dict[str, _Followed] = {}
        self._known = set[str]()
        self._written_at = 0.0

    def begin(self, loaders: Mapping[str, StreamingDataLoader], *, step: int = 0) -> None:
        """Begin a segment of the run: its start, or a resume.

        Args:
            loaders: the training loaders by name; a single one is ''.
            step: global batches that the run has trained by then, as the trainer counts them.
        """
        self.end()
        self.step = step
        topology = next(iter(loaders.values())).dataset.topology
        self._followed = {}
        if topology.rank:
            return
        self._file, self._known, self._written_at = RecordFile(self.folder), set(), self._clock()
        self._add(
            'segment',
            format=1,
            time=round(time.time(), 3),
            topology={
                'world_size': topology.world_size,
                'num_nodes': topology.num_nodes,
                'replication': topology.replication,
            },
            versions=library_versions(),
            code=code_of_run(),
        )
        self.follow(loaders)

    def follow(self, loaders: Mapping[str, StreamingDataLoader]) -> None:
        """Follow these loaders from now on, which the trainer may have replaced."""
        for name, loader in loaders.items():
            if self._file is not None and (name not in self._followed or self._followed[name].loader is not loader):
                self._followed[name] = _Followed(loader, self._once('config', {'config': loader_config(loader)}))

    def batch_done(self) -> None:
        """A global batch of each loader was trained."""
        self.step += 1
        if self._file is None:
            return
        for name, followed in self._followed.items():
            handed_out = followed.loader.handed_out
            if handed_out is not None and handed_out[0] is not followed.plan:
                self._begin_pass(name, followed, handed_out[0])
        if self._clock() - self._written_at >= self._every:
            self.flush()

    def _begin_pass(self, name: str, followed: _Followed, plan: BatchPlan) -> None:
        loader, epoch = followed.loader, plan.order.epoch
        followed.plan, followed.first_step = plan, self.step - 1
        state = loader.dataset.resume_state(epoch, plan.start, loader.global_batch_size, loader.remainder).to_dict()
        pinned = json.loads(str(state['config']))
        of_position = {key: pinned.pop(key) for key in _PINNED_POSITION if key in pinned}
        mixture = {key: value for key, value in state.items() if key not in (*_OF_POSITION, 'config')}
        shares = zip(plan.order.mixture.streams, plan.order.mixture.proportions, strict=True)
        self._add(
            'pass',
            loader=name,
            first_step=followed.first_step,
            epoch=epoch,
            sample=plan.start,
            config=followed.config,
            mixture=self._once(
                'mixture',
                {'state': {**mixture, 'config': pinned}, 'proportions': {s.name: share for s, share in shares}},
            ),
            **({'of_position': of_position} if of_position else {}),
        )

    def checkpoint(self, step: int | None = None) -> None:
        """A checkpoint is saved.

        Args:
            step: batches that it has trained; None: all that were reported.
        """
        if self._file is None:
            return
        step = self.step if step is None else step
        places: dict[str, list[int]] = {}
        for name, followed in self._followed.items():
            plan, done = followed.plan, step - followed.first_step
            if plan is not None and 0 <= done <= plan.num_batches:
                places[name] = [plan.order.epoch, plan.end(done - 1) if done else plan.start]
        self._add('checkpoint', at=step, time=round(time.time(), 3), places=places)

    def flush(self) -> None:
        """Write down the step that was reached."""
        if self._file is not None:
            self._add('reached')

    def end(self) -> None:
        """End the segment."""
        if self._file is not None:
            self._add('end', time=round(time.time(), 3))
            self._file.close()
            self._file = None

    def _once(self, kind: str, content: Mapping[str, Any]) -> str:
        """Write an entry that later ones refer to, unless this segment has it; returns its id."""
        text = json.dumps(content, default=list)  # the order of streams counts
        key = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        if key not in self._known:
            self._known.add(key)
            self._add(kind, id=key, **json.loads(text))
        return key

    def _add(self, kind: str, **content: Any) -> None:
        assert self._file is not None
        self._file.add({'kind': kind, 'step': self.step, **content})
        self._written_at = self._clock()
