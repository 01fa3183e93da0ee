"""Leases that a process keeps between two reads, because opening a shard takes longer than reading from it.

Without a limit nothing is ever evicted, and maps may stay. Under a limit, a cached lease blocks eviction. Its holder
may itself wait for its trainer or another rank. So all processes of a machine share one clock: each releases all cached
leases before the end of a `PERIOD`, by a thread between reads. During the `GAP` only reads hold shards. A process whose
fetches wait for room keeps no leases for a while.

The thread needs the interpreter's lock. An extension that does not release it delays the release of leases.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from headrace.storage.cache.mapped_file import Lease
from headrace.storage.transfer.process_local import PerProcess

T = TypeVar('T')

PERIOD: Final = 0.5  # Seconds between two moments at which no process of the machine keeps a lease.

GAP: Final = 0.08  # The last seconds of each period, in which no lease is cached under a limit.

PAUSE: Final = 1.0  # Seconds without cached leases after a fetch of this process had to wait for room.

MAPPED_SHARDS = 1024
"""Shards that one process keeps mapped at most; without a limit a map costs address space, not memory."""

LEASED_SHARDS = 128  # Leases that are cached under a limit at most; each has a descriptor open.


@dataclass(frozen=True, slots=True)
class CachedLease(Generic[T]):
    """A lease, and what its holder has made of its buffers."""

    lease: Lease
    value: T
    until: float  # Until when the lease may be cached; seconds of the clock that all processes of the machine share.

    @classmethod
    def now(cls, lease: Lease, value: T) -> CachedLease[T]:
        return cls(lease, value, (time.monotonic() // PERIOD + 1) * PERIOD - GAP)


class MapCache(Generic[T]):
    """Without a limit: the shards used last stay mapped, shared by threads.

    There are two generations. A full younger one becomes the older one, which is forgotten in turn. So a lookup of a
    shard in use is a single lookup in a dict, without the bookkeeping of a linked list.
    """

    def __init__(self) -> None:
        self.recent: dict[int, CachedLease[T]] = {}
        """The younger generation, for a lookup that costs no call. `take` looks into both."""
        self._old: dict[int, CachedLease[T]] = {}
        self._lock = threading.Lock()

    def take(self, shard: int) -> CachedLease[T] | None:
        """The cached lease of a shard, if any. It stays in the cache."""
        held = self.recent.get(shard)
        if held is None and shard in self._old:
            with self._lock:
                held = self._old.pop(shard, None)  # None: another thread was here
                if held is None:
                    return self.recent.get(shard)
                self._add(shard, held)
        return held

    def keep(self, shard: int, held: CachedLease[T]) -> None:
        with self._lock:
            self._add(shard, held)

    def _add(self, shard: int, held: CachedLease[T]) -> None:
        if len(self.recent) >= MAPPED_SHARDS // 2:
            self._old, self.recent = self.recent, {}  # the old ones are unmapped when their last reader is done
        self.recent[shard] = held

    def drop(self, shards: Iterable[int]) -> None:
        with self._lock:
            for shard in shards:
                self.recent.pop(shard, None)
                self._old.pop(shard, None)

    def close(self) -> None:
        with self._lock:
            self.recent, self._old = {}, {}


class LeaseCache(Generic[T]):
    """Under a limit: leases between two reads, for a short time. Thread-safe; not for use after a fork."""

    def __init__(self) -> None:
        self.recent: Mapping[int, CachedLease[T]] = {}  # Empty: a kept lease must be taken.
        self._leased: OrderedDict[int, CachedLease[T]] = OrderedDict()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.has_room = True  # Whether leases are cached; False if the cache cannot hold the next reads.
        _of_process.get().add(self)

    def take(self, shard: int) -> CachedLease[T] | None:
        """The cached lease of a shard, if any, for the caller alone; return it with `keep`."""
        with self._changed:
            held = self._leased.pop(shard, None)
        if held is not None:
            held.lease.attach()
        return held

    def keep(self, shard: int, held: CachedLease[T]) -> None:
        """Keep a lease after a read, or release it."""
        given_back: CachedLease[T] | None = held
        now = time.monotonic()
        if self.has_room and now < held.until and now >= _of_process.get().paused_until and held.lease.is_valid:
            held.lease.detach()
            with self._changed:
                given_back = self._leased.pop(shard, None)  # another thread's
                self._leased[shard] = held
                if len(self._leased) > LEASED_SHARDS:
                    _, given_back = self._leased.popitem(last=False)
                if self._thread is None:
                    self._start_thread()
        if given_back is not None:
            given_back.lease.release()

    def drop(self, shards: Iterable[int]) -> None:
        with self._changed:
            dropped = [held for shard in shards if (held := self._leased.pop(shard, None)) is not None]
        _release(dropped)

    def close(self) -> None:
        with self._changed:
            dropped = list(self._leased.values())
            self._leased.clear()
            self._changed.notify()
        _release(dropped)

    def _start_thread(self) -> None:
        """Start the thread that releases leases; without one none is cached. Needs the lock."""
        thread = threading.Thread(target=self._run_thread, name='headrace-leases', daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit of threads
            _release(self._leased.values())
            self._leased.clear()
        else:
            self._thread = thread

    def _run_thread(self) -> None:
        try:
            self._release_in_time()
        except BaseException:
            self._thread = None  # so that another one is started
            raise

    def _release_in_time(self) -> None:
        while True:
            with self._changed:
                if not self._leased:
                    self._thread = None
                    return
                self._changed.wait(max(0.0, min(held.until for held in self._leased.values()) - time.monotonic()))
                now = time.monotonic()
                old = [shard for shard, held in self._leased.items() if held.until <= now]
            self.drop(old)


def _release(dropped: Iterable[CachedLease[T]]) -> None:
    for held in dropped:
        held.lease.release()


class _OfProcess:
    def __init__(self) -> None:
        self.paused_until = 0.0
        self._all: weakref.WeakSet[LeaseCache[Any]] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, cache: LeaseCache[Any]) -> None:
        with self._lock:
            self._all.add(cache)

    def close_all(self) -> None:
        with self._lock:
            everything = list(self._all)
        for cache in everything:
            cache.close()


_of_process = PerProcess(_OfProcess)


def release_leases() -> None:
    """Release all leases that this process keeps, and keep none for a while: a fetch waits for room."""
    state = _of_process.get()
    state.paused_until = time.monotonic() + PAUSE
    state.close_all()


# A child's copies of descriptors and maps would hold the space of evicted files until the child ends.
os.register_at_fork(before=lambda: _of_process.get().close_all())
