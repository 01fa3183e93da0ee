"""The end of workers: with their rank, at once, and in the midst of any work.

PyTorch's workers check for their parent every 5 s, but only between two batches. A worker that waits for a silent store
would outlive a killed rank. So would one that cannot send its batch. It would keep its memory, and the lock of a fetch
that the next run waits for.

A spawned worker ends as a forked one does, without the interpreter's shutdown. That would unwind running threads, such
as those of fetches, through C++ code, and so abort the process. PyTorch would report the abort, and not the error that
ended the run. A user's `atexit` functions run where Python would run them.
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
_GRACE: Final = 6.0  # for PyTorch's own check, which also removes the worker's temporary files

_LAST: Final = -1000  # after all other finalizers of multiprocessing

_watched = 0  # process that has the thread; a forked one has not


def end_with_parent() -> None:
    """End this process, a worker, some seconds after its parent. May be called again."""
    global _watched  # noqa: PLW0603 - it is the process' own
    if _watched != os.getpid():
        _watched = os.getpid()
        threading.Thread(target=_watch, name='headrace-orphan', daemon=True).start()


def _watch() -> None:
    # A forkserver's worker is no child of the rank, and an orphan sees no change of its parent.
    rank, parent = multiprocessing.parent_process(), os.getppid()
    while os.getppid() == parent and (rank is None or rank.is_alive()):
        time.sleep(_SECONDS)
    time.sleep(_GRACE)
    os._exit(1)


def end_at_once() -> None:
    """Have this worker end without unwinding its threads, once its work is done."""
    multiprocessing.util.Finalize(None, _end_at_once, exitpriority=_LAST)


def _end_at_once() -> None:
    if sys.exc_info()[0] is not None:
        return  # the exit status reports the failure
    # Waits for this process' threads, as multiprocessing and the interpreter do; daemons excepted.
    vars(threading)['_shutdown']()
    if multiprocessing.get_start_method() == 'spawn' or sys.version_info >= (3, 13):  # else they are the parent's
        atexit._run_exitfuncs()
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it is missing or closed
            stream.flush()
    os._exit(0)
