"""The ring of slots of one worker, on the trainer's side: its memory, and which slots are in use."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import struct
import threading
import weakref
from multiprocessing.reduction import DupFd
from typing import Any, Final

__all__ = ['FREE', 'Ring', 'children']

FREE: Final = struct.Struct('<BB')
"""A free slot in the pipe: generation and slot."""

Place = tuple[int, int]
"""A slot: its generation, and its number there."""


class Ring:
    """The memory of one worker, and the pipe of its free slots."""

    def __init__(self, memory: int, free_reader: int, free_writer: int) -> None:
        self.memory, self.free_reader, self.free_writer = memory, free_reader, free_writer
        # In the trainer:
        self.process = os.getpid()
        self._maps: dict[int, mmap.mmap] = {}  # by generation
        self._in_use: dict[Place, int] = {}  # tensors that view a slot
        self._shared: dict[Place, frozenset[int | None]] = {}  # slots in use at a fork: older children, which cannot
        self._waiting: list[Place] = []  # shared slots that are free here
        self._lock = threading.RLock()  # a garbage collection may free a slot anywhere
        self._close = weakref.finalize(self, _close_all, (memory, free_reader, free_writer))
        self._close.atexit = False

    @classmethod
    def make(cls) -> Ring:
        """A ring without slots."""
        memory = os.memfd_create('headrace')
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        return cls(memory, reader, writer)

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(DupFd(descriptor) for descriptor in (self.memory, self.free_reader, self.free_writer))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        Ring.__init__(self, *(duplicate.detach() for duplicate in state))

    # -- the trainer's side ----------------------------------------------------------------------------------------

    def map(self, generation: int, size: int, offset: int) -> mmap.mmap:
        """The memory of a generation of slots: its bytes, from an offset on."""
        found = self._maps.get(generation)
        if found is None:
            found = self._maps[generation] = mmap.mmap(self.memory, size, offset=offset)
        return found

    def hold(self, place: Place, count: int) -> None:
        """Note that `count` tensors view a slot."""
        with self._lock:
            self._in_use[place] = count
            if self._waiting:
                self._free_unshared()
        if not count:
            self.release(place)

    def release(self, place: Place) -> None:
        """Note that a tensor of a slot is gone; with the last one the slot is free. A forked child changes nothing."""
        if os.getpid() != self.process:
            return
        with self._lock:
            self._in_use[place] -= 1
            if self._in_use[place] > 0:
                return
            del self._in_use[place]
            if place in self._shared:
                self._waiting.append(place)
                self._free_unshared()
            else:
                self._free(place)

    def _free(self, place: Place) -> None:
        if self._close.alive:
            with contextlib.suppress(OSError):  # the worker is gone
                os.write(self.free_writer, FREE.pack(*place))

    def end(self) -> None:
        """Close all that tensors do not need, which may be kept for long: the worker is gone."""
        if os.getpid() == self.process:
            with self._lock:
                self._close()
                self._maps.clear()

    def before_fork(self, children: frozenset[int | None]) -> None:
        """Note that a child is going to share the slots that are in use."""
        if os.getpid() == self.process:
            with self._lock:  # a thread that pins batches may receive one
                for place in list(self._in_use):  # a garbage collection may free one
                    self._shared.setdefault(place, children)

    def _free_unshared(self) -> None:
        """Free the waiting slots whose sharers have ended."""
        running = children()
        # A garbage collection may come here again, so a place leaves the list before anything else happens.
        waiting, self._waiting = self._waiting, []
        while waiting:
            place = waiting.pop()
            if running <= self._shared[place]:
                del self._shared[place]
                self._free(place)
            else:
                self._waiting.append(place)


def children() -> frozenset[int | None]:
    """The ids of this process' children of `multiprocessing` that run."""
    return frozenset(child.pid for child in multiprocessing.active_children())


def _close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
