"""The schedule of the prefetch: the next shard, and the start of its fetch. It has no thread and does no I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from headrace.dataset.batch_keys.bad_sample import is_bad_sample
from headrace.dataset.prefetch.concurrency import Concurrency
from headrace.dataset.prefetch.elsewhere import POLL, OtherFetches
from headrace.dataset.prefetch.horizon import Horizon
from headrace.dataset.prefetch.queue import FetchQueue
from headrace.dataset.prefetch.slots import FetchSlots
from headrace.storage import FetchResult, FetchStatus

__all__ = ['NO_ROOM_PAUSE', 'PATIENCE', 'Fetch', 'FetchSchedule']

PATIENCE = 5.0
"""Seconds for which a shard that does not come delays later ones."""
NO_ROOM_PAUSE = 0.5
"""Seconds before a retry of a shard without room, unless the reader advances earlier."""
_WIDEST = 64  # fetches of all processes of a rank at most


class Fetch(NamedTuple):
    """A fetch that may begin."""

    shard: int
    first: int
    """The first batch that uses the shard."""
    is_urgent: bool
    """The reader is at that batch."""
    of_pass: int


class FetchSchedule:
    """Chooses the next fetch. The caller holds a lock around each call.

    The shards of the reader's own batch are fetched at once. Those of later batches follow in order, as many at a time
    as `FetchSlots` allows. Fetches of other processes count where they are needed sooner.

    Args:
        horizon: the batches in sight.
        concurrency: limits concurrent fetches.
        clock: the time in seconds.
    """

    def __init__(
        self, horizon: Horizon, concurrency: Concurrency | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._horizon, self._clock = horizon, clock
        self.queue = FetchQueue(PATIENCE, clock)
        self.other_fetches = OtherFetches(PATIENCE, clock)
        self.slots = FetchSlots(PATIENCE, concurrency or Concurrency(_WIDEST, clock), clock)
        self._failed: dict[int, Exception] = {}
        self._no_room_until = 0.0  # time of the next try after a lack of room; 0: no lack is known
        self._pass = 0  # number of sequences so far

    def begin_pass(self) -> None:
        """Forget all but the running fetches; the next sequence may not need these shards."""
        self._pass += 1
        self.queue.clear()
        self.other_fetches.clear()
        self._failed.clear()

    def advance(self) -> None:
        """Note that the reader has advanced: there may be room, and other shards are needed."""
        self.slots.reader_fetches = False
        self._try_again()

    def _try_again(self) -> None:
        self._no_room_until = 0.0
        self.other_fetches.keep(self._horizon)
        self.queue.reorder(self._horizon, self.slots)

    def add(self, first: int, shard: int) -> bool:
        """Queue a shard that batch `first` uses; False if it was known."""
        if shard in self.queue or shard in self.slots or shard in self._failed:
            return False
        self.queue.add(first, shard)
        return True

    def take(self) -> Fetch | None:
        """Begin the next fetch; None if none may begin."""
        if 0 < self._no_room_until <= self._clock():
            self._try_again()
        if not self._may_begin():
            return None
        first, shard = self.queue.take()
        self.slots.begin(shard)
        return Fetch(shard, first, first <= self._horizon.at, self._pass)

    def _may_begin(self) -> bool:
        if not self.queue or self._no_room_until:
            return False
        first = self.queue.first
        if first <= self._horizon.at:
            return True
        return first <= self._horizon.until and self.slots.is_free(self.other_fetches.delays(first, self.queue.ready))

    def seconds_to_wait(self) -> float | None:
        """Seconds until a fetch may begin without a notification; None: none may."""
        if self._no_room_until:
            return max(0.0, self._no_room_until - self._clock())
        if not self.queue:
            return None
        return POLL if self.other_fetches else PATIENCE

    def ended(self, fetch: Fetch, result: FetchResult | Exception, *, size: int = 0, starved: float = 0.0) -> None:
        """Note the end of a fetch.

        Args:
            fetch: the fetch.
            result: its result or error.
            size: bytes that it brought; 0 if the shard was there before.
            starved: total seconds that batches have been late.
        """
        self.slots.end(fetch.shard)
        is_current = fetch.of_pass == self._pass
        first = fetch.first if is_current else self._horizon.next_own_use(fetch.shard)
        if first == math.inf:
            return
        if isinstance(result, Exception):
            if is_current and (fetch.is_urgent or is_bad_sample(result)):
                self._failed[fetch.shard] = result
            else:
                self.queue.failed(int(first), fetch.shard)
        elif result:
            self.queue.came(fetch.shard)
            self.other_fetches.discard(fetch.shard)
            if size:
                self.slots.concurrency.arrived(size, starved)
        else:
            self.queue.refused(int(first), fetch.shard)
            if result.status is FetchStatus.ELSEWHERE:
                self.other_fetches.add(int(first), fetch.shard)
            else:
                # Later shards have no room either. A timer, since the reader may pause, as between two epochs.
                self._no_room_until = self._clock() + NO_ROOM_PAUSE

    def came_from_others(self, shard: int, size: int, starved: float) -> None:
        """Note that another process has fetched a shard; `size` and `starved` as in `ended`."""
        if self.other_fetches.discard(shard):
            self.queue.drop_refused(shard)
            self.slots.concurrency.arrived(size, starved)

    def leave(self, shard: int) -> None:
        """Leave a shard to the reader, which needs it now, unless its fetch is running."""
        self.slots.reader_fetches = self.queue.drop(shard)

    def take_failure(self, shard: int) -> Exception | None:
        """The error that the fetch of a shard left for the reader, if any. The shard may be prefetched again."""
        self.queue.forgive(shard)
        return self._failed.pop(shard, None)

    def wanted_threads(self, most: int) -> int:
        """Number of threads that could have work, at most `most`."""
        # One more begins while the last bytes of another's shard come, or it is unpacked.
        wanted = len(self.slots) + self.queue.due(self._horizon.at, most) + self.slots.concurrency.width + 1
        return min(most, wanted) if self.queue else 0

    def close(self) -> None:
        """Forget the queue, so that no fetch begins."""
        self.queue.clear()
        self._failed.clear()
