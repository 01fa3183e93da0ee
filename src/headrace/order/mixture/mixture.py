"""The samples that an epoch draws from each stream, and the expected number between two positions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, EmptyDatasetError, StreamError
from headrace.errors.exclusions import refuse_exclusions
from headrace.order.arrays import IntArray
from headrace.order.mixture.rules import given_weights, mixture_errors, stream_errors
from headrace.order.mixture.schedule import Schedule, apportion
from headrace.order.mixture.takeover import Takeover
from headrace.order.random.numpy_streams import random_stream

_MOST = 10**12  # samples of an epoch: products of two numbers of its parts fit 64 bits

Exhaustion: TypeAlias = Literal['repeat', 'stop', 'drop_stream']
"""The action when an epoch has had every sample of a stream. ``repeat``: it continues with its next pass. ``stop``: the
epoch ends. ``drop_stream``: the others continue without it, in their proportions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamSize:
    """One stream as the order sees it: a name, shard sizes, and at most one weight.

    Raises:
        StreamError: two weights are given, a weight is negative or not finite, or a shard size is negative.
        EmptyDatasetError: the stream has no samples.
    """

    name: str
    """Unique within a mixture. The stream's random numbers are keyed by it, so renaming a stream reshuffles it."""
    shard_sizes: IntArray
    """int64[shards]: samples of each shard, in stored order. Anything that makes such an array is accepted."""
    proportion: float | None = None  # Share of the epoch, relative to the other streams' proportions.
    repeat: float | None = None  # Samples drawn in an epoch, as a multiple of the stream's size.
    choose: int | None = None  # Samples drawn in an epoch.
    fingerprint: str = ''  # The identity of the data, pinned in states. Empty: derived from the shard sizes.
    size: int = field(init=False)  # Samples of the stream.

    def __post_init__(self) -> None:
        sizes = np.array(self.shard_sizes, dtype=np.int64)
        sizes.setflags(write=False)
        object.__setattr__(self, 'shard_sizes', sizes)
        object.__setattr__(self, 'size', int(sizes.sum()))
        if sizes.ndim != 1 or (sizes < 0).any():
            raise StreamError(f'shard sizes must be a list of integers >= 0, got {sizes!r} (stream {self.name!r}).')
        for broken in stream_errors(self):
            raise StreamError(broken.message(f'{given_weights(self)} (stream {self.name!r})'))
        if not self.size:
            raise EmptyDatasetError(
                f'a stream must hold at least one sample, stream {self.name!r} has {len(sizes)} shards and no '
                'samples. Check its remote, local and split.'
            )
        if not self.fingerprint:
            digest = hashlib.blake2b(sizes.astype('<i8').tobytes(), digest_size=8).hexdigest()
            object.__setattr__(self, 'fingerprint', digest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """The streams of a dataset and how many samples an epoch draws from each; made by `resolve`."""

    streams: tuple[StreamSize, ...]
    choose: tuple[int, ...]
    """Samples drawn from each stream in an epoch; they sum to ``epoch_size``. Under a schedule: after its end."""
    proportions: tuple[float, ...]
    """Each stream's share of the epoch as asked for: proportion / sum of proportions, or choose / epoch_size."""
    epoch_size: int  # Samples in an epoch.
    stages: tuple[tuple[int, ...], ...] = ()  # Draws of each stream in each stage of an epoch; by default one stage.
    schedule: Schedule | None = None  # Proportions that change in the course of the run.
    takeover: Takeover = field(default_factory=Takeover)  # Where this mixture took over from another one.
    sample_offsets: IntArray = field(init=False, repr=False)
    """int64[streams + 1]: global id of each stream's first sample; the last entry is the number of samples."""
    shard_offsets: IntArray = field(init=False, repr=False)
    """int64[streams + 1]: global number of each stream's first shard; the last entry is the number of shards."""
    shard_sizes: IntArray = field(init=False, repr=False)  # int64[shards]: samples of each shard, stream after stream.

    def __post_init__(self) -> None:
        derived = {
            'sample_offsets': np.cumsum([0, *(s.size for s in self.streams)], dtype=np.int64),
            'shard_offsets': np.cumsum([0, *(len(s.shard_sizes) for s in self.streams)], dtype=np.int64),
            'shard_sizes': np.concatenate([s.shard_sizes for s in self.streams]),
        }
        for name, array in derived.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if not self.stages:
            object.__setattr__(self, 'stages', (self.choose,))

    @property
    def num_samples(self) -> int:
        """Distinct samples of all streams."""
        return int(self.sample_offsets[-1])

    @property
    def num_shards(self) -> int:
        """Shards of all streams."""
        return int(self.shard_offsets[-1])

    def streams_of(self, ids: IntArray) -> IntArray:
        """Numbers of the streams that global sample ids belong to, int64, of the shape of ids."""
        return self.sample_offsets.searchsorted(ids, 'right') - 1

    def count_streams(self, ids: IntArray) -> IntArray:
        """How many of global sample ids int64[n] each stream has, int64[streams]."""
        return np.bincount(self.streams_of(ids), minlength=len(self.streams))

    @property
    def repeats(self) -> tuple[float, ...]:
        """How often an epoch draws each sample of a stream, on average."""
        return tuple(choose / stream.size for choose, stream in zip(self.choose, self.streams, strict=True))

    @property
    def is_drawn(self) -> tuple[bool, ...]:
        """Whether a run draws from each stream, in any epoch."""
        if self.schedule is None:
            return tuple(choose > 0 for choose in self.choose)
        return tuple(
            any(point.proportions.get(stream.name) for point in self.schedule.points) for stream in self.streams
        )

    @classmethod
    def resolve(
        cls,
        streams: Sequence[StreamSize],
        epoch_size: int | None = None,
        seed: int = 0,
        *,
        schedule: Schedule | None = None,
        when_exhausted: Exhaustion = 'repeat',
    ) -> Mixture:
        """Turn weights into numbers of samples: the same ones that MosaicML Streaming draws.

        Proportions are normalised and the epoch split by them, each stream rounded down; the streams that get one
        more are drawn with numpy's generator. Without any weight the sizes are the proportions if ``epoch_size`` is
        given, and each sample is drawn once if not. ``repeat`` and ``choose`` are absolute.

        Args:
            streams: at least one, with different names.
            epoch_size: samples in an epoch, for streams with proportions or without weights; None or 0: the number
                of samples, and with ``drop_stream`` as many as there are until the last stream is exhausted.
            seed: shuffle seed, a non-negative int of any size.
            schedule: proportions that replace the streams' weights.
            when_exhausted: what to do when all samples of a stream were drawn in an epoch.

        Raises:
            StreamError: the weights contradict each other, ``epoch_size`` or the schedule, or nothing is drawn.
            ConfigError: the schedule names other streams, or ``when_exhausted`` is unknown or contradicts it.
            EmptyDatasetError: the mixture has no streams.
        """
        streams = tuple(streams)
        _check_streams(streams, epoch_size, schedule)
        if when_exhausted not in get_args(Exhaustion):
            raise ConfigError(f'when_exhausted must be one of {list(get_args(Exhaustion))}, got {when_exhausted!r}.')
        if schedule is not None:
            return cls._scheduled(streams, epoch_size, schedule, when_exhausted)
        if any(s.proportion is not None for s in streams) or epoch_size:
            shares = [s.size if s.proportion is None else s.proportion for s in streams]
            total = epoch_size or sum(s.size for s in streams)
            _check_size(total)
            proportions = np.array(shares) / np.sum(shares)
            choose = (total * proportions).astype(np.int64)
            choose[_rounded_up(len(streams), total - int(choose.sum()), seed)] += 1
        else:
            absolute = [_absolute(s) for s in streams]
            _check_size(total := sum(absolute))
            choose = np.array(absolute, dtype=np.int64)
            if not total:
                raise StreamError('an epoch must draw at least one sample, got repeat or choose of 0 everywhere.')
            proportions = choose / total
        stages = [tuple(choose.tolist())]
        if when_exhausted == 'stop':
            stages = [_before_exhaustion(streams, stages[0])]
        elif when_exhausted == 'drop_stream':
            stages = _until_exhaustion(streams, stages[0], epoch_size)
        choose = tuple(map(sum, zip(*stages, strict=True)))
        return cls(
            streams=streams,
            choose=choose,
            proportions=tuple(float(p) for p in proportions),
            epoch_size=sum(choose),
            stages=tuple(stages),
        )

    @classmethod
    def _scheduled(
        cls, streams: tuple[StreamSize, ...], epoch_size: int | None, schedule: Schedule, when_exhausted: Exhaustion
    ) -> Mixture:
        refuse_exclusions({'schedule': schedule, 'when_exhausted': when_exhausted})
        names = [s.name for s in streams]
        schedule.check_names(names)
        _check_size(total := epoch_size or sum(s.size for s in streams))
        weights = schedule.steps(names)[-1].weights
        return cls(
            streams=streams,
            choose=tuple(apportion(total, weights)),
            proportions=tuple(weight / sum(weights) for weight in weights),
            epoch_size=total,
            schedule=schedule,
        )


def _check_streams(streams: tuple[StreamSize, ...], epoch_size: int | None, schedule: Schedule | None) -> None:
    if not streams:
        raise EmptyDatasetError('a dataset must have at least one stream, got none.')
    repeated = sorted(name for name, count in Counter(s.name for s in streams).items() if count > 1)
    if repeated:
        raise StreamError(f'streams must have different names, got {repeated} more than once.')
    if epoch_size is not None and epoch_size < 0:
        raise StreamError(f'epoch_size must be at least 1, got {epoch_size}.')
    for broken in mixture_errors(streams, epoch_size=epoch_size, is_scheduled=schedule is not None):
        given = ', '.join(f'{stream.name}: {given_weights(stream)}' for stream in streams[:10])
        more = f' and {len(streams) - 10} more streams' if len(streams) > 10 else ''
        raise StreamError(broken.message(f'epoch_size {epoch_size} and {given}{more}'))


def _check_size(epoch_size: int) -> None:
    if epoch_size > _MOST:
        raise StreamError(f'an epoch has at most {_MOST:,} samples, got {epoch_size:,}. Use several epochs.')


def _absolute(stream: StreamSize) -> int:
    if stream.repeat is not None:
        return int(stream.repeat * stream.size)
    return stream.size if stream.choose is None else int(stream.choose)


def _before_exhaustion(streams: Sequence[StreamSize], choose: tuple[int, ...]) -> tuple[int, ...]:
    """The longest epoch of the same proportions that draws no stream's samples twice."""
    total = sum(choose)

    def samples_left(length: int) -> int:
        """Of the stream that is nearest to its end, or beyond it."""
        return min(s.size - n for n, s in zip(apportion(length, choose), streams, strict=True))

    # From here it is a matter of how shares are rounded; one sample always fits.
    length = min([total, *(s.size * total // c for s, c in zip(streams, choose, strict=True) if c)])
    while samples_left(length) < 0:
        length -= 1
    while length < total and samples_left(length) > 0:
        length += 1
    return tuple(apportion(length, choose))


def _until_exhaustion(
    streams: Sequence[StreamSize], choose: tuple[int, ...], epoch_size: int | None
) -> list[tuple[int, ...]]:
    """Stages of an epoch, each without the streams that were exhausted before it."""
    left = [s.size if c else 0 for s, c in zip(streams, choose, strict=True)]
    length = min(epoch_size or sum(left), sum(left))
    stages: list[tuple[int, ...]] = []
    while length:
        weights = [c if n else 0 for c, n in zip(choose, left, strict=True)]
        # The first stream to be exhausted; the others are drawn in proportion to it.
        first = min((s for s, w in enumerate(weights) if w), key=lambda s: (left[s] / weights[s], s))
        stage = [min(n, w * left[first] // weights[first]) for n, w in zip(left, weights, strict=True)]
        if sum(stage) > length:
            stage = apportion(length, stage)
        stages.append(tuple(stage))
        left = [n - drawn for n, drawn in zip(left, stage, strict=True)]
        length -= sum(stage)
    return stages


def _rounded_up(num_streams: int, shortfall: int, seed: int) -> IntArray:
    """Which streams draw one sample more than rounded down, int64[shortfall]: MosaicML Streaming's random numbers."""
    return random_stream(seed).choice(num_streams, shortfall, replace=False)


_Floats: TypeAlias = NDArray[np.float64]


class ExpectedCounts:
    """The expected samples of each stream, by the configured proportions.

    A schedule sets the proportions at each position of the run; a ramp is a staircase. ``when_exhausted: drop_stream``
    sets them for each stage of an epoch.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        if mixture.schedule is not None:
            steps = mixture.schedule.steps([stream.name for stream in mixture.streams])
            begins, shares = [step.begin for step in steps], [step.weights for step in steps]
        elif len(mixture.stages) > 1:
            begins, shares = np.cumsum([0, *map(sum, mixture.stages)])[:-1].tolist(), list(mixture.stages)
        else:
            begins, shares = [0], [mixture.proportions]
        self._begins = np.array(begins, np.int64)
        weights = np.array(shares, np.float64)
        self._shares: _Floats = weights / weights.sum(1, keepdims=True)
        lengths = np.diff(self._begins)[:, None]
        self._before: _Floats = np.concatenate([np.zeros_like(weights[:1]), np.cumsum(self._shares[:-1] * lengths, 0)])

    def between(self, epoch: int, begin: int, end: int) -> _Floats:
        """Samples of each stream at positions of an epoch, float64[streams]; they sum to the number of positions."""
        if self.mixture.schedule is not None:
            offset = self.mixture.takeover.begin_of(epoch, self.mixture.epoch_size)
            begin, end = begin + offset, end + offset
        return self._until(end) - self._until(begin)

    def _until(self, position: int) -> _Floats:
        step = max(int(self._begins.searchsorted(position, 'right')) - 1, 0)
        return self._before[step] + (position - int(self._begins[step])) * self._shares[step]
