"""Shards are fetched ahead of the reader, in the order in which the plan first uses them."""

from __future__ import annotations

import bisect
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from headrace.dataset.bad_sample import is_bad_sample
from headrace.dataset.concurrency import Concurrency
from headrace.dataset.fetch_queue import FetchQueue
from headrace.dataset.look_ahead import LookAhead
from headrace.dataset.upcoming import Upcoming
from headrace.dataset.uses import Frontier, Uses
from headrace.storage import FetchResult, FetchStatus, Transfer

__all__ = ['Prefetcher']

_SCAN = 64  # batches looked at in one call at most, so that no single batch waits for the whole look-ahead
_FEWEST = 2  # shards ahead, however large they are
_THREADS = 8  # shards being fetched, verified and unpacked at the same time; `storage.transfer` bounds the requests
_WIDEST = 64  # shards that the processes of a rank have under way at most
_POLL = 0.02  # seconds between two looks at whether another process is done
_NO_ROOM = 0.5  # seconds after which what had no room is tried again, if the reader does not move on before
_NEAR = 16  # shards needed next that are looked at again: a limit evicts by what it knew of their uses a while ago
_PATIENCE = 5.0  # seconds for which a shard that does not come delays those that are needed after it


class Prefetcher:
    """Fetches, in one process, the shards that batches need which come next.

    All workers of a rank look along the rank's batches, and not only along their own: so the shards of the next batch
    are fetched before those of later ones, whoever reads it. A shard that another process is fetching is left to it.
    What the reader's own batch needs is fetched at once, and what later ones need in order, `Concurrency.width` shards
    at a time: they share the network, so each one delays those before it. What other processes fetch that is needed
    sooner counts, too. As the last bytes of a shard come, the next one is asked for, so that its first ones follow
    without a pause.

    Single reader: `follow`, `advance`, `wait` and `close` are called by the thread that reads batches; only `fetch`
    runs in threads. They are daemons, started at the first missing shard, so that a process can end while the network
    hangs.

    Args:
        fetch: makes one shard present, if it can be without waiting for anybody; may raise.
        is_present: whether a shard needs no fetching.
        size_of: bytes that a shard takes in the cache.
        ahead: how far to look.
        room: bytes of the shards that a cache with a limit holds ahead of the reader; inf: it has none.
    """

    def __init__(
        self,
        *,
        fetch: Callable[[int, Transfer], FetchResult],
        is_present: Callable[[int], bool],
        size_of: Callable[[int], int],
        ahead: LookAhead,
        room: float = math.inf,
    ) -> None:
        self._is_limited = room < math.inf
        self._fetch = fetch
        self._is_present = is_present
        self._size_of = size_of
        self._ahead = ahead
        self._lock = threading.Condition()
        self._queue = FetchQueue(_PATIENCE)
        self._running: dict[int, float] = {}  # shard, and until when it delays others
        self._almost_done: set[int] = set()  # of these
        self._waited = self._waiting_since = 0.0  # seconds
        self._starved: Callable[[], float] = lambda: self._waited
        self._concurrency = Concurrency(_WIDEST)
        self._failed: dict[int, Exception] = {}
        self._next_look = 0.0  # when to see what other processes have fetched
        self._no_room_until = 0.0  # when to try again what had no room; 0: there is room, as far as is known
        self._pass = 0  # how many sequences were followed
        self._at = -1  # the reader's batch
        self._reader_fetches = False
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._upcoming: Upcoming | None = None
        self._uses = Uses()  # from the reader's batch on
        self._node_uses = Uses()  # by all ranks of the node, where the cache has a limit
        self._frontier = Frontier(size_of, room)
        self._beyond: deque[tuple[int, list[int]]] = deque()  # own shards of the batches beyond it
        self._first_uses: deque[tuple[int, int]] = deque()  # (first batch, bytes) of what is fetched ahead
        self._bytes = 0  # their sum
        self._seen = -1  # last batch that was looked at

    def follow(self, upcoming: Upcoming, *, first: int, starved: Callable[[], float] | None = None) -> None:
        """Look ahead along another sequence of batches.

        Args:
            upcoming: The batches.
            first: Number of the first one.
            starved: How many seconds batches came late, in all; None: as long as the reader waited for shards.
        """
        self.rest()
        self._upcoming = upcoming
        self._seen = first - 1
        self._starved = starved or (lambda: self._waited)
        self._concurrency.begin(self._starved())

    def rest(self) -> None:
        """Begin no more fetches until there is another sequence to `follow`; those under way end by themselves."""
        with self._lock:
            self._pass += 1
            self._queue.clear()
            self._failed.clear()
            self._uses.clear()
            self._node_uses.clear()
            self._frontier.clear()
            self._beyond.clear()
        self._upcoming = None
        self._first_uses.clear()
        self._bytes = 0

    def advance(self, batch: int) -> list[int]:
        """Say that the reader is at `batch`, and look further ahead.

        Returns:
            Shards that earlier batches used, and none in sight uses again.
        """
        while self._first_uses and self._first_uses[0][0] <= batch:
            self._bytes -= self._first_uses.popleft()[1]
        with self._lock:
            self._at, self._reader_fetches, self._no_room_until = batch, False, 0.0
            used = self._uses.drop_before(batch)
            self._node_uses.drop_before(batch - self._ahead.lag)
            self._queue.reorder(batch, self._uses, self._running)
            self._lock.notify_all()
        if self._is_limited:
            self._enter(batch)
            for shard in self._uses.soonest(_NEAR, after=batch, until=self._frontier.batch):
                self._expect(int(self._uses.next_of(shard)), shard)
        self._look_ahead(batch)
        with self._lock:
            self._start_threads()
            self._lock.notify_all()
            return [shard for shard in used if shard not in self._uses]

    def _start_threads(self) -> None:
        """Start as many as could have something to do. Needs the lock."""
        if len(self._threads) == _THREADS:
            return
        # One more begins while the last bytes of another's shard come, or it is unpacked.
        wanted = len(self._running) + self._queue.due(self._at, _THREADS) + self._concurrency.width + 1
        while self._queue and len(self._threads) < min(_THREADS, wanted):
            thread = threading.Thread(target=self._work, name='headrace-fetch', daemon=True)
            try:
                thread.start()
            except RuntimeError:  # this process may have no more of them: the reader fetches by itself
                return
            self._threads.append(thread)

    def _look_ahead(self, batch: int) -> None:
        for _ in range(_SCAN):
            if self._upcoming is None or self._seen >= batch + self._ahead.batches or self._is_far_enough:
                return
            item = next(self._upcoming, None)
            if item is None:
                self._upcoming = None
                return
            self._seen = item.number
            own = list(dict.fromkeys(item.shards.tolist()))
            with self._lock:
                held_all = self._frontier.holds_all
                new = self._uses.add(self._seen, own)
                if self._is_limited:
                    of_node = own if item.of_node is None else list(dict.fromkeys(item.of_node.tolist()))
                    self._node_uses.add(self._seen, of_node)
                    self._frontier.add(self._seen, of_node)
                    self._beyond.append((self._seen, own))
            if not self._is_limited:
                for shard in new:
                    self._expect(self._seen, shard)
            elif held_all:
                self._enter(batch)

    @property
    def _is_far_enough(self) -> bool:
        return self._bytes >= self._ahead.bytes and len(self._first_uses) >= _FEWEST

    def _enter(self, batch: int) -> None:
        """Have fetched what a limit has room for from now on: what was present before may have been evicted since."""
        with self._lock:
            self._frontier.move(batch - self._ahead.lag, batch)
        while self._beyond and self._beyond[0][0] <= self._frontier.batch:
            if self._is_far_enough and self._beyond[0][0] > batch + 1:
                return
            first, shards = self._beyond.popleft()
            for shard in shards:
                if self._uses.next_of(shard) == first:
                    self._expect(first, shard)

    def _expect(self, first: int, shard: int) -> None:
        """Have a shard fetched that batch `first` uses, if it is not there and nobody has said so."""
        if self._is_present(shard):
            return
        with self._lock:
            if shard in self._queue or shard in self._running or shard in self._failed:
                return
            size = self._size_of(shard)
            bisect.insort(self._first_uses, (first, size))
            self._bytes += size
            self._queue.add(first, shard)
            self._start_threads()
            self._lock.notify()

    def wait(self, shard: int) -> None:
        """Wait until a shard that is being fetched is there. If it is not, the caller fetches it at once.

        To be followed by `has_shard`.

        Raises:
            Exception: what fetching it raised, if that had begun when it was already waited for, or if it is its data
                that are bad. The next call tries again.
        """
        with self._lock:
            self._waiting_since = time.monotonic()
            self._reader_fetches = self._queue.drop(shard)
            while shard in self._running:
                self._lock.wait()
            # The reader gets it now, or ends the run; after that it may be fetched ahead again.
            self._queue.forgive(shard)
            self._lock.notify_all()
            failure = self._failed.pop(shard, None)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame: a cycle, which would hold the reader's dataset, too

    @property
    def fits(self) -> bool:
        """Whether the cache has room for more than what the next batches read."""
        return self._frontier.holds_all or self._frontier.batch > self._at + 1

    def next_use(self, shard: int) -> float:
        """Number of the next batch that uses a shard, of this rank or another of its node; inf: none in sight."""
        with self._lock:
            return min(self._uses.next_of(shard), self._node_uses.next_of(shard))

    def close(self) -> None:
        """Take no more shards, for good. Fetches under way end by themselves."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._failed.clear()
            self._starved = lambda: 0.0  # what says so has a file open
            self._lock.notify_all()

    def has_shard(self) -> None:
        """Say that the reader has the shard of its last `wait`, or cannot have it."""
        with self._lock:
            self._waited += time.monotonic() - self._waiting_since
            if self._reader_fetches:
                self._reader_fetches = False
                self._lock.notify_all()

    def _may_begin(self) -> bool:
        """Whether the first shard of the queue may be fetched now. Needs the lock."""
        if not self._queue or self._no_room_until:
            return False
        next_first = self._queue.first
        if next_first <= self._at:
            return True
        if next_first > self._frontier.batch and self._is_limited:
            return False
        now = time.monotonic()
        mine = sum(now < until for shard, until in self._running.items() if shard not in self._almost_done)
        return mine + self._reader_fetches + self._queue.delayed_by() < self._concurrency.width

    def _longest_wait(self) -> float | None:
        """Seconds after which something may begin although nobody says so. Needs the lock."""
        if self._no_room_until:
            return max(0.0, self._no_room_until - time.monotonic())
        if not self._queue:
            return None
        return _POLL if self._queue.elsewhere else _PATIENCE

    def _look_elsewhere(self) -> None:
        """See what other processes have done."""
        with self._lock:
            now = time.monotonic()
            if now < self._next_look:
                return
            self._next_look = now + _POLL / 2
            shards = self._queue.elsewhere
        present: list[int] = []
        for shard in shards:
            with contextlib.suppress(OSError):  # raised to the reader, once it needs the shard
                if self._is_present(shard):
                    present.append(shard)
        with self._lock:
            for shard in present:
                if self._queue.came_elsewhere(shard):
                    self._concurrency.arrived(self._size_of(shard), self._starved())

    def _near(self, shard: int) -> None:
        with self._lock:
            if shard in self._running:
                self._almost_done.add(shard)
                self._lock.notify_all()

    def _work(self) -> None:
        # No error of a fetch stays here while the thread waits for the next one. It holds the frames in which it was
        # raised, the reader's too: its dataset would never be deleted, and never end this thread.
        while (taken := self._take()) is not None:
            self._fetch_now(*taken)

    def _take(self) -> tuple[int, int, int, Transfer] | None:
        """Wait until a shard may be fetched.

        Returns:
            The pass, the first batch of it that uses the shard, the shard, and how it is fetched. None: the end.
        """
        while True:
            self._look_elsewhere()
            with self._lock:
                if 0 < self._no_room_until <= time.monotonic():
                    self._no_room_until = 0.0
                    self._queue.reorder(self._at, self._uses, self._running)
                if not self._closed and not self._may_begin():
                    self._lock.wait(self._longest_wait())
                if self._closed:
                    return None
                if self._may_begin():
                    first, shard = self._queue.take()
                    self._running[shard] = time.monotonic() + _PATIENCE
                    how = Transfer(urgent=first <= self._at, almost_done=partial(self._near, shard))
                    return self._pass, first, shard, how

    def _fetch_now(self, of_pass: int, first: int, shard: int, how: Transfer) -> None:
        try:
            came = not self._is_present(shard)
            outcome = self._fetch(shard, how)
        except Exception as error:
            self._end(of_pass, first, shard, how, error)
        else:
            self._end(of_pass, first, shard, how, outcome, came=came)

    def _end(
        self,
        of_pass: int,
        first: float,
        shard: int,
        how: Transfer,
        outcome: FetchResult | Exception,
        *,
        came: bool = False,
    ) -> None:
        """Note what became of a fetch.

        Args:
            of_pass: The pass in which it began.
            first: The first batch of that pass that uses the shard.
            shard: Its number.
            how: As it was fetched.
            outcome: What the fetch returned or raised.
            came: Whether it was not there before.
        """
        with self._lock:
            del self._running[shard]
            self._almost_done.discard(shard)
            self._lock.notify_all()
            if of_pass != self._pass:
                first = self._uses.next_of(shard)
                if first == math.inf:
                    return
            if isinstance(outcome, Exception):
                if of_pass == self._pass and (how.urgent or is_bad_sample(outcome)):
                    self._failed[shard] = outcome  # raised again in the reader, by `wait`
                else:
                    self._queue.failed(int(first), shard)
            elif outcome:
                self._queue.came(shard)
                if came:
                    self._concurrency.arrived(self._size_of(shard), self._starved())
            else:
                is_elsewhere = outcome.status is FetchStatus.ELSEWHERE
                self._queue.refused(int(first), shard, elsewhere=is_elsewhere)
                if not is_elsewhere:
                    # For what is needed later, there is none either. The reader may rest, as between two epochs.
                    self._no_room_until = time.monotonic() + _NO_ROOM
