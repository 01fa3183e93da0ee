"""Counters of a loader: its batches, its reads, the time that its trainer waited, and the samples of each stream.

Workers send their counters, a few integers, along with each batch. So processes share nothing, and a killed one leaves
nothing behind. Samples of each stream over all ranks are computed from the plan.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError
from headrace.errors.display import human_decimal_size, text_table
from headrace.order import BatchPlan, ExpectedCounts
from headrace.storage import CacheCounters, CacheCounts, CountTable

StreamUnit: TypeAlias = Literal['samples', 'tokens']
"""What the shares and counts of streams are of."""

_SHORTEST_STALL = 0.001  # seconds
_STALL_SHARE = 0.05
_RECENT = 16


class ReadCounts(NamedTuple):
    """A worker's reads of some streams since its start."""

    process: int
    streams: npt.NDArray[np.integer[Any]]  # [n], their numbers.
    counts: CountTable  # int64[n, counters], a row of `CacheCounts` for each.


class WorkerBatch(NamedTuple):
    """A batch on its way from the process that read it."""

    batch: Any
    rows: int  # Its samples, padding included.
    streams: npt.NDArray[np.unsignedinteger[Any]] | None
    """Stream number of each row, [rows]; None where there is one stream."""
    read: ReadCounts | None = None
    """Counters of streams that changed since the last batch; None if none did, or without workers."""
    bad_rows: npt.NDArray[np.bool_] | None = None  # bool[rows], True where the sample could not be read; None: nowhere.
    unreadable: int = 0  # Samples since the batch before that could not be read, and that no row stands for.
    stream_tokens: npt.NDArray[np.int64] | None = None
    """Tokens of each stream, int64[streams]; None where streams are counted in samples."""
    padding: tuple[int, int] | None = None
    """Places of the columns that `pad` pads, and those that are padding; None if it pads nothing."""


class WorkerReads:
    """The reads of one worker process, as its batches take them to the trainer.

    Most batches change no counter: a shard is opened once for many. Counters run from the start of the process, so an
        unused batch, such as the last one of an abandoned pass, loses nothing.
    """

    def __init__(self, counters: CacheCounters) -> None:
        """Take the counters of this process, a worker that has read nothing yet."""
        self._counters = counters
        self._before = counters.table()  # a fork inherits its parent's
        self._process = os.getpid()
        self._pass = -1
        self._sent: set[int] = set()

    def changed(self, pass_number: int) -> ReadCounts | None:
        """The counters that have changed since the last call; all of them at the first call of a pass."""
        streams = self._counters.update()
        if self._pass != pass_number:
            self._pass = pass_number
            streams = list(self._sent.union(streams))
        if not streams:
            return None
        self._sent.update(streams)
        return ReadCounts(self._process, np.array(streams), self._counters.rows(streams) - self._before[streams])


