"""Batches of similar cost, and fair shares of a batch: for samples of different lengths.

Both are pure functions of the sequence and of the samples' costs, such as their numbers of tokens.

`BucketedOrder` reorders windows of the sequence. A window's samples are sorted by cost and cut into batches, which come
in shuffled order. So a batch has little padding, and still differs from pass to pass. `BalancedPlan` keeps the batches,
and deals the rows of each to the replicas of a node. All get as many rows as by position, and nearly the same sum of
cost. The longest row is dealt first, to the replica with the least: Graham's longest processing time rule (1969).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from headrace.errors import ConfigError
from headrace.order.plan import Plan
from headrace.order.protocols import Order
from headrace.order.random.hashing import derive, hash_text, keyed_order
from headrace.order.skip import in_whole_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.order.arrays import IntArray
    from headrace.order.config import OrderConfig
    from headrace.order.native.order import NativeOrder
    from headrace.order.skip import Skip
    from headrace.order.topology import BatchSpec

CostsOf: TypeAlias = 'Callable[[IntArray], IntArray]'
"""Gives the costs int64[n] of global sample ids int64[n]."""


class Costs(Protocol):
    """The costs of a dataset's samples."""

    @property
    def digest(self) -> str:
        """The identity of all of them, for checkpoints."""
        ...

    def __call__(self, ids: IntArray) -> IntArray:
        """Return the costs int64[n] of global sample ids int64[n]."""
        ...


_KEY = hash_text('headrace bucketed order 1')
_KEPT = 3  # windows: a worker reads in one, and the prefetch looks into the next


