"""A machine and its ranks: the shards in its cache, the transfers of its processes, and their batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.prefetch.horizon import upcoming_batches
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.dataset.prefetch.schedule import Fetch
from headrace.mixing import LoaderConfig
from headrace.order import BatchPlan
from headrace.simulate.result import Conditions
from headrace.simulate.world import Event, Link, Process, Processor, World
from headrace.storage import FetchResult, FetchStatus
from headrace.storage.cache.ownership import KEPT, PASSING, assign, hash_of, room_to_keep, scores, seed_of
from headrace.storage.cache.peer_options import PORT
from headrace.storage.transfer.download import RANGE, REQUESTS

_THREADS = 8  # of a process' prefetch
_PRESENT, _ELSEWHERE, _NO_ROOM = map(FetchResult, (FetchStatus.PRESENT, FetchStatus.ELSEWHERE, FetchStatus.NO_ROOM))


class Owners:
    """The node that keeps each shard, or fetches it for the others, as `ownership` gives them.

    The nodes have names of their own here, which give other shards to each node, but as many. `sizes` are the unpacked
    bytes of shards, int64[shards], and `limit` those that a node has for shards.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], nodes: int, limit: int | None) -> None:
        hashes = np.array([hash_of('', str(shard)) for shard in range(len(sizes))], np.uint64)
        seeds = np.array([seed_of((f'node-{node}', PORT)) for node in range(nodes)], np.uint64)
        self.room = math.inf if limit is None else float(limit)
        largest = int(sizes.max())
        keeper = assign(hashes, sizes, seeds, [room_to_keep(self.room, largest)] * nodes)
        self.is_kept = keeper >= 0
        self.owner = keeper if self.is_kept.all() else np.where(
            self.is_kept, keeper, [int(scores(seeds, one).argmax()) for one in hashes[:, None]]
        )  # fmt: skip
        share = int(sizes.sum()) / nodes + largest  # with which a node has room for a shard while another one has none
        self.limit_for_all = math.ceil(max(share / KEPT, share + PASSING * largest))
        self.room -= int(sizes[self.is_kept].sum()) / nodes  # for the shards that come and go
        self._sizes = sizes
        self._come: dict[int, tuple[float, int]] = {}  # when the owner has it, and its bytes in `_fetched` by then
        self._fetched = [0] * nodes  # bytes of shards that each owner fetched, and does not keep
        self.count_anew()

    def count_anew(self) -> None:
        self._requests, self._asked = 0, set[int]()

    @property
    def requests(self) -> float:
        """Requests of the store for a shard that is not kept, since `count_anew`."""
        return self._requests / len(self._asked) if self._asked else 1.0

    def has(self, shard: int, now: float) -> bool:
        """Whether the owner has a shard that it keeps."""
        return bool(self.is_kept[shard]) and shard in self._come and self._come[shard][0] <= now

    def ask(self, shard: int, now: float, seconds: float) -> float:
        """Seconds until the owner has a shard, whose fetch from the store takes `seconds`.

        A shard that is not kept is there until its owner has fetched others of these into half of its room.
        """
        is_kept, owner, size = bool(self.is_kept[shard]), int(self.owner[shard]), int(self._sizes[shard])
        come, before = self._come.get(shard, (math.inf, 0))
        is_gone = not is_kept and self._fetched[owner] - before > max(0.0, self.room / 2 - size)
        if come == math.inf or is_gone:
            come = now + seconds
            if not is_kept:
                self._requests += 1
                self._fetched[owner] += size
            self._come[shard] = come, self._fetched[owner]
        if not is_kept:
            self._asked.add(shard)
        return max(0.0, come - now)


