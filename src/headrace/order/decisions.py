"""Decisions: changes of the mixture that are made while a run goes on.

A decision says from which sample of the run on it holds. A state has all decisions, so a resume repeats them, and a
replay needs nothing that led to them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from headrace.errors import ConfigError
from headrace.order.arrays import IntArray
from headrace.order.config import OrderConfig
from headrace.order.mixture.mixture import Mixture
from headrace.order.mixture.schedule import Schedule, SchedulePoint, apportion
from headrace.order.native.order import NativeOrder
from headrace.order.plan import Plan
from headrace.order.protocols import BatchPlan, Order
from headrace.order.skip import Skip
from headrace.order.topology import BatchSpec

_KEPT = 3  # orders of parts: of a worker, of its look-ahead, and of the counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A change of a run, from a sample on.

    Raises:
        ConfigError: a value is out of range.
    """

    at: int
    """Samples of the run's global sequence, over all epochs and ranks, before it takes effect."""
    what: Mapping[str, Any]
    """``{'proportions': {...}}``: the share of each stream, relative to their sum."""
    by: str
    """Name of the decider, for people to read, such as a callback's."""
    digest: str
    """Of the decision, those before it, and the data and mixture that the run began with."""

    def __post_init__(self) -> None:
        if (
            not isinstance(self.what, dict)
            or [*self.what] != ['proportions']
            or not isinstance(self.what['proportions'], dict)
            or not all(isinstance(name, str) for name in cast('dict[Any, Any]', self.what['proportions']))
        ):
            raise ConfigError(f'a decision must change `proportions` of named streams, got {str(self.what)[:200]}.')
        if not (isinstance(self.by, str) and isinstance(self.digest, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f'a decision has texts `by` and `digest`, got {self.by!r:.80} and {self.digest!r:.80}.')
        SchedulePoint(at=self.at, proportions=self.what['proportions'])

    @classmethod
    def after(cls, digest: str, at: int, what: Mapping[str, Any], by: str) -> Decision:
        """Return the decision that follows one with a digest, or the run's `base_digest`."""
        text = json.dumps([digest, at, what, by], sort_keys=True)
        return cls(at=at, what=what, by=by, digest=hashlib.blake2b(text.encode(), digest_size=8).hexdigest())

    def to_json(self) -> dict[str, Any]:
        """Return what `decisions_of` takes a list of."""
        return {'at': self.at, 'what': self.what, 'by': self.by, 'digest': self.digest}


def shares_of(proportions: Mapping[str, float]) -> dict[str, float]:
    """Proportions as a `Decision` has them.

    Raises:
        ConfigError: they are not a mapping from names to numbers.
    """
    try:
        return {name: float(share) for name, share in sorted(proportions.items())}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f'proportions must map stream names to numbers, got {proportions!r:.200}.') from None


def decisions_of(values: object) -> tuple[Decision, ...]:
    """Read decisions, or mappings of `Decision.to_json`, in the order of their positions.

    Raises:
        ConfigError: they are something else.
    """
    if not isinstance(values, (list, tuple)):
        raise ConfigError(f'decisions must be a list, got {str(values)[:200]}.')
    decisions: list[Decision] = []
    for value in cast('Sequence[Any]', values):
        if not isinstance(value, Decision):
            if not isinstance(value, dict) or sorted(map(str, cast('dict[Any, Any]', value))) != _KEYS:
                raise ConfigError(f'a decision has {", ".join(_KEYS)}, got {str(value)[:200]}.')
            value = Decision(**value)  # noqa: PLW2901
        if decisions and value.at < decisions[-1].at:
            raise ConfigError(f'decisions must be in the order of `at`, got {value.at} after {decisions[-1].at}.')
        decisions.append(value)
    return tuple(decisions)


_KEYS = ['at', 'by', 'digest', 'what']


def base_digest(mixture: Mixture, seed: int, since: int) -> str:
    """The digest of what a run's first decision changes.

    Args:
        mixture: as configured.
        seed: of the order.
        since: samples of the run before this mixture took over from another one.
    """
    schedule = None if mixture.schedule is None else mixture.schedule.to_json()
    streams = [
        (stream.name, stream.size, stream.fingerprint, choose)
        for stream, choose in zip(mixture.streams, mixture.choose, strict=True)
    ]
    text = json.dumps([seed, since, mixture.epoch_size, streams, mixture.stages, schedule])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def are_of(decisions: Sequence[Decision], base: str) -> bool:
    """Whether each decision follows the one before it, and the first one the base."""
    digests = [base, *(decision.digest for decision in decisions)]
    return all(
        decision == Decision.after(before, decision.at, decision.what, decision.by)
        for before, decision in zip(digests, decisions, strict=False)
    )


