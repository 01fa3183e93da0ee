"""The schedule of the prefetch: the next shard, the start of its fetch, and the number of concurrent fetches.

It has no thread and does no I/O.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Container
from typing import Final, NamedTuple

from headrace.dataset.batch_keys import is_bad_sample
from headrace.dataset.prefetch.horizon import Horizon
from headrace.errors.redaction import logger_of
from headrace.storage import FetchResult, FetchStatus

_log = logger_of(__name__)

_SHORTEST: Final = 0.5  # seconds of a comparison
_LONGEST: Final = 10.0  # seconds after which it starts again
_FEWEST: Final = 4  # shards of a comparison
_STARVED: Final = 0.05  # share of the time that batches may be late before a trial
_GRACE: Final = 0.1  # seconds that they may be late besides: a server may hesitate once
_WORTH: Final = 1.3  # gain in bytes a second that justifies twice the concurrency
_PAUSE: Final = 30.0  # seconds from a failed trial to the next; doubles each time
_LONGEST_PAUSE: Final = 600.0


class Concurrency:
    """Begins with one shard at a time, and doubles while batches come late and throughput grows.

    If the network is the limit, concurrent fetches share it: each shard delays those that are needed before it. If the
    limit is a connection (object stores give each some tens of MB/s) or the latency of small objects, more fetches are
    faster. Only a trial can tell, as in the congestion control of TCP (Cardwell et al., "BBR: Congestion-Based
    Congestion Control", 2016). It only matters while a trainer waits. A failed trial delays the next shard by the time
    of another one. So a trial begins once batches have been late by as much, and at most doubles the wait.

    Fetches of other processes count too: taking throughput from them gains nothing.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic, *, width: int = 1) -> None:
        """Take the highest width, a clock in seconds, and the first width."""
        self.width = width  # Number of concurrent fetches allowed now.
        self._most, self._clock = most, clock
        self._before: float | None = None  # bytes a second before the running trial
        self._next_trial, self._pause = -float('inf'), _PAUSE
        self._compare(0.0)

    def begin(self, starved: float) -> None:
        """Begin with other shards, perhaps after a while. `starved`: total seconds that batches have been late."""
        if self._before is not None:  # the trial ends without a result
            self._before = None
            self.width //= 2
        self._compare(starved)

    def _compare(self, starved: float) -> None:
        self._since, self._starved_before, self._bytes, self._shards = self._clock(), starved, 0, 0

    def arrived(self, size: int, starved: float) -> None:
        """Count a shard that has arrived; `starved` as in `begin`."""
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
                _log.debug(
                    '%d concurrent fetches, since more were not faster: %.3g bytes/s. The next trial is in %.0f s.',
                    self.width,
                    rate,
                    self._pause,
                )
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            elif elapsed < _LONGEST:
                return  # a late batch counts only once it arrives
            self._before = None
            self._compare(starved)
        elif is_starved and late > a_shard and 2 * self.width <= self._most and self._clock() >= self._next_trial:
            self._before = rate
            self.width *= 2
            _log.debug('%d concurrent fetches, since batches were %.1f s late at %.3g bytes/s.', self.width, late, rate)
            self._compare(starved)
        elif elapsed >= max(_LONGEST, a_shard / _STARVED):
            self._compare(starved)


class Starvation:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waited = self._since = 0.0
        self.source: Callable[[], float] | None = None
        """The trainer's waits; None to count the reader's waits for shards instead."""

    @property
    def seconds(self) -> float:
        return self._waited if self.source is None else self.source()

    def begin(self) -> None:
        self._since = self._clock()

    def end(self) -> None:
        self._waited += self._clock() - self._since


PATIENCE = 5.0  # Seconds for which a shard that does not come delays later ones.
NO_ROOM_PAUSE = 0.5  # Seconds before a retry of a shard without room, unless the reader advances earlier.
POLL = 0.02  # Seconds between two looks at whether another process is done.
_RETRIES = 5  # retries of a failed prefetch, after twice, four times, ... the patience


class Fetch(NamedTuple):
    shard: int
    first: int
    is_urgent: bool  # The reader is at that batch.
    of_pass: int


