"""Proportions that change in the course of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from headrace.errors import ConfigError
from headrace.order.mixture.rules import names_errors, point_errors, schedule_errors

Change: TypeAlias = Literal['step', 'linear']

_SCALE = 1 << 40  # a stream's weight is its share in this many parts, so that everything after is integers
_MAX_STEPS = 256
_SAMPLES_PER_STEP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePoint:
    """Proportions from a position of the run on.

    Raises:
        ConfigError: a value is out of range.
    """

    at: int  # Samples of the run's global sequence, over all epochs and ranks, before this point.
    proportions: Mapping[str, float]
    """Stream name to its share, relative to the sum; streams that are not named have none."""
    change: Change = 'step'
    """How they are reached: at once (``step``), or along a line from the point before (``linear``)."""

    def __post_init__(self) -> None:
        for broken in point_errors(self):
            raise ConfigError(broken.message(f'at={self.at!r}, proportions={dict(self.proportions)}'))
        if self.change not in get_args(Change):
            raise ConfigError(f'the change to a schedule point must be one of {get_args(Change)}, got {self.change!r}.')


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """A stretch of the run with one mixture."""

    begin: int  # Position of the run.
    weights: tuple[int, ...]  # For each stream, its share; at least one is above 0.


@dataclass(frozen=True, slots=True)
class Schedule:
    """Points in the order of their positions, the first at 0.

    Raises:
        ConfigError: without points, or if the first is not at 0 or is reached along a line, or positions do not rise.
    """

    points: tuple[SchedulePoint, ...]

    def __post_init__(self) -> None:
        for broken in schedule_errors(self.points):
            raise ConfigError(broken.message(f'points {[(point.at, point.change) for point in self.points]}'))

    @classmethod
    def of(cls, points: Schedule | Sequence[SchedulePoint | Mapping[str, Any]]) -> Schedule:
        """Make a schedule of points or of mappings with a point's keys."""
        if isinstance(points, Schedule):
            return points
        try:
            return cls(tuple(p if isinstance(p, SchedulePoint) else SchedulePoint(**p) for p in points))
        except (TypeError, AttributeError) as error:
            raise ConfigError(f'a schedule point has `at`, `proportions` and `change`, got {points}: {error}') from None

    @property
    def end(self) -> int:
        """Position of the run from which on nothing changes."""
        return self.points[-1].at

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse points that name other streams."""
        for broken in names_errors(self.points, names):
            raise ConfigError(broken.message([dict(point.proportions) for point in self.points]))

    def steps(self, names: Sequence[str]) -> list[ScheduleStep]:
        """Return the staircase that stands for the schedule: a ramp is steps, each with the ramp's mean over it."""
        steps: list[ScheduleStep] = []
        last, before = 0, (0,) * len(names)
        for point in self.points:
            shares = [float(point.proportions.get(name, 0)) for name in names]
            total = math.fsum(shares)
            weights = tuple(round(share / total * _SCALE) for share in shares)
            if point.change == 'linear':
                length = point.at - last
                count = max(1, min(_MAX_STEPS, length // _SAMPLES_PER_STEP))
                steps[-1:] = [] if steps[-1].begin == last else steps[-1:]
                steps += [
                    ScheduleStep(
                        last + length * i // count,
                        tuple(b + (w - b) * (2 * i + 1) // (2 * count) for b, w in zip(before, weights, strict=True)),
                    )
                    for i in range(count)
                ]
            steps.append(ScheduleStep(point.at, weights))
            last, before = point.at, weights
        return steps

    def to_json(self) -> list[dict[str, Any]]:
        """Return what `of` takes, of plain types."""
        return [
            {
                'at': point.at,
                'proportions': {name: float(share) for name, share in sorted(point.proportions.items())},
                'change': point.change,
            }
            for point in self.points
        ]


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Ints that sum to total, each its share by the weights; the first of equal largest remainders is rounded up."""
    return allocate(total, [total * weight for weight in weights], sum(weights))


def allocate(total: int, wanted: Sequence[int], unit: int) -> list[int]:
    """Ints >= 0 that sum to total, near wanted / unit: rounded down, then one more by largest remainder.

    `wanted` is in 1 / unit. They sum to about total · unit, and some may be below 0.
    """
    given = [max(want, 0) // unit for want in wanted]
    rest = total - sum(given)
    # Those that have waited longest come first; where too much was given, those that are owed least give it back.
    by_debt = sorted(range(len(given)), key=lambda s: given[s] * unit - wanted[s])
    step = 1 if rest > 0 else -1
    while rest:
        for s in by_debt if rest > 0 else reversed(by_debt):
            if rest and (wanted[s] > 0 if step > 0 else given[s] > 0):
                given[s] += step
                rest -= step
    return given
