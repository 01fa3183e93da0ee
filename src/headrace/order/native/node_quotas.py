"""How many of each stream's draws fall to which canonical node, at any point of a run.

A run is cut into *segments*, stretches of an epoch with one mixture. A segment is usually a whole epoch. A schedule's
stage, or the rest of an epoch after a change, is one too. The *node draws* of a stream are its draws that
fall to one canonical node, counted there through all epochs. They follow from the mixture and the number of canonical
nodes only.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from headrace.errors import ConfigError
from headrace.order.arrays import IntArray
from headrace.order.config import OrderConfig
from headrace.order.mixture.mixture import Mixture
from headrace.order.mixture.schedule import ScheduleStep, allocate, apportion
from headrace.order.native.interleave import quotas
from headrace.order.native.special.stratified_free import free_grid_quotas
from headrace.order.native.stratified import grid_quotas
from headrace.order.native.units import listed_quotas, unit_quotas


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A stretch of an epoch with one mixture."""

    begin: int  # Position in the epoch.
    counts: IntArray  # int64[streams]: draws of each stream; they sum to the segment's length.
    kind: Literal['mixed', 'stratified', 'units', 'listed'] = 'mixed'
    """How streams share it: at random; each batch in the streams' shares; by units; or as ``streams`` says."""
    streams: IntArray | None = None  # int64[positions]: the stream of each position of a ``listed`` segment.

    @property
    def end(self) -> int:
        """Position after its last."""
        return self.begin + int(self.counts.sum())


class DrawIndex:
    """Which of the stream's draws in a segment is the n-th draw of a canonical node there.

    Draws go to the nodes round-robin while every node has draws left, then to those that have more.
    """

    __slots__ = ('excess', 'least')

    def __init__(self, node_draws: IntArray) -> None:
        """Take int64[streams, nodes], the draws of each stream on each node."""
        num_streams, num_nodes = node_draws.shape
        self.least = node_draws.min(1)
        """int64[streams]: draws that every node has. Node draw n below it is draw n · nodes + node."""
        more = node_draws - self.least[:, None]
        levels = int(more.max(initial=0))
        self.excess = np.zeros((num_streams * num_nodes, levels), np.int64)
        """int64[streams · nodes, levels]: the draw of node draw least + level."""
        filled = self.least * num_nodes
        for level in range(levels):
            has = more > level
            self.excess[:, level] = (filled[:, None] + np.cumsum(has, 1) - 1).reshape(-1)
            filled = filled + has.sum(1)


def _dealt(draws: int, node_draws: IntArray) -> IntArray:
    """Return how many of a segment's first draws fall to each node, as in `DrawIndex`; node draws are int64[nodes]."""
    num_nodes, least = len(node_draws), int(node_draws.min())
    nodes = np.arange(num_nodes)
    if draws <= least * num_nodes:
        return (draws - nodes + num_nodes - 1) // num_nodes
    dealt, rest = np.full(num_nodes, least), draws - least * num_nodes
    while rest:
        next_ones = (node_draws > dealt).nonzero()[0][:rest]
        dealt[next_ones] += 1
        rest -= len(next_ones)
    return dealt


@dataclass(frozen=True, slots=True, eq=False)
class _Epochs:
    """Epochs in a row with the same segments."""

    first: int
    segments: list[Segment]
    draws: IntArray  # int64[segments + 1, streams]: draws before each segment of an epoch, and in all of it.
    node_draws: IntArray  # int64[segments + 1, streams, nodes]: node draws, likewise.
    draws_before: IntArray  # int64[streams]: draws before the first epoch.
    node_draws_before: IntArray  # int64[streams, nodes]: node draws, likewise.


