"""An epoch's global batches, and the rows of each that belong to a rank."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, get_args

import numpy as np

from headrace.errors import ConfigError
from headrace.order.protocols import BatchPlan
from headrace.order.skip import Ranges, UnskippedPositions, merged
from headrace.order.topology import Remainder, Uneven, check_batch_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.order.arrays import IntArray
    from headrace.order.protocols import Order
    from headrace.order.topology import Topology


class Cuts(ABC):
    """Where batches begin, from a number on. Numbers are those of positions that are not skipped."""

    __slots__ = ('multiple', 'stop')

    multiple: int  # Divides the rows of every batch, but perhaps of an epoch's last.
    stop: int  # The number after the last batch.

    @property
    @abstractmethod
    def count(self) -> int:
        """How many batches there are."""

    @abstractmethod
    def has(self, k: int) -> bool:
        """Whether there is a batch k >= 0."""

    @abstractmethod
    def begin(self, k: int) -> int:
        """The first number of batch k; `stop` if there is none."""

    @abstractmethod
    def begins(self, batches: range) -> IntArray:
        """The first numbers of consecutive batches and of the one after them, int64[batches + 1]."""

    @abstractmethod
    def batch_of(self, number: int) -> int:
        """The batch that has a number; `count` for `stop`."""


CutFrom: TypeAlias = 'Callable[[int, UnskippedPositions, Remainder], Cuts]'  # Cuts batches from a position on.


class EqualCuts(Cuts):
    __slots__ = ('_count', '_first')

    def __init__(self, first: int, end: int, size: int, remainder: Remainder) -> None:
        samples, self._first, self.multiple = end - first, first, size
        self._count = samples // size if remainder == 'drop' else -(-samples // size)
        self.stop = min(first + self._count * size, end)

    @property
    def count(self) -> int:
        return self._count

    def has(self, k: int) -> bool:
        return k < self._count

    def begin(self, k: int) -> int:
        return min(self._first + k * self.multiple, self.stop)

    def begins(self, batches: range) -> IntArray:
        return np.minimum(self._first + np.arange(batches.start, batches.stop + 1) * self.multiple, self.stop)

    def batch_of(self, number: int) -> int:
        return (number - self._first) // self.multiple


@dataclass(frozen=True, slots=True)
class Plan(BatchPlan):
    """Cuts a global sequence into batches and deals their rows to the replicas.

    Batch k is the run of positions [start + k·G, start + (k+1)·G), cut off at the end of the sequence, on every
    topology. Position p goes to node p mod P of the parallel world and there to replica (p div P) mod R. So any P·R
    consecutive positions hold one row for each replica. If P divides the order's number of canonical nodes, a node
    gets only positions of the canonical nodes c ≡ node (mod P). A replica's rows of a batch are in the sequence's
    order.

    With skipped ranges (``skip``), batch k is the k-th run of G other positions from ``start``. A batch on both sides
    of such a range deals the rows after it as if they followed directly. So replicas get equally many rows.

    Raises:
        TopologyError: the replicas cannot share the global batch equally, and ``uneven`` is None.
        ConfigError: start, remainder, uneven or skip is out of range.
    """

    order: Order
    topology: Topology
    global_batch_size: int  # Samples in a batch of all replicas together.
    start: int = 0  # Position of the sequence where batch 0 begins, 0 <= start <= len(order).
    remainder: Remainder = 'repeat'
    """Handling of the samples after the last full batch. ``drop``: they are not delivered. ``repeat``: they are a last,
    smaller batch. Its padding to a multiple of the replicas is the sequence's last samples, latest first; where batches
    are of one stream, samples of the same stream. A replica has at most one row of padding, its last. ``exact``: the
    same rows, and a promise that the order keeps too: what `own_samples` counts is each sample of the epoch once."""

    skip: Ranges = ()
    """Positions that no batch holds: what `headrace.order.skip.skipped_in_epoch` gives. They are positions all the
    same, so that ``start``, `end` and `stop` mean the same with any ranges."""
    uneven: Uneven | None = None
    """How replicas share a batch that they do not divide. Their numbers of rows differ by one at most; ``pad`` evens
    them out by a row of padding, which repeats the replica's last. A batch of fewer rows than replicas repeats its
    last rows."""
    by_row: bool = False
    """Deal rows by their number in the batch, not by their position, so that a replica has the same in each batch."""
    cut: CutFrom | None = None
    """Cuts batches of different sizes: ``global_batch_size`` is the most rows of one, and batch k is the k-th of them
    from ``start`` on. None if all batches have one size."""
    _unskipped: UnskippedPositions = field(init=False, repr=False, compare=False)
    _cuts: Cuts = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_batch_size(self.global_batch_size, self.topology, self.uneven)
        if not 0 <= self.start <= len(self.order):
            raise ConfigError(f'start must be a position in [0, {len(self.order)}], got {self.start}.')
        if self.remainder not in get_args(Remainder):
            raise ConfigError(f'remainder must be one of {list(get_args(Remainder))}, got {self.remainder!r}.')
        if self.skip != merged(self.skip) or (
            self.skip and not 0 <= self.skip[0][0] < self.skip[-1][1] <= len(self.order)
        ):
            raise ConfigError(f'skip must be merged ranges in [0, {len(self.order)}], got {self.skip}.')
        object.__setattr__(self, '_unskipped', UnskippedPositions(len(self.order), self.skip))
        object.__setattr__(self, '_cuts', self._cut(self.start, self._unskipped))

    def _cut(self, start: int, unskipped: UnskippedPositions) -> Cuts:
        if self.cut is not None:
            return self.cut(start, unskipped, self.remainder)
        return EqualCuts(unskipped.before(start), unskipped.size, self.global_batch_size, self.remainder)

    @property
    def num_batches(self) -> int:
        return self._cuts.count

    @property
    def total_batches(self) -> int:
        return self._cut(0, self._unskipped).count

    @property
    def epoch_batches(self) -> int:
        return self._cut(0, UnskippedPositions(len(self.order), ())).count

    def batches_of(self, samples: int) -> int:
        last = min(self._cuts.begin(0) + samples, self._cuts.stop) - 1
        return self._cuts.batch_of(last) + 1 if samples else 0

    @property
    def epochs_differ(self) -> bool:
        return self.cut is not None

    def batches(self, first: int, most: int) -> range:
        return range(first, first + most) if self._cuts.has(first + most - 1) else range(first, self.num_batches)

    def of_rank(self, rank: int) -> Plan:
        return replace(self, topology=replace(self.topology, rank=rank))

    def find(self, sample_id: int, first: int = 0) -> tuple[int, int] | None:
        number, stop = self._cuts.begin(first), self._cuts.stop
        while number < stop:
            position = next(self.order.find(sample_id, self._unskipped.position(number)), None)
            if position is None:
                return None
            number = self._unskipped.before(position)
            if number < stop and self._unskipped.position(number) == position:
                return self._cuts.batch_of(number), position
            # A skipped position: continue after the range.
        return None

    @property
    def batches_before(self) -> int:
        return self._cut(0, self._unskipped).batch_of(self._unskipped.before(self.start))

    @property
    def stop(self) -> int:
        """The position after the last batch; below the epoch's size if samples are dropped."""
        return self._position_after(self._cuts.stop) if self._cuts.has(0) else self.start

    @property
    def epoch_samples(self) -> int:
        return self._cut(0, self._unskipped).stop

    def end(self, k: int) -> int:
        return self._position_after(sum(self._numbers(k)))

    def _position_after(self, number: int) -> int:
        return len(self.order) if number == self._unskipped.size else self._unskipped.position(number)

    def skipped(self, k: int) -> int:
        before = self.end(k - 1) if k else self.start
        return self.end(k) - before - self._numbers(k)[1]

    def positions(self, k: int) -> IntArray:
        return self._strided(k, self._residue, self.topology.replicas)

    def positions_of(self, batches: range) -> IntArray:
        begins, replicas = self._cuts.begins(batches), self.topology.replicas
        sizes = np.diff(begins)
        repeats_others = sizes < replicas if self.uneven else sizes % replicas > 0
        whole = int(repeats_others.argmax()) if repeats_others.any() else len(sizes)
        rest = [self.positions(k) for k in batches[whole:]]
        first, rows = begins[:whole] + self._first_rows(begins[:whole]), self.rows_of(batches[:whole])
        numbers = np.repeat(first - (np.cumsum(rows) - rows) * replicas, rows) + np.arange(rows.sum()) * replicas
        numbers -= replicas * (numbers >= np.repeat(begins[1 : whole + 1], rows))  # padding repeats the row before
        return np.concatenate([self._unskipped.at(numbers), *rest])

    def rows_of(self, batches: range) -> IntArray:
        begins = self._cuts.begins(batches)
        sizes, replicas = np.diff(begins), self.topology.replicas
        padded: IntArray = -(-sizes // replicas) * replicas
        if self.uneven == 'ragged':
            padded = np.where(sizes < replicas, padded, sizes)
        return (padded - self._first_rows(begins[:-1]) + replicas - 1) // replicas

    def _first_rows(self, begins: IntArray) -> IntArray:
        """By batch, the first row that is this replica's, int64[batches]."""
        positions = np.zeros_like(begins) if self.by_row else self._unskipped.at(begins)
        return (self._residue - positions) % self.topology.replicas

    def global_positions(self, k: int) -> IntArray:
        return self._strided(k, 0, 1)

    def node_positions(self, k: int) -> IntArray:
        return self._strided(k, self.topology.node, self.topology.nodes)

    def spans(self, first: int, last: int) -> list[tuple[int, int]]:
        return self._unskipped.spans(self._cuts.begin(first), self._cuts.begin(last))

    def stream_counts(self, first: int, last: int) -> IntArray:
        counts = np.zeros(len(self.order.mixture.streams), np.int64)
        for begin, end in self.spans(first, last):
            counts += self.order.stream_counts(begin, end)
        return counts

    def own_samples(self, k: int) -> int:
        begin, rows = self._numbers(k)
        return len(self._rows_of(begin, rows, self._residue, self.topology.replicas))

    @property
    def _residue(self) -> int:
        return self.topology.node + self.topology.nodes * self.topology.local_replica

    def _numbers(self, k: int) -> tuple[int, int]:
        """The first of the unskipped positions that make up batch k, and how many they are."""
        if k < 0 or not self._cuts.has(k):
            raise IndexError(f'batches are numbered from 0 to {self.num_batches - 1}, got {k}.')
        begin = self._cuts.begin(k)
        return begin, self._cuts.begin(k + 1) - begin

    def _rows_of(self, begin: int, rows: int, residue: int, stride: int) -> range:
        """Which of a batch's first ``rows`` rows are ``residue`` modulo ``stride``; its row 0 is where it begins."""
        return range((residue - (0 if self.by_row else self._unskipped.position(begin))) % stride, rows, stride)

    def _strided(self, k: int, residue: int, stride: int) -> IntArray:
        """Positions of batch k that are dealt to ``residue`` modulo ``stride``, padding included."""
        (begin, rows), replicas = self._numbers(k), self.topology.replicas
        padded = rows if self.uneven == 'ragged' and rows >= replicas else -(-rows // replicas) * replicas
        numbers = np.array(self._rows_of(begin, padded, residue, stride), np.int64) + begin
        if padded > rows:
            end = begin + rows
            beyond = numbers >= end
            span = math.lcm(self.order.units or int(self.uneven is not None), replicas)
            if 0 < span <= rows:  # the last sample of the unit, or of the replica
                numbers[beyond] -= span
            else:
                repeated = rows if span else end - self._unskipped.before(self.order.mixtures[-1][0])
                numbers[beyond] = end - 1 - (numbers[beyond] - end) % repeated
        return self._unskipped.at(numbers)
