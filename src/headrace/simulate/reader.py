"""The processes of a rank: its trainer, and the workers or the trainer itself that make its batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.prefetch.horizon import upcoming_batches
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.mixing import LoaderConfig
from headrace.order import BatchPlan
from headrace.simulate.conditions import Conditions
from headrace.simulate.node import Node
from headrace.simulate.world import Event, Process, World

__all__ = ['Rank']


_Shards = npt.NDArray[np.int64]


@dataclass
class Rank:
    """One rank in a simulated epoch."""

    world: World
    node: Node
    source: StreamingDataset
    plan: BatchPlan
    loader: LoaderConfig
    conditions: Conditions
    max_bytes: float = math.inf
    """Bytes of shards that a prefetch may have ahead of its reader."""
    stalled: float = 0.0
    """Seconds that batches of all epochs were late, as `Progress.seconds_stalled` counts them."""
    made: dict[int, Event] = field(default_factory=dict[int, Event])
    """By number of the batch, the event that it is ready for the trainer."""

    def __post_init__(self) -> None:
        self._workers = self.loader.loader.num_workers
        self._consumed = Event()
        self._next = 0
        self._lives_on = not self._workers or self.loader.loader.persistent_workers
        self._readers: list[Prefetcher] = []

    def follow(self, before: Rank) -> None:
        """Take what lives on of the rank in the epoch before; called before `begin`."""
        self.stalled, self._readers = before.stalled, before._readers

    def begin(self) -> None:
        """Start the workers; without workers, `read` is part of the trainer."""
        starts = not self._readers
        if starts:
            self._readers = [self._prefetcher() for _ in range(max(1, self._workers))]
        for reader in self._readers:
            coming = upcoming_batches(self.source, self.plan, self._shards, first=0)
            reader.follow(coming, first=0, starved=lambda: self.stalled)
        for worker in range(self._workers):
            self.world.start(self._work(worker, self.conditions.start_seconds if starts else 0.0))

    def end(self) -> None:
        """End the prefetch of this epoch; that of workers which end, for good."""
        for reader in self._readers:
            if self._lives_on:
                reader.pause()
            else:
                reader.close()
                self.node.prefetchers.remove(reader)
        if not self._lives_on:
            self._readers = []

    def _prefetcher(self) -> Prefetcher:
        limits = prefetch_limits(self.source.predownload, self.plan.batch_size, max(1, self._workers))
        made = Prefetcher(self.node, replace(limits, cache_bytes=self.max_bytes), clock=self.world.clock)
        self.node.prefetchers.append(made)
        return made

    def _shards(self, number: int) -> _Shards:
        return self.source.locate(self.plan.ids(number))[0]

    def _work(self, worker: int, start_seconds: float) -> Process:
        """A worker: every n-th batch, no more ahead than the trainer's prefetch allows."""
        yield start_seconds
        most = self._workers * (self.loader.loader.prefetch_factor or 2)
        for number in range(worker, len(self.made), self._workers):
            while number >= self._next + most:
                yield self._consumed
            yield from self._read(self._readers[worker], number)
            self.world.happens(self.made[number])

    def _read(self, reader: Prefetcher, number: int) -> Process:
        reader.advance(number)
        self.node.settle()
        shards: list[int] = np.unique(self._shards(number)).tolist()
        for shard in shards:  # one after the other: under a limit the cache need not hold them all at once
            self.node.lease(shard)
            while not self.node.is_ready(shard):
                yield self.node.coming(shard) or self._fetch_now(reader, shard)
            reader.wait(shard)
            reader.finish_wait()
            self.node.release(shard)
        self.node.settle()
        yield self.conditions.read_seconds

    def _fetch_now(self, reader: Prefetcher, shard: int) -> Event | float:
        reader.wait(shard)  # takes it out of the queue
        return self.node.fetch_now(reader, shard)

    def batch(self, number: int) -> Process:
        """Wait for a batch, in the trainer."""
        begin = self.world.now
        if not self._workers:
            yield from self._read(self._readers[0], number)
            self.world.happens(self.made[number])
        else:
            if not self.made[number].has_happened:
                yield self.made[number]
            yield self.conditions.receive_seconds
        waited = self.world.now - begin
        if number and waited > self.conditions.shortest_stall:
            self.stalled += waited
        self._next = number + 1
        consumed, self._consumed = self._consumed, Event()
        self.world.happens(consumed)
