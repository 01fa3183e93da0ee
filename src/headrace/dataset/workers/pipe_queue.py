"""A queue between processes that is a pipe, without threads.

`multiprocessing.Queue` has a thread in each process that puts something in. Each item costs two switches between
threads and several locks there, more than reading a batch takes. Here the caller writes into the pipe itself. It waits
while the pipe is full, so items should be small: `slots` keeps them so. At the end of a pass nobody may read any more.
`end` lets all waiting processes continue.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import struct
import time
import weakref
from multiprocessing.context import BaseContext, ForkContext, ForkServerContext, SpawnContext
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Final

__all__ = ['ForkServerPipeContext', 'PipeContext', 'PipeQueue', 'SpawnPipeContext']

_LENGTH: Final = struct.Struct('<Q')
_BLOCK: Final = 1 << 16  # bytes, as many as a pipe holds


class PipeQueue:
    """The part of `multiprocessing.Queue` that PyTorch's loader uses. Any process puts, and one process gets."""

    def __init__(self, context: BaseContext) -> None:
        self._open(*os.pipe(), *_flag(), context.Lock(), owner=os.getpid())

    def _open(self, reader: int, writer: int, ended: int, end: int, lock: Any, *, owner: int) -> None:
        self._reader, self._writer, self._ended, self._end = reader, writer, ended, end
        self._lock, self._owner = lock, owner
        os.set_blocking(writer, False)
        self._received = bytearray()
        self._poll: Any = None
        self._close_reader = weakref.finalize(self, _close, {reader})
        self._close_writer = weakref.finalize(self, _close, {writer})
        self._close_flag = weakref.finalize(self, _close, {ended, end})
        self._close_reader.atexit = self._close_writer.atexit = self._close_flag.atexit = False

    def __getstate__(self) -> tuple[Any, ...]:
        return DupFd(self._reader), DupFd(self._writer), DupFd(self._ended), self._lock

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        *descriptors, lock = state
        reader, writer, ended = (duplicate.detach() for duplicate in descriptors)
        self._open(reader, writer, ended, ended, lock, owner=0)

    def put(self, item: Any) -> None:
        """Add an item; an item that nobody can get any more is dropped.

        Raises:
            Exception: the item cannot be pickled.
        """
        data = ForkingPickler.dumps(item)
        if self._owner != os.getpid():
            self._close_reader()  # so that writing fails, and does not wait, once the owner has closed its end
        parts = [_LENGTH.pack(len(data)), data]
        with self._lock:
            try:
                try:
                    written = os.writev(self._writer, parts)
                except BlockingIOError:
                    written = 0
                if written < _LENGTH.size + len(data):
                    self._write(memoryview(b''.join(parts))[written:])
            except BrokenPipeError:
                return

    def _write(self, rest: memoryview) -> None:
        """Write as there is room, unless the queue ends."""
        poll = select.poll()
        poll.register(self._writer, select.POLLOUT)
        poll.register(self._ended, select.POLLIN)
        while rest and self._ended not in dict(poll.poll()):
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._writer, rest) :]

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item.

        Raises:
            queue.Empty: there was none for `timeout` seconds, or the queue has ended.
            EOFError: no process is left that could put one.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            data = self._next()
            if data is not None:
                return pickle.loads(data)  # noqa: S301 - from this process' own children
            left = 0.0 if not block else None if end is None else max(0.0, end - time.monotonic())
            if not self._wait(left):
                raise queue.Empty
            part = os.read(self._reader, _BLOCK)
            if not part:
                raise EOFError('No process is left that could put an item into this queue.')
            self._received += part

    def _next(self) -> bytes | None:
        """The bytes of an item that has arrived whole."""
        received = self._received
        if len(received) < _LENGTH.size:
            return None
        stop = _LENGTH.size + _LENGTH.unpack_from(received)[0]
        if len(received) < stop:
            return None
        data = bytes(received[_LENGTH.size : stop])
        del received[:stop]
        return data

    def _wait(self, seconds: float | None) -> bool:
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._reader, select.POLLIN)
            self._poll.register(self._ended, select.POLLIN)
        ready = dict(self._poll.poll(None if seconds is None else seconds * 1000))
        return self._reader in ready and self._ended not in ready  # messages after the end may have gaps

    def end(self) -> None:
        """Have no process wait any more; called in the one that made the queue. Items on the way are lost."""
        if self._owner == os.getpid() and self._close_flag.alive:
            os.write(self._end, (1).to_bytes(8, 'little'))

    def close(self) -> None:
        """Close this process' ends."""
        self._close_reader()
        self._close_writer()
        self._close_flag()

    def cancel_join_thread(self) -> None:
        """Nothing: there is no thread."""

    def join_thread(self) -> None:
        """Nothing: there is no thread."""


def _flag() -> tuple[int, int]:
    """Two descriptors: the first is readable in all processes, for ever, once something is written to the second."""
    if not hasattr(os, 'eventfd'):  # not on Linux
        return os.pipe()
    flag = os.eventfd(0)
    return flag, flag


def _close(descriptors: set[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


class PipeContext(ForkContext):
    """Forks, and makes queues of pipes."""

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: ARG002, N802 - multiprocessing's name
        """A `PipeQueue`."""
        return PipeQueue(self)


class SpawnPipeContext(SpawnContext):
    """Spawns, and makes queues of pipes."""

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: ARG002, N802
        """A `PipeQueue`."""
        return PipeQueue(self)


class ForkServerPipeContext(ForkServerContext):
    """Starts processes by a fork server, and makes queues of pipes."""

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: ARG002, N802
        """A `PipeQueue`."""
        return PipeQueue(self)
