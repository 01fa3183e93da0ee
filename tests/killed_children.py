"""Children that kill themselves at a given step of what they do."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Callable

__all__ = ['in_a_child']

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
