"""The processes of a rank: its trainer, and the workers or the trainer itself that make its batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.prefetch.distance import look_ahead
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.dataset.prefetch.upcoming_batch import upcoming_batches
from headrace.mixing import LoaderConfig
from headrace.order import BatchPlan
from headrace.simulate.conditions import Conditions
from headrace.simulate.node import Node
from headrace.simulate.world import Event, Process, World

__all__ = ['Rank']


_Ids = npt.NDArray[np.int64]


@dataclass
class Rank:
    """One rank in a simulated epoch."""

    world: World
    node: Node
    source: StreamingDataset
    plan: BatchPlan
    loader: LoaderConfig
    conditions: Conditions
    is_continued: bool = False
    """Whether the workers of the last epoch live on."""
    waited: float = 0.0
    """Seconds that its trainer has waited for data."""
    made: dict[int, Event] = field(default_factory=dict[int, Event])
    """By number of the batch, the event that it is ready for the trainer."""

    def __post_init__(self) -> None:
        self._workers = self.loader.loader.num_workers
        self._consumed = Event()
        self._next = 0

    def begin(self) -> None:
        """Start the workers; without workers, `read` is part of the trainer."""
        self._readers = [self._prefetcher() for _ in range(max(1, self._workers))]
        for worker in range(self._workers):
            self.world.start(self._work(worker))

    def end(self) -> None:
        """End the prefetch of this epoch."""
        for reader in self._readers:
            reader.close()
            self.node.prefetchers.remove(reader)

    def _prefetcher(self) -> Prefetcher:
        ahead = look_ahead(self.source.predownload, self.plan.batch_size, max(1, self._workers))
        room = math.inf if self.source.cache_limit is None else self.source.cache_limit
        made = Prefetcher(self.node, ahead, room=room, clock=self.world.clock)
        coming = upcoming_batches(self.source, self.plan, self._ids, first=0)
        made.follow(coming, first=0, starved=lambda: self.waited)
        self.node.prefetchers.append(made)
        return made

    def _ids(self, number: int) -> _Ids:
        return self.plan.order.at(self.plan.positions(number))

    def _work(self, worker: int) -> Process:
        """A worker: every n-th batch, no more ahead than the trainer's prefetch allows."""
        if not self.is_continued:
            yield self.conditions.start_seconds
        most = self._workers * (self.loader.loader.prefetch_factor or 2)
        for number in range(worker, len(self.made), self._workers):
            while number >= self._next + most:
                yield self._consumed
            yield from self._read(self._readers[worker], number)
            self.world.happens(self.made[number])

    def _read(self, reader: Prefetcher, number: int) -> Process:
        reader.advance(number)
        self.node.settle()
        shards: list[int] = np.unique(self.source.locate(self._ids(number))[0]).tolist()
        for shard in shards:  # one after the other: under a limit the cache need not hold them all at once
            self.node.lease(shard)
            while not self.node.is_ready(shard):
                yield self.node.coming(shard) or self._fetch_now(reader, shard)
            reader.wait(shard)
            reader.has_shard()
            self.node.release(shard)
        self.node.settle()
        yield self.conditions.read_seconds

    def _fetch_now(self, reader: Prefetcher, shard: int) -> Event | float:
        reader.wait(shard)  # takes it out of the queue
        return self.node.fetch_now(shard)

    def batch(self, number: int) -> Process:
        """Wait for a batch, in the trainer."""
        begin = self.world.now
        if not self._workers:
            yield from self._read(self._readers[0], number)
            self.world.happens(self.made[number])
        elif not self.made[number].has_happened:
            yield self.made[number]
        self.waited += self.world.now - begin
        self._next = number + 1
        consumed, self._consumed = self._consumed, Event()
        self.world.happens(consumed)
