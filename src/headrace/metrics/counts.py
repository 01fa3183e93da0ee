"""Counts of loaders for a meter: reads and samples since it followed them, times of batches, and bytes in caches."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.dataset import StreamingDataset
from headrace.dataset.loader import StreamingDataLoader
from headrace.dataset.statistics import LoaderStats, MixtureCounts, StreamCount, StreamStats
from headrace.order import BatchPlan
from headrace.packing import PackedDataset
from headrace.storage.stats import difference_of

T = TypeVar('T')


def labelled(label: str, of_streams: Mapping[str, T]) -> dict[str, T]:
    """Values by 'loader/stream' in place of 'stream'; the same names if the loader has no label, ''."""
    return {f'{label}/{stream}' if label else stream: value for stream, value in of_streams.items()}


def to_state(counts: Mapping[str, StreamCount]) -> dict[str, list[float]]:
    """The counts as a checkpoint holds them: actual and promised number of each stream."""
    return {name: [count.samples, count.promised] for name, count in counts.items()}


def from_state(plain: Mapping[str, Sequence[float]]) -> dict[str, StreamCount]:
    return {name: StreamCount(int(n), float(m)) for name, (n, m) in plain.items()}


def add_counts(counts: dict[str, StreamCount], label: str, more: Mapping[str, StreamCount]) -> None:
    for name, count in labelled(label, more).items():
        had = counts.get(name, StreamCount(0, 0.0))
        counts[name] = StreamCount(had.samples + count.samples, had.promised + count.promised)


def scaled_to(counts: Mapping[str, StreamCount], samples: Mapping[str, int]) -> dict[str, StreamCount]:
    """Counts with other samples; as many are promised in all."""
    factor = sum(samples.values()) / max(sum(count.samples for count in counts.values()), 1)
    return {name: StreamCount(samples[name], count.promised * factor) for name, count in counts.items()}


def mix_figures(counts: Mapping[str, StreamCount], unit: str) -> dict[str, float]:
    """Figures for a logger, if there are several streams."""
    if len(counts) < 2:
        return {}
    figures: dict[str, float] = {}
    shares = shares_of(counts)
    for name, count in counts.items():
        share, promised = shares[name]
        figures[f'mix/{name}/{unit}'] = count.samples
        figures[f'mix/{name}/share'], figures[f'mix/{name}/promised'] = share, promised
    return figures


def shares_of(counts: Mapping[str, StreamCount]) -> dict[str, tuple[float, float]]:
    samples = max(sum(count.samples for count in counts.values()), 1)
    promised = max(sum(count.promised for count in counts.values()), 1e-9)
    return {name: (count.samples / samples, count.promised / promised) for name, count in counts.items()}


def drift_of(counts: Mapping[str, StreamCount]) -> float | None:
    """The largest difference between a stream's share and its promised share, from 0 to 1; None below two streams."""
    if len(counts) < 2:
        return None
    return max(abs(share - promised) for share, promised in shares_of(counts).values())


Tokens: TypeAlias = npt.NDArray[np.int64]


class Read(NamedTuple):
    """Counters that are added over loaders and over ranks: fields of `LoaderStats`, then those of tokens."""

    seconds_waiting: float = 0.0
    stalls: float = 0
    bytes_downloaded: float = 0
    requests: float = 0
    cache_hits: float = 0
    bad_samples: float = 0
    retries: float = 0
    evictions: float = 0
    bytes_unpacked: float = 0
    bytes_from_peers: float = 0
    sequence_tokens: float = 0  # tokens in packed sequences
    sequence_places: float = 0  # tokens that they could hold
    padded_places: float = 0
    padding_places: float = 0
    tokens: float = 0
    has_tokens: float = 0  # whether batches had tokens

    @classmethod
    def of(cls, stats: LoaderStats, sequence_length: int | None = None) -> Read:
        """The counters of a loader, without tokens; `sequence_length`: of a packed sequence, None: not packed."""
        read = cls._make(getattr(stats, name, 0) for name in cls._fields)
        if sequence_length is None:
            return read
        return read._replace(
            sequence_tokens=sum(stats.stream_samples.values()), sequence_places=stats.samples * sequence_length
        )


class StreamRead(NamedTuple):
    bytes_downloaded: float = 0
    requests: float = 0
    cache_hits: float = 0
    shards_waited_for: float = 0
    seconds_waited: float = 0

    @classmethod
    def of(cls, stats: StreamStats) -> StreamRead:
        return cls._make(getattr(stats, name) for name in cls._fields)


