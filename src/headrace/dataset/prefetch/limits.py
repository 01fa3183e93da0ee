"""How far the prefetch goes ahead: in batches, bytes and shards, and as a cache has room."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.dataset.streams.open_streams import OpenedStream
from headrace.errors import ConfigError
from headrace.errors.redaction import warn
from headrace.order import Mixture, OrderConfig
from headrace.order.config import SharedShards, shared_shards
from headrace.storage.cache.entry import space_needed

_SAMPLES = 1 << 16
_BYTES = 512 << 20
_SHARDS = 1024  # Small shards hide any latency, too; more take seconds to plan.
_FEWEST = 2  # Shards ahead, of any size.
_OF_CACHE = 0.75  # The rest of a cache limit is for running fetches.
_LOOKED_AT = 256  # Shards of a stream, for the mean bytes of a sample.


@dataclass(frozen=True, slots=True)
class PrefetchLimits:
    """How far a process fetches ahead of its reader. The limit that is reached first holds, and `Prefetcher` logs it.

    `threads` and `width` bound the fetches at one time; `Concurrency` logs each change. Both log at level DEBUG.
    """

    batches: int
    bytes: float = math.inf  # Bytes of shards that are fetched or queued, and not yet used.
    lag: int = 8  # Batches by which another rank may be behind: its workers read ahead of its trainer.
    shards: float = math.inf  # The same as ``bytes``, in shards.
    cache_bytes: float = math.inf
    """Bytes of shards that a cache with a limit holds ahead of the reader, for all ranks of a node; inf: no limit."""
    threads: int = 8
    """Shards that are fetched, verified and unpacked at the same time. `storage.transfer.download` bounds requests."""
    width: int = 64
    """Concurrent fetches of all processes of a rank at most; `Concurrency` says how many of these are allowed now."""


def prefetch_limits(predownload: int | None, batch_size: int, workers: int = 1) -> PrefetchLimits:
    """The limits of a process that makes batches, without that of a cache; `workers` make a rank's in turn.

    `predownload`: the dataset's number of samples for each worker; by default it is bounded in bytes and shards.
    """
    lag = max(8, 4 * workers)  # each has some batches ready, 2 as a rule
    if predownload is None:
        return PrefetchLimits(max(8, _SAMPLES // batch_size), _BYTES, lag, _SHARDS)
    return PrefetchLimits(math.ceil(predownload / batch_size) * workers, lag=lag)


def check_predownload(predownload: int | None, batch_size: int | None) -> None:
    """Check the number of samples to prefetch for each worker; warn if it is below a batch."""
    if predownload is None:
        return
    if batch_size is not None and predownload < batch_size:
        warn(
            f'predownload < batch_size ({predownload} < {batch_size}). This may result in slower batch time. '
            f'Recommendation is to set predownload to at least the batch size.',
            stacklevel=4,
        )


class ShardsAhead:
    def __init__(self, limits: PrefetchLimits) -> None:
        self._limits = limits
        self._first_uses: deque[tuple[int, int]] = deque()  # (first batch, bytes)
        self.bytes = 0  # Bytes of all these shards.

    def __len__(self) -> int:
        return len(self._first_uses)

    @property
    def reached(self) -> str:
        """The limit that they reach, 'shards' or 'bytes'; empty: none."""
        count, limits = len(self._first_uses), self._limits
        if count >= limits.shards:
            return 'shards'
        return 'bytes' if self.bytes >= limits.bytes and count >= _FEWEST else ''

    def add(self, first: int, size: int) -> None:
        bisect.insort(self._first_uses, (first, size))
        self.bytes += size

    def drop_until(self, batch: int) -> None:
        """Forget the shards that this batch uses, or an earlier one."""
        while self._first_uses and self._first_uses[0][0] <= batch:
            self.bytes -= self._first_uses.popleft()[1]

    def clear(self) -> None:
        self._first_uses.clear()
        self.bytes = 0


def fixed_bytes(streams: Sequence[OpenedStream]) -> int:
    """Bytes of the streams' caches that are never evicted, such as those of indexes; each folder counts once."""
    sizes: dict[Path, int] = {}
    for stream in streams:
        cache = stream.cache
        sizes[cache.folder] = max(cache.fixed_size, sizes.get(cache.folder, 0))
    return sum(sizes.values())


def max_bytes_ahead(limit: float, streams: Sequence[OpenedStream]) -> float:
    """Bytes of shards that a prefetch may have ahead of its reader, under a cache limit; inf: there is none."""
    peers = next((stream.cache.peers.peers for stream in streams if stream.cache.peers is not None), None)
    return _OF_CACHE * (limit - fixed_bytes(streams) - (0 if peers is None else peers.kept_bytes))


