"""All shards of a dataset by number: their presence, fetch and lease."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import numpy as np

from headrace.dataset.reading.bad_shards import BadShards
from headrace.dataset.streams.images import ImageColumn
from headrace.dataset.streams.stream import Stream
from headrace.error_mapping import mapping_errors
from headrace.errors import CacheError, FormatError, HeadraceError, StorageError
from headrace.format import ShardReader, open_shard
from headrace.storage import CacheEntry, FetchResult, FetchStatus, Lease, Transfer

__all__ = ['DatasetShards']


class DatasetShards:
    """The shards of all streams in their caches."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        """Take opened streams."""
        self._streams = streams
        self._of_shard = np.repeat(np.arange(len(streams)), [len(stream.shards) for stream in streams])
        self.bad = BadShards()
        """Shards that are not tried again."""

    @property
    def are_local(self) -> bool:
        """Whether none is ever fetched."""
        return all(stream.is_local for stream in self._streams)

    def place(self, shard: int) -> tuple[Stream, int]:
        """The stream of a shard, and the shard's number in it."""
        stream = self._streams[self._of_shard[shard]]
        return stream, shard - stream.first_shard

    def size_of(self, shard: int) -> int:
        """Bytes of a shard in the cache."""
        stream, local = self.place(shard)
        return 0 if stream.is_local else stream.entry(local).size

    def is_present(self, shard: int) -> bool:
        """Whether all files of a shard are in its cache."""
        stream, local = self.place(shard)
        return stream.cache().is_present(stream.entry(local))

    def is_ready(self, shard: int) -> bool:
        """Whether a shard needs no fetching."""
        return shard in self.bad or self.is_present(shard)

    def fetch(self, shard: int, *, next_use: Callable[[int], float]) -> FetchResult:
        """Make a shard present in its cache, and wait for that."""
        stream, local = self.place(shard)
        with self._naming(shard):
            return stream.cache().fetch(stream.entry(local), next_use=_by_entry(next_use))

    def fetch_ahead(self, shard: int, how: Transfer, next_use: Callable[[int], float]) -> FetchResult:
        """Make a shard present in its cache, unless that needs to wait for another process."""
        if shard in self.bad:
            return FetchResult(FetchStatus.PRESENT)
        stream, local = self.place(shard)
        with self._naming(shard):
            return stream.cache().fetch(stream.entry(local), next_use=_by_entry(next_use), wait=False, how=how)

    def acquire(self, shard: int, *, next_use: Callable[[int], float]) -> Lease:
        """Make a shard present and map it."""
        stream, local = self.place(shard)
        with self._naming(shard):
            return stream.cache().acquire(stream.entry(local), next_use=_by_entry(next_use))

    def reader(self, shard: int, lease: Lease) -> ShardReader:
        """Read a mapped shard. If that fails, the lease is released."""
        stream, local = self.place(shard)
        info = stream.shards[local]
        try:
            source = f'{stream.title}: {info.files[0].raw.basename}'
            images = stream.images_in(local)
            if images is not None:
                info = replace(info, schema=images.as_bytes)
            return open_shard(info, lease.buffers, source=source, columns=stream.columns)
        except BaseException:
            lease.release()
            raise

    def images(self, shard: int) -> Sequence[ImageColumn]:
        """The columns of a shard that `reader` gives as stored bytes, to be made into tensors."""
        stream, local = self.place(shard)
        images = stream.images_in(local)
        return () if images is None else images.columns

    def waited(self, shard: int, nanoseconds: int) -> None:
        """Count the time for which a reader waited for a shard."""
        self.place(shard)[0].cache().stats.add(waits=1, nanoseconds_waited=nanoseconds)

    def evict(self, shard: int) -> bool:
        """Remove a shard from its cache; False if it stays."""
        stream, local = self.place(shard)
        return stream.cache().evict(stream.entry(local))

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
            raise StorageError(f'{where}: {type(error).__name__}: {error}') from error


def _by_entry(next_use: Callable[[int], float]) -> Callable[[CacheEntry], float]:
    return lambda entry: next_use(entry.id)
