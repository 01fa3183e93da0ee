"""Waiting for what must come."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ['until']


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something holds, which it must in so many seconds: more than a busy machine pauses."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f'not within {seconds} s'
        time.sleep(0.001)
