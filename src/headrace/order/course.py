"""How many of each stream's draws fall to which canonical node, at any point of a run.

A run is cut into *segments*, stretches of an epoch with one mixture: a whole epoch as a rule, a stage of a schedule,
what is left of an epoch after a change. A stream's draws that fall to a canonical node are the stream's *turns* there,
counted through all epochs. Turns follow from the mixture and the number of canonical nodes only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from headrace.order.interleave import quotas
from headrace.order.schedule import Step, allocate, apportion
from headrace.order.stratified import grid_quotas

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.order.config import OrderConfig
    from headrace.order.mixture import IntArray, Mixture

__all__ = ['Course', 'Dealing', 'Segment']


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A stretch of an epoch with one mixture."""

    begin: int
    """Position in the epoch."""
    counts: IntArray
    """int64[streams]: draws of each stream; they sum to the segment's length."""
    is_stratified: bool = False
    """Whether its batches all have the same share of each stream."""

    @property
    def end(self) -> int:
        """Position after its last."""
        return self.begin + int(self.counts.sum())


class Dealing:
    """Which of a canonical node's turns in a segment is which of the stream's draws there.

    Draws go to the nodes in turn, node 0 first, as long as every node has turns left; then to those that have more.
    """

    __slots__ = ('excess', 'least')

    def __init__(self, turns: IntArray) -> None:
        """Take int64[streams, nodes], how many turns each stream has on each node."""
        num_streams, num_nodes = turns.shape
        self.least = turns.min(1)
        """int64[streams]: turns that every node has. Turn t below it is draw t · nodes + node."""
        more = turns - self.least[:, None]
        levels = int(more.max(initial=0))
        self.excess = np.zeros((num_streams * num_nodes, levels), np.int64)
        """int64[streams · nodes, levels]: the draw of turn least + level."""
        filled = self.least * num_nodes
        for level in range(levels):
            has = more > level
            self.excess[:, level] = (filled[:, None] + np.cumsum(has, 1) - 1).reshape(-1)
            filled = filled + has.sum(1)


def _turns_of(draws: int, turns: IntArray) -> IntArray:
    """Return how many of a segment's first draws fall to each node, given all its turns int64[nodes]: as `Dealing`."""
    num_nodes, least = len(turns), int(turns.min())
    nodes = np.arange(num_nodes)
    if draws <= least * num_nodes:
        return (draws - nodes + num_nodes - 1) // num_nodes
    dealt, rest = np.full(num_nodes, least), draws - least * num_nodes
    while rest:
        next_ones = (turns > dealt).nonzero()[0][:rest]
        dealt[next_ones] += 1
        rest -= len(next_ones)
    return dealt


