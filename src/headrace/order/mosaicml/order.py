"""MosaicML Streaming's orders: an epoch's permutation, and its global batches on a topology."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import get_args

import numpy as np

from headrace.errors import ConfigError, ResumeError
from headrace.errors.display import count_text
from headrace.errors.exclusions import refuse_exclusions
from headrace.order.arrays import IntArray
from headrace.order.config import OrderConfig
from headrace.order.mixture.mixture import Mixture
from headrace.order.mosaicml.batching import BATCHINGS, Batching, Devices, continues
from headrace.order.mosaicml.epoch_permutation import fill_permutation
from headrace.order.protocols import BatchPlan, LoadPermutation, Order
from headrace.order.skip import Ranges, Skip, UnskippedPositions, merged, skipped_in_epoch, skipped_ranges
from headrace.order.topology import BatchSpec, Remainder, check_batch_size

_SCANNED = 1 << 16  # positions looked through at once


class MosaicMLOrder(Order):
    """The sample ids of an epoch's positions; which position comes when is up to a `MosaicMLPlan`.

    Positions are numbered as in MosaicML Streaming's partitions: canonical node after canonical node, and with all
    batching methods but `random` stream after stream.
    """

    def __init__(self, mixture: Mixture, config: OrderConfig, epoch: int, load: LoadPermutation | None = None) -> None:
        """Take a config with its defaults filled in. Nothing is computed before `at`."""
        refuse_exclusions({'schedule': mixture.schedule, 'shuffle_algo': config.algorithm})
        if len(mixture.stages) > 1:
            raise ConfigError(
                f"when_exhausted 'drop_stream' needs the native order, got {config.algorithm!r}. Leave `shuffle_algo` "
                f"out, or choose 'repeat'."
            )
        self.mixture, self.config, self.epoch = mixture, config, epoch
        self.num_canonical_nodes = config.num_canonical_nodes or 1
        self._load = load

    @cached_property
    def ids(self) -> IntArray:
        """Sample ids of all positions, int64[epoch size]."""
        if self._load is not None:
            return self._load(self.mixture, self.config, self.epoch)
        out = np.empty(len(self), np.int64)
        fill_permutation(self.mixture, self.config, self.epoch, out)
        return out

    def at(self, positions: IntArray) -> IntArray:
        if len(positions) and (int(positions.min()) < 0 or int(positions.max()) >= len(self)):
            raise IndexError(f'positions must be in [0, {len(self)}), got {positions.min()} to {positions.max()}.')
        return self.ids[positions]

    def stream_counts(self, begin: int, end: int) -> IntArray:
        if len(self.mixture.streams) == 1:
            return np.array([end - begin])
        return self.mixture.count_streams(self.at(np.arange(begin, end)))

    def _find(self, stream: int, sample_id: int, start: int) -> Iterator[int]:
        if not self.mixture.choose[stream]:
            return iter(())  # without the permutation, which takes its time
        return iter((start + (self.ids[start:] == sample_id).nonzero()[0]).tolist())

    def plan(
        self, batches: BatchSpec, start: int = 0, *, epoch: int = 0, skip: Skip = (), initial_nodes: int | None = None
    ) -> MosaicMLPlan:
        plan = MosaicMLPlan(self, batches, start, initial_nodes)
        if not skip:
            return plan
        ranges = skipped_ranges(skip, self.mixture, batches.global_batch_size, batches.remainder, plan.epoch_rows)
        ranges = skipped_in_epoch(ranges, epoch * len(self), len(self))
        return MosaicMLPlan(self, batches, start, initial_nodes, ranges)

    def batches(self, devices: Devices, start: int) -> Batching:
        """The global batches that are left from a position on."""
        return BATCHINGS[self.config.batching](self.mixture, self.config, self.epoch, devices, start)


def check_dealt(
    mixture: Mixture, config: OrderConfig, then: Sequence[int], batches: BatchSpec, initial_nodes: int | None
) -> None:
    """Raise a ResumeError unless batches continue in the middle of an epoch as those of `ResumeState.dealt`."""
    now = batches.topology.nodes, batches.topology.replicas, batches.global_batch_size
    devices = [
        Devices(nodes=n, ranks=r // n, batch_size=size // r, initial_nodes=initial_nodes) for n, r, size in (then, now)
    ]
    if continues(mixture, config, *devices):
        return
    ranks = [f'{count_text(r, "rank")} on {count_text(n, "node")}' for n, r, _ in (then, now)]
    raise ResumeError(
        f"{config.batching} batches of MosaicML Streaming's orders depend on ranks and batch size, so that "
        f'others would lose and repeat samples in the middle of an epoch: {ranks[0]} in the checkpoint, {ranks[1]} '
        f'now; global batches of {then[2]} in the checkpoint, of {now[2]} now. Resume with those of the '
        f'checkpoint, or from a checkpoint at the begin of an epoch. The native order continues on any ranks.'
    )


class MosaicMLPlan(BatchPlan):
    """Global batches of a MosaicML order, and which rows of them are this replica's.

    A rank's k-th batch is the one that MosaicML Streaming's loader yields as its k-th, with any number of
    dataloader workers: those change only where padding without samples stands. ``start`` and positions after a batch
    count rows that were handed out, repeats that fill up the last batch included, as MosaicML Streaming counts them.

    With ``remainder='repeat'``, ranks may get unequal last batches, or one more or less, as there. This happens with
    device_per_stream batching, and after a resume on other nodes with a relaxed partition.

    With skipped ranges (``skip``), the batches are those without any position in a range. Positions are not a sequence,
    so a part of a batch cannot be skipped.
    """

    def __init__(
        self, order: MosaicMLOrder, batches: BatchSpec, start: int, initial_nodes: int | None, skip: Ranges = ()
    ) -> None:
        """As `Plan`, plus ``initial_nodes``, the number of nodes that the run began on.

        Raises:
            TopologyError: the replicas cannot share the global batch equally, or the order does not exist for them.
            ConfigError: start or remainder is out of range, remainder is ``exact``, or streams are too small for the
                batching.
            ResumeError: start is beyond the epoch's end.
        """
        topology, global_batch_size, remainder = batches.topology, batches.global_batch_size, batches.remainder
        algorithm = order.config.algorithm
        refuse_exclusions({'remainder': remainder, 'uneven': batches.uneven, 'shuffle_algo': algorithm})
        check_batch_size(global_batch_size, topology)
        if start < 0:
            raise ConfigError(f'start must be at least 0, got {start}.')
        if remainder not in get_args(Remainder):
            raise ConfigError(f'remainder must be one of {list(get_args(Remainder))}, got {remainder!r}.')
        self.order, self.start, self.skip = order, start, skip
        self.topology, self.global_batch_size, self.remainder = topology, global_batch_size, remainder
        self.uneven = None
        self._asked = order, batches, initial_nodes
        self._devices = Devices(
            nodes=topology.nodes,
            ranks=topology.replicas_per_node,
            batch_size=global_batch_size // topology.replicas,
            initial_nodes=initial_nodes,
        )
        # Repeats may lead further than MosaicML Streaming can resume; the end of the epoch is a place like another.
        self._is_empty = start > 0 and start == self._whole._end
        self._batching = order.batches(self._devices, 0 if self._is_empty else start)

    @property
    def _whole(self) -> MosaicMLPlan:
        if self.start == 0:
            return self
        order, batches, initial_nodes = self._asked
        return MosaicMLPlan(order, replace(batches, topology=self.topology), 0, initial_nodes, self.skip)

    def of_rank(self, rank: int) -> MosaicMLPlan:
        plan = copy.copy(self)  # its batches are the same for all ranks
        plan.topology = replace(self.topology, rank=rank)
        vars(plan).pop('_own_rows', None)
        return plan

    @property
    def _columns(self) -> slice:
        place = self.topology.node * self.topology.replicas_per_node + self.topology.local_replica
        return slice(place * self._devices.batch_size, (place + 1) * self._devices.batch_size)

    def find(self, sample_id: int, first: int = 0) -> tuple[int, int] | None:
        """As `Plan.find`; all batches are looked through, since positions do not say when they are used."""
        positions = np.array(list(self.order.find(sample_id)), np.int64)
        chunk = max(1, _SCANNED // self._devices.row_length)
        for begin in range(first, self._unskipped.size if len(positions) else 0, chunk):
            rows = self._batching.rows(self._unskipped.at(np.arange(begin, min(begin + chunk, self._unskipped.size))))
            where = np.isin(rows, positions)
            if where.any():
                row = int(where.any(1).argmax())
                return begin + row, int(rows[row, where[row].argmax()])
        return None

    @cached_property
    def _num_rows(self) -> int:
        """Rows in which any rank has a sample; full rows if the remainder is dropped."""
        if self._is_empty:
            return 0
        wanted = self._devices.row_length if self.remainder == 'drop' else 1
        rows = self._batching.num_rows
        while rows and self._samples_of(rows - 1) < wanted:
            rows -= 1
        return rows

    @cached_property
    def _unskipped(self) -> UnskippedPositions:
        """Which of these rows are batches."""
        size = self.global_batch_size
        most = self._num_rows
        ends = [
            end if end < len(self.order) else self._end for _, end in self.skip
        ]  # repeats after the last sample, too
        rows = [
            ((begin - self.start) // size, -((self.start - end) // size))
            for (begin, _), end in zip(self.skip, ends, strict=True)
        ]
        return UnskippedPositions(most, merged((max(begin, 0), min(end, most)) for begin, end in rows))

    @property
    def _end(self) -> int:
        return self._after(self._num_rows)

    def _after(self, row: int) -> int:
        """The position before a row, or after the last one."""
        if row < self._num_rows or not row:
            return self.start + row * self.global_batch_size
        return self.start + (row - 1) * self.global_batch_size + self._samples_of(row - 1)

    def _samples_of(self, row: int) -> int:
        return int((self._row(row, slice(None)) >= 0).sum())

    def _row(self, row: int, columns: slice) -> IntArray:
        return self._batching.rows(np.array([row]), columns)[0]

    @property
    def num_batches(self) -> int:
        return self._unskipped.before(self._own_rows)

    @cached_property
    def _own_rows(self) -> int:
        rows = self._num_rows
        while rows and (self._row(rows - 1, self._columns) < 0).all():
            rows -= 1
        return rows

    @property
    def total_batches(self) -> int:
        return self._whole.num_batches

    @property
    def epoch_rows(self) -> int:
        return self._whole._num_rows

    @property
    def epoch_batches(self) -> int:
        return self._whole._own_rows

    @property
    def batches_before(self) -> int:
        rows = self.start // self.global_batch_size
        return self._whole._unskipped.before(rows) if self.skip else rows

    @property
    def stop(self) -> int:
        return self.end(self._unskipped.size - 1) if self._unskipped.size else self.start

    @property
    def epoch_samples(self) -> int:
        """Number of samples that a whole epoch, from position 0, delivers, repeats included."""
        whole = self._whole
        return sum(end - begin for begin, end in whole.spans(0, whole.num_batches))

    def end(self, k: int) -> int:
        self._check(k)
        return self._after(self._unskipped.position(k + 1)) if k + 1 < self._unskipped.size else self._end

    def skipped(self, k: int) -> int:
        before, row = self.end(k - 1) if k else self.start, self._unskipped.position(k)
        return self.end(k) - before - (self._after(row + 1) - self._after(row))

    def _check(self, k: int) -> None:
        if not 0 <= k < self._unskipped.size:
            raise IndexError(f'batches are numbered from 0 to {self._unskipped.size - 1}, got {k}.')

    def positions(self, k: int) -> IntArray:
        return self._taken(k, self._columns)

    def positions_of(self, batches: range) -> IntArray:
        numbers = self._unskipped.at(np.arange(batches.start, min(batches.stop, self._unskipped.size)))
        rows = self._batching.rows(numbers, self._columns)
        return rows[rows >= 0]

    def global_positions(self, k: int) -> IntArray:
        return self._taken(k, slice(None))

    def node_positions(self, k: int) -> IntArray:
        length = self._devices.ranks * self._devices.batch_size
        return self._taken(k, slice(self.topology.node * length, (self.topology.node + 1) * length))

    def spans(self, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges as long as batches from ``first`` on and below ``last`` together: positions have no sequence."""
        rows = self._unskipped.spans(first, min(last, self._unskipped.size))
        return [(self._after(begin), self._after(end)) for begin, end in rows]

    def stream_counts(self, first: int, last: int) -> IntArray:
        """Each stream's samples in batches of a range, repeats included, int64[streams]; looks up every sample."""
        if len(self.order.mixture.streams) == 1:
            return np.array([sum(end - begin for begin, end in self.spans(first, last))])
        rows = self._batching.rows(self._unskipped.at(np.arange(first, min(last, self._unskipped.size))))
        return self.order.mixture.count_streams(self.order.at(rows[rows >= 0]))

    def own_samples(self, k: int) -> int:
        return len(self.positions(k))

    def _taken(self, k: int, columns: slice) -> IntArray:
        self._check(k)
        row = self._row(self._unskipped.position(k), columns)
        return row[row >= 0]