class Node:
    """The shards of one machine. The prefetchers of its processes ask it as they ask the real cache.

    `stored`, `raw` and `kept` are bytes in the store, unpacked and in the cache, int64[shards]; shards `in_place`,
    bool[shards], are neither fetched nor evicted. With `owners` it is node `number` of those that share their caches.
    The shards that it keeps for the others take their room from the start.
    """

    def __init__(
        self,
        world: World,
        conditions: Conditions,
        stored: npt.NDArray[np.int64],
        raw: npt.NDArray[np.int64],
        kept: npt.NDArray[np.int64],
        in_place: npt.NDArray[np.bool_],
        limit: int | None,
        owners: Owners | None = None,
        number: int = 0,
    ) -> None:
        self._world, self._stored, self._raw, self._limit = world, stored, raw, limit
        self._kept, self._in_place = kept, in_place
        self._owners = owners
        self._is_owned = np.zeros(len(raw), bool) if owners is None else (owners.owner == number) & ~in_place
        self._is_own = self._is_owned & (owners is None or owners.is_kept)  # for all nodes, and never evicted
        self._conditions = conditions
        # Beside what stays: the compressed file, until its shard is unpacked.
        self._passing = np.where(stored == raw, 0, raw + stored - kept)
        self.link = Link(
            world,
            bandwidth=conditions.bandwidth,
            connection_bandwidth=conditions.connection_bandwidth,
            latency=conditions.latency,
        )
        self.prefetchers: list[Prefetcher] = []
        self._running: dict[Prefetcher, int] = {}
        self._processors: dict[Prefetcher, Processor] = {}
        self._present = set[int]()
        self._fetching: dict[int, Event] = {}
        self._leased: dict[int, int] = {}
        self._passing_bytes = 0
        self.fetched = 0  # shards that were fetched so far; one that comes again counts again
        self.bytes_from_peers = 0
        self.evicts = False  # whether it has evicted a shard
        self.reads = self.hits = 0  # shards that batches needed, and those that were there
        self.own_bytes = int(kept[self._is_own].sum())
        self.cached = self.most_cached = self.own_bytes  # bytes in the cache

    # -- what a prefetcher asks ------------------------------------------------------------------------------------

    def is_ready(self, shard: int) -> bool:
        if shard in self._present or self._in_place[shard]:
            return True
        if self._owners is None or not self._is_own[shard] or shard in self._fetching:
            return False
        return self._owners.has(shard, self._world.now)  # another node has asked for it

    def size_of(self, shard: int) -> int:
        return int(self._kept[shard])

    # -- the processes ---------------------------------------------------------------------------------------------

    def lease(self, shard: int) -> None:
        """Keep a shard from eviction while a reader waits for it."""
        self._leased[shard] = self._leased.get(shard, 0) + 1

    def release(self, shard: int) -> None:
        self._leased[shard] -= 1
        if not self._leased[shard]:
            del self._leased[shard]

    def coming(self, shard: int) -> Event | None:
        """The end of a running fetch of a shard; None if it is not being fetched."""
        return self._fetching.get(shard)

    def fetch_now(self, prefetcher: Prefetcher, shard: int) -> Event | float:
        """Fetch for a waiting reader: when this or, without room, another fetch ends; 0.0: others go first."""
        if not self._make_room(shard, math.inf):
            other = next(iter(self._fetching.values()), None)
            if other is not None or self._present & self._leased.keys():
                return other or 0.0
        return self._fetch(prefetcher, shard, lambda: None, lambda: None)

    def settle(self) -> None:
        while sum(self._begin(prefetcher) for prefetcher in self.prefetchers):
            pass

    def _begin(self, prefetcher: Prefetcher) -> bool:
        if self._running.get(prefetcher, 0) >= _THREADS:
            return False
        fetch = prefetcher.take(wait=False)
        if fetch is None:
            return False
        if self.is_ready(fetch.shard):
            prefetcher.ended(fetch, _PRESENT)
        elif fetch.shard in self._fetching:
            prefetcher.ended(fetch, _ELSEWHERE)
        elif not self._make_room(fetch.shard, -self._next_use(fetch.shard)):
            prefetcher.ended(fetch, _NO_ROOM)
        else:
            self._running[prefetcher] = self._running.get(prefetcher, 0) + 1
            self._fetch(
                prefetcher,
                fetch.shard,
                lambda: self._almost_done(prefetcher, fetch.shard),
                lambda: self._ended(prefetcher, fetch),
            )
        return True

    def _almost_done(self, prefetcher: Prefetcher, shard: int) -> None:
        prefetcher.almost_done(shard)
        self.settle()

    def _ended(self, prefetcher: Prefetcher, fetch: Fetch) -> None:
        self._running[prefetcher] -= 1
        prefetcher.ended(fetch, FetchResult(FetchStatus.PRESENT, size=self.size_of(fetch.shard)))

    def _fetch(
        self, prefetcher: Prefetcher, shard: int, almost: Callable[[], None], ended: Callable[[], None]
    ) -> Event:
        event = self._fetching[shard] = Event()
        self.fetched += 1
        size, raw = int(self._stored[shard]), int(self._raw[shard])
        unpacking = 0 if size == raw else raw / self._conditions.unpack_rate
        processor = self._processors.setdefault(prefetcher, Processor(self._world))
        wait = 0.0
        if self._owners is not None:
            conditions = self._conditions
            rate = min(conditions.bandwidth, REQUESTS * conditions.connection_bandwidth)
            there = conditions.latency + conditions.request_seconds + size / rate + unpacking
            wait = self._owners.ask(shard, self._world.now, there)
            if self._is_owned[shard]:
                wait = 0.0
            else:
                size, unpacking = raw, 0
                self.bytes_from_peers += size
        self.cached += self._takes(shard)
        self._passing_bytes += int(self._passing[shard])
        self.most_cached = max(self.most_cached, self.cached)

        def arrive() -> None:
            del self._fetching[shard]
            self._passing_bytes -= int(self._passing[shard])
            self._present.add(shard)
            ended()
            self._world.happens(event)
            self.settle()

        def unpack() -> None:
            self._world.after(unpacking + processor.reserve(self._conditions.publish_seconds), arrive)

        connections = 1 if size < 2 * RANGE else min(REQUESTS, -(-size // RANGE))
        sent_after = wait + processor.reserve(self._conditions.request_seconds)
        self.link.fetch(size, connections, almost, unpack, sent_after=sent_after)
        return event

    def _takes(self, shard: int) -> int:
        """Bytes of a shard beside those that are kept for all nodes."""
        return 0 if self._is_own[shard] else int(self._kept[shard])

    # -- the limit -------------------------------------------------------------------------------------------------

    def _next_use(self, shard: int) -> float:
        return min((prefetcher.next_use(shard) for prefetcher in self.prefetchers), default=math.inf)

    def _make_room(self, shard: int, urgency: float) -> bool:
        """Evict shards needed after minus `urgency`, a batch's number; False, and none, if they are not enough."""
        if self._limit is None:
            return True
        needed = self._takes(shard) + int(self._passing[shard])
        over = self.cached + self._passing_bytes + needed - self._limit
        if over <= 0:
            return True
        others = (shard for shard in self._present - self._leased.keys() if not self._is_own[shard])
        evictable = sorted(others, key=self._next_use)
        victims: list[int] = []
        while over > 0 and evictable and -self._next_use(evictable[-1]) < urgency:
            victims.append(evictable.pop())
            over -= int(self._kept[victims[-1]])
        if over > 0:
            return False
        self._present -= set(victims)
        self.evicts = True
        self.cached -= sum(int(self._kept[victim]) for victim in victims)
        return True


_Shards = npt.NDArray[np.int64]


@dataclass
class Rank:
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
        """Carry over the rank's state of the epoch before; called before `begin`."""
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
        """A worker: every n-th batch, at most as far ahead as the trainer's prefetch allows."""
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
            self.node.reads += 1
            self.node.hits += self.node.is_ready(shard)
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
