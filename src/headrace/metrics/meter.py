"""Rates and shares from the counters of loaders, between two readings and since the run began."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from headrace.dataset.loader import StreamingDataLoader
from headrace.dataset.statistics import MixtureCounts, StreamCount
from headrace.errors.display import human_decimal_size
from headrace.metrics.counts import (
    BatchTimes,
    CacheFill,
    FollowedLoader,
    Read,
    StreamRead,
    add_counts,
    drift_of,
    from_state,
    mix_figures,
    scaled_to,
    shares_of,
    to_state,
)
from headrace.metrics.spikes import TrainedBatch
from headrace.storage.stats import difference_of, sum_of

_TEXT_STREAMS = 4  # Streams whose shares fit into a line.
_LOGGED_STREAMS = 32  # Remote streams whose downloads are logged by default.


class DataMeter:
    """Figures of one or several loaders of a rank, for loggers.

    Call `batch_done` after every trained batch, which takes microseconds, and `read` for figures at intervals. Other
    ranks are asked only by the function that `read` gets.

    Args:
        clock: seconds, from anywhere.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._followed: dict[str, FollowedLoader] = {}
        self._past = Read()  # of loaders that were replaced, and tokens
        self._past_streams: dict[str, StreamRead] = {}  # of loaders that were replaced
        self._earlier: dict[str, StreamCount] = {}  # before a checkpoint
        self._earlier_tokens: dict[str, StreamCount] = {}  # of packed loaders, on all ranks
        self._earlier_sequences = 0  # of packed loaders
        self._tokens: int | Tensor = 0
        self._has_tokens = False
        self._paused: float | None = None
        self._times, self._cache_fill = BatchTimes(), CacheFill()
        self.begin()

    def begin(self) -> None:
        """Start rates and shares now."""
        now = self._clock()
        self._since = self._text_since = self._begun = now
        self._first = self._last = self._total()
        self._last_samples = self._samples()
        self._times.interrupt()
        self._text_waiting = self._last.seconds_waiting

    def follow(self, loaders: Mapping[str, StreamingDataLoader]) -> None:
        """Read these loaders from now on, by name ('' if there is one), and no others.

        A loader with the name of an earlier one continues its counts.
        """
        for name, loader in loaders.items():
            old = self._followed.get(name)
            if old is not None and old.loader is loader:
                continue
            if old is not None:
                self._leave(name, old)
            self._followed[name] = FollowedLoader.of(loader, MixtureCounts() if old is None else old.mix)
        for name in self._followed.keys() - loaders.keys():
            old = self._followed.pop(name)
            self._leave(name, old)
            if old.tokens is None:
                add_counts(self._earlier, name, old.mix.counts())
            else:
                self._earlier_sequences += sum(count.samples for count in old.mix.counts().values())

    def _leave(self, label: str, old: FollowedLoader) -> None:
        add_counts(self._earlier_tokens, label, old.token_counts_of_all_ranks())
        self._past = sum_of(self._past, old.reads())
        for name, read in old.stream_reads(label).items():
            self._past_streams[name] = sum_of(self._past_streams.get(name, StreamRead()), read)

    @property
    def loaders(self) -> list[StreamingDataLoader]:
        """The loaders that are read."""
        return [followed.loader for followed in self._followed.values()]

    def batch_done(
        self,
        tokens: int | Tensor | None = None,
        *,
        is_step: bool = True,
        trained: Mapping[str, TrainedBatch] | None = None,
    ) -> None:
        """A batch of each loader was trained.

        Args:
            tokens: its number of tokens; None if it holds none.
            is_step: whether it ended an optimizer step. If not, it counts with the next step.
            trained: the trained batches by name, if a trainer fetches ahead of them, by one at most; by default the
                last ones of the loaders. A loader without a batch has trained as much as before.
        """
        for name, followed in self._followed.items():
            last, is_first = followed.loader.handed_out, followed.trained is None
            if trained is None:
                followed.trained = last
            elif name in trained:
                followed.trained = trained[name].plan, trained[name].number
            done = followed.trained
            if done is None:
                continue
            followed.mix.reach(*done, is_done=is_step)
            ahead = int(done != last)
            if is_first and trained is not None:  # the trainer fetched it before the meter followed the loader
                followed.tokens_before = followed.loader.stream_tokens_before(ahead + 1)
            if is_step:
                followed.tokens = followed.loader.stream_tokens_before(ahead)
        self._times.add(self._clock(), sum(each.loader.seconds_waiting for each in self._followed.values()))
        if tokens is not None:
            self._tokens += tokens
            self._has_tokens = True

    def pause(self) -> None:
        """Stop the clock for an evaluation."""
        self._paused = self._clock()
        self._times.interrupt()

    def resume(self) -> None:
        """Restart the clock after `pause`."""
        if self._paused is not None:
            away = self._clock() - self._paused
            self._since, self._text_since, self._begun = self._since + away, self._text_since + away, self._begun + away
            self._paused = None

    # -- figures ---------------------------------------------------------------------------------------------------

    def read(
        self,
        *,
        ranks: int = 1,
        replicas: int = 1,
        sum_over_ranks: Callable[[Sequence[float]], Sequence[float]] | None = None,
        per_stream: bool = True,
        per_stream_reads: bool | None = None,
        detailed: bool = False,
    ) -> dict[str, float]:
        """The figures since the last reading, and those of the run.

        Args:
            ranks: number of ranks.
            replicas: number of ranks that have different samples.
            sum_over_ranks: adds lists of numbers over all ranks; called once, on each of them. By default, counters of
                reads and waits are of this rank alone, and its tokens stand for every rank's, those of streams
                included.
            per_stream: whether to give the figures of each of several streams.
            per_stream_reads: whether to include the reads of each remote stream; by default if there are at most 32.
            detailed: whether to give all figures; the same on every rank.

        Returns:
            Figures by name; samples, tokens and streams of all ranks together:

            - ``data/samples_per_second``, ``data/tokens_per_second`` (if batches have tokens)
            - ``data/bytes_per_second``: downloads
            - ``data/batch_seconds_p50``, ``_p99``: quantiles of the time from batch to batch, on this rank
            - ``data/wait_share``: time waiting for data as a share of all time, from 0 to 1; of the mean rank
            - ``data/samples``: of the run, also before a resume
            - ``data/stalls``, ``data/bytes_downloaded``, ``data/requests``, ``data/cache_hits``: since the start
            - ``data/bad_samples``: since the start, under ``on_bad_sample='skip'``
            - ``data/seconds_to_first_batch``: of the latest pass; the slowest loader's
            - ``mix/<stream>/samples``, of the run; with packing ``mix/<stream>/tokens``
            - ``mix/<stream>/share``, from 0 to 1, and the mixture's or schedule's share: ``mix/<stream>/promised``.
              With packing, both are shares of tokens; see `StreamingDataLoader.mix`
            - ``mix/drift``: the largest difference between a share and the promised one
            - ``data/packing_efficiency``: with packing, tokens as a share of the places in sequences, since the start
            - ``data/padding_share``: with `pad`, padding as a share of the places of padded columns, since the start
            - ``data/<stream>/<name>``, since the start: ``bytes_downloaded``, ``requests``, ``cache_hits`` and the
              other fields of `headrace.dataset.StreamStats`

            With `detailed`, also:

            - ``data/wait_seconds_p50``, ``_p99``: quantiles of the wait for a batch, on this rank
            - ``data/retries``, ``data/evictions``, ``data/bytes_unpacked``, ``data/bytes_from_peers``: since the start
            - ``data/cache_bytes``, ``data/cache_fill``: bytes in this machine's caches, counted lately; and as a share
              of the cache limit, or of the data if they are smaller
            - ``data/slowest_rank``, ``data/slowest_rank_wait_share``: with `sum_over_ranks`, the rank that waited most
        """
        now, total, samples = self._clock(), self._total(), self._samples()
        seconds = max(now - self._since, 1e-9)
        passed = difference_of(total, self._last)
        reads = (
            self._stream_reads(always=bool(per_stream_reads)) if per_stream and per_stream_reads is not False else {}
        )
        if sum_over_ranks is not None:
            size = len(total)
            drawn = self._own_tokens() if per_stream else {}
            of_reads = [number for read in reads.values() for number in read]
            waits = self._own_wait(passed, ranks) if detailed else []
            numbers = sum_over_ranks([*waits, *total, *passed, *(count.samples for count in drawn.values()), *of_reads])
            waits, numbers = numbers[: len(waits)], numbers[len(waits) :]
            summed, passed = Read(*numbers[:size]), Read(*numbers[size : 2 * size])
            rest = iter(numbers[2 * size :])
            of_all = {name: round(next(rest) * replicas / ranks) for name in drawn}
            token_counts = dict(self._earlier_tokens)
            add_counts(token_counts, '', scaled_to(drawn, of_all))
            reads = {name: StreamRead(*(next(rest) for _ in read)) for name, read in reads.items()}
            waiting, tokens = passed.seconds_waiting / ranks, passed.tokens * replicas / ranks
        else:
            summed, waiting, tokens = total, passed.seconds_waiting, passed.tokens * replicas
            token_counts, waits = self._token_counts(), list[float]()
        times = self._times.take()
        figures = {
            'data/samples_per_second': (samples - self._last_samples) / seconds,
            'data/bytes_per_second': passed.bytes_downloaded / seconds,
            'data/wait_share': min(waiting / seconds, 1.0),
            'data/samples': samples,
            'data/stalls': summed.stalls,
            'data/bytes_downloaded': summed.bytes_downloaded,
            'data/requests': summed.requests,
            'data/cache_hits': summed.cache_hits,
        }
        figures.update({f'data/{name}': value for name, value in times.items() if detailed or 'wait' not in name})
        if detailed:
            figures.update(self._details(summed, waits, seconds))
        if summed.sequence_places:
            figures['data/packing_efficiency'] = summed.sequence_tokens / summed.sequence_places
        if summed.padded_places:
            figures['data/padding_share'] = summed.padding_places / summed.padded_places
        drift = drift_of(self.counts() if sum_over_ranks is None else {**self._sample_counts(), **token_counts})
        if drift is not None:
            figures['mix/drift'] = drift
        if any(loader.dataset.on_bad_sample == 'skip' for loader in self.loaders):
            figures['data/bad_samples'] = summed.bad_samples
        if summed.has_tokens:
            figures['data/tokens_per_second'] = tokens / seconds
        starts = [start for loader in self.loaders if (start := loader.stats().seconds_to_first_batch) is not None]
        if starts:
            figures['data/seconds_to_first_batch'] = max(starts)
        if per_stream:
            figures.update(mix_figures(self._sample_counts(), 'samples'))
            figures.update(mix_figures(token_counts, 'tokens'))
        for name, read in reads.items():
            figures.update({f'data/{name}/{what}': number for what, number in zip(read._fields, read, strict=True)})
        self._since, self._last, self._last_samples = now, total, samples
        return figures

    def _own_wait(self, passed: Read, ranks: int) -> list[float]:
        """This rank's wait at its place among all ranks', whose sum over ranks is all their waits."""
        rank = self.loaders[0].dataset.topology.rank if self._followed else 0
        return [passed.seconds_waiting if number == rank else 0.0 for number in range(ranks)]

    def _details(self, summed: Read, waits: Sequence[float], seconds: float) -> dict[str, float]:
        figures: dict[str, float] = {
            'data/retries': summed.retries,
            'data/evictions': summed.evictions,
            'data/bytes_unpacked': summed.bytes_unpacked,
            'data/bytes_from_peers': summed.bytes_from_peers,
        }
        use = self._cache_fill.read(loader.dataset for loader in self.loaders)
        if use is not None:
            figures['data/cache_bytes'], figures['data/cache_fill'] = use.used, use.used / max(use.most, 1)
        if waits:
            slowest = max(range(len(waits)), key=lambda rank: waits[rank])
            figures['data/slowest_rank'] = slowest
            figures['data/slowest_rank_wait_share'] = min(waits[slowest] / seconds, 1.0)
        return figures

    def _stream_reads(self, *, always: bool) -> dict[str, StreamRead]:
        """Counters of each remote stream; the same streams on every rank."""
        followed = self._followed.values()
        if sum(len(each.loader.dataset.streams) for each in followed) < 2:
            return {}
        if not always and sum(len(each.remote) for each in followed) > _LOGGED_STREAMS:
            return {}
        reads: dict[str, StreamRead] = {}
        for label, each in self._followed.items():
            for name, read in each.stream_reads(label).items():
                reads[name] = sum_of(self._past_streams.get(name, StreamRead()), read)
        return reads

    def counts(self) -> dict[str, StreamCount]:
        """Trained samples of each stream in the run, on all ranks, and the promised number.

        With several loaders, the names of streams begin with the loader's, 'loader/stream'. Streams of packed data have
        tokens in place of samples, and this rank's stand for every rank's.
        """
        return {**self._sample_counts(), **self._token_counts()}

    def _sample_counts(self) -> dict[str, StreamCount]:
        counts = dict(self._earlier)
        for label, followed in self._followed.items():
            if followed.tokens is None:
                add_counts(counts, label, followed.mix.counts())
        return counts

    def _token_counts(self) -> dict[str, StreamCount]:
        counts = dict(self._earlier_tokens)
        for label, followed in self._followed.items():
            add_counts(counts, label, followed.token_counts_of_all_ranks())
        return counts

    def _own_tokens(self) -> dict[str, StreamCount]:
        """Tokens of the packed loaders that are read, on this rank; the same streams on every rank."""
        counts: dict[str, StreamCount] = {}
        for label, followed in self._followed.items():
            add_counts(counts, label, followed.token_counts())
        return counts

    def texts(self) -> dict[str, str]:
        """The state of the data for a progress bar: ``data`` 3.2 GB, ``stall`` 0.1%, ``mix`` 0.40/0.60.

        ``data``: bytes that this rank read from stores and peers, if a stream is remote. ``stall``: this rank's share
        of waiting since the last call. ``mix``: shares of the streams in order, or of more than four the largest
        deviation.
        """
        now, total = self._clock(), self._total()
        texts: dict[str, str] = {}
        if any(followed.remote for followed in self._followed.values()):
            texts['data'] = _read_text(total)
        share = (total.seconds_waiting - self._text_waiting) / max(now - self._text_since, 1e-9)
        texts['stall'] = f'{min(share, 1):.1%}'
        self._text_since, self._text_waiting = now, total.seconds_waiting
        counts = self.counts()
        if len(counts) > 1:
            shares = list(shares_of(counts).values())
            if len(counts) <= _TEXT_STREAMS:
                texts['mix'] = '/'.join(f'{share:.2f}' for share, _ in shares)
            else:
                texts['mix'] = f'±{max(abs(share - promised) for share, promised in shares):.3f}'
        return texts

    def summary(self) -> str:
        """One line about the run since `begin`: waited 1.2 % for data; 3.1 GB; 0 retries; mix within 0.1 %.

        Reads and waits are of this rank. The mix is left out if there is one stream.
        """
        done = difference_of(self._total(), self._first)
        parts = [self.waited(), _read_text(done)]
        parts.append(f'{done.retries:.0f} retr{"y" if done.retries == 1 else "ies"}')
        drift = drift_of(self.counts())
        if drift is not None:
            parts.append(f'mix within {drift:.1%}'.replace('%', ' %'))
        return '; '.join(parts)

    def waited(self) -> str:
        """The share of the time since `begin` that this rank waited for data."""
        seconds = difference_of(self._total(), self._first).seconds_waiting
        share = seconds / max(self._clock() - self._begun, 1e-9)
        return f'waited {min(share, 1):.1%} for data'.replace('%', ' %')

    def _total(self) -> Read:
        total = self._past
        for followed in self._followed.values():
            total = sum_of(total, followed.reads())
        return total._replace(tokens=float(self._tokens), has_tokens=float(self._has_tokens))

    def _samples(self) -> int:
        """Samples, or packed sequences, of the run on all ranks."""
        sequences = (
            count.samples
            for followed in self._followed.values()
            if followed.tokens is not None
            for count in followed.mix.counts().values()
        )
        return self._earlier_sequences + sum(sequences) + sum(count.samples for count in self._sample_counts().values())

    # -- across a resume -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The counts of streams in the run, as ints and floats.

        The same on every rank, except that tokens of packed streams are this rank's times the number of ranks.
        """
        state: dict[str, Any] = {'streams': to_state(self._sample_counts())}
        tokens = self._token_counts()
        if tokens:
            state['tokens'] = to_state(tokens)
            state['sequences'] = self._samples() - sum(count.samples for count in self._sample_counts().values())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts of a state."""
        self._earlier, self._earlier_tokens = from_state(state.get('streams', {})), from_state(state.get('tokens', {}))
        self._earlier_sequences = int(state.get('sequences', 0))
        is_packed = any(followed.tokens is not None for followed in self._followed.values())
        if is_packed and 'tokens' not in state:  # of version 0.1.0, for which packed sequences were a stream
            self._earlier_sequences = sum(count.samples for count in self._earlier.values())
            self._earlier = {}
        for followed in self._followed.values():
            followed.mix = MixtureCounts()
            followed.tokens_before = followed.tokens = followed.loader.stream_tokens
        self.begin()


def print_line(text: str) -> None:
    print(f'headrace: {text}', file=sys.stderr, flush=True)


def _read_text(read: Read) -> str:
    """Bytes from stores and other nodes' caches, and the share of the latter if there is one."""
    total = read.bytes_downloaded + read.bytes_from_peers
    share = f', {read.bytes_from_peers / total:.0%} from peers'.replace('%', ' %') if read.bytes_from_peers else ''
    return f'{human_decimal_size(total)}{share}'
