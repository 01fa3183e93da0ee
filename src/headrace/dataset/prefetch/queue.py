"""The shards to fetch ahead, in order, and those that are tried again later."""

from __future__ import annotations

import bisect
import itertools
import time
from collections import deque
from collections.abc import Callable, Container

from headrace.dataset.prefetch.horizon import Horizon

__all__ = ['FetchQueue']

_RETRIES = 5  # times that what failed ahead of its use is tried again, after twice, four times, ... the patience


class FetchQueue:
    """Shards in the order of their first use, and those that wait until they may be in it again.

    A refused shard (another process fetches it, or it had no room) is tried again as the reader moves on. A failed
    shard is tried again some time later; after some failures by the reader only.

    Args:
        patience: Half of the seconds after which a failed shard is tried again for the first time.
        clock: Seconds.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._items: deque[tuple[int, int]] = deque()  # (first batch, shard)
        self._shards: set[int] = set()  # of these
        self._refused: list[tuple[int, int]] = []  # (first batch, shard)
        self._later: list[tuple[float, int, int]] = []  # (when, first batch, shard): failed
        self._failures: dict[int, int] = {}  # how many, of these

    def __len__(self) -> int:
        """How many may be taken now."""
        return len(self._items)

    def __contains__(self, shard: int) -> bool:
        """Whether a shard will be fetched, or is the reader's to fetch because it failed so often."""
        return shard in self._shards or shard in self._failures or any(shard == item[1] for item in self._refused)

    @property
    def first(self) -> int:
        """The first batch that uses the next one."""
        return self._items[0][0]

    @property
    def ready(self) -> Container[int]:
        """The shards that may be taken now."""
        return self._shards

    def due(self, batch: int, most: int) -> int:
        """How many of the next ones, up to so many, this batch uses or an earlier one."""
        return sum(first <= batch for first, _ in itertools.islice(self._items, most))

    def add(self, first: int, shard: int) -> None:
        """Append a shard that is not in it."""
        bisect.insort(self._items, (first, shard))
        self._shards.add(shard)

    def take(self) -> tuple[int, int]:
        """The next one: the first batch that uses it, and the shard."""
        first, shard = self._items.popleft()
        self._shards.discard(shard)
        return first, shard

    def drop(self, shard: int) -> bool:
        """Leave a shard to the reader; whether it was waiting."""
        if shard in self._shards:
            self._shards.remove(shard)
            self._items = deque(item for item in self._items if item[1] != shard)
            return True
        return self.drop_refused(shard) or any(item[2] == shard for item in self._later)

    def drop_refused(self, shard: int) -> bool:
        """Try a shard no more if it was refused; whether it was."""
        before = len(self._refused)
        self._refused = [item for item in self._refused if item[1] != shard]
        return len(self._refused) < before

    def forgive(self, shard: int) -> None:
        """Forget how often a shard failed, so that it may be put in again."""
        self._later = [item for item in self._later if item[2] != shard]
        self._failures.pop(shard, None)

    def clear(self) -> None:
        """Forget all."""
        for part in (self._items, self._shards, self._refused, self._later, self._failures):
            part.clear()

    # -- what was taken -------------------------------------------------------------------------------------------

    def came(self, shard: int) -> None:
        """A shard that was taken is there."""
        self._failures.pop(shard, None)

    def failed(self, first: int, shard: int) -> None:
        """A shard that was taken could not be fetched, ahead of its use."""
        failures = self._failures[shard] = self._failures.get(shard, 0) + 1
        if failures <= _RETRIES:
            self._later.append((self._clock() + self._patience * 2**failures, first, shard))

    def refused(self, first: int, shard: int) -> None:
        """A shard that was taken is being fetched by another process, or had no room."""
        self._refused.append((first, shard))

    def reorder(self, horizon: Horizon, running: Container[int]) -> None:
        """Put in again what was refused, or failed a while ago, and drop what the reader needs no more.

        Args:
            horizon: The batches in sight.
            running: What is being fetched.
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