class BucketedOrder(Order):
    """The native order of an epoch, with batches of similar cost.

    Windows of ``config.bucket`` batches begin at the epoch's first position; the last one may be shorter. Position p
    keeps its remainder modulo the greatest common divisor of canonical nodes and batch size, so a node still reads its
    own shards. With stratified batching it keeps its stream, too.
    """

    def __init__(self, inner: NativeOrder, config: OrderConfig, costs: CostsOf) -> None:
        assert config.global_batch_size is not None
        assert config.bucket is not None
        self._inner, self._costs = inner, costs
        self.mixture, self.epoch, self.first, self.units = inner.mixture, inner.epoch, inner.first, 0
        self.num_canonical_nodes = math.gcd(inner.num_canonical_nodes, config.global_batch_size)
        self._batch, self._window = config.global_batch_size, config.bucket * config.global_batch_size
        self._keeps_streams = config.batching == 'stratified'
        self._key = derive(_KEY, config.seed, self.epoch) if config.shuffle else None
        self._known: dict[int, tuple[IntArray, IntArray]] = {}

    def at(self, positions: IntArray) -> IntArray:
        if len(positions) and (int(positions.min()) < self.first or int(positions.max()) >= len(self)):
            raise IndexError(
                f'positions must be in [{self.first}, {len(self)}), got {positions.min()} to {positions.max()}.'
            )
        ids = np.empty(len(positions), np.int64)
        windows, places = np.divmod(positions - self.first, self._window)
        for window in np.unique(windows).tolist():
            where = (windows == window).nonzero()[0]
            ids[where] = self._ids(window)[0][places[where]]
        return ids

    def _ids(self, window: int) -> tuple[IntArray, IntArray]:
        """The ids of a window by place, and the place that each had in the inner order's window."""
        found = self._known.get(window)
        if found is None:
            begin = self.first + window * self._window
            positions = np.arange(begin, min(begin + self._window, len(self)))
            ids = self._inner.at(positions)
            classes = positions % self.num_canonical_nodes
            if self._keeps_streams:
                classes = classes * len(self.mixture.streams) + self.mixture.streams_of(ids)
            batches = np.arange(len(positions)) // self._batch
            if self._key is not None:
                batches = _ranks(self._key, window, -(-len(positions) // self._batch))[batches]
            places = np.empty(len(positions), np.int64)
            # `lexsort` is stable, so ties are by position. The last key counts most.
            places[np.lexsort((batches, classes))] = np.lexsort((self._costs(ids), classes))
            found = ids[places], places
            if len(self._known) == _KEPT:
                del self._known[next(iter(self._known))]
            self._known[window] = found
        return found

    def stream_counts(self, begin: int, end: int) -> IntArray:
        if len(self.mixture.streams) == 1 or self._keeps_streams:
            return self._inner.stream_counts(begin, end)
        counts = np.zeros(len(self.mixture.streams), np.int64)
        at = begin
        while at < end:
            start = at - (at - self.first) % self._window
            whole = end - (end - self.first) % self._window if end < len(self) else end
            if at == start and whole > at:  # windows as a whole have the same samples
                counts += self._inner.stream_counts(at, whole)
                at = whole
                continue
            stop = min(start + self._window, end)
            streams = self.mixture.streams_of(self.at(np.arange(at, stop)))
            counts += np.bincount(streams, minlength=len(counts))
            at = stop
        return counts

    def _find(self, stream: int, sample_id: int, start: int) -> Iterator[int]:
        del stream
        first = start - (start - self.first) % self._window if start > self.first else self.first
        found = self._inner.find(sample_id, first)
        for window, positions in groupby(found, lambda position: (position - self.first) // self._window):
            begin = self.first + window * self._window
            now = np.argsort(self._ids(window)[1])  # the place of each of the inner order's places
            yield from (at for at in sorted(begin + int(now[p - begin]) for p in positions) if at >= start)

    def plan(
        self,
        batches: BatchSpec,
        start: int = 0,
        *,
        epoch: int = 0,
        skip: Skip = (),
        initial_nodes: int | None = None,  # noqa: ARG002
    ) -> Plan:
        plan = self._inner.plan(batches, start, epoch=epoch, skip=skip)
        # Otherwise later batches would not begin where those of windows do.
        ranges = in_whole_batches(plan.skip, self.first, self._batch, len(self))
        return replace(plan, order=self, skip=ranges)


def check_balance(balance: float | None, config: OrderConfig) -> None:
    """Check the power of `balance`, and that the order has batches whose rows can be dealt by cost.

    Raises:
        ConfigError: it is no power, or the order has none.
    """
    if balance is None:
        return
    if balance is True or not 0 < balance < 10:
        raise ConfigError(f'`balance` is the power of the cost, such as 1, or 2 for attention, got {balance!r}.')
    if config.is_mosaicml or 'per_stream' in config.batching:
        raise ConfigError(
            f"`balance` needs the native order, and batching_method 'random' or 'stratified', but got shuffle_algo "
            f'{config.algorithm!r} and batching_method {config.batching!r}. Change these, or remove `balance`.'
        )


def _ranks(key: int, window: int, batches: int) -> IntArray:
    """By batch of a window, its rank in the order of costs."""
    return keyed_order(derive(key, window), batches)


@dataclass(frozen=True, slots=True)
class BalancedPlan(Plan):
    """A plan whose batches have the same rows, dealt to the replicas of a node by cost.

    The last batch of an epoch is dealt by position if it is not full.
    """

    costs: CostsOf = lambda ids: ids
    """Gives the costs of samples."""
    power: float = 1.0
    """The cost of a row is its sample's to this power: 2 for attention without a bound."""

    def positions(self, k: int) -> IntArray:
        begin, rows = self._numbers(k)
        by_position = Plan.positions(self, k)
        if rows < self.global_batch_size:
            return by_position
        topology = self.topology
        of_node = self._unskipped.at(begin + np.array(self._rows_of(begin, rows, topology.node, topology.nodes)))
        residues = range(topology.node, topology.replicas, topology.nodes)
        counts = [len(self._rows_of(begin, rows, residue, topology.replicas)) for residue in residues]
        costs = self.costs(self.order.at(of_node)).astype(np.float64) ** self.power
        dealt = of_node[_balanced(costs, counts) == topology.local_replica]
        return np.concatenate([dealt, by_position[len(dealt) :]])  # with the padding

    def positions_of(self, batches: range) -> IntArray:
        return np.concatenate([np.zeros(0, np.int64), *map(self.positions, batches)])


def _balanced(costs: NDArray[np.float64], counts: Sequence[int]) -> IntArray:
    """Which share each row belongs to, int64[rows]; each has its number of rows, and sums are nearly equal."""
    left = list(counts)
    loads = [(0.0, share) for share in range(len(left)) if left[share]]
    found = np.empty(len(costs), np.int64)
    for row in np.argsort(-costs, kind='stable').tolist():
        load, share = heapq.heappop(loads)
        found[row] = share
        left[share] -= 1
        if left[share]:
            heapq.heappush(loads, (load + float(costs[row]), share))
    return found
