"""The shards of a dataset in one process: presence, fetching ahead, next use and leases, by number."""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import numpy as np

from headrace.dataset.batch_keys import is_bad_sample
from headrace.dataset.prefetch.horizon import Upcoming
from headrace.dataset.prefetch.limits import PrefetchLimits, max_bytes_ahead
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.dataset.progress import Progress
from headrace.dataset.streams.open_streams import OpenedStream
from headrace.errors import CacheError, FormatError, HeadraceError, StorageError
from headrace.errors.mapping import mapping_errors
from headrace.format import ShardReader, open_shard
from headrace.storage import CacheCounts, CacheEntry, FetchResult, FetchStatus, Lease, ShardCache, Transfer
from headrace.storage.cache.lease_cache import CachedLease, LeaseCache, MapCache
from headrace.storage.cache.locks import cannot_use
from headrace.tensors.decoding import TensorColumn

_MOST = 4096  # some hundred bytes each; a forgotten one is tried once more


class BadShards:
    """Errors of shards, by number: a bad shard is tried once a pass, and not once for each sample."""

    def __init__(self) -> None:
        self._errors: OrderedDict[int, tuple[type[Exception], str]] = OrderedDict()

    def __contains__(self, shard: int) -> bool:
        return shard in self._errors

    def add(self, shard: int, error: Exception) -> None:
        """Remember class and message of an error. The error itself would keep the frames that raised it."""
        self._errors[shard] = type(error), str(error)
        if len(self._errors) > _MOST:
            self._errors.popitem(last=False)

    def check(self, shard: int) -> None:
        error = self._errors.get(shard)
        if error is not None:
            raise error[0](error[1])

    def clear(self) -> None:
        """Forget all: in the next pass the objects may have been repaired."""
        self._errors.clear()


_SHORTEST_WAIT = 1_000_000  # nanoseconds; to open a present shard takes a twentieth of it
_OF_CLIENTS = (FileNotFoundError, ConnectionError, TimeoutError)  # errors of a store's client, not of the disk


class CachedShards:
    def __init__(self, streams: Sequence[OpenedStream]) -> None:
        self._streams = streams
        self._of_shard = np.repeat(np.arange(len(streams)), [len(stream.shards) for stream in streams])
        self.bad = BadShards()  # Shards that are not tried again.

    @property
    def are_local(self) -> bool:
        return all(stream.is_local for stream in self._streams)

    def place(self, shard: int) -> tuple[OpenedStream, int]:
        stream = self._streams[self._of_shard[shard]]
        return stream, shard - stream.first_shard

    def size_of(self, shard: int) -> int:
        stream, local = self.place(shard)
        return 0 if stream.is_local else stream.entries[local].size

    def _cached(self, shard: int) -> tuple[ShardCache, CacheEntry]:
        stream, local = self.place(shard)
        return stream.cache, stream.entries[local]

    def is_present(self, shard: int) -> bool:
        cache, entry = self._cached(shard)
        return cache.is_present(entry)

    def is_ready(self, shard: int) -> bool:
        return shard in self.bad or self.is_present(shard)

    def fetch(self, shard: int, *, next_use: Callable[[int], float]) -> FetchResult:
        cache, entry = self._cached(shard)
        with self._naming(shard):
            return cache.fetch(entry, next_use=_by_entry(next_use))

    def fetch_ahead(self, shard: int, *, next_use: Callable[[int], float], how: Transfer) -> FetchResult:
        """Make a shard present unless it is bad. One that another process fetches is left to that process."""
        if shard in self.bad:
            return FetchResult(FetchStatus.PRESENT)
        cache, entry = self._cached(shard)
        with self._naming(shard):
            return cache.fetch(entry, next_use=_by_entry(next_use), wait=False, how=how)

    def acquire(self, shard: int, *, next_use: Callable[[int], float]) -> Lease:
        cache, entry = self._cached(shard)
        with self._naming(shard):
            return cache.acquire(entry, next_use=_by_entry(next_use))

    def reader(self, shard: int, lease: Lease) -> ShardReader:
        """Read a mapped shard. If that fails, the lease is released."""
        stream, local = self.place(shard)
        info = stream.shards[local]
        try:
            source = f'{stream.title}: {info.files[0].raw.basename}'
            tensors = stream.tensors_in(local)
            if tensors is not None:
                info = replace(info, schema=tensors.as_bytes)
            return open_shard(info, lease.buffers, source=source, columns=stream.columns, fix=stream.fix_of(info))
        except BaseException:
            lease.release()
            raise

    def tensors(self, shard: int) -> Sequence[TensorColumn]:
        """The columns of a shard that `reader` gives as stored bytes, to be made into tensors."""
        stream, local = self.place(shard)
        tensors = stream.tensors_in(local)
        return () if tensors is None else tensors.columns

    def waited(self, shard: int, nanoseconds: int) -> None:
        self.place(shard)[0].cache.stats.add(CacheCounts(shards_waited_for=1, nanoseconds_waited=nanoseconds))

    def evict(self, shard: int) -> bool:
        cache, entry = self._cached(shard)
        return cache.evict(entry)

    @mapping_errors
    def _naming(self, shard: int) -> Generator[None]:
        """Add stream and shard to errors of storage and format.

        Any other error comes from a store's client and becomes one of storage: it does not concern the samples.
        """
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            of_its_own = isinstance(error, HeadraceError)
            if of_its_own and not isinstance(error, (StorageError, FormatError, CacheError)):
                raise
            stream, local = self.place(shard)
            where = f'Stream {stream.title}, shard {local} ({stream.shards[local].files[0].raw.basename})'
            if of_its_own:
                raise type(error)(f'{where}: {error}') from error
            if isinstance(error, OSError) and error.errno is not None and not isinstance(error, _OF_CLIENTS):
                reason = cannot_use(stream.folder, error)
                raise type(reason)(f'{where}: {reason}') from error
            raise StorageError(f'{where}: {type(error).__name__}: {error}') from error