class StreamStats(NamedTuple):
    """Counters of one stream in one loader, on one rank; see `LoaderStats`."""

    # Those of reads are the fields of `CacheCounts`, in their order.

    samples: int  # Yielded rows that are not padding; where streams are counted in tokens, samples that were read.
    bad_samples: int
    bytes_downloaded: int
    bytes_unpacked: int
    requests: int
    shards_fetched: int
    cache_hits: int
    evictions: int  # Its shards that were deleted to make room, for shards of any stream.
    retries: int
    shards_waited_for: int
    """Shards for which a process waited more than 1 ms, because they were not in the cache yet. A worker may wait while
    it is ahead of the trainer."""
    seconds_waited: float  # Time of these waits, summed over the processes.
    seconds_unpacking: float = 0.0  # Time that threads took to decompress its shards, summed over them.
    bytes_from_peers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Counters of one loader, on one rank, since it was made.

    A worker's reads count when its next batch arrives, so reads ahead of the trainer count a little later.
    """

    batches: int
    """Batches handed out."""
    samples: int
    """Rows of these that are not padding."""
    stream_samples: Mapping[str, int]
    """By stream, these rows or their tokens. Of this rank alone: `StreamingDataLoader.mix` counts all ranks'."""
    bad_samples: int
    """Samples that could not be read: rows hold others in their place, or nothing. See `on_bad_sample`."""
    stream_bad_samples: Mapping[str, int]
    """The same by stream."""
    seconds_waiting: float
    """Time that the trainer has waited in `next` for batches, the first ones included."""
    stalls: int
    """Batches for which the trainer waited more than 1 ms, and more than 5 % of its time per batch (the median of the
    last 16). The first batch of a pass does not count."""
    seconds_to_first_batch: float | None
    """Time from the start of the last pass to its first batch, workers' start included. None before it."""
    bytes_downloaded: int
    """Bytes from stores, as stored there, with those of failed fetches; without indexes."""
    bytes_unpacked: int
    """Uncompressed bytes of the shards that were compressed."""
    bytes_from_peers: int = 0
    """Uncompressed bytes of shards that came from other nodes' caches, and not from a store."""
    requests: int
    """Requests for objects of stores, failed ones included."""
    shards_fetched: int
    """Shards that this rank's processes made present in the cache."""
    cache_hits: int
    """Shards that were present when a batch needed them: from before, or prefetched."""
    evictions: int
    """Shards deleted to make room."""
    retries: int
    """Transfers that began again, and files that were fetched again because they were bad."""
    padded_places: int = 0
    """Places of the columns that `pad` has padded in these batches, rows times the longest, if lengths are beside."""
    padding_places: int = 0
    """Those of them that are padding."""
    streams: Mapping[str, StreamStats]
    """The counters that exist for each stream; batches and the trainer's waits do not."""

    def __str__(self) -> str:
        """A table of the loader's counters, without those of streams."""
        rows: list[tuple[str, str]] = []
        for name, value in self.as_dict().items():
            if isinstance(value, int | float):
                number = f'{value:,}' if isinstance(value, int) else f'{value:,.3f}'
                size = human_decimal_size(value) if name.startswith('bytes') else number
                rows.append((name.replace('_', ' '), size))
        return '\n'.join([type(self).__name__, *text_table(rows)])

    def as_dict(self) -> dict[str, Any]:
        """The same as dicts of str and numbers, as JSON has them; `dataclasses.asdict` would not look into streams."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **fields,
            'stream_samples': dict(self.stream_samples),
            'stream_bad_samples': dict(self.stream_bad_samples),
            'streams': {name: stream._asdict() for name, stream in self.streams.items()},
        }


class _ByStream(Mapping[str, StreamStats]):
    """`StreamStats` by name, made on request: there may be thousands of streams."""

    __slots__ = ('_counts', '_names', '_numbers', '_samples')

    def __init__(self, names: tuple[str, ...], samples: npt.NDArray[np.int64], counts: CountTable) -> None:
        """Take names, samples and bad samples as int64[2, streams], and the counters of reads."""
        self._names, self._samples, self._counts = names, samples, counts
        self._numbers: dict[str, int] | None = None

    def __getitem__(self, name: str) -> StreamStats:
        if self._numbers is None:
            self._numbers = {name: number for number, name in enumerate(self._names)}
        number = self._numbers[name]
        *counts, waited, unpacking, from_peers = self._counts[number].tolist()
        times = waited / 1e9, unpacking / 1e9
        return StreamStats._make([*self._samples[:, number].tolist(), *counts, *times, from_peers])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))


class LoaderCounters:
    """The counters of one loader, in the process that iterates."""

    def __init__(self, names: Sequence[str], here: CacheCounters, stream_unit: StreamUnit) -> None:
        self._names, self._counts_tokens = tuple(names), stream_unit == 'tokens'
        self._here, self._before = here, here.table()
        self._read = np.zeros_like(self._before)
        self._of_process: dict[int, CountTable] = {}
        self._received = np.zeros((2, len(names)), np.int64)  # samples, if tokens are counted, and those that are bad
        self._streams: npt.NDArray[np.int64] = np.zeros(len(names), np.int64)
        self._bad_streams = np.zeros_like(self._streams)
        self._batches = self._samples = self._of_first_stream = self._unreadable = self._stalls = 0
        self._padding = np.zeros(2, np.int64)  # places of padded columns, and those that are padding
        self._seconds_waiting = 0.0
        self._seconds_to_first_batch: float | None = None
        self._asked = self._handed_out = 0.0
        self._busy: deque[float] = deque(maxlen=_RECENT)
        self.own_samples = 0  # Rows of the last batch that are not padding.
        self._recent_tokens: deque[npt.NDArray[np.int64]] = deque(maxlen=2)
        self._rows = 0
        self._own_streams: npt.NDArray[Any] | None = None
        self._bad_rows: npt.NDArray[np.bool_] | None = None

    def begin_pass(self, *, new_processes: bool) -> None:
        """Note the start of a pass, in new processes or in those of the last pass."""
        self._asked, self._handed_out = time.perf_counter(), 0.0
        self._seconds_to_first_batch = None
        if new_processes:  # ids are used again
            self._of_process.clear()

    def ask(self) -> None:
        """Note that the trainer asks for the next batch."""
        self._asked = time.perf_counter()
        self._busy.append(self._asked - self._handed_out)

    def receive_all(self, batches: Iterator[WorkerBatch]) -> Iterator[WorkerBatch]:
        for received in batches:
            self._receive(received)
            yield received

    def _receive(self, received: WorkerBatch) -> None:
        if received.read is not None:
            process, streams, counts = received.read
            before = self._of_process.get(process)
            if before is None:
                before = self._of_process[process] = np.zeros_like(self._read)
            self._read[streams] += counts - before[streams]
            before[streams] = counts
        if self._counts_tokens and received.streams is not None:
            most = len(self._names)
            self._received[0] += np.bincount(received.streams, minlength=most)
            if received.bad_rows is not None:
                self._received[1] += np.bincount(received.streams[received.bad_rows], minlength=most)

    def hand_out(self, received: WorkerBatch, own_samples: int) -> float:
        """Count a batch whose first `own_samples` rows are not padding; returns the seconds it stalled training."""
        self._handed_out = now = time.perf_counter()
        waited = now - self._asked
        self._seconds_waiting += waited
        self._batches += 1
        self._samples += own_samples
        self.own_samples = own_samples
        _, self._rows, self._own_streams, _, self._bad_rows, unreadable, stream_tokens, padding = received
        if padding is not None:
            self._padding += padding
        if stream_tokens is not None:
            self._recent_tokens.append(stream_tokens)
            self._streams += stream_tokens
        elif self._own_streams is not None:
            self._streams += np.bincount(self._own_streams[:own_samples], minlength=len(self._names))
        else:
            self._of_first_stream += own_samples
        if self._bad_rows is not None:
            bad = np.flatnonzero(self._bad_rows[:own_samples])
            self._bad_streams += np.bincount(self.own_streams[bad], minlength=len(self._names))
        if unreadable:
            self._unreadable += unreadable
        if self._seconds_to_first_batch is None:
            self._seconds_to_first_batch = waited
        elif waited > _SHORTEST_STALL and waited > _STALL_SHARE * sorted(self._busy)[len(self._busy) // 2]:
            self._stalls += 1
            return waited
        return 0.0

    @property
    def seconds_waiting(self) -> float:
        return self._seconds_waiting

    @property
    def _stream_samples(self) -> npt.NDArray[np.int64]:
        """Samples of each stream, with those of batches that name no streams because there is only one."""
        samples = self._streams.copy()
        samples[0] += self._of_first_stream
        return samples

    def stream_tokens_before(self, last: int) -> npt.NDArray[np.int64] | None:
        """As the loader's."""
        if not self._counts_tokens:
            return None
        return self._stream_samples - sum(list(self._recent_tokens)[-last:] if last else [])

    @property
    def own_streams(self) -> npt.NDArray[np.int64]:
        """Stream number of each row of the last batch, int64[rows], padding included."""
        if self._counts_tokens:
            raise ConfigError(
                'A loader whose rows hold tokens of several streams has no `own_streams`. Pass `mark_streams=True`, '
                'which marks each token.'
            )
        return np.zeros(self._rows, np.int64) if self._own_streams is None else self._own_streams.astype(np.int64)

    @property
    def own_bad_rows(self) -> npt.NDArray[np.bool_]:
        """Rows of the last batch that hold another sample, bool[rows], padding included."""
        return np.zeros(self._rows, np.bool_) if self._bad_rows is None else self._bad_rows.copy()

    def stats(self, *, reads_here: bool) -> LoaderStats:
        """All counters; those of reads are this process', or the workers'."""
        table = self._here.table() - self._before if reads_here else self._read.copy()
        read = CacheCounts(*table.sum(axis=0).tolist())
        of_streams, bad = self._stream_samples, self._received[1] if self._counts_tokens else self._bad_streams
        samples = self._received.copy() if self._counts_tokens else np.array([of_streams, bad])
        return LoaderStats(
            batches=self._batches,
            samples=self._samples,
            stream_samples=dict(zip(self._names, of_streams.tolist(), strict=True)),
            bad_samples=int(self._bad_streams.sum()) + self._unreadable,
            stream_bad_samples=dict(zip(self._names, bad.tolist(), strict=True)),
            seconds_waiting=self._seconds_waiting,
            stalls=self._stalls,
            seconds_to_first_batch=self._seconds_to_first_batch,
            bytes_downloaded=read.bytes_downloaded,
            bytes_unpacked=read.bytes_unpacked,
            bytes_from_peers=read.bytes_from_peers,
            requests=read.requests,
            shards_fetched=read.shards_fetched,
            cache_hits=read.cache_hits,
            evictions=read.evictions,
            retries=read.retries,
            padded_places=int(self._padding[0]),
            padding_places=int(self._padding[1]),
            streams=_ByStream(self._names, samples, table),
        )


