"""The speed of a user's own data on this machine, and what limits it."""

from __future__ import annotations

import cProfile
import dataclasses
import pstats
import resource
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, cast

import numpy as np

from headrace.config.build import build_loader
from headrace.dataset.loader import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.errors.display import count_text
from headrace.mixing import LoaderConfig
from headrace.order import Topology

_PROFILED: Final = 8  # batches
_SHARE: Final = 0.5  # of the time, which makes something the limit
_PARTS: Final = {
    'decoding of images and sound': (
        '/headrace/tensors/',
        '/tensor_rows.py',
        '/PIL/',
        '/simplejpeg/',
        '/soundfile.py',
        '/soxr/',
    ),
    'packing and its tokenizer': ('/headrace/packing/',),
    'collate': ('/collate.py',),
}


@dataclass(frozen=True)
class Rate:
    """The rate of a loader with a number of workers, on one rank, for a trainer that only takes batches."""

    workers: int
    batches: int
    samples: int
    seconds: float  # From the first batch to the last one; the first is not counted in any rate.
    first_batch_seconds: float  # From the begin to the first batch, start of workers included.
    wait_p50: float  # Median of the seconds for a batch.
    wait_p99: float
    cpu_seconds_per_batch: float  # Processor time of this process and of the workers, their start included.
    batch_bytes: int  # Bytes of the values of all batches but the first.
    bytes_downloaded: int  # From stores, as stored there.
    network_share: float
    """Share of the processes' time in which they waited for shards; of present ones, until they were open."""

    @property
    def samples_per_second(self) -> float:
        """Samples of a rank; the first batch excepted."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.batch_bytes / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        derived = {'samples_per_second': self.samples_per_second, 'bytes_per_second': self.bytes_per_second}
        return {**dataclasses.asdict(self), **derived}


def bench(
    config: LoaderConfig, *, workers: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Rate:
    """Read at least two batches, and for some seconds after the first, as one rank of one."""
    loader = _loader(config, workers)
    waits: list[float] = []
    samples = size = 0
    cpu, begin = _cpu_seconds(), clock()
    batches = _for_ever(loader)
    before = begin
    while len(waits) < 2 or before - begin - waits[0] < seconds:
        batch = next(batches)
        now = clock()
        waits.append(now - before)
        before = now
        if len(waits) > 1:
            samples += loader.own_samples
            size += _bytes(batch)
    batches.close()
    stats = loader.stats()
    del loader, batches  # ends the workers, so that their processor time is known
    elapsed = before - begin
    waited = sum(stream.seconds_waited for stream in stats.streams.values())
    return Rate(
        workers=workers,
        batches=len(waits),
        samples=samples,
        seconds=elapsed - waits[0],
        first_batch_seconds=waits[0],
        wait_p50=float(np.percentile(waits[1:], 50)),
        wait_p99=float(np.percentile(waits[1:], 99)),
        cpu_seconds_per_batch=(_cpu_seconds() - cpu) / len(waits),
        batch_bytes=size,
        bytes_downloaded=stats.bytes_downloaded,
        network_share=min(1.0, waited / (elapsed * max(1, workers))) if elapsed else 0.0,
    )


def limit_of(config: LoaderConfig, rates: Sequence[Rate]) -> str:
    """A sentence that names the limit of the loader, and a remedy. To find it, the loader may be read further."""
    best = max(rates, key=lambda rate: rate.samples_per_second)
    if best.network_share > _SHARE and best.bytes_downloaded:
        rate = best.bytes_downloaded / (best.seconds + best.first_batch_seconds) / 1e6
        return (
            f'The network is the limit: {best.network_share:.0%} of the time is spent waiting for shards, which come '
            f'at {rate:,.1f} MB/s. Compress the shards, or bring the data nearer (headrace cp, headrace warm).'
        )
    part, share = _largest_part(config)
    fewest, most = min(rate.workers for rate in rates), max(rate.workers for rate in rates)
    least = next(rate for rate in rates if rate.workers == fewest)
    if best.workers > fewest:
        times = best.samples_per_second / least.samples_per_second
        advice = (
            f'with {count_text(best.workers, "worker")} it gives {times:.1f} times as much, where a rank has '
            f'{count_text(best.workers, "processor")}'
        )
    elif most > fewest:
        advice = f'{count_text(most, "worker")} {"gives" if most == 1 else "give"} no more'
    else:
        advice = f'try more workers: --workers {most},{max(2, 2 * most)}'
    return f'The processors are the limit: {part} takes {share:.0%} of the time without workers; {advice}.'


def _largest_part(config: LoaderConfig) -> tuple[str, float]:
    profile = cProfile.Profile(time.process_time)  # on a clock, each part has the pauses for other programs, too
    batches = _for_ever(_loader(config, 0))
    next(batches)  # opens the first shards
    profile.runcall(lambda: [*islice(batches, _PROFILED)])
    batches.close()
    # By (file, line, function); own time is at index 2, time with callees at 3.
    timings = cast('dict[tuple[str, int, str], tuple[Any, ...]]', pstats.Stats(profile).stats)  # pyright: ignore[reportAttributeAccessIssue]
    total = sum(times[2] for times in timings.values()) or 1.0
    shares = {
        part: max(
            (times[3] for (file, _, _), times in timings.items() if any(each in file for each in files)), default=0.0
        )
        / total
        for part, files in _PARTS.items()
    }
    part = max(shares, key=lambda name: shares[name])
    rest = max(0.0, 1 - sum(shares.values()))
    return (part, min(1.0, shares[part])) if shares[part] > rest else ('reading of values from shards', rest)


def _loader(config: LoaderConfig, workers: int) -> StreamingDataLoader:
    chosen = dataclasses.replace(config.loader, num_workers=workers)
    # One rank by itself, whatever the launcher's environment and the configuration say, which reads what is there.
    alone = dataclasses.replace(config, loader=chosen, replication=None, peers=None, on_growth='ignore')
    return build_loader(alone, topology=Topology())


def _for_ever(loader: StreamingDataLoader) -> Generator[Any]:
    while True:
        number = 0
        for batch in loader:
            number += 1
            yield batch
        if not number:
            raise ConfigError(
                'an epoch of the loader has no batch: the samples fill no global batch. Lower the batch size, or set '
                '`remainder` to repeat or exact.'
            )


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _bytes(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_bytes, cast('Mapping[Any, Any]', value).values()))
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_bytes, cast('Sequence[Any]', value)))
    return int(getattr(value, 'nbytes', 0))
