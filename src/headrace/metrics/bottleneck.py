"""A sentence for a run that waits for its data: which part is slow, and what to change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace.dataset import StreamingDataLoader
from headrace.dataset.statistics import LoaderStats
from headrace.errors.display import count_text
from headrace.storage.stats import difference_of

Part: TypeAlias = Literal['store', 'decompression', 'decoding', 'workers', 'start', 'padding']
"""The slow part: the store, decompression, decoding with `transform` and `collate`, too few workers, their start; or
steps, whose batches are padded."""

_WAIT_SHARE = 0.1  # Of the time: data is the bottleneck from here on.
_PADDING_SHARE = 0.1  # Of the places of padded columns: a change is proposed from here on.
_PART_SHARE = 0.5  # Of the reading processes' time or waits: a part is the slow one from here on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The data slow the run: their loading, or their padding."""

    part: Part
    share: float
    """Time that the trainer waited for data, as a share of all time, from 0 to 1; of padding, its share of places."""
    advice: str
    """The observation, and the change that helps."""

    def __str__(self) -> str:
        if self.part == 'padding':
            return f'{self.share:.0%} of the places of padded columns are padding. {self.advice}'
        return f'The trainer waits {self.share:.0%} of its time for data. {self.advice}'


class BottleneckWatch:
    """Looks at the loaders of a rank now and then, and says which part of the data path is too slow.

    Args:
        every: seconds between two looks.
        silence: seconds without a further sentence after one.
        clock: seconds, from anywhere.
        cores: processor cores of this process; None: counted.
    """

    def __init__(
        self,
        *,
        every: float = 30.0,
        silence: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        cores: int | None = None,
    ) -> None:
        self._every, self._silence, self._clock = every, silence, clock
        self._cores = len(os.sched_getaffinity(0)) if cores is None and hasattr(os, 'sched_getaffinity') else cores
        self._seen: dict[str, tuple[StreamingDataLoader, float, LoaderStats]] = {}
        self._next = clock() + every
        self._quiet_until = 0.0
        self._told_padding: set[str] = set()  # loaders whose padding was said, which changes little

    def look(self, loaders: Mapping[str, StreamingDataLoader]) -> Bottleneck | None:
        """The bottleneck since the last look; None if it is not time, or data are fast enough.

        Call it after each batch: between two looks it reads a clock.
        """
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + self._every
        bottleneck: Bottleneck | None = None
        for name, loader in loaders.items():
            before = self._seen.get(name)
            self._seen[name] = loader, now, (stats := loader.stats())
            if before is not None and before[0] is loader and bottleneck is None and now >= self._quiet_until:
                bottleneck = self._judged(loader, before[2], stats, now - before[1])
        if bottleneck is not None:
            self._quiet_until = now + self._silence
            return bottleneck
        for name, (loader, _, stats) in self._seen.items():
            if name not in self._told_padding and stats.padding_places >= _PADDING_SHARE * stats.padded_places > 0:
                self._told_padding.add(name)
                if (bottleneck := _padding(loader, stats)) is not None:
                    return bottleneck
        return None

    def skip(self) -> None:
        """Leave out the time since the last look: the trainer did something else."""
        self._seen.clear()

    def _judged(
        self, loader: StreamingDataLoader, before: LoaderStats, now: LoaderStats, seconds: float
    ) -> Bottleneck | None:
        waiting = now.seconds_waiting - before.seconds_waiting
        if seconds <= 0 or waiting < _WAIT_SHARE * seconds:
            return None
        part, advice = self._part(loader, before, now, seconds, waiting)
        return Bottleneck(part=part, share=min(1.0, waiting / seconds), advice=advice)

    def _part(
        self, loader: StreamingDataLoader, before: LoaderStats, now: LoaderStats, seconds: float, waiting: float
    ) -> tuple[Part, str]:
        workers = loader.num_workers
        since = {name: difference_of(stream, before.streams[name]) for name, stream in now.streams.items()}
        waits = {name: stream.seconds_waited for name, stream in since.items()}
        # Each worker waits for itself, while the trainer waits for the next one of them.
        if sum(waits.values()) / max(workers, 1) >= _PART_SHARE * waiting:
            unpacking = sum(stream.seconds_unpacking for stream in since.values())
            if unpacking >= _PART_SHARE * sum(waits.values()):
                return 'decompression', (
                    f'The shards are there, but decompressing them took {unpacking:.0f} s of processor time in '
                    f'{seconds:.0f} s. Store them uncompressed or with zstd (headrace reshard), or keep them in a '
                    f'larger cache_limit.'
                )
            name = max(waits, key=lambda stream: waits[stream])
            of_peers = now.bytes_from_peers - before.bytes_from_peers
            come = now.bytes_downloaded - before.bytes_downloaded + of_peers
            rate = come / seconds / 1e6
            from_peers = f', {100 * of_peers / come:.0f} % of them from peers' if of_peers else ''
            of_stream = f', mostly for stream {name!r}' if len(waits) > 1 else ''
            return 'store', (
                f'The readers wait for downloads{of_stream}, which come at {rate:.1f} MB/s{from_peers}. Raise '
                f'predownload and cache_limit, move the data nearer, or fill the cache before the run.'
            )
        if not workers:
            return 'workers', (
                'There are no worker processes, so the trainer reads and decodes by itself. Set num_workers, such as 4.'
            )
        first_batch = now.seconds_to_first_batch or 0.0
        if now.stalls == before.stalls and first_batch >= _PART_SHARE * waiting:
            return 'start', (
                f'It waits for the start of the workers, {first_batch:.1f} s at the begin of each pass. Set '
                f'persistent_workers=True.'
            )
        ranks = loader.dataset.topology.ranks_per_node
        count, verb = count_text(workers, 'worker'), 'keeps' if workers == 1 else 'keep'
        if self._cores is not None and workers * ranks < self._cores:
            return 'workers', (
                f'The shards are there, but {count} cannot read and decode them in time, and this machine has '
                f'{count_text(self._cores, "core")} for {count_text(ranks, "rank")}. Raise num_workers.'
            )
        return 'decoding', (
            f'The shards are there, and {count} {verb} all cores busy with decoding, transform and collate. '
            f'Make these cheaper: store smaller or decoded values, read fewer columns, or decode images as tensors.'
        )


def _padding(loader: StreamingDataLoader, stats: LoaderStats) -> Bottleneck | None:
    """The padding of a loader's batches, if `bucket` would make it a third smaller, or may."""
    run, share = loader.dataset.run, stats.padding_places / stats.padded_places
    handed_out = loader.handed_out
    if handed_out is None or not run.config().takes_bucket:
        return None
    waste = run.length_waste(handed_out[0])
    advice = 'Name the column of lengths in `cost`: the start of the next run then says what `bucket` would make of it.'
    if waste is not None:
        if waste.bucketed is None or 3 * waste.bucketed > 2 * share:
            return None
        advice = f'`bucket: {waste.bucket}` would make it {waste.bucketed:.0%}.'
    return Bottleneck(part='padding', share=share, advice=advice)