class NodeQuotas:
    """The segments of a mixture's run, and each stream's draws and node draws before any of them.

    Both are counted from where the mixture took over, `Mixture.takeover`. All epochs that lie in one step of
    the schedule, or after it, have the same segments, so that nothing grows with the number of epochs.
    """

    def __init__(self, mixture: Mixture, config: OrderConfig) -> None:
        """Take a config with its defaults filled in."""
        self._mixture = mixture
        self.num_nodes = config.num_canonical_nodes or 1
        self._batch_size = config.global_batch_size if config.batching != 'random' else None
        self._units = config.units
        self._size = mixture.epoch_size
        self._epochs: list[_Epochs] = []
        for first, segments in self._scheduled() if mixture.schedule is not None else self._unscheduled():
            self._append(first, segments)
        self._firsts = [epochs.first for epochs in self._epochs]
        self._draws_before = np.array([epochs.draws_before for epochs in self._epochs])

    def _append(self, first: int, segments: list[Segment]) -> None:
        """Add epochs that have these segments, from the first one on."""
        shape = len(segments) + 1, len(self._mixture.streams)
        draws, node_draws = np.zeros(shape, np.int64), np.zeros((*shape, self.num_nodes), np.int64)
        for number, segment in enumerate(segments):
            draws[number + 1] = draws[number] + segment.counts
            node_draws[number + 1] = node_draws[number] + self._quotas(segment)
        draws_before, node_draws_before = draws[0], node_draws[0]
        if self._epochs:
            last = self._epochs[-1]
            draws_before = last.draws_before + (first - last.first) * last.draws[-1]
            node_draws_before = last.node_draws_before + (first - last.first) * last.node_draws[-1]
        self._epochs.append(
            _Epochs(
                first=first,
                segments=segments,
                draws=draws,
                node_draws=node_draws,
                draws_before=draws_before,
                node_draws_before=node_draws_before,
            )
        )

    def _quotas(self, segment: Segment) -> IntArray:
        if segment.kind == 'stratified':
            assert self._batch_size is not None
            if self._batch_size % self.num_nodes:
                return free_grid_quotas(segment.counts, self._batch_size, self.num_nodes, segment.begin)
            return grid_quotas(segment.counts, self._batch_size, self.num_nodes)
        if segment.kind == 'units':
            assert self._batch_size is not None
            return unit_quotas(segment.counts, self._batch_size, self._units, self.num_nodes)
        if segment.streams is not None:
            return listed_quotas(segment.streams, len(segment.counts), self.num_nodes, segment.begin)
        return quotas(segment.counts, self.num_nodes, segment.begin)

    # -- the segments ----------------------------------------------------------------------------------------------

    def _unscheduled(self) -> Iterator[tuple[int, list[Segment]]]:
        """Yield what is left of the epoch in which the mixture took over, and the others; as `_append` takes them."""
        takeover, stages = self._mixture.takeover, self._mixture.stages
        ends = np.cumsum([0, *map(sum, stages)]).tolist()
        epoch = [(*span, stage) for span, stage in zip(pairwise(ends), stages, strict=True)]
        if takeover.sample:
            left = [
                (max(begin, takeover.sample), end, apportion(end - max(begin, takeover.sample), counts))
                for begin, end, counts in epoch
                if end > takeover.sample
            ]
            yield takeover.epoch, self._cut(takeover.sample, left)
        yield takeover.epoch + (takeover.sample > 0), self._cut_whole(epoch)

    def _scheduled(self) -> Iterator[tuple[int, list[Segment]]]:
        """Yield the epochs of the schedule and those after it, as `_append` takes them."""
        schedule, takeover, size = self._mixture.schedule, self._mixture.takeover, self._size
        assert schedule is not None
        steps = schedule.steps([stream.name for stream in self._mixture.streams])
        owed = [0] * len(self._mixture.streams)  # the draws that streams still lack, in parts
        lacking = [0] * len(self._mixture.streams)  # and those that whole units of epochs before did not give them
        epoch, sample = takeover.epoch, takeover.sample
        while True:
            begin = takeover.begin_of(epoch, size)
            stretches = self._stretches(steps, begin + sample, begin + size)
            step = stretches[-1][2] if stretches else steps[0]
            number = bisect.bisect_left(steps, step.begin, key=lambda step: step.begin)
            is_last = number + 1 == len(steps)
            alike = 1 if is_last else (steps[number + 1].begin - begin) // size
            if not sample and len(stretches) == 1 and alike > 0:
                yield epoch, self._cut_whole([(0, size, apportion(size, step.weights))])
                if is_last:
                    return
                epoch += alike
                continue
            stages: list[tuple[int, int, Sequence[int]]] = []
            for first, end, step in stretches:
                unit = sum(step.weights)
                owed = [o + (end - first) * w * _UNIT // unit for o, w in zip(owed, step.weights, strict=True)]
                given = allocate(end - first, owed, _UNIT)
                owed = [o - g * _UNIT for o, g in zip(owed, given, strict=True)]
                stages.append((first - begin, end - begin, given))
            yield epoch, self._cut(sample, stages, lacking)
            epoch, sample = epoch + 1, 0

    def _stretches(self, steps: list[ScheduleStep], start: int, stop: int) -> list[tuple[int, int, ScheduleStep]]:
        """The steps between two positions of the run in one epoch, stratified ones moved to where batches begin."""
        grain = self._batch_size or 1
        first = bisect.bisect_right(steps, start - grain, key=lambda step: step.begin) - 1
        last = bisect.bisect_left(steps, stop, key=lambda step: step.begin)
        near = steps[max(first, 0) : max(last, 1)]
        begins = [start + (step.begin - start + grain // 2) // grain * grain for step in near]
        begins = [min(max(begin, start), stop) for begin in begins]
        spans = zip(begins, [*begins[1:], stop], near, strict=True)
        return [(begin, end, step) for begin, end, step in spans if end > begin]

    def _cut_whole(self, stages: Sequence[tuple[int, int, Sequence[int]]]) -> list[Segment]:
        """Make segments of the stages of a whole epoch, one of many."""
        segments = self._cut(0, stages)
        if not self._units:
            return segments
        # The rest after the last full batch may be dropped.
        whole = [segment for segment in segments if segment.streams is None] or segments
        drawn = np.sum([segment.counts for segment in whole], 0).tolist()
        for stream, *wanted, given in zip(
            self._mixture.streams, *(counts for *_, counts in stages), drawn, strict=True
        ):
            if sum(wanted) and not given:
                assert self._batch_size is not None
                raise ConfigError(
                    f"one stream gives all {self._batch_size // self._units} samples of a batch, or of a device's part "
                    f'of it, but an epoch takes only {sum(wanted)} samples of stream {stream.name!r}. Lower the batch '
                    f'size, or let the epoch draw more of the stream.'
                )
        return segments

    def _cut(
        self, start: int, stages: Sequence[tuple[int, int, Sequence[int]]], lacking: list[int] | None = None
    ) -> list[Segment]:
        """Make segments of stages; stratified ones have whole batches only. Updates the draws that are `lacking`."""
        if self._units:
            return self._cut_units(start, stages, [0] * len(self._mixture.streams) if lacking is None else lacking)
        segments: list[Segment] = []
        for begin, end, counts in stages:
            # Up to where a batch begins, whole batches, and the begin of one.
            grain, left = self._batch_size or end - begin, list(counts)
            head = min((start - begin) % grain, end - begin) if self._batch_size else 0
            first, last = begin + head, end - (end - begin - head) % grain
            for a, b, is_whole in ((begin, first, False), (first, last, True), (last, end, False)):
                if a < b:
                    part = apportion(b - a, left)
                    left = [n - m for n, m in zip(left, part, strict=True)]
                    kind = 'stratified' if is_whole and self._batch_size is not None else 'mixed'
                    segments.append(Segment(a, np.array(part, np.int64), kind))
        return segments or [Segment(start, np.zeros(len(self._mixture.streams), np.int64))]

    def _cut_units(
        self, start: int, stages: Sequence[tuple[int, int, Sequence[int]]], lacking: list[int]
    ) -> list[Segment]:
        """Make segments of whole units, which begin and end with batches; and one of what is left after the last."""
        assert self._batch_size is not None
        size, unit = self._batch_size, self._batch_size // self._units
        end = stages[-1][1] if stages else start
        last = end - (end - start) % size
        segments: list[Segment] = []
        at = start
        for _, stage_end, counts in stages:
            lacking[:] = [lack + count for lack, count in zip(lacking, counts, strict=True)]
            until = last if stage_end == end else min(start + (stage_end - start + size // 2) // size * size, last)
            if until > at:
                # Whole batches are a little more than the stage, or less: all streams give in proportion.
                units = (until - at) // unit
                given = allocate(units, [lack * units for lack in lacking], sum(lacking))
                lacking[:] = [lack - count * unit for lack, count in zip(lacking, given, strict=True)]
                segments.append(Segment(at, np.array(given, np.int64) * unit, 'units'))
                at = until
        if last < end:
            streams = self._listed(last, end, lacking)
            segments.append(Segment(last, np.bincount(streams, minlength=len(lacking)), 'listed', streams))
        return segments or [Segment(start, np.zeros(len(self._mixture.streams), np.int64))]

    def _listed(self, begin: int, end: int, lacking: list[int]) -> IntArray:
        """Return the streams of an epoch's last positions, int64[positions]: each unit's is the one that lacks most."""
        waiting = [(-lack, stream) for stream, lack in enumerate(lacking)]
        heapq.heapify(waiting)
        of_units = np.zeros(self._units, np.int64)
        for first in range(begin, min(begin + self._units, end)):
            lack, stream = waiting[0]
            of_units[first % self._units] = stream
            heapq.heapreplace(waiting, (lack + len(range(first, end, self._units)), stream))
        for lack, stream in waiting:
            lacking[stream] = -lack
        return of_units[np.arange(begin, end) % self._units]

    def _of(self, epoch: int) -> _Epochs:
        return self._epochs[bisect.bisect_right(self._firsts, epoch) - 1]

    def segments(self, epoch: int) -> list[Segment]:
        """Return the segments of an epoch, in order; what was before the mixture took over is not among them."""
        return self._of(epoch).segments

    def quotas(self, epoch: int, segment: int) -> IntArray:
        """Return int64[streams, nodes], the node draws in a segment."""
        node_draws = self._of(epoch).node_draws
        return node_draws[segment + 1] - node_draws[segment]

    # -- draws and node draws --------------------------------------------------------------------------------------

    def before(self, epoch: int, segment: int) -> tuple[IntArray, IntArray]:
        """Return draws int64[streams] and node draws int64[streams, nodes] before a segment of an epoch."""
        epochs = self._of(epoch)
        past = epoch - epochs.first
        draws = epochs.draws_before + past * epochs.draws[-1] + epochs.draws[segment]
        return draws, epochs.node_draws_before + past * epochs.node_draws[-1] + epochs.node_draws[segment]

    def node_draws_after(self, stream: int, draws: int) -> IntArray:
        """Return int64[nodes], the node draws of a stream's first draws; past its last, nodes get equally many."""
        number = int(self._draws_before[:, stream].searchsorted(draws, 'right')) - 1
        epochs = self._epochs[number]
        node_draws, rest = epochs.node_draws_before[stream], draws - int(epochs.draws_before[stream])
        period = int(epochs.draws[-1, stream])
        if not period:  # only the last epochs: before them, others would be nearer
            return node_draws + _dealt(rest, self._endless)
        past, rest = divmod(rest, period)
        segment = int(epochs.draws[:-1, stream].searchsorted(rest, 'right')) - 1
        before, after = epochs.node_draws[segment : segment + 2, stream]
        dealt = _dealt(rest - int(epochs.draws[segment, stream]), after - before)
        return node_draws + past * epochs.node_draws[-1, stream] + before + dealt

    def period(self, stream: int) -> tuple[IntArray, int]:
        """The draws by node that all later epochs have of a stream, int64[nodes], or 1; its draws after the first."""
        last = self._epochs[-1]
        draws = last.node_draws[-1, stream]
        return draws if draws.any() else np.ones_like(draws), int((last.draws_before + last.draws[-1])[stream])

    @cached_property
    def _endless(self) -> IntArray:
        return np.full(self.num_nodes, 1 << 56)


_UNIT = 1 << 80  # of a debt of draws: finer than any sum of weights