_MOST_UNCOUNTED = 1 << 18  # samples: some orders look each of them up, which must not take a whole epoch at once


class StreamCount(NamedTuple):
    """Samples of a stream, or tokens, counted and expected."""

    samples: int  # Over all ranks, without padding; tokens are those of this rank.
    promised: float  # Expected for as many samples of all streams, by the proportions of the mixture or its schedule.


class MixtureCounts:
    """Samples of each stream in some batches, on all ranks, and the expected numbers; computed on request.

    The plan knows the batches of all ranks, so ranks exchange nothing.
    """

    def __init__(self) -> None:
        self._counts: dict[str, StreamCount] = {}
        self._plan: BatchPlan | None = None
        self._expected: ExpectedCounts | None = None
        self._counted = self._reached = self._seen = self._most_uncounted = 0
        self._pending: list[tuple[BatchPlan, int, int]] = []  # batches of earlier plans that are not done

    def reach(self, plan: BatchPlan, number: int, *, is_done: bool = True) -> None:
        """Reach batch `number` of a plan, which counts once it is done; a new plan counts from this batch on."""
        if plan is not self._plan:
            self._settle()
            if self._plan is not None and self._reached < self._seen:
                self._pending.append((self._plan, self._reached, self._seen))
            self._plan, self._counted, self._reached = plan, number, number
            self._most_uncounted = -(-_MOST_UNCOUNTED // plan.global_batch_size)
        self._seen = number + 1
        if is_done:
            if self._pending:
                for earlier in self._pending:
                    self._count(*earlier)
                self._pending.clear()
            self._reached = number + 1
            if self._reached - self._counted >= self._most_uncounted:
                self._settle()

    def _settle(self) -> None:
        if self._plan is not None and self._counted < self._reached:
            self._count(self._plan, self._counted, self._reached)
            self._counted = self._reached

    def _count(self, plan: BatchPlan, first: int, last: int) -> None:
        mixture = plan.order.mixture
        counts = plan.stream_counts(first, last)
        promised = np.zeros(len(counts))
        ends = [*(begin for begin, _ in plan.order.mixtures[1:]), math.inf]
        for (since, now), until in zip(plan.order.mixtures, ends, strict=True):
            for begin, end in plan.spans(first, last):
                if max(begin, since) < min(end, until):
                    if self._expected is None or self._expected.mixture is not now:
                        self._expected = ExpectedCounts(now)
                    promised += self._expected.between(plan.order.epoch, max(begin, since), int(min(end, until)))
        for stream, count, share in zip(mixture.streams, counts.tolist(), promised.tolist(), strict=True):
            had = self._counts.get(stream.name, StreamCount(0, 0.0))
            self._counts[stream.name] = StreamCount(had.samples + count, had.promised + share)

    def add(self, counts: Mapping[str, StreamCount]) -> None:
        for name, count in counts.items():
            had = self._counts.get(name, StreamCount(0, 0.0))
            self._counts[name] = StreamCount(had.samples + count.samples, had.promised + count.promised)

    def counts(self) -> dict[str, StreamCount]:
        self._settle()
        return dict(self._counts)
