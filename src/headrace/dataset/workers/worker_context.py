"""The contexts that start workers: queues are pipes without threads, and a worker that hangs in its fork is replaced.

`multiprocessing.Queue` has a thread in each process that puts something in. Each item costs two switches between
threads and several locks there, more than reading a batch takes. Here the caller writes into the pipe itself. It waits
while the pipe is full, so items should be small: `slots` keeps them so. At the end of a pass nobody may read any more.
`PipeQueue.end` lets all waiting processes continue.

A process that is forked while another thread holds a lock gets a copy of the lock that nobody releases. Python's list
of threads has such a lock. Before 3.12 a child takes it before it runs a line (CPython's `PyOS_AfterFork_Child`). So it
hangs if a thread of gloo or NCCL was entering itself in the list at that moment. Its rank then waits for ever, and all
other ranks wait for that one. The child has done nothing yet, so another one can take its place.

Each module has such a lock while it is imported. A thread that asks a silent store imports the store's client. A child
that is forked meanwhile would wait for ever when it imports the same client. So a fork waits for the imports.
"""

from __future__ import annotations

import contextlib
import importlib._bootstrap
import multiprocessing
import os
import pickle
import queue
import select
import struct
import threading
import time
import weakref
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext, ForkContext, ForkProcess, ForkServerContext, SpawnContext
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Final, cast

from headrace.errors.redaction import warn

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
        """Add an item; one that nobody can get any more is dropped."""
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
        """Take the oldest item; queue.Empty: none in time, or the queue has ended; EOFError: nobody could put one."""
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
        self._close_reader()
        self._close_writer()
        self._close_flag()

    def cancel_join_thread(self) -> None:
        """Does nothing, without a thread."""

    def join_thread(self) -> None:
        """Does nothing, without a thread."""


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


class _PipeQueues:
    def Queue(self, maxsize: int = 0) -> Any:  # noqa: ARG002, N802 - multiprocessing's name
        return PipeQueue(cast('BaseContext', self))


class SpawnPipeContext(_PipeQueues, SpawnContext):
    """Spawns, and makes queues of pipes."""


class ForkServerPipeContext(_PipeQueues, ForkServerContext):
    """Starts processes by a fork server, and makes queues of pipes."""


_SECONDS = 10.0  # a fork takes milliseconds; to lose a child that was only late does no harm
_ATTEMPTS = 6
_IMPORTS_SECONDS = 60.0  # an import from a slow network disk takes so long


def worker_context(context: BaseContext | None) -> BaseContext:
    """The context to start workers with: `context` or Python's default, with pipes and a watchdog for forks."""
    chosen = multiprocessing.get_context() if context is None else context
    ours: dict[type[BaseContext], type[BaseContext]] = {
        ForkContext: PipeContext,
        SpawnContext: SpawnPipeContext,
        ForkServerContext: ForkServerPipeContext,
    }
    make = ours.get(type(chosen))  # pyright: ignore[reportArgumentType] - also of a user's own
    return chosen if make is None else make()


class _WatchedProcess(ForkProcess):
    """A forked process that reports to its parent before it runs; a silent one is replaced."""

    _pipes: tuple[int, int, int, int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owner = os.getpid()

    def join(self, timeout: float | None = None) -> None:
        """As `Process.join`; a copy of the parent, as by `os.fork`, does not wait: at its exit it would fail."""
        if self._owner == os.getpid():
            super().join(timeout)

    def _bootstrap(self, *args: Any, **kwargs: Any) -> int:
        ready_reader, ready_writer, go_reader, go_writer = self._pipes
        os.close(ready_reader)
        os.close(go_writer)
        os.write(ready_writer, b'r')
        if not os.read(go_reader, 1):
            os._exit(1)  # the parent is gone
        os.close(ready_writer)
        os.close(go_reader)
        return super()._bootstrap(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - multiprocessing's name
        _wait_for_imports()
        for _ in range(_ATTEMPTS):
            process_obj._pipes = pipes = (*os.pipe(), *os.pipe())
            ready_reader, _, _, go_writer = pipes
            try:
                popen: Any = ForkProcess._Popen(process_obj)  # pyright: ignore[reportAttributeAccessIssue]
                if wait([ready_reader], _SECONDS):
                    os.write(go_writer, b'g')
                    return popen
            finally:
                for end in pipes:
                    os.close(end)
                del process_obj._pipes
            popen.kill()
            popen.wait()
            popen.close()
            warn(
                f'A worker stood still in fork() for {_SECONDS:.0f} s, on a lock that another thread held at that '
                f'moment. It is forked again, and nothing is lost. Python 3.12, or '
                f"multiprocessing_context='forkserver', avoids it.",
                stacklevel=2,
            )
        raise RuntimeError(
            f'No worker could be forked: {_ATTEMPTS} in a row stood still in fork() for {_SECONDS:.0f} s each, on a '
            f"lock that another thread holds. Pass multiprocessing_context='forkserver' or 'spawn' to the loader."
        )


_endless: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Locks of imports that did not end in time: they may wait for this thread, and so for the end of a run."""


def _wait_for_imports() -> None:
    """Return when no other thread imports a module, or after a while: an import may itself wait for this thread."""
    end = time.monotonic() + _IMPORTS_SECONDS
    while others := _imports_of_others():
        if time.monotonic() >= end:
            _endless.update(others)
            return
        time.sleep(0.001)


def _imports_of_others() -> list[Any]:
    """The locks of modules that other threads import, without endless ones."""
    by_name: dict[str, Any] = getattr(importlib._bootstrap, '_module_locks', {})  # a later Python may have others
    locks = [reference() for reference in list(by_name.values())]
    mine = {None, threading.get_ident()}
    return [lock for lock in locks if getattr(lock, 'owner', None) not in mine and lock not in _endless]


class PipeContext(_PipeQueues, ForkContext):
    """Forks processes that are replaced if they hang, and makes queues of pipes."""

    Process = _WatchedProcess
