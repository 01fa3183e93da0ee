"""Samples of each stream over all ranks, and the expected numbers, computed from the plan on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from headrace.order import BatchPlan, ExpectedCounts

__all__ = ['MixtureCounts', 'StreamCount']

_MOST_UNCOUNTED = 1 << 18  # samples: some orders look each of them up, which must not take a whole epoch at once


class StreamCount(NamedTuple):
    """Samples of a stream, counted and expected; of packed data, tokens."""

    samples: int
    """Over all ranks, without padding; tokens of packed data are those of this rank."""
    promised: float
    """Expected for as many samples of all streams, by the proportions of the mixture or its schedule."""


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
        if self._expected is None or self._expected.mixture is not mixture:
            self._expected = ExpectedCounts(mixture)
        counts = plan.stream_counts(first, last)
        promised = sum(
            (self._expected.between(plan.order.epoch, *span) for span in plan.spans(first, last)),
            start=np.zeros(len(counts)),
        )
        for stream, count, share in zip(mixture.streams, counts.tolist(), promised.tolist(), strict=True):
            had = self._counts.get(stream.name, StreamCount(0, 0.0))
            self._counts[stream.name] = StreamCount(had.samples + count, had.promised + share)

    def add(self, counts: Mapping[str, StreamCount]) -> None:
        """Add counts from elsewhere, such as those of a checkpoint."""
        for name, count in counts.items():
            had = self._counts.get(name, StreamCount(0, 0.0))
            self._counts[name] = StreamCount(had.samples + count.samples, had.promised + count.promised)

    def counts(self) -> dict[str, StreamCount]:
        """Counts by stream name."""
        self._settle()
        return dict(self._counts)
