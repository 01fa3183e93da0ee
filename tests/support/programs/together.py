"""Processes that use one cache at the same time."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from headrace.storage.cache.locks import LockWait
from tests.support.programs.processes import end_well
from tests.support.programs.waiting import until
from tests.support.stores.shards import disk_use

FORK = multiprocessing.get_context('fork')


def run_together(work, count, *, timeout=100, watch=None):
    """Run ``work(number)`` in ``count`` processes; all must end well, in time.

    Returns:
        The most bytes that were ever in the folder ``watch``. They are counted while all processes are stopped.
    """
    children = [FORK.Process(target=work, args=(number,)) for number in range(count)]
    for child in children:
        child.start()
    deadline = time.monotonic() + timeout
    most = 0
    while watch is not None and any(child.is_alive() for child in children) and time.monotonic() < deadline:
        most = max(most, frozen_disk_use(watch, children))
        time.sleep(0.002)
    end_well(children, deadline - time.monotonic())
    return most if watch is None else max(most, disk_use(watch))


def run_alone(work, *, timeout=100):
    """Run ``work()`` in a process without other tests' threads and garbage, which open and close descriptors."""

    def begin(_):
        gc.collect()
        gc.freeze()
        work()

    run_together(begin, 1, timeout=timeout)


def locks_waited_for():
    """How many threads of this process wait for a lock of a file."""
    return sum(
        any(frame.f_code is LockWait.turn.__code__ for frame, _ in traceback.walk_stack(top))
        for top in sys._current_frames().values()
    )


def as_somebody_waits(act):
    """Do something in a thread when a thread of this process has waited for a lock for 0.15 s."""

    def watch():
        until(locks_waited_for)
        time.sleep(0.15)
        act()

    threading.Thread(target=watch).start()


def is_half_there(folder):
    """Whether of something that is fetched into a folder the beginning is there."""
    return any(path.stat().st_size for path in folder.glob('.headrace/*.raw'))


def frozen_disk_use(folder, children):
    """The sizes of all files, while nobody changes them."""
    pids = [child.pid for child in children if child.is_alive()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in pids:
            while Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] not in 'TZX':
                pass
        return disk_use(folder)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