@dataclass(slots=True)
class FollowedLoader:
    loader: StreamingDataLoader
    before: Read
    mix: MixtureCounts
    remote: dict[str, StreamRead]  # remote streams, and their counters at that time
    tokens_before: Tokens | None  # with packing, the tokens of each stream at that time
    tokens: Tokens | None  # the same after the last trained step
    trained: tuple[BatchPlan, int] | None = None  # the last trained batch: the plan of its pass, and its number there

    @classmethod
    def of(cls, loader: StreamingDataLoader, mix: MixtureCounts) -> FollowedLoader:
        """Follow a loader from now on; `mix` has the samples that count before."""
        stats, tokens = loader.stats(), loader.stream_tokens
        names = [stream.name or '' for stream in loader.dataset.streams if not stream.is_local]
        remote = {name: StreamRead.of(stats.streams[name]) for name in names}
        return cls(loader, Read.of(stats, _sequence_length(loader)), mix, remote, tokens, tokens)

    def reads(self) -> Read:
        return difference_of(Read.of(self.loader.stats(), _sequence_length(self.loader)), self.before)

    def stream_reads(self, label: str) -> dict[str, StreamRead]:
        """Counters of each remote stream since then; see `labelled`."""
        streams = self.loader.stats().streams
        reads = {name: difference_of(StreamRead.of(streams[name]), read) for name, read in self.remote.items()}
        return labelled(label, reads)

    def token_counts(self) -> dict[str, StreamCount]:
        """Trained tokens of each stream since then, on this rank; empty without packing."""
        if self.tokens is None or self.tokens_before is None:
            return {}
        return self.loader.token_counts(self.tokens - self.tokens_before)

    def token_counts_of_all_ranks(self) -> dict[str, StreamCount]:
        """The same, with this rank's tokens for every rank's."""
        counts, replicas = self.token_counts(), self.loader.dataset.topology.replicas
        return scaled_to(counts, {name: count.samples * replicas for name, count in counts.items()})


def _sequence_length(loader: StreamingDataLoader) -> int | None:
    dataset = loader.dataset
    return dataset.packing.sequence_length if isinstance(dataset, PackedDataset) else None


_MOST = 10_000  # batches between two readings that count, the last ones


class BatchTimes:
    """Times from one trained batch to the next, and the waits for data in them."""

    def __init__(self) -> None:
        self._times = deque[tuple[float, float]](maxlen=_MOST)
        self._last: tuple[float, float] | None = None

    def interrupt(self) -> None:
        """Leave out the time until the next batch: the run begins, or evaluates."""
        self._last = None

    def add(self, now: float, waited: float) -> None:
        """A batch was trained. `waited`: seconds that the trainer has waited so far, in all."""
        if self._last is not None:
            self._times.append((now - self._last[0], waited - self._last[1]))
        self._last = now, waited

    def take(self) -> dict[str, float]:
        """Median and 99th percentile of the times and the waits since the last call, in seconds; empty without any."""
        if not self._times:
            return {}
        batches, waits = zip(*self._times, strict=True)
        self._times.clear()
        return {**_quantiles('batch_seconds', batches), **_quantiles('wait_seconds', waits)}


def _quantiles(name: str, seconds: Iterable[float]) -> dict[str, float]:
    half, most = np.quantile(np.fromiter(seconds, np.float64), (0.5, 0.99)).tolist()
    return {f'{name}_p50': half, f'{name}_p99': most}


_LEAST = 10.0  # Seconds between two counts, at least.
_SHARE = 100  # Durations of a portion between two counts, at least.
_LONGEST = 0.02  # seconds of a portion
_PORTION = 100  # files between two looks at the clock


class CacheUse(NamedTuple):
    """The bytes in the caches of this machine, and the bytes that they may reach."""

    used: int
    most: int  # the cache limit, or the size of the data if that is less


class CacheFill:
    """Counts files in datasets' caches, at most every 10 s and 1 % of the time, in portions of 20 ms."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._use: CacheUse | None = None
        self._next = float('-inf')
        self._sizes: Iterator[int] | None = None  # of the files that a count has not reached; None: no count has begun
        self._used = self._most = 0  # of that count

    def read(self, datasets: Iterable[StreamingDataset]) -> CacheUse | None:
        """The use of the caches, as it was lately; None if all data are local, or the first count is not done."""
        begun = self._clock()
        if begun < self._next:
            return self._use
        if self._sizes is None:
            self._begin(datasets)
        least = 0.0 if self._go_on(begun) else _LEAST
        now = self._clock()
        self._next = now + max(least, _SHARE * (now - begun))
        return self._use

    def _begin(self, datasets: Iterable[StreamingDataset]) -> None:
        folders: set[Path] = set()
        self._used = self._most = 0
        for dataset in datasets:
            remote = [stream for stream in dataset.streams if not stream.is_local]
            folders.update(stream.folder for stream in remote)
            size = sum(int(stream.shards.raw_bytes().sum()) for stream in remote)
            self._most += size if dataset.cache_limit is None else min(size, dataset.cache_limit)
        self._sizes = itertools.chain.from_iterable(map(_sizes_in, folders)) if folders else None

    def _go_on(self, begun: float) -> bool:
        """Continue with the count for a while; returns whether files are left."""
        while self._sizes is not None:
            sizes = list(itertools.islice(self._sizes, _PORTION))
            self._used += sum(sizes)
            if len(sizes) < _PORTION:
                self._use, self._sizes = CacheUse(self._used, self._most), None
            elif self._clock() - begun >= _LONGEST:
                break
        return self._sizes is not None


def _sizes_in(folder: str | Path) -> Iterator[int]:
    """Bytes of each shard in a folder and below; indexes and files that vanish meanwhile do not count."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == 'index.json' or entry.name.startswith('.'):  # headrace's own
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes_in(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield _size(entry)
    except OSError:
        return


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # evicted just now
        return 0
