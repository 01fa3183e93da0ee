"""Killed children: by themselves at a given step of their work, or after some time."""

from __future__ import annotations

import itertools
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

__all__ = ['in_a_child', 'killed_after']

# What a conversion or a writer does with its files, and what it sends: the audit events of these, in any thread.
STEPS = frozenset({'open', 'os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'http.client.send'})


def in_a_child(action: Callable[[], object], last: int, beside: str | None = None) -> tuple[int, int]:
    """Run something in a child that kills itself before its step number `last`; returns its status and its steps.

    Opening a file is a step if its path begins with `beside`: by default the parent of the folder for temporary files.
    """
    beside = os.path.dirname(tempfile.gettempdir()) if beside is None else beside
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        taken = itertools.count(1)

        def step(event: str, arguments: tuple[object, ...]) -> None:
            is_one = event in STEPS and (event != 'open' or str(arguments[0]).startswith(beside))
            if is_one and os.write(writing, b'.') and next(taken) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(step)
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading, 'rb') as pipe:
        steps = len(pipe.read())
    return os.waitpid(child, 0)[1], steps


def killed_after(action: Callable[[], object], seconds: float | None) -> tuple[bool, float]:
    """Run something in a child that is killed after some time; None: never.

    Returns whether it was killed before its end, and how long it ran. Processes that it forked have ended, too.

    Raises:
        AssertionError: the action raised; the child has printed the traceback.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            os.write(writing, b'.')
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading, 'rb', buffering=0) as pipe:
        pipe.read(1)
        begin = time.monotonic()
        # The pipe ends with the last process that holds it.
        select.select([pipe], [], [], seconds)
        if seconds is not None:
            os.kill(child, signal.SIGKILL)
        pipe.read()
        ran = time.monotonic() - begin
    status = os.waitpid(child, 0)[1]
    is_killed = os.WIFSIGNALED(status)
    assert is_killed or status == 0, f'The child ended with the status {status}.'
    return is_killed, ran
