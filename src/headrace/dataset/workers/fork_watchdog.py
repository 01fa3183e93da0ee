"""Replacement of forked workers that hang in the fork.

A process that is forked while another thread holds a lock gets a copy of the lock that nobody releases. Python's list
of threads has such a lock. Before 3.12 a child takes it before it runs a line (CPython's `PyOS_AfterFork_Child`). So it
hangs if a thread of gloo or NCCL was entering itself in the list at that moment. Its rank then waits for ever, and all
other ranks wait for that one. The child has done nothing yet, so another one can take its place.

Each module has such a lock while it is imported. A thread that asks a silent store imports the store's client. A child
that is forked meanwhile would wait for ever when it imports the same client. So a fork waits for the imports.
"""

from __future__ import annotations

import importlib._bootstrap
import multiprocessing
import os
import threading
import time
import weakref
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext, ForkContext, ForkProcess, ForkServerContext, SpawnContext
from typing import Any, Final

from headrace.dataset.workers.pipe_queue import ForkServerPipeContext, PipeContext, SpawnPipeContext
from headrace.redaction import warn

__all__ = ['worker_context']

_SECONDS = 10.0  # a fork takes milliseconds; to lose a child that was only late does no harm
_ATTEMPTS = 6
_IMPORTS_SECONDS = 60.0  # an import from a slow network disk takes so long


def worker_context(context: BaseContext | None) -> BaseContext:
    """The context to start workers with: `context` or Python's default, with pipes and a watchdog for forks."""
    chosen = multiprocessing.get_context() if context is None else context
    ours: dict[type[BaseContext], type[BaseContext]] = {
        ForkContext: _WatchedForkContext,
        SpawnContext: SpawnPipeContext,
        ForkServerContext: ForkServerPipeContext,
    }
    make = ours.get(type(chosen))  # pyright: ignore[reportArgumentType] - also of a user's own
    return chosen if make is None else make()


class _WatchedProcess(ForkProcess):
    """A forked process that reports to its parent before it runs; a silent one is replaced."""

    _pipes: tuple[int, int, int, int]

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
                f'moment. It is forked anew, and nothing is lost. Python 3.12, or '
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
    known: dict[str, Any] = getattr(importlib._bootstrap, '_module_locks', {})  # a later Python may have others
    locks = [reference() for reference in list(known.values())]
    mine = {None, threading.get_ident()}
    return [lock for lock in locks if getattr(lock, 'owner', None) not in mine and lock not in _endless]


class _WatchedForkContext(PipeContext):
    Process = _WatchedProcess
