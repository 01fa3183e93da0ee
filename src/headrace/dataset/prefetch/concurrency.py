"""The number of concurrent fetches of shards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ['Concurrency', 'Starvation']

_SHORTEST: Final = 0.5  # seconds of a comparison
_LONGEST: Final = 10.0  # seconds after which it begins anew
_FEWEST: Final = 4  # shards of a comparison
_STARVED: Final = 0.05  # share of the time that batches may be late before a trial
_GRACE: Final = 0.1  # seconds that they may be late besides: a server may hesitate once
_WORTH: Final = 1.3  # gain in bytes a second that justifies twice the concurrency
_PAUSE: Final = 30.0  # seconds from a failed trial to the next; doubles each time
_LONGEST_PAUSE: Final = 600.0


class Concurrency:
    """Begins with one shard at a time, and doubles while batches come late and throughput grows.

    If the network is the limit, concurrent fetches share it: each shard delays those that are needed before it. If the
    limit is a connection (object stores give each some tens of MB/s) or the latency of small objects, more fetches are
    faster. Only a trial can tell, as in the congestion control of TCP (Cardwell et al., "BBR: Congestion-Based
    Congestion Control", 2016). It only matters while a trainer waits. A failed trial delays the next shard by the time
    of another one. So a trial begins once batches have been late by as much, and at most doubles the wait.

    Fetches of other processes count too: throughput taken from them is no gain.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic, *, width: int = 1) -> None:
        """Take the highest width, a clock in seconds, and the first width."""
        self.width = width
        """Number of concurrent fetches allowed now."""
        self._most, self._clock = most, clock
        self._before: float | None = None  # bytes a second before the running trial
        self._next_trial, self._pause = -float('inf'), _PAUSE
        self._compare(0.0)

    def begin(self, starved: float) -> None:
        """Begin with other shards, perhaps after a while.

        Args:
            starved: total seconds that batches have been late.
        """
        if self._before is not None:  # the trial ends without a result
            self._before = None
            self.width //= 2
        self._compare(starved)

    def _compare(self, starved: float) -> None:
        self._since, self._starved_before, self._bytes, self._shards = self._clock(), starved, 0, 0

    def arrived(self, size: int, starved: float) -> None:
        """Count a shard that has arrived.

        Args:
            size: its bytes.
            starved: total seconds that batches have been late.
        """
        self._bytes += size
        self._shards += 1
        elapsed = self._clock() - self._since
        if elapsed < _SHORTEST or self._shards < max(_FEWEST, 2 * self.width):
            return
        rate = self._bytes / elapsed
        late = starved - self._starved_before
        is_starved = late > _GRACE + _STARVED * elapsed
        a_shard = elapsed / self._shards  # seconds
        if self._before is not None:
            if rate >= _WORTH * self._before:
                self._pause = _PAUSE
            elif is_starved:
                self.width //= 2
                self._next_trial = self._clock() + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            elif elapsed < _LONGEST:
                return  # a late batch counts only once it arrives
            self._before = None
            self._compare(starved)
        elif is_starved and late > a_shard and 2 * self.width <= self._most and self._clock() >= self._next_trial:
            self._before = rate
            self.width *= 2
            self._compare(starved)
        elif elapsed >= max(_LONGEST, a_shard / _STARVED):
            self._compare(starved)


class Starvation:
    """Total seconds that batches were late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waited = self._since = 0.0
        self.source: Callable[[], float] | None = None
        """The trainer's waits; None: the reader's waits for shards count instead."""

    @property
    def seconds(self) -> float:
        """Seconds until now."""
        return self._waited if self.source is None else self.source()

    def begin(self) -> None:
        """Note that the reader begins to wait for a shard."""
        self._since = self._clock()

    def end(self) -> None:
        """Note that the reader's wait has ended."""
        self._waited += self._clock() - self._since
