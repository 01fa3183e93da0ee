"""Forked workers that do come out of the fork.

A process that is forked while another thread holds a lock gets a copy of the lock, held by nobody. Python's own list
of threads has such a lock: before 3.12 a child takes it before it runs a line, so it stands still for ever where a
thread of gloo or NCCL, just done with a collective, was entering itself in the list (CPython's `PyOS_AfterFork_Child`).
A rank then waits for its worker, and all others wait for that rank. As the child has done nothing yet, it can be done
without.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext, ForkContext, ForkProcess
from typing import Any

from headrace.redaction import warn

__all__ = ['worker_context']

_SECONDS = 10.0  # a fork takes milliseconds; a machine may be busy, and a child that was only late is lost without harm
_ATTEMPTS = 6


def worker_context(context: BaseContext | None) -> BaseContext:
    """The context to start workers with: `context`, or Python's default, where forks are watched."""
    chosen = multiprocessing.get_context() if context is None else context
    return _WatchedForkContext() if type(chosen) is ForkContext else chosen


class _WatchedProcess(ForkProcess):
    """A forked process that says that it runs, and goes on when it is told to; else another one takes its place."""

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


class _WatchedForkContext(ForkContext):
    Process = _WatchedProcess