def require_room(limit: int, streams: Sequence[OpenedStream]) -> None:
    """Check that the largest shard can be fetched, before the first fetch: it may come late in the epoch."""
    fixed = fixed_bytes(streams)
    for stream in streams:
        if stream.is_local:  # it takes no room
            continue
        stored = np.add.reduceat(stream.shards.sizes, stream.shards.first_files[:-1])
        entry = stream.entries[int(np.argmax(np.where(np.asarray(stream.size().shard_sizes) > 0, stored, -1)))]
        needed = fixed + space_needed(stream.folder, list(entry.parts), keep_packed=bool(stream.keep_zip))
        if needed > limit and not stream.cache.is_present(entry):
            raise ConfigError(
                f'Minimum cache usage ({needed} bytes) is larger than the cache limit ({limit} bytes): fetching '
                f'{entry.key} of stream {stream.title} takes that much, with its compressed file and what must stay. '
                f'Increase the `cache_limit` to at least {needed} bytes.'
            )


def bytes_side_by_side(streams: Sequence[OpenedStream], mixture: Mixture, config: OrderConfig, nodes: int) -> int:
    """Approximate bytes of the shards that one node reads in turn; 0 if it reads one after the other.

    A canonical node spreads the samples of a shard over ``block_size`` samples of its sequence. So it reads in turn as
    many shards as have that many samples. A node reads its share of the canonical nodes side by side.
    """
    if not config.shuffle or config.block_size is None or config.num_canonical_nodes is None:
        return 0
    window = config.block_size * math.ceil(config.num_canonical_nodes / nodes)
    shares = np.asarray(mixture.choose, np.float64) / max(1, sum(mixture.choose))
    total = 0.0
    for stream, share in zip(streams, shares.tolist(), strict=True):
        if stream.is_local:  # it takes no room
            continue
        some = np.unique(np.linspace(0, len(stream.shards) - 1, _LOOKED_AT).astype(np.int64)).tolist()
        samples = max(1, int(stream.shards.samples[some].sum()))
        a_sample = sum(stream.entries[shard].size for shard in some) / samples
        total += a_sample * min(window * share, int(stream.shards.samples.sum()))
    return int(total)


class RoomShortage(NamedTuple):
    text: str
    fix: str


def room_shortage(
    limit: int, streams: Sequence[OpenedStream], mixture: Mixture, config: OrderConfig, nodes: int
) -> RoomShortage | None:
    """The warning where shards are going to be evicted before all of their samples are read; arguments as above."""
    needed = bytes_side_by_side(streams, mixture, config, nodes)
    if needed <= limit:
        return None
    block = config.block_size or 1
    while block > 1 and bytes_side_by_side(streams, mixture, replace(config, block_size=block), nodes) > 0.8 * limit:
        block //= 2
    return RoomShortage(
        f'`cache_limit` is {limit:,} bytes, but the order reads from some {needed:,} bytes of shards in turn: '
        f'shuffle_block_size of {config.block_size:,} samples x {config.num_canonical_nodes} canonical nodes / '
        f'{nodes} nodes. Shards will be downloaded again and again',
        f'Raise `cache_limit` to {needed * 5 // 4}, or lower `shuffle_block_size` to {block} in a new run',
    )


def warn_without_room(
    limit: int, streams: Sequence[OpenedStream], mixture: Mixture, config: OrderConfig, nodes: int
) -> None:
    """Warn of a `room_shortage`."""
    shortage = room_shortage(limit, streams, mixture, config, nodes)
    if shortage is not None:
        warn(f'{shortage.text}. {shortage.fix}.', stacklevel=4)


def downloads_of_nodes(
    streams: Sequence[OpenedStream], mixture: Mixture, config: OrderConfig, nodes: int
) -> SharedShards | None:
    """Whether several nodes download the same shards; arguments as above. None for local data and peers."""
    if all(stream.is_local or stream.cache.peers is not None for stream in streams):
        return None
    return shared_shards(config, mixture.num_shards, nodes)


def warn_of_shared_shards(streams: Sequence[OpenedStream], mixture: Mixture, config: OrderConfig, nodes: int) -> None:
    downloads = downloads_of_nodes(streams, mixture, config, nodes)
    if downloads is not None:
        warn(f'{downloads.text}: {downloads.fix}.', stacklevel=4)