class DatasetShards:
    """The shards that one process reads: presence, prefetch, next use and leases.

    Under a cache limit it leases one shard at a time while rows are read, and a little longer if coming batches need
    the shard. So a process that needs room waits only for readers that wait for nothing, and only briefly.
    """

    def __init__(self, streams: Sequence[OpenedStream], *, cache_limit: int | None) -> None:
        self.cached = CachedShards(streams)  # Their files.
        self._streams, self._limit = streams, math.inf if cache_limit is None else cache_limit
        self._leases: MapCache[ShardReader] | LeaseCache[ShardReader] = (
            MapCache() if cache_limit is None else LeaseCache()
        )
        # Without a limit a shard stays in the cache while it is read.
        self.give_back = None if cache_limit is None else self._leases.keep
        """Takes a shard back after a read; None if shards stay open while they are read."""
        self._prefetcher: Prefetcher | None = None
        self._is_trying_once = False

    @property
    def bad(self) -> BadShards:
        return self.cached.bad

    def fetch(self, shard: int) -> FetchResult:
        return self.cached.fetch(shard, next_use=self._next_use)

    def evict(self, shard: int) -> bool:
        self._leases.drop([shard])
        return self.cached.evict(shard)

    def _next_use(self, shard: int) -> float:
        return math.inf if self._prefetcher is None else self._prefetcher.next_use(shard)

    def follow(
        self, upcoming: Upcoming, *, first: int, limits: PrefetchLimits, progress: Progress | None = None
    ) -> None:
        """Fetch the shards of upcoming batches in the background, from number `first` on.

        The limits of the first call hold, except for `batches` and that of the cache, in which peers may have other
        shares by now. `progress` has the time that the trainer has waited.
        """
        if self.cached.are_local:
            return
        limits = replace(limits, cache_bytes=max_bytes_ahead(self._limit, self._streams))
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self.cached, limits, self.cached.fetch_ahead)
        starved = None if progress is None else lambda: progress.seconds_stalled
        self._prefetcher.follow(upcoming, first=first, limits=limits, starved=starved)

    def advance(self, batch: int) -> None:
        if self._prefetcher is not None:
            out_of_sight = self._prefetcher.advance(batch)
            if isinstance(self._leases, LeaseCache):
                self._leases.has_room = self._prefetcher.fits
                self._leases.drop(out_of_sight)

    def pause(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.pause()

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._leases.close()

    @contextlib.contextmanager
    def trying_once(self) -> Generator[None]:
        """Inside the block, a shard with bad data is remembered, and not fetched again for its next sample."""
        self._is_trying_once = True
        try:
            yield
        finally:
            self._is_trying_once = False

    def open(self, shard: int) -> CachedLease[ShardReader]:
        """The reader of a shard that is open, or is opened now; an absent shard is fetched.

        The caller gives it back after the read, with `give_back`.
        """
        held = self._leases.recent.get(shard)  # a further call would cost as much as the read of a small sample
        return self._leases.take(shard) or self._open_new(shard) if held is None else held

    def _open_new(self, shard: int) -> CachedLease[ShardReader]:
        held = CachedLease.now(*(self._open_once(shard) if self._is_trying_once else self._open(shard)))
        if self.give_back is None:
            self._leases.keep(shard, held)
        return held

    def _open_once(self, shard: int) -> tuple[Lease, ShardReader]:
        self.cached.bad.check(shard)
        try:
            return self._open(shard)
        except Exception as error:
            if not is_bad_sample(error):
                raise
            # The size is right, but the content is not: the cached file may be damaged, and the object intact.
            if not self.evict(shard):
                self.cached.bad.add(shard, error)
                raise
        try:
            return self._open(shard)
        except Exception as error:
            if is_bad_sample(error):
                self.cached.bad.add(shard, error)
            raise

    def _open(self, shard: int) -> tuple[Lease, ShardReader]:
        begin = time.perf_counter_ns()
        if self._prefetcher is not None:
            self._prefetcher.wait(shard)
        try:
            lease = self.cached.acquire(shard, next_use=self._next_use)
        finally:
            if self._prefetcher is not None:
                self._prefetcher.finish_wait()
        if (waited := time.perf_counter_ns() - begin) > _SHORTEST_WAIT:
            self.cached.waited(shard, waited)
        return lease, self.cached.reader(shard, lease)


def _by_entry(next_use: Callable[[int], float]) -> Callable[[CacheEntry], float]:
    return lambda entry: next_use(entry.id) if entry.id >= 0 else math.inf
