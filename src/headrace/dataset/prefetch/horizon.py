"""The batches in sight of a reader: the shards to fetch for them, and when each shard is needed next.

`Horizon` moves along the batches. `NextUse` knows when each shard is used next, and `CacheWindow` the batches for which
a cache with a limit has room.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.dataset.prefetch.limits import PrefetchLimits, ShardsAhead
from headrace.order import BatchPlan, Topology

_CHUNK = 64  # batches of a rank's size whose ids are computed together


class UpcomingBatch(NamedTuple):
    """A coming batch and its shards; int64, repeats allowed."""

    number: int
    shards: npt.NDArray[np.int64]
    of_node: npt.NDArray[np.int64] | None = None
    """Shards of all ranks of the node, for a cache with a limit; None: the same."""


class Located(Protocol):
    @property
    def cache_limit(self) -> int | None: ...

    def locate(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Shards of sample ids, and the samples' places in them."""
        ...


Upcoming = Iterator[UpcomingBatch]  # In the order of their numbers.


def knows_of_node(source: Located, topology: Topology) -> bool:
    """Whether the shards of the node's other ranks matter: they share a cache with a limit."""
    return topology.replicas_per_node > 1 and source.cache_limit is not None


def upcoming_batches(
    source: Located,
    plan: BatchPlan,
    shards_of: Callable[[int], npt.NDArray[np.int64]],
    *,
    first: int,
) -> Iterator[UpcomingBatch]:
    """The shards of a rank's batches from `first` on, and of its node's if they share a cache with a limit."""
    step = max(1, _CHUNK // plan.topology.replicas_per_node)
    for numbers in itertools.takewhile(len, (plan.batches(begin, step) for begin in itertools.count(first, step))):
        of_node: Iterator[npt.NDArray[np.int64] | None] = itertools.repeat(None)
        if knows_of_node(source, plan.topology):
            positions = [plan.node_positions(number) for number in numbers]
            shards, _ = source.locate(plan.order.at(np.concatenate(positions)))
            of_node = iter(np.split(shards, np.cumsum([len(part) for part in positions])[:-1]))
        for number, shards in zip(numbers, of_node, strict=False):
            yield UpcomingBatch(number, shards_of(number), shards)


# Batches, and new shards, scanned in one call at most, so that no single batch waits for the whole look-ahead.
_SCAN = 64
_SCAN_SHARDS = 512
_NEAR = 16  # next shards that are checked again: an eviction may have used older knowledge of their use
_FEWEST = 2  # shards: one is fetched while the other is read


class Horizon:
    """The batches in sight of one reader.

    All workers of a rank look along all of the rank's batches. So the shards of the next batch are fetched before those
    of later ones, in whichever worker. Only the reader's thread moves the horizon; any thread may call `next_use`.
    """

    def __init__(self, limits: PrefetchLimits, size_of: Callable[[int], int]) -> None:
        self.at = -1  # The reader's batch.
        self.limits = limits  # Those of the prefetch.
        self._size_of, self._is_limited = size_of, limits.cache_bytes < math.inf
        self._upcoming: Upcoming | None = None
        self._seen = -1  # last scanned batch
        self._shards_seen = 0
        self._fetched = ShardsAhead(limits)
        self._lock = threading.Lock()
        self._uses = NextUse()  # from the reader's batch on
        self._node_uses = NextUse()  # by all ranks of the node, if the cache has a limit
        self._window = CacheWindow(size_of, limits.cache_bytes)
        self._beyond: deque[tuple[int, list[int]]] = deque()  # own shards of the batches beyond the window

    def follow(self, upcoming: Upcoming, *, first: int, limits: PrefetchLimits | None = None) -> None:
        """Look along another sequence of batches, which begins with number `first`; see `Prefetcher.follow`."""
        self.clear()
        if limits is not None:
            self.limits = replace(self.limits, batches=limits.batches, cache_bytes=limits.cache_bytes)
            self._window.max_bytes = limits.cache_bytes
        self._upcoming = upcoming
        self._seen = first - 1

    def clear(self) -> None:
        with self._lock:
            self._uses.clear()
            self._node_uses.clear()
        self._window.clear()
        self._beyond.clear()
        self._fetched.clear()
        self._upcoming = None

    def advance(self, batch: int) -> list[int]:
        """Move the reader to `batch`; returns the shards of earlier batches that no batch in sight uses."""
        self._fetched.drop_until(batch)
        with self._lock:
            self.at = batch
            self._node_uses.drop_before(batch - self.limits.lag)
            return self._uses.drop_before(batch)

    def scan(self) -> Iterator[tuple[int, int]]:
        """Look further ahead; yields the first batch and the number of each shard that may need a fetch.

        The caller calls `count` for each shard that it fetches.
        """
        if self._is_limited:
            yield from self._entering()
            for shard in self._uses.soonest(_NEAR, after=self.at, until=self._window.batch):
                yield int(self._uses.next_of(shard)), shard
        begin = self._shards_seen
        for _ in range(_SCAN):
            if self._shards_seen - begin >= _SCAN_SHARDS:
                return
            if self._upcoming is None or self._seen >= self.at + self.limits.batches or self._fetched.reached:
                return
            batch = next(self._upcoming, None)
            if batch is None:
                self._upcoming = None
                return
            held_all = self._window.holds_all
            new = self._add(batch)
            if not self._is_limited:
                yield from ((batch.number, shard) for shard in new)
            elif held_all:
                yield from self._entering()

    @property
    def reached(self) -> str:
        """The limit that holds the prefetch now, by its name in `PrefetchLimits`; empty: none, or the data end."""
        if self._upcoming is not None and self._seen >= self.at + self.limits.batches:
            return 'batches'
        return self._fetched.reached or ('' if self._window.holds_all else 'cache_bytes')

    def _add(self, batch: UpcomingBatch) -> list[int]:
        """Append a batch; returns the shards that no earlier batch uses."""
        self._seen = batch.number
        shards = list(dict.fromkeys(batch.shards.tolist()))
        with self._lock:
            new = self._uses.add(batch.number, shards)
            self._shards_seen += len(new)
            if self._is_limited:
                of_node = shards if batch.of_node is None else list(dict.fromkeys(batch.of_node.tolist()))
                self._node_uses.add(batch.number, of_node)
                self._window.add(batch.number, of_node)
                self._beyond.append((batch.number, shards))
        return new

    def _entering(self) -> Iterator[tuple[int, int]]:
        """Shards of the batches that enter the window: some may have been evicted meanwhile."""
        self._window.move(self.at - self.limits.lag, self.at)
        while self._beyond and self._beyond[0][0] <= self._window.batch:
            if self._fetched.reached and self._beyond[0][0] > self.at + 1:
                return
            first, shards = self._beyond.popleft()
            yield from ((first, shard) for shard in shards if self._uses.next_of(shard) == first)

    def count(self, first: int, shard: int) -> None:
        self._fetched.add(first, self._size_of(shard))

    @property
    def ahead(self) -> str:
        return (
            f'{self._seen - self.at:,} batches, {len(self._fetched):,} shards and {self._fetched.bytes:,} bytes ahead'
        )

    @property
    def until(self) -> float:
        """The last batch whose shards may be fetched now; those of the reader's batch always may."""
        return self._window.batch if self._is_limited else math.inf

    @property
    def fits(self) -> bool:
        """Whether the cache has room for more than the shards of the next batches."""
        return self._window.holds_all or self._window.batch > self.at + 1

    def __contains__(self, shard: int) -> bool:
        with self._lock:
            return shard in self._uses

    def next_own_use(self, shard: int) -> float:
        """Number of the reader's next batch that uses a shard; inf: none in sight."""
        with self._lock:
            return self._uses.next_of(shard)

    def next_use(self, shard: int) -> float:
        """Number of the next batch that uses a shard, of this rank or another of its node; inf: none in sight."""
        with self._lock:
            return min(self._uses.next_of(shard), self._node_uses.next_of(shard))


class NextUse:
    """Shards of a sequence of batches, which enter at its end and leave at its front."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, list[int]]] = deque()
        # An int for the many shards that one batch uses; a deque takes ten times the memory of a list.
        self._of_shard: dict[int, int | list[int]] = {}

    def __contains__(self, shard: int) -> bool:
        return shard in self._of_shard

    def add(self, batch: int, shards: list[int]) -> list[int]:
        """Append a batch, with a number above all others; returns those of its shards that no earlier batch uses."""
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
        soonest: dict[int, None] = {}
        for batch, shards in self._batches:
            if batch > until or len(soonest) >= count:
                break
            if batch > after:
                soonest.update(dict.fromkeys(shards))
        return list(soonest)[:count]

    def next_of(self, shard: int) -> float:
        """Number of the first batch that uses a shard, inf if none does."""
        uses = self._of_shard.get(shard, math.inf)
        return uses[0] if isinstance(uses, list) else uses

    def clear(self) -> None:
        self._batches.clear()
        self._of_shard.clear()


class CacheWindow:
    """The batches ahead of the reader whose shards fit the cache together.

    Processes that share the cache and the batches agree on the window. So none of them fetches a shard that it needs
    late instead of one that another process needs soon.
    """

    def __init__(self, size_of: Callable[[int], int], max_bytes: float) -> None:
        self._size_of, self.max_bytes = size_of, max_bytes
        self._bytes = 0
        self._within: deque[tuple[int, list[int]]] = deque()
        self._beyond: deque[tuple[int, list[int]]] = deque()
        self._last_use: dict[int, tuple[int, int]] = {}  # of each shard within: batch, and the shard's bytes
        self.batch = -1  # The last batch whose shards fit, together with those of all batches from the reader's on.

    @property
    def holds_all(self) -> bool:
        return not self._beyond

    def add(self, batch: int, shards: list[int]) -> None:
        self._beyond.append((batch, shards))

    def move(self, begin: int, at: int) -> None:
        """Move the reader to batch `at`; no shards before batch `begin` are needed any more.

        The shards of this batch and the next, and the first two, are within in any case.
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
            if self._bytes + more > self.max_bytes and batch > at + 1 and len(self._last_use) + len(sizes) > _FEWEST:
                return
            self._within.append(self._beyond.popleft())
            self._bytes += more
            for shard in shards:
                self._last_use[shard] = batch, sizes[shard] if shard in sizes else self._last_use[shard][1]
            self.batch = batch

    def clear(self) -> None:
        self._within.clear()
        self._beyond.clear()
        self._last_use.clear()
        self._bytes, self.batch = 0, -1
