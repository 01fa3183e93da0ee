"""The queue of shards to prefetch, and those that are tried again later."""

from __future__ import annotations

import bisect
import itertools
import time
from collections import deque
from collections.abc import Callable, Container

from headrace.dataset.prefetch.horizon import Horizon

__all__ = ['FetchQueue']

_RETRIES = 5  # retries of a failed prefetch, after twice, four times, ... the patience


class FetchQueue:
    """Shards in the order of their first use, and those that wait for another try.

    A refused shard (another process fetches it, or it had no room) is tried again as the reader advances. A failed
    shard is tried again some time later. After some failures only the reader tries it.

    Args:
        patience: half of the seconds before the first retry of a failed shard.
        clock: the time in seconds.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._items: deque[tuple[int, int]] = deque()  # (first batch, shard)
        self._shards: set[int] = set()  # of these
        self._refused: list[tuple[int, int]] = []  # (first batch, shard)
        self._later: list[tuple[float, int, int]] = []  # (when, first batch, shard): failed
        self._failures: dict[int, int] = {}  # how many, of these

    def __len__(self) -> int:
        """Number of shards that may be taken now."""
        return len(self._items)

    def __contains__(self, shard: int) -> bool:
        """Whether a shard will be fetched, or failed so often that only the reader fetches it."""
        return shard in self._shards or shard in self._failures or any(shard == item[1] for item in self._refused)

    @property
    def first(self) -> int:
        """The first batch that uses the next shard."""
        return self._items[0][0]

    @property
    def ready(self) -> Container[int]:
        """The shards that may be taken now."""
        return self._shards

    def due(self, batch: int, most: int) -> int:
        """Number of the next `most` shards that this batch or an earlier one uses."""
        return sum(first <= batch for first, _ in itertools.islice(self._items, most))

    def add(self, first: int, shard: int) -> None:
        """Add a shard that is not in the queue."""
        bisect.insort(self._items, (first, shard))
        self._shards.add(shard)

    def take(self) -> tuple[int, int]:
        """Take the next shard: the first batch that uses it, and its number."""
        first, shard = self._items.popleft()
        self._shards.discard(shard)
        return first, shard

    def drop(self, shard: int) -> bool:
        """Leave a shard to the reader; True if it was waiting."""
        if shard in self._shards:
            self._shards.remove(shard)
            self._items = deque(item for item in self._items if item[1] != shard)
            return True
        return self.drop_refused(shard) or any(item[2] == shard for item in self._later)

    def drop_refused(self, shard: int) -> bool:
        """Forget a refused shard; True if it was one."""
        before = len(self._refused)
        self._refused = [item for item in self._refused if item[1] != shard]
        return len(self._refused) < before

    def forgive(self, shard: int) -> None:
        """Forget the failures of a shard, so that it may be added again."""
        self._later = [item for item in self._later if item[2] != shard]
        self._failures.pop(shard, None)

    def clear(self) -> None:
        """Forget all."""
        for part in (self._items, self._shards, self._refused, self._later, self._failures):
            part.clear()

    # -- what was taken -------------------------------------------------------------------------------------------

    def came(self, shard: int) -> None:
        """Note that a taken shard has arrived."""
        self._failures.pop(shard, None)

    def failed(self, first: int, shard: int) -> None:
        """Note that the prefetch of a taken shard failed."""
        failures = self._failures[shard] = self._failures.get(shard, 0) + 1
        if failures <= _RETRIES:
            self._later.append((self._clock() + self._patience * 2**failures, first, shard))

    def refused(self, first: int, shard: int) -> None:
        """Note that another process fetches a taken shard, or that it had no room."""
        self._refused.append((first, shard))

    def reorder(self, horizon: Horizon, running: Container[int]) -> None:
        """Add shards that were refused, or failed a while ago, and drop those out of sight.

        Args:
            horizon: the batches in sight.
            running: the running fetches.
        """
        now = self._clock()
        again = [item[1:] for item in self._later if item[0] <= now] + self._refused
        if not again and not (self._items and self.first < horizon.at):
            return
        self._later = [item for item in self._later if item[0] > now]
        self._refused.clear()
        self._shards.update(shard for _, shard in again)
        self._shards = {shard for shard in self._shards if shard in horizon and shard not in running}
        self._items = deque(sorted((int(horizon.next_own_use(shard)), shard) for shard in self._shards))
