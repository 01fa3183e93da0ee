"""How workers end: with the process that they work for, whatever they are doing, and at once.

PyTorch's workers look after their parent every 5 s, but only between two batches. One that waits for a store that does
not answer, or that cannot hand on what it has read, would outlive a rank that was killed: with its memory, and with the
fetch that the next run waits for.

A spawned worker ends as a forked one does, without taking the interpreter down: threads that go on, such as those that
fetch or that hand tensors on, would be unwound through C++ code, which aborts the process; PyTorch tells the trainer
of that in place of what ended the run. What the user registered with `atexit` runs where Python would run it.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
from typing import Final

__all__ = ['end_at_once', 'end_with_parent']

_SECONDS: Final = 1.0
_GRACE: Final = 6.0  # for PyTorch's way, which also removes the worker's temporary files

_LAST: Final = -1000  # after all else that multiprocessing does at a process' end

_watched = 0  # process that has the thread; a forked one has not


def end_with_parent() -> None:
    """End this process, a worker, some seconds after its parent. May be called again."""
    global _watched  # noqa: PLW0603 - it is the process' own
    if _watched != os.getpid():
        _watched = os.getpid()
        threading.Thread(target=_watch, name='headrace-orphan', daemon=True).start()


def _watch() -> None:
    # A forkserver's worker is no child of the rank, and whoever is an orphan already sees no change of its parent.
    rank, parent = multiprocessing.parent_process(), os.getppid()
    while os.getppid() == parent and (rank is None or rank.is_alive()):
        time.sleep(_SECONDS)
    time.sleep(_GRACE)
    os._exit(1)


def end_at_once() -> None:
    """Have this process, a worker that has done its work, end without unwinding its threads."""
    multiprocessing.util.Finalize(None, _end_at_once, exitpriority=_LAST)


def _end_at_once() -> None:
    if sys.exc_info()[0] is not None:
        return  # this process fails, and says so by its exit status
    # Waits for this process' threads, as multiprocessing and the interpreter do; daemons excepted.
    vars(threading)['_shutdown']()
    if multiprocessing.get_start_method() == 'spawn' or sys.version_info >= (3, 13):  # else they are the parent's
        atexit._run_exitfuncs()
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or nobody reads it any more
            stream.flush()
    os._exit(0)
