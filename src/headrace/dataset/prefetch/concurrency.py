"""How many shards should be under way at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ['Concurrency', 'Starvation']

_SHORTEST: Final = 0.5  # seconds of a comparison
_LONGEST: Final = 10.0  # seconds after which it begins anew
_FEWEST: Final = 4  # shards of one
_STARVED: Final = 0.05  # of the time; if batches come late for more, more at once is tried
_GRACE: Final = 0.1  # seconds that they may come late beside: a server may hesitate once
_WORTH: Final = 1.3  # times as many bytes a second, from twice as many at once
_PAUSE: Final = 30.0  # seconds to the next trial after one that was in vain; then twice as long
_LONGEST_PAUSE: Final = 600.0


class Concurrency:
    """Begins with one shard at a time; doubles while batches come late, as long as that brings more bytes a second.

    Where the network is the limit, what comes at the same time shares it: each shard delays those that are needed
    before it, and nothing is gained. Where a connection is (object stores give some tens of MB/s to each), or the
    latency of small objects, more of them are faster. Which of these it is shows only when it is tried, as TCP's
    congestion control has it (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016, probes for bandwidth
    so); and that only matters where somebody waits. A trial that is in vain delays the shard that is needed next by the
    time of another one. So one begins when batches have come late by as much: waiting for large shards is never more
    than doubled by it.

    What other processes fetched counts too: that they and this one take from each other is no gain.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic, *, width: int = 1) -> None:
        """Take the most that may be, a clock in seconds, and how many may be at first."""
        self.width = width
        """How many may be under way now."""
        self._most, self._clock = most, clock
        self._before: float | None = None  # bytes a second, with half as many, of a trial that goes on
        self._next_trial, self._pause = -float('inf'), _PAUSE
        self._compare(0.0)

    def begin(self, starved: float) -> None:
        """Something else is fetched from now on, perhaps after a while.

        Args:
            starved: Seconds that batches have come late until now, in all.
        """
        if self._before is not None:  # a trial that nobody will judge
            self._before = None
            self.width //= 2
        self._compare(starved)

    def _compare(self, starved: float) -> None:
        self._since, self._starved_before, self._bytes, self._shards = self._clock(), starved, 0, 0

    def arrived(self, size: int, starved: float) -> None:
        """A shard of so many bytes is there.

        Args:
            size: Its bytes.
            starved: Seconds that batches have come late until now, in all.
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
                return  # a batch that is waited for now has come late when it is there
            self._before = None
            self._compare(starved)
        elif is_starved and late > a_shard and 2 * self.width <= self._most and self._clock() >= self._next_trial:
            self._before = rate
            self.width *= 2
            self._compare(starved)
        elif elapsed >= max(_LONGEST, a_shard / _STARVED):
            self._compare(starved)


class Starvation:
    """Seconds that batches came late, in all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waited = self._since = 0.0
        self.source: Callable[[], float] | None = None
        """Says so; None: batches came late as long as the reader waited for shards."""

    @property
    def seconds(self) -> float:
        """How many until now."""
        return self._waited if self.source is None else self.source()

    def begin(self) -> None:
        """The reader begins to wait for a shard."""
        self._since = self._clock()

    def end(self) -> None:
        """The reader waits no more."""
        self._waited += self._clock() - self._since
