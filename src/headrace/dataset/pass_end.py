"""The process that may end a pass."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

__all__ = ['ending_here']


def ending_here() -> Callable[[], bool]:
    """A check for the end of a pass that begins in this process: whether its caller may end the pass.

    A process that is forked later has a copy of the pass, and must end neither it nor its workers. At the end of the
    interpreter a thread of the prefetch may stand still with a lock for ever.
    """
    # The names of modules may be None at the end of the interpreter.
    owner, process, is_finalizing = os.getpid(), os.getpid, sys.is_finalizing
    return lambda: not is_finalizing() and process() == owner
