"""The place where a dataset's passes are: its epoch, shared with worker processes, and the last batch of a loader.

A plain DataLoader iterates its dataset in worker processes, so the process that saves the checkpoint never sees an
epoch begin. So the counters of `Progress` live in anonymous memory that forked and spawned workers map. It has no name,
so kill -9 leaves nothing behind. Each worker writes its own cell, so no lock is needed. `StreamingDataLoader` iterates
in the main process and uses the same counters. It adds the time that its trainer has waited, by which workers see
whether they fetch fast enough. Workers also see here that their rank is at its end.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from torch.utils.data import get_worker_info

from headrace.errors import ConfigError
from headrace.order import BatchPlan

_RANKS, _WORKERS = 256, 512  # more would share cells
_EPOCH, _SAMPLE, _LOADED, _ENDED, _STALLED, _AT_EXIT, _HEADER = 0, 1, 2, 3, 4, 5, 8  # int64 slots before the cells
_SIZE = 8 * (_HEADER + _RANKS * _WORKERS)


class Place(NamedTuple):
    """Where the next pass begins, and how a trainer counts there."""

    epoch: int
    sample: int
    counted: int | None = None
    """The trainer's number of samples in the epoch; None: as many as `sample`."""
    trainer_epoch: int | None = None
    """The epoch that the trainer is in, by its own count; None: it did not say."""
    end: tuple[int, int] | None = None
    """The end of an epoch at which a state was taken, if the next pass is the next epoch."""

    def rolled_over(self, stop: float) -> Place:
        """This place, or the next epoch if the pass from here on, which ends at `stop`, has no batch."""
        return self if self.sample < stop else self._replace(epoch=self.epoch + 1, sample=0, end=self[:2])


class Progress:
    """Counts the passes begun over a dataset, and holds the point where the next pass begins."""

    def __init__(self) -> None:
        self._own()

    def _own(self) -> None:
        self._map(_anonymous_file())
        self._owner = os.getpid()
        # Before multiprocessing sends SIGTERM to all workers, and waits for their end.
        Finalize(self, self._slots.__setitem__, (_AT_EXIT, 1), exitpriority=0)

    def _claim(self) -> None:
        # A rank that was forked or spawned with a copy of its parent's dataset is another run, and must not count its
        # siblings' passes. A DataLoader's worker, in contrast, counts for its parent.
        if self._owner != os.getpid() and get_worker_info() is None:
            header, loaded = self._slots[:_HEADER].copy(), self.loaded
            self.__del__()
            self._own()
            self._slots[:_HEADER], self.loaded = header, loaded

    def _map(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, _SIZE)
        self._slots: npt.NDArray[np.int64] = np.frombuffer(self._memory, np.int64)
        self._readers = weakref.WeakSet[Any]()
        self._reader: tuple[weakref.ref[Any], bool] | None = None  # of the last pass
        self.trainer_epoch: int | None = None  # The epoch that a trainer is in, by its own count; None: it did not say.
        self.loaded = Place(0, 0)
        """The place of the last `load` in this process."""
        self.turn: object = None  # Identity of the last pass of a `StreamingDataLoader`.

    def _cells(self, rank: int) -> npt.NDArray[np.int64]:
        begin = _HEADER + rank % _RANKS * _WORKERS
        return self._slots[begin : begin + _WORKERS]

    def begin(self, *, rank: int, worker: int) -> tuple[int, int]:
        """Begin this worker's next pass; returns the epoch, and the position in it."""
        place = self.upcoming(rank=rank, worker=worker)
        self._cells(rank)[worker % _WORKERS] += 1
        return place

    def upcoming(self, *, rank: int, worker: int) -> tuple[int, int]:
        """The epoch and the position where this worker's next pass begins."""
        self._claim()
        return self._pass(int(self._cells(rank)[worker % _WORKERS]))

    def take_turn(self, reader: object, *, evaluates: bool) -> object:
        """Begin a pass of a reader, a loader or the position of a training; returns the pass' `turn`.

        `evaluates`: all its passes are the same epoch. ConfigError: another reader has had a pass since this one's, or
        one of them evaluates and the other trains.
        """
        self._claim()
        last, other_evaluates = self._reader or (lambda: None, evaluates)
        other = last()
        is_shared = other is not None and other is not reader and not (evaluates and other_evaluates)
        if is_shared and (reader in self._readers or evaluates != other_evaluates):
            self.refuse_turns()
        self._readers.add(reader)
        self._reader, self.turn = (weakref.ref(reader), evaluates), object()
        return self.turn

    @staticmethod
    def refuse_turns() -> NoReturn:
        raise ConfigError(
            'A StreamingDataset has one position, but two loaders read the same one in turns, and each moves the '
            "other's position. Make a StreamingDataset for each loader."
        )

    def is_overtaken(self, epoch: int, *, rank: int, worker: int) -> bool:
        """Whether this worker has begun a pass after that of `epoch`."""
        passes = int(self._cells(rank)[worker % _WORKERS])
        return passes > 0 and self._pass(passes - 1)[0] > epoch

    def end(self, epoch: int) -> None:
        self._slots[_ENDED] = epoch + 1

    def ended(self, *, rank: int) -> bool:
        """Whether the last pass has ended, in at least one of a plain loader's workers."""
        return self.begun(rank=rank) and int(self._slots[_ENDED]) == self.current(rank=rank)[0] + 1

    def is_of(self, process: int) -> bool:
        """Whether the process with this id counts here, so that `is_at_exit` is about it."""
        return self._owner == process

    @property
    def is_at_exit(self) -> bool:
        return bool(self._slots[_AT_EXIT])

    def _pass(self, passes: int) -> tuple[int, int]:
        epoch, sample = int(self._slots[_EPOCH]), int(self._slots[_SAMPLE])
        return (epoch, sample) if passes == 0 else (epoch + passes, 0)

    def current(self, *, rank: int) -> tuple[int, int]:
        """Epoch and first sample of the last pass, or of the next one if none has begun."""
        return self._pass(max(int(self._cells(rank).max()) - 1, 0))

    def next(self, *, rank: int) -> tuple[int, int]:
        return self._pass(int(self._cells(rank).max()))

    def begun(self, *, rank: int, worker: int | None = None) -> bool:
        """Whether a pass has begun since the start or the last `load`, in this worker or (None) any."""
        cells = self._cells(rank)
        return bool(cells.any() if worker is None else cells[worker % _WORKERS])

    def tell(self, epoch: int) -> None:
        """Take the number of the epoch that a trainer begins, unless a position is known that is better.

        A checkpoint may be of the end of an epoch that the trainer limits: the trainer's next epoch skips the rest.
        Beside a longer loader, the trainer may still be in the epoch that is over here: the pass is then empty.
        """
        self._claim()
        here, sample, is_loaded = (int(self._slots[slot]) for slot in (_EPOCH, _SAMPLE, _LOADED))
        was, end = self.loaded.trainer_epoch, self.loaded.end
        if not self._slots[_HEADER:].any():
            if not is_loaded and epoch > here:
                self.load(epoch, 0)
            elif was is not None and epoch > was and sample:
                self.load(here + epoch - was, 0)
            elif epoch == was and end is not None:
                self.load(*end)
        self.trainer_epoch = epoch

    @property
    def fresh(self) -> bool:
        """Whether no pass has begun, and no position was loaded."""
        return not self._slots[_LOADED] and not self._slots[_HEADER:].any()

    @property
    def seconds_stalled(self) -> float:
        return int(self._slots[_STALLED]) / 1e9

    @seconds_stalled.setter
    def seconds_stalled(self, seconds: float) -> None:
        self._slots[_STALLED] = int(seconds * 1e9)

    def load(self, epoch: int, sample: int, *more: Any) -> None:
        """Have the next pass begin at a place; the arguments are the fields of `Place`."""
        self._claim()
        self._slots[_HEADER:] = 0
        self._slots[_ENDED] = 0
        self._slots[_EPOCH], self._slots[_SAMPLE], self._slots[_LOADED] = epoch, sample, 1
        self.loaded = Place(epoch, sample, *more)

    @contextmanager
    def kept(self) -> Generator[None]:
        """Let passes begin and end here without a trace."""
        self._claim()
        before = self._slots.copy(), self.loaded
        try:
            yield
        finally:
            self._slots[:], self.loaded = before

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:  # a spawned worker shares the memory
            return _attach, (reduction.DupFd(self._fd), self._owner)
        passes = int(self._slots[_HEADER:].max())  # of whichever rank counts here
        place = self._pass(passes)
        is_loaded = bool(self._slots[_LOADED])
        return _copy, (is_loaded, self.loaded if is_loaded and self.loaded[:2] == place else Place(*place))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the end of the interpreter `os` is None
        fd = getattr(self, '_fd', -1)
        if fd >= 0:
            close(fd)


