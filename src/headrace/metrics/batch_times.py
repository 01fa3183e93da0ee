"""Times of single batches, and their quantiles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

__all__ = ['BatchTimes']

_MOST = 10_000  # batches between two readings that count, the last ones


class BatchTimes:
    """Times from one trained batch to the next, and the waits for data in them."""

    def __init__(self) -> None:
        self._times = deque[tuple[float, float]](maxlen=_MOST)
        self._last: tuple[float, float] | None = None

    def interrupt(self) -> None:
        """Leave out the time until the next batch: the run begins, or evaluates."""
        self._last = None

    def add(self, now: float, waited: float) -> None:
        """A batch was trained.

        Args:
            now: seconds, from anywhere.
            waited: seconds that the trainer has waited so far, in all.
        """
        if self._last is not None:
            self._times.append((now - self._last[0], waited - self._last[1]))
        self._last = now, waited

    def take(self) -> dict[str, float]:
        """Median and 99th percentile of the times and the waits since the last call, in seconds; empty without any."""
        if not self._times:
            return {}
        batches, waits = zip(*self._times, strict=True)
        self._times.clear()
        return {**_quantiles('batch_seconds', batches), **_quantiles('wait_seconds', waits)}


def _quantiles(name: str, seconds: Iterable[float]) -> dict[str, float]:
    half, most = np.quantile(np.fromiter(seconds, np.float64), (0.5, 0.99)).tolist()
    return {f'{name}_p50': half, f'{name}_p99': most}