def decided(before: Mixture, decision: Decision) -> Mixture:
    """The mixture that a decision makes of another one, as if it began the run.

    Raises:
        ConfigError: the decision leaves a stream out, or names one that does not exist.
    """
    shares: dict[str, float] = decision.what['proportions']
    names = [stream.name for stream in before.streams]
    if sorted(shares) != sorted(names):
        raise ConfigError(
            f'decided proportions name every stream, and give 0 to those that pause: got {sorted(shares)}, '
            f'there are {sorted(names)}.'
        )
    weights = Schedule.of([{'at': 0, 'proportions': shares}]).steps(names)[0].weights
    proportions = tuple(weight / sum(weights) for weight in weights)
    choose = tuple(apportion(before.epoch_size, weights))  # 0 for a share of 0
    return Mixture(streams=before.streams, choose=choose, proportions=proportions, epoch_size=before.epoch_size)


def place_of(mixture: Mixture, at: int) -> tuple[int, int]:
    """Epoch and position in it of a sample of the run, which comes after the mixture took over."""
    takeover = mixture.takeover
    epoch, sample = divmod(at - takeover.begin, mixture.epoch_size)
    return takeover.epoch + epoch, sample


def taken_over(last: Mixture, to: Mixture, at: int, config: OrderConfig) -> Mixture:
    """The mixture `to`, whose streams go on where they are at a sample of the run under the last one."""
    epoch, sample = place_of(last, at)
    order = NativeOrder(last, config, epoch)
    mixture = replace(to, takeover=order.takeover_at(sample))
    if mixture.streams is last.streams:  # there may be many mixtures: they share the large arrays
        for name in ('sample_offsets', 'shard_offsets', 'shard_sizes'):
            object.__setattr__(mixture, name, getattr(last, name))
    return mixture


class DecidedOrder(Order):
    """The native order of an epoch whose mixture changes at decided positions.

    Args:
        mixtures: at least one; each after the first took over in this epoch.
        make: makes the order of the epoch under a mixture.
        epoch: which one.
    """

    def __init__(self, mixtures: Sequence[Mixture], make: Callable[[Mixture], Order], epoch: int) -> None:
        self._mixtures, self._make = mixtures, make
        self._parts: dict[int, Order] = {}
        self.mixture, self.epoch = mixtures[0], epoch
        first = self._part(0)
        self.first, self.num_canonical_nodes, self.units = first.first, first.num_canonical_nodes, first.units
        self._begins = np.array([first.first, *(mixture.takeover.sample for mixture in mixtures[1:])])

    def _part(self, number: int) -> Order:
        part = self._parts.pop(number, None)
        if part is None:
            part = self._make(self._mixtures[number])
            if len(self._parts) == _KEPT:
                del self._parts[next(iter(self._parts))]
        self._parts[number] = part  # the last one used is last
        return part

    @property
    def mixtures(self) -> Sequence[tuple[int, Mixture]]:
        return list(zip(self._begins.tolist(), self._mixtures, strict=True))

    def at(self, positions: IntArray) -> IntArray:
        if len(positions) and int(positions.min()) < self.first:
            raise IndexError(f'positions must be in [{self.first}, {len(self)}), got {positions.min()}.')
        ids = np.empty(len(positions), np.int64)
        numbers = self._begins.searchsorted(positions, 'right') - 1
        for number in np.unique(numbers).tolist():
            where = (numbers == number).nonzero()[0]
            ids[where] = self._part(number).at(positions[where])
        return ids

    def _spans(self, begin: int, end: int) -> Iterator[tuple[Order, int, int]]:
        """The parts of positions from begin on and below end, with their own."""
        ends = [*self._begins[1:].tolist(), len(self)]
        for number, (first, stop) in enumerate(zip(self._begins.tolist(), ends, strict=True)):
            if max(first, begin) < min(stop, end):
                yield self._part(number), max(first, begin), min(stop, end)

    def stream_counts(self, begin: int, end: int) -> IntArray:
        counts = np.zeros(len(self.mixture.streams), np.int64)
        for part, first, stop in self._spans(begin, end):
            counts += part.stream_counts(first, stop)
        return counts

    def _find(self, stream: int, sample_id: int, start: int) -> Iterator[int]:
        del stream
        for part, first, stop in self._spans(start, len(self)):
            for position in part.find(sample_id, first):
                if position >= stop:
                    break
                yield position

    def plan(
        self, batches: BatchSpec, start: int = 0, *, epoch: int = 0, skip: Skip = (), initial_nodes: int | None = None
    ) -> BatchPlan:
        plan = self._part(0).plan(batches, start, epoch=epoch, skip=skip, initial_nodes=initial_nodes)
        assert isinstance(plan, Plan)
        return replace(plan, order=self)
