"""The end of workers: with their rank, at once, and in the midst of any work.

PyTorch's workers check for their parent every 5 s, but only between two batches. A worker that waits for a silent store
would outlive a killed rank. So would one that cannot send its batch. It would keep its memory, and the lock of a fetch
that the next run waits for.

A launcher, or a terminal, sends its signals to all processes of a group. A rank that catches SIGTERM needs its workers
until it has saved a checkpoint. So workers leave SIGTERM and SIGINT to their rank. PyTorch and multiprocessing end
workers with SIGTERM, too: a worker follows it if its rank is at its end. Python's fork server does not survive SIGTERM.

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
import signal
import sys
import threading
import time
from collections.abc import Generator
from multiprocessing import resource_tracker
from typing import Final

from headrace.dataset.progress import Progress

_SECONDS: Final = 1.0
_GRACE: Final = 6.0  # for PyTorch's own check, which also removes the worker's temporary files

_LEFT_TO_RANK: Final = {signal.SIGTERM, signal.SIGINT}

_LAST: Final = -1000  # after all other finalizers of multiprocessing

_watched = 0  # process that has the thread; a forked one has not


def end_with_rank(progress: Progress) -> None:
    """End this process, a worker, with its rank: some seconds after it at most, and by no signal before.

    May be called again.
    """
    global _watched  # noqa: PLW0603 - it is the process' own
    if _watched == os.getpid():
        return
    _watched = os.getpid()
    threading.Thread(target=_watch, args=(progress,), name='headrace-orphan', daemon=True).start()
    rank = multiprocessing.parent_process()
    # Without the rank's own progress, this worker could not tell that the rank waits for its end.
    if rank is not None and progress.is_of(rank.pid or 0) and threading.current_thread() is threading.main_thread():
        for number in _LEFT_TO_RANK:
            # Not SIG_IGN, which programs that a worker starts would inherit.
            signal.signal(number, lambda *_: _end_if_over(progress))
            signal.siginterrupt(number, False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEFT_TO_RANK)


def _end_if_over(progress: Progress) -> None:
    if progress.is_at_exit:
        os._exit(0)


@contextlib.contextmanager
def signals_held(method: str) -> Generator[None]:
    """Hold back the signals that workers leave to their rank, while workers start that do not do so yet."""
    if method == 'forkserver':  # its server would hold them back from everything that it starts
        yield
        return
    if method == 'spawn':
        resource_tracker.ensure_running()  # it would let the signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_RANK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(progress: Progress) -> None:
    # A forkserver's worker is not a child of the rank, and an orphan sees no change of its parent.
    rank, parent = multiprocessing.parent_process(), os.getppid()
    while os.getppid() == parent and (rank is None or rank.is_alive()):
        time.sleep(_SECONDS)
        _end_if_over(progress)
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
