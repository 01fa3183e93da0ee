"""The next use of each shard by the batches in sight, and the batches for which a cache has room."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

__all__ = ['CacheWindow', 'NextUse']

_FEWEST = 2  # shards: one is fetched while the other is read


class NextUse:
    """Shards of a sequence of batches, which enter at its end and leave at its front."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, list[int]]] = deque()
        # An int for the many shards that one batch uses; a deque takes ten times the memory of a list.
        self._of_shard: dict[int, int | list[int]] = {}

    def __contains__(self, shard: int) -> bool:
        return shard in self._of_shard

    def add(self, batch: int, shards: list[int]) -> list[int]:
        """Append a batch, with a number above all others, and its shards, each given once.

        Returns:
            The shards that no earlier batch uses.
        """
        self._batches.append((batch, shards))
        new: list[int] = []
        for shard in shards:
            uses = self._of_shard.get(shard)
            if uses is None:
                self._of_shard[shard] = batch
                new.append(shard)
            elif isinstance(uses, int):
                self._of_shard[shard] = [uses, batch]
            else:
                uses.append(batch)
        return new

    def drop_before(self, batch: int) -> list[int]:
        """Forget the batches before this one; returns the shards that no other batch uses."""
        gone: list[int] = []
        while self._batches and self._batches[0][0] < batch:
            for shard in self._batches.popleft()[1]:
                uses = self._of_shard[shard]
                if isinstance(uses, int) or len(uses) == 1:
                    del self._of_shard[shard]
                    gone.append(shard)
                else:
                    uses.pop(0)
        return gone

    def soonest(self, count: int, *, after: int, until: int) -> list[int]:
        """At most `count` shards of the batches after `after` up to `until`, in the order of their use."""
        found: dict[int, None] = {}
        for batch, shards in self._batches:
            if batch > until or len(found) >= count:
                break
            if batch > after:
                found.update(dict.fromkeys(shards))
        return list(found)[:count]

    def next_of(self, shard: int) -> float:
        """Number of the first batch that uses a shard, inf if none does."""
        uses = self._of_shard.get(shard, math.inf)
        return uses[0] if isinstance(uses, list) else uses

    def clear(self) -> None:
        """Forget all."""
        self._batches.clear()
        self._of_shard.clear()


class CacheWindow:
    """The batches ahead of the reader whose shards fit the cache together.

    Processes that share the cache and the batches agree on the window. So none of them fetches a shard that it needs
    late instead of one that another process needs soon.
    """

    def __init__(self, size_of: Callable[[int], int], room: float) -> None:
        """Take a function for a shard's bytes, and the bytes of the room."""
        self._size_of, self._room = size_of, room
        self._bytes = 0
        self._within: deque[tuple[int, list[int]]] = deque()
        self._beyond: deque[tuple[int, list[int]]] = deque()
        self._last_use: dict[int, tuple[int, int]] = {}  # of each shard within: batch, and the shard's bytes
        self.batch = -1
        """The last batch whose shards fit, together with those of all batches from the reader's on."""

    @property
    def holds_all(self) -> bool:
        """Whether the shards of all batches so far fit."""
        return not self._beyond

    def add(self, batch: int, shards: list[int]) -> None:
        """Append a batch and its shards, each given once."""
        self._beyond.append((batch, shards))

    def move(self, begin: int, at: int) -> None:
        """Move the reader to batch `at`.

        The shards of this batch and the next, and the first two, are within in any case.

        Args:
            begin: the first batch whose shards are still needed.
            at: the reader's.
        """
        while self._beyond and self._beyond[0][0] < begin:
            self.batch, _ = self._beyond.popleft()
        while self._within and self._within[0][0] < begin:
            batch, shards = self._within.popleft()
            for shard in shards:
                last, size = self._last_use[shard]
                if last == batch:
                    del self._last_use[shard]
                    self._bytes -= size
        while self._beyond:
            batch, shards = self._beyond[0]
            sizes = {shard: self._size_of(shard) for shard in shards if shard not in self._last_use}
            more = sum(sizes.values())
            if self._bytes + more > self._room and batch > at + 1 and len(self._last_use) + len(sizes) > _FEWEST:
                return
            self._within.append(self._beyond.popleft())
            self._bytes += more
            for shard in shards:
                self._last_use[shard] = batch, sizes[shard] if shard in sizes else self._last_use[shard][1]
            self.batch = batch

    def clear(self) -> None:
        """Forget all batches."""
        self._within.clear()
        self._beyond.clear()
        self._last_use.clear()
        self._bytes, self.batch = 0, -1