def _anonymous_file() -> int:
    if sys.platform == 'linux':
        fd = os.memfd_create('headrace-progress', os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix='headrace-progress-')
        Path(path).unlink()
    os.ftruncate(fd, _SIZE)
    return fd


def _attach(handle: Any, owner: int) -> Progress:
    progress = Progress.__new__(Progress)
    progress._map(handle.detach())
    progress._owner = owner
    return progress


def _copy(is_loaded: bool, place: Place) -> Progress:
    progress = Progress()
    if is_loaded or place[:2] != (0, 0):
        progress.load(*place)
    return progress


class Cursor:
    """The place that a loader has reached. An object of its own, since a `DataLoader` checks each attribute it sets."""

    __slots__ = ('begin', 'epoch', 'handed_out', 'has_new_plan', 'is_passing')

    def __init__(self) -> None:
        self.begin: tuple[int, int] | None = None  # Epoch and first sample of a pass that has given no batch yet.
        self.handed_out: tuple[BatchPlan, int] | None = None  # The plan and number of the last batch.
        self.is_passing = False  # Whether a pass is under way, beside one that `peek` has begun.
        self.epoch: int | None = None  # That of the pass under way, until its last batch.
        self.has_new_plan = False  # Whether it goes on with another plan, of other ranks or proportions.

    def begin_pass(self, place: tuple[int, int]) -> None:
        self.begin, self.epoch, self.is_passing = place, place[0], True
        self.has_new_plan = False

    @property
    def position(self) -> tuple[int, int] | None:
        """Epoch and sample; None before the first pass."""
        if self.begin is not None or self.handed_out is None:
            return self.begin
        plan, number = self.handed_out
        return plan.order.epoch, plan.end(number)


class EpochHint:
    """A `sampler` for Lightning and Fabric, which set the epoch on it."""

    # It has no reference to the loader: with a cycle the workers would live until a garbage collection.
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def set_epoch(self, epoch: int) -> None:
        """Begin at `epoch`, unless the loader has a position already."""
        self._progress.tell(epoch)

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def ending_here() -> Callable[[], bool]:
    """A check for the end of a pass that begins in this process: whether its caller may end the pass.

    A process that is forked later has a copy of the pass, and must end neither it nor its workers. At the end of the
    interpreter a thread of the prefetch may stand still with a lock for ever.
    """
    # The names of modules may be None at the end of the interpreter.
    owner, process, is_finalizing = os.getpid(), os.getpid, sys.is_finalizing
    return lambda: not is_finalizing() and process() == owner
