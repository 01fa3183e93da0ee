"""The moment at which the last bytes of an object are about to come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ['AlmostDone']


class AlmostDone:
    """Calls once when an object's last bytes are about to come, at the pace and after the latency of those before.

    Bytes of failed attempts count, too, so the call may come early.
    """

    def __init__(self, size: int, call: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._left, self._call, self._clock = size, call, clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._begun: float | None = None
        self._since_begun = 0
        self._called = False

    def ask(self) -> None:
        """A request is made."""
        with self._lock:
            if self._asked is None:
                self._asked = self._clock()

    def count(self, size: int) -> None:
        """Count ``size`` bytes that came."""
        now = self._clock()
        with self._lock:
            self._left -= size
            if self._begun is None or self._asked is None:
                self._begun = now
                is_now = self._left <= 0
            else:
                self._since_begun += size
                latency, elapsed = self._begun - self._asked, now - self._begun
                # Sooner the pace is unknown: bytes in the system's buffer come at once.
                is_now = elapsed >= latency and self._left * elapsed <= latency * self._since_begun
                is_now = is_now or self._left <= 0
            is_now, self._called = is_now and not self._called, is_now or self._called
        if is_now:
            self._call()
