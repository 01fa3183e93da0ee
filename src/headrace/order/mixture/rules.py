"""The rules of weights and schedules, for streams, mixtures and configurations alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

from headrace.errors.exclusions import BrokenRule

_WEIGHTS: Final = ('proportion', 'repeat', 'choose')
_LATEST: Final = 10**18  # samples of a run: 64 bits hold the draws before the last point


class Weighted(Protocol):
    @property
    def name(self) -> str | None: ...

    @property
    def proportion(self) -> float | None:
        """Share of the epoch, relative to other streams."""
        ...

    @property
    def repeat(self) -> float | None:
        """Times that it is taken per epoch."""
        ...

    @property
    def choose(self) -> int | None:
        """Samples taken per epoch."""
        ...


class _Point(Protocol):
    @property
    def at(self) -> int: ...
    @property
    def proportions(self) -> Mapping[str, float]: ...
    @property
    def change(self) -> str: ...


def given_weights(stream: Weighted) -> dict[str, Any]:
    return {key: value for key in _WEIGHTS if (value := getattr(stream, key)) is not None}


def stream_errors(stream: Weighted) -> Iterator[BrokenRule]:
    given = given_weights(stream)
    if len(given) > 1:
        yield BrokenRule(_WEIGHTS, 'a stream has at most one of `proportion`, `repeat` and `choose`; keep one')
    for key, value in given.items():
        if not _is_amount(value):
            yield BrokenRule((key,), f'`{key}` of a stream must be a finite number of at least 0')


def mixture_errors(
    streams: Sequence[Weighted], *, epoch_size: int | str | None, is_scheduled: bool
) -> Iterator[BrokenRule]:
    """The broken rules between the weights of streams, the size of an epoch, and a schedule."""
    proportions = [stream.proportion for stream in streams if stream.proportion is not None]
    if proportions and len(proportions) < len(streams):
        others = _names(stream for stream in streams if stream.proportion is None)
        rule = f'either all streams have `proportion` or none has; without it: {others}'
        yield BrokenRule(('streams',), rule, ('proportion',))
    elif proportions and not sum(proportions):
        yield BrokenRule(('streams',), 'all proportions are 0; one must be greater', ('proportion',))
    elif proportions and not _is_amount(sum(map(float, proportions))):
        yield BrokenRule(('streams',), 'proportions must have a finite sum; make them smaller', ('proportion',))
    absolute = _names(stream for stream in streams if (stream.repeat, stream.choose) != (None, None))
    if epoch_size and absolute:
        rule = (
            '`epoch_size` needs proportions, or no weights; leave it out, or use `proportion` in the place of `repeat` '
            f'or `choose`, which are given by: {absolute}'
        )
        yield BrokenRule(('epoch_size', 'streams'), rule, _WEIGHTS)
    weighted = _names(stream for stream in streams if given_weights(stream))
    if is_scheduled and weighted:
        rule = f'a schedule is in the place of weights, which are given by: {weighted}; remove them'
        yield BrokenRule(('schedule', 'streams'), rule, _WEIGHTS)


def point_errors(point: _Point) -> Iterator[BrokenRule]:
    if type(point.at) is not int or not 0 <= point.at <= _LATEST:
        yield BrokenRule(('at',), f'`at` must be a number of samples, an integer of at least 0 and at most {_LATEST:,}')
    shares = point.proportions.values()
    if not all(map(_is_amount, shares)) or not sum(shares) or not _is_amount(sum(shares)):
        rule = 'a point needs `proportions`: numbers of at least 0, one of them above 0, with a finite sum'
        yield BrokenRule(('proportions',), rule)


def schedule_errors(points: Sequence[_Point]) -> Iterator[BrokenRule]:
    at, inner = [point.at for point in points], ('at', 'proportions', 'change')
    if not at or at[0] or points[0].change != 'step':
        yield BrokenRule(('schedule',), 'the first point is at 0, and no ramp', inner)
    elif any(after <= before for before, after in pairwise(at)):
        yield BrokenRule(('schedule',), f'points stand in the order of rising `at`; they are at {at}', inner)


def names_errors(points: Sequence[_Point], names: Sequence[str]) -> Iterator[BrokenRule]:
    """The broken rule between a schedule and the names of its streams."""
    unknown = sorted({name for point in points for name in point.proportions} - set(names))
    if unknown:
        rule = (
            f'a schedule names streams that do not exist: {", ".join(unknown)}; there are: {", ".join(sorted(names))}'
        )
        yield BrokenRule(('schedule', 'streams'), rule, ('proportions', 'name'))


def _is_amount(value: Any) -> bool:
    """Whether a number is finite and at least 0; a tensor or an array of one number is a number, too."""
    try:
        return math.isfinite(value) and bool(value >= 0)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def _names(streams: Iterator[Weighted]) -> str:
    return ', '.join(str(stream.name) for stream in streams)