class Course:
    """The segments of a mixture's run, and each stream's draws and turns before any of them.

    Draws and turns are counted from where the mixture took over, `Mixture.origin`. From some epoch on, all epochs have
    the same segments, so that nothing grows with the number of epochs.
    """

    def __init__(self, mixture: Mixture, config: OrderConfig) -> None:
        """Take a config with its defaults filled in."""
        self._mixture = mixture
        self.num_nodes = config.num_canonical_nodes or 1
        self._batch_size = config.global_batch_size if config.batching == 'stratified' else None
        self._size = mixture.epoch_size
        self._first_epoch = mixture.origin.epoch
        single = self._scheduled() if mixture.schedule is not None else self._rest()
        self._num_single = len(single)  # epochs with segments of their own; the others are all alike
        alike = self._cut(0, [(0, self._size, mixture.choose)] if mixture.schedule else self._stages())
        self._epochs = [*single, alike]
        segments = [segment for epoch in self._epochs for segment in epoch]
        self._first_alike = len(segments) - len(alike)
        self._begins = np.cumsum([0, *map(len, self._epochs)])
        counts = np.array([segment.counts for segment in segments])
        self.quotas = np.array([self._quotas(segment) for segment in segments])
        """int64[segments, streams, nodes]: turns, of the epochs with their own segments and of one of the others."""
        self._draws = np.cumsum(counts, 0) - counts
        self._turns = np.cumsum(self.quotas, 0) - self.quotas
        self._period = counts[self._first_alike :].sum(0)
        self._period_turns = self.quotas[self._first_alike :].sum(0)

    def _quotas(self, segment: Segment) -> IntArray:
        if segment.is_stratified:
            assert self._batch_size is not None
            return grid_quotas(segment.counts, self._batch_size, self.num_nodes)
        return quotas(segment.counts, self.num_nodes, segment.begin)

    # -- the segments ----------------------------------------------------------------------------------------------

    def _stages(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Begin, end and draws of the stages of an epoch."""
        ends = np.cumsum([0, *(sum(stage) for stage in self._mixture.stages)]).tolist()
        return [(*span, stage) for span, stage in zip(pairwise(ends), self._mixture.stages, strict=True)]

    def _rest(self) -> list[list[Segment]]:
        """What is left of the epoch in which the mixture took over."""
        sample = self._mixture.origin.sample
        if not sample:
            return []
        left = [
            (max(begin, sample), end, tuple(apportion(end - max(begin, sample), counts)))
            for begin, end, counts in self._stages()
            if end > sample
        ]
        return [self._cut(sample, left)]

    def _scheduled(self) -> list[list[Segment]]:
        """The epochs up to the schedule's end."""
        schedule, origin, size = self._mixture.schedule, self._mixture.origin, self._size
        assert schedule is not None
        steps = schedule.steps([stream.name for stream in self._mixture.streams])
        unit = sum(steps[0].weights)
        owed = [0] * len(self._mixture.streams)  # what the streams should have been given more, in units
        epochs: list[list[Segment]] = []
        epoch = origin.epoch
        while epoch * size < schedule.end or (epoch == origin.epoch and origin.sample):
            start = epoch * size + (origin.sample if epoch == origin.epoch else 0)
            stages: list[tuple[int, int, tuple[int, ...]]] = []
            for begin, end, step in self._stretches(steps, start, (epoch + 1) * size):
                unit = sum(step.weights)
                owed = [o + (end - begin) * w * _UNIT // unit for o, w in zip(owed, step.weights, strict=True)]
                given = allocate(end - begin, owed, _UNIT)
                owed = [o - g * _UNIT for o, g in zip(owed, given, strict=True)]
                stages.append((begin - epoch * size, end - epoch * size, tuple(given)))
            epochs.append(self._cut(start - epoch * size, stages))
            epoch += 1
        return epochs

    def _stretches(self, steps: list[Step], start: int, stop: int) -> list[tuple[int, int, Step]]:
        """The steps between two positions of the run in one epoch, stratified ones moved to where batches begin."""
        grain, zero = self._batch_size or 1, stop - self._size
        begins = [zero + (step.begin - zero + grain // 2) // grain * grain for step in steps]
        begins = [min(max(begin, start), stop) for begin in begins]
        spans = zip(begins, [*begins[1:], stop], steps, strict=True)
        return [(begin, end, step) for begin, end, step in spans if end > begin]

    def _cut(self, start: int, stages: list[tuple[int, int, tuple[int, ...]]]) -> list[Segment]:
        """Make segments of stages, of which the stratified have whole batches only."""
        segments: list[Segment] = []
        for begin, end, counts in stages:
            size = self._batch_size
            whole = 0 if size is None or begin % size else (end - begin) // size * size
            main = apportion(whole, counts) if whole < end - begin else list(counts)
            if whole:
                segments.append(Segment(begin, np.array(main, np.int64), is_stratified=True))
            if whole < end - begin:
                rest = [n - m for n, m in zip(counts, main, strict=True)] if whole else list(counts)
                segments.append(Segment(begin + whole, np.array(rest, np.int64)))
        return segments or [Segment(start, np.zeros(len(self._mixture.streams), np.int64))]

    def segments(self, epoch: int) -> list[Segment]:
        """Return the segments of an epoch, in order; what was before the mixture took over is not among them."""
        return self._epochs[min(epoch - self._first_epoch, self._num_single)]

    def numbers(self, epoch: int) -> range:
        """Return the rows of `quotas` that belong to an epoch's segments."""
        i = min(epoch - self._first_epoch, self._num_single)
        return range(int(self._begins[i]), int(self._begins[i + 1]))

    # -- draws and turns -------------------------------------------------------------------------------------------

    def before(self, epoch: int, segment: int) -> tuple[IntArray, IntArray]:
        """Return draws int64[streams] and turns int64[streams, nodes] before a segment, counted from 0 in its epoch."""
        number = self.numbers(epoch)[segment]
        past = max(epoch - self._first_epoch - self._num_single, 0)
        return self._draws[number] + past * self._period, self._turns[number] + past * self._period_turns

    def turns_after(self, stream: int, draws: int) -> IntArray:
        """Return int64[nodes], the turns that a stream's first draws are.

        Past its last draw it is dealt to all nodes alike, so that a pass has an end also where a stream leaves the
        mixture in the middle of it.
        """
        first, last = self._first_alike, len(self._draws)
        period, start = int(self._period[stream]), int(self._draws[first, stream])
        if draws < start or not period:
            past, rest, rows = 0, draws, range(first)
            if not period and draws >= start:
                return self._turns[first, stream] + _turns_of(draws - start, self._endless)
        else:
            past, rest = divmod(draws - start, period)
            rest, rows = rest + start, range(first, last)
        column = self._draws[rows.start : rows.stop, stream]
        number = rows.start + int(column.searchsorted(rest, 'right')) - 1
        dealt = _turns_of(rest - int(self._draws[number, stream]), self.quotas[number, stream])
        return self._turns[number, stream] + past * self._period_turns[stream] + dealt

    def resting(self, stream: int, draws: int) -> NDArray[np.bool_]:
        """Return bool[nodes], whether a node gets none of a stream's turns any more after its first draws."""
        is_alike = draws >= int(self._draws[self._first_alike, stream]) and int(self._period[stream]) > 0
        return (self._period_turns[stream] == 0) & is_alike

    @cached_property
    def _endless(self) -> IntArray:
        return np.full(self.num_nodes, 1 << 50)


_UNIT = 1 << 80  # of what is owed: finer than any sum of weights
