"""A loader that a meter follows, and what it has counted since then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.dataset.loader import StreamingDataLoader
from headrace.dataset.statistics import LoaderStats, MixtureCounts, StreamCount, StreamStats
from headrace.metrics.stream_counts import labelled, scaled_to
from headrace.order import BatchPlan
from headrace.packing import PackedDataset
from headrace.storage.stats import difference_of

__all__ = ['FollowedLoader', 'Read', 'StreamRead']

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
    sequence_tokens: float = 0
    """Tokens in packed sequences."""
    sequence_places: float = 0
    """Tokens that they could hold."""
    tokens: float = 0
    has_tokens: float = 0
    """Whether batches had tokens."""

    @classmethod
    def of(cls, stats: LoaderStats, sequence_length: int | None = None) -> Read:
        """The counters of a loader; `tokens` and `has_tokens` are counted elsewhere.

        Args:
            stats: the loader's.
            sequence_length: tokens that a packed sequence can hold; None: batches are not packed.
        """
        read = cls._make(getattr(stats, name, 0) for name in cls._fields)
        if sequence_length is None:
            return read
        return read._replace(
            sequence_tokens=sum(stats.stream_samples.values()), sequence_places=stats.samples * sequence_length
        )


class StreamRead(NamedTuple):
    """Counters of one stream: fields of `StreamStats`."""

    bytes_downloaded: float = 0
    requests: float = 0
    cache_hits: float = 0
    shards_waited_for: float = 0
    seconds_waited: float = 0

    @classmethod
    def of(cls, stats: StreamStats) -> StreamRead:
        """The counters of a stream."""
        return cls._make(getattr(stats, name) for name in cls._fields)


@dataclass(slots=True)
class FollowedLoader:
    """A loader, and its counters when the meter first saw it."""

    loader: StreamingDataLoader
    before: Read
    mix: MixtureCounts
    remote: dict[str, StreamRead]
    """Remote streams, and their counters at that time."""
    tokens_before: Tokens | None
    """With packing, the tokens of each stream at that time."""
    tokens: Tokens | None
    """The same after the last trained step."""
    trained: tuple[BatchPlan, int] | None = None
    """The last trained batch: the plan of its pass, and its number there."""

    @classmethod
    def of(cls, loader: StreamingDataLoader, mix: MixtureCounts) -> FollowedLoader:
        """Follow a loader from now on; `mix` has the samples that count before."""
        stats, tokens = loader.stats(), loader.stream_tokens
        names = [stream.name or '' for stream in loader.dataset.streams if not stream.is_local]
        remote = {name: StreamRead.of(stats.streams[name]) for name in names}
        return cls(loader, Read.of(stats, _sequence_length(loader)), mix, remote, tokens, tokens)

    def reads(self) -> Read:
        """Counters since then."""
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
        own, replicas = self.token_counts(), self.loader.dataset.topology.replicas
        return scaled_to(own, {name: count.samples * replicas for name, count in own.items()})


def _sequence_length(loader: StreamingDataLoader) -> int | None:
    """Tokens of a packed sequence; None: batches are not packed."""
    dataset = loader.dataset
    return dataset.packing.sequence_length if isinstance(dataset, PackedDataset) else None