class FetchSchedule:
    """Chooses the next fetch. The caller holds a lock around each call.

    The shards of the reader's own batch are fetched at once. Those of later batches follow in the order of their first
    use. Concurrent fetches share the network, so each delays the others, and only `Concurrency.width` may run. A shard
    whose last bytes come makes room for the next one, so that its bytes follow without a pause. So does a shard that
    does not come for a while. Fetches of other processes count where they are needed sooner.
    """

    def __init__(
        self, horizon: Horizon, concurrency: Concurrency | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._horizon, self._clock = horizon, clock
        self.concurrency = concurrency or Concurrency(horizon.limits.width, clock)
        self.reader_fetches = False  # Whether the reader itself fetches a shard.
        self._queue = _Queue(clock)
        self._running: dict[int, float] = {}  # shards that this process fetches, and until when each delays others
        self._others = _OtherFetches(clock)
        self._failed: dict[int, Exception] = {}
        self._no_room_until = 0.0  # time of the next try after a lack of room; 0: no lack is known
        self._pass = 0  # number of sequences so far

    def begin_pass(self) -> None:
        """Forget all but the running fetches; the next sequence may not need these shards."""
        self._pass += 1
        self._queue.clear()
        self._others.clear()
        self._failed.clear()

    def advance(self) -> None:
        """Note that the reader has advanced: there may be room, and other shards are needed."""
        self.reader_fetches = False
        self._try_again()

    def _try_again(self) -> None:
        self._no_room_until = 0.0
        self._others.keep(self._horizon)
        self._queue.reorder(self._horizon, self._running)

    def add(self, first: int, shard: int) -> bool:
        """Queue a shard that batch `first` uses; False if it was known."""
        if shard in self._queue or shard in self._running or shard in self._failed:
            return False
        self._queue.add(first, shard)
        return True

    @property
    def has_queue(self) -> bool:
        return bool(self._queue)

    # -- the next fetch --------------------------------------------------------------------------------------------

    def take(self) -> Fetch | None:
        """Begin the next fetch; None if none may begin."""
        if 0 < self._no_room_until <= self._clock():
            self._try_again()
        if not self._may_begin():
            return None
        first, shard = self._queue.take()
        self._running[shard] = self._clock() + PATIENCE
        return Fetch(shard, first, first <= self._horizon.at, self._pass)

    def _may_begin(self) -> bool:
        if not self._queue or self._no_room_until:
            return False
        first = self._queue.first
        if first <= self._horizon.at:
            return True
        if first > self._horizon.until:
            return False
        now = self._clock()
        running = sum(now < until for until in self._running.values())
        others = self._others.delays(first, self._queue.ready)
        return running + others + self.reader_fetches < self.concurrency.width

    def seconds_to_wait(self) -> float | None:
        """Seconds until a fetch may begin without a notification; None: none may."""
        if self._no_room_until:
            return max(0.0, self._no_room_until - self._clock())
        if not self._queue:
            return None
        return POLL if self._others else PATIENCE

    def wanted_threads(self, most: int) -> int:
        # One more begins while the last bytes of another's shard come, or it is unpacked.
        wanted = len(self._running) + self._queue.due(self._horizon.at, most) + self.concurrency.width + 1
        return min(most, wanted) if self._queue else 0

    # -- the end of a fetch ----------------------------------------------------------------------------------------

    def is_running(self, shard: int) -> bool:
        return shard in self._running

    def almost_done(self, shard: int) -> bool:
        """Note that the last bytes of a shard are about to come; False if its fetch has ended."""
        if shard not in self._running:
            return False
        self._running[shard] = -math.inf
        return True

    def ended(self, fetch: Fetch, result: FetchResult | Exception, *, starved: float = 0.0) -> None:
        """Note the end of a fetch. `starved`: total seconds that batches have been late."""
        del self._running[fetch.shard]
        is_current = fetch.of_pass == self._pass
        first = fetch.first if is_current else self._horizon.next_own_use(fetch.shard)
        if first == math.inf:
            return
        if isinstance(result, Exception):
            if is_current and (fetch.is_urgent or is_bad_sample(result)):
                self._failed[fetch.shard] = result
            else:
                self._queue.failed(fetch.shard)
        elif result:
            self._queue.came(fetch.shard)
            self._others.discard(fetch.shard)
            if result.size:
                self.concurrency.arrived(result.size, starved)
        else:
            self._queue.refused(fetch.shard)
            if result.status is FetchStatus.ELSEWHERE:
                self._others.add(int(first), fetch.shard)
            else:
                # Later shards have no room either. A timer, since the reader may pause, as between two epochs.
                self._no_room_until = self._clock() + NO_ROOM_PAUSE

    def others_to_look_at(self) -> list[int]:
        """The shards that other processes fetch, if it is time to check which have arrived."""
        return self._others.to_look_at()

    def came_from_others(self, shard: int, size: int, starved: float) -> None:
        """Note that another process has fetched a shard of `size` bytes; `starved` as in `ended`."""
        if self._others.discard(shard):
            self._queue.drop_refused(shard)
            self.concurrency.arrived(size, starved)

    # -- the reader ------------------------------------------------------------------------------------------------

    def leave(self, shard: int) -> None:
        """Leave a shard to the reader, which needs it now, unless its fetch is running."""
        self.reader_fetches = self._queue.drop(shard)

    def take_failure(self, shard: int) -> Exception | None:
        """The error that the fetch of a shard left for the reader, if any. The shard may be prefetched again."""
        self._queue.forgive(shard)
        return self._failed.pop(shard, None)

    def close(self) -> None:
        self._queue.clear()
        self._failed.clear()


class _Queue:
    """Shards in the order of their first use, and those that wait for another try.

    A refused shard (another process fetches it, or it had no room) is tried again as the reader advances. A failed
    shard is tried again some time later. After some failures only the reader tries it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._items: deque[tuple[int, int]] = deque()  # (first batch, shard)
        self._shards: set[int] = set()  # of these
        self._refused: set[int] = set()
        self._retry_at: dict[int, float] = {}  # failed shards that are tried again
        self._failures: dict[int, int] = {}  # of all failed shards

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, shard: int) -> bool:
        """Whether a shard will be fetched, or failed so often that only the reader fetches it."""
        return shard in self._shards or shard in self._failures or shard in self._refused

    @property
    def first(self) -> int:
        return self._items[0][0]

    @property
    def ready(self) -> Container[int]:
        return self._shards

    def due(self, batch: int, most: int) -> int:
        """Number of the next `most` shards that this batch or an earlier one uses."""
        return sum(first <= batch for first, _ in itertools.islice(self._items, most))

    def add(self, first: int, shard: int) -> None:
        bisect.insort(self._items, (first, shard))
        self._shards.add(shard)

    def take(self) -> tuple[int, int]:
        first, shard = self._items.popleft()
        self._shards.discard(shard)
        return first, shard

    def drop(self, shard: int) -> bool:
        """Leave a shard to the reader; True if it was waiting."""
        if shard in self._shards:
            self._shards.remove(shard)
            self._items = deque(item for item in self._items if item[1] != shard)
            return True
        return self.drop_refused(shard) or shard in self._retry_at

    def drop_refused(self, shard: int) -> bool:
        is_refused = shard in self._refused
        self._refused.discard(shard)
        return is_refused

    def forgive(self, shard: int) -> None:
        """Forget the failures of a shard, so that it may be added again."""
        self._retry_at.pop(shard, None)
        self._failures.pop(shard, None)

    def clear(self) -> None:
        for part in (self._items, self._shards, self._refused, self._retry_at, self._failures):
            part.clear()

    def came(self, shard: int) -> None:
        self._failures.pop(shard, None)

    def failed(self, shard: int) -> None:
        failures = self._failures[shard] = self._failures.get(shard, 0) + 1
        if failures <= _RETRIES:
            self._retry_at[shard] = self._clock() + PATIENCE * 2**failures

    def refused(self, shard: int) -> None:
        """Note that another process fetches a taken shard, or that it had no room."""
        self._refused.add(shard)

    def reorder(self, horizon: Horizon, running: Container[int]) -> None:
        """Add shards that were refused, or failed a while ago, and drop those out of sight."""
        now = self._clock()
        again = self._refused.union(shard for shard, when in self._retry_at.items() if when <= now)
        if not again and not (self._items and self.first < horizon.at):
            return
        self._retry_at = {shard: when for shard, when in self._retry_at.items() if when > now}
        self._refused.clear()
        self._shards = {shard for shard in self._shards | again if shard in horizon and shard not in running}
        self._items = deque(sorted((int(horizon.next_own_use(shard)), shard) for shard in self._shards))


class _OtherFetches:
    """Shards that other processes fetch. Each delays the shards that are needed after it, but not for ever."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shards: dict[int, tuple[int, float]] = {}  # first batch, and until when it delays others
        self._next_look = 0.0

    def __bool__(self) -> bool:
        return bool(self._shards)

    def add(self, first: int, shard: int) -> None:
        self._shards.setdefault(shard, (first, self._clock() + PATIENCE))

    def discard(self, shard: int) -> bool:
        return self._shards.pop(shard, None) is not None

    def keep(self, shards: Container[int]) -> None:
        self._shards = {shard: item for shard, item in self._shards.items() if shard in shards}

    def clear(self) -> None:
        self._shards.clear()

    def to_look_at(self) -> list[int]:
        """The shards, if it is time to check which have arrived."""
        now = self._clock()
        if now < self._next_look:
            return []
        self._next_look = now + POLL / 2
        return list(self._shards)

    def delays(self, first: int, besides: Container[int]) -> int:
        """Number of shards, without `besides`, that delay a shard of batch `first`."""
        now = self._clock()
        return sum(
            its_first <= first and now < until and shard not in besides
            for shard, (its_first, until) in self._shards.items()
        )
