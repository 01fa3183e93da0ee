"""Batches of similar cost, and fair shares of a batch: for samples of different lengths.

Both are pure functions of the sequence and of the samples' costs, such as their numbers of tokens.

`BucketedOrder` reorders windows of the sequence. A window's samples are sorted by cost and cut into batches, which come
in shuffled order. So a batch has little padding, and still differs from pass to pass. With `BatchCost`, batches have as
many rows as a budget of cost allows.

`BalancedPlan` keeps the batches, and deals the rows of each to the replicas of a node. All get as many rows as by
position, and nearly the same sum of cost. The longest row is dealt first, to the replica with the least: Graham's
longest processing time rule (1969).
"""

from __future__ import annotations

import bisect
import heapq
import math
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from headrace.errors import ConfigError, TopologyError
from headrace.errors.exclusions import refuse_exclusions
from headrace.errors.redaction import logger_of
from headrace.order.mosaicml.epoch_permutation import permutation_key
from headrace.order.native.order import NativeOrder
from headrace.order.plan import Cuts, Plan
from headrace.order.protocols import Order
from headrace.order.random.hashing import derive, hash_text, keyed_order
from headrace.order.skip import in_whole_batches, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.order.arrays import IntArray
    from headrace.order.config import BatchCost, OrderConfig
    from headrace.order.skip import Skip, UnskippedPositions
    from headrace.order.topology import BatchSpec, Remainder

CostsOf: TypeAlias = 'Callable[[IntArray], IntArray]'  # Gives the costs int64[n] of global sample ids int64[n].


class Costs(Protocol):
    @property
    def digest(self) -> str:
        """The identity of all of them, for checkpoints."""
        ...

    @property
    def largest(self) -> int: ...

    def __call__(self, ids: IntArray) -> IntArray:
        """Return the costs int64[n] of global sample ids int64[n]."""
        ...

    def kept(self, key: str, size: int, fill: Callable[[NDArray[np.uint32]], None]) -> NDArray[np.uint32]:
        """Return uint32[size], which `fill` fills in once for each machine. The same key, the same values."""
        ...


_log = logger_of(__name__)
_FEW_SAMPLES = 1 << 20  # of an epoch, whose batches each process counts in 0.2 s
_NEAR, _TOGETHER = 8, 64  # windows that are cut rather than counted, and those that a thread counts at a time
_KEY = hash_text('headrace bucketed order 1')
_KEPT = 3  # windows: a worker reads in one, and the prefetch looks into the next


class BucketedOrder(Order):
    """The native order of an epoch, with batches of similar cost.

    Windows of ``config.bucket`` batches begin at the epoch's first position; the last one may be shorter. Position p
    keeps its remainder modulo the greatest common divisor of canonical nodes and batch size, so a node still reads its
    own shards. With stratified batching it keeps its stream, too.

    With ``config.batch_cost``, a window has as many samples, and batches begin with the longest sample that is left.
    They have as many rows as the budget allows, a multiple of ``multiple`` and at most the global batch size. The rest
    of the last window, fewer than ``multiple``, is the epoch's last batch.
    """

    def __init__(self, inner: NativeOrder, config: OrderConfig, costs: Costs) -> None:
        assert config.global_batch_size is not None
        assert config.bucket is not None
        self._inner, self._costs, self._config = inner, costs, config
        self.mixture, self.epoch, self.first, self.units = inner.mixture, inner.epoch, inner.first, 0
        self._batch_cost = config.batch_cost
        self._batch, self.window = config.global_batch_size, config.bucket * config.global_batch_size
        self.num_canonical_nodes = math.gcd(inner.num_canonical_nodes, self.multiple)
        self._keeps_streams = config.batching == 'stratified'
        self._key = derive(_KEY, config.seed, self.epoch) if config.shuffle else None
        self._known: dict[int, tuple[IntArray, IntArray]] = {}
        self._ends: dict[int, IntArray] = {}
        self.num_windows = -(-(len(self) - self.first) // self.window)  # How many windows there are.

    def at(self, positions: IntArray) -> IntArray:
        if len(positions) and (int(positions.min()) < self.first or int(positions.max()) >= len(self)):
            raise IndexError(
                f'positions must be in [{self.first}, {len(self)}), got {positions.min()} to {positions.max()}.'
            )
        ids = np.empty(len(positions), np.int64)
        windows, places = np.divmod(positions - self.first, self.window)
        for window in np.unique(windows).tolist():
            where = (windows == window).nonzero()[0]
            ids[where] = self._ids(window)[0][places[where]]
        return ids

    def _ids(self, window: int) -> tuple[IntArray, IntArray]:
        """The ids of a window by place, and the place that each had in the inner order's window."""
        cached = self._known.get(window)
        if cached is None:
            begin = self.first + window * self.window
            positions = np.arange(begin, min(begin + self.window, len(self)))
            ids = self._inner.at(positions)
            if self._batch_cost is not None:
                places, ends = self._cut(window, self._batch_cost, self._costs(ids))
                self._ends[window] = begin + ends
            else:
                classes = positions % self.num_canonical_nodes
                if self._keeps_streams:
                    classes = classes * len(self.mixture.streams) + self.mixture.streams_of(ids)
                batches = np.arange(len(positions)) // self._batch
                if self._key is not None:
                    batches = _ranks(self._key, window, -(-len(positions) // self._batch))[batches]
                places = np.empty(len(positions), np.int64)
                # `lexsort` is stable, so ties are by position. The last key counts most.
                places[np.lexsort((batches, classes))] = np.lexsort((self._costs(ids), classes))
            cached = ids[places], places
            if len(self._known) == _KEPT:
                del self._known[next(iter(self._known))]
            self._known[window] = cached
        return cached

    def _cut(self, window: int, cost: BatchCost, costs: IntArray) -> tuple[IntArray, IntArray]:
        """The former places of a window's samples, and where its batches end, from the window's begin on."""
        places, multiple, classes = np.empty(len(costs), np.int64), cost.multiple, self.num_canonical_nodes
        keys = costs.max() - costs
        if keys.max() < 1 << 16:
            keys = keys.astype(np.uint16)  # numpy sorts these by radix, ten times as fast
        for residue in range(classes):  # each from its longest on; windows begin at multiples of their number
            places[residue::classes] = residue + classes * keys[residue::classes].argsort(kind='stable')
        blocks, rest = divmod(len(costs), multiple)
        rows = costs[places[: blocks * multiple]].reshape(blocks, multiple)
        if cost.sum:
            sums = np.concatenate([[0], np.cumsum(rows.sum(1))])
            fits = sums.searchsorted(sums[:-1] + cost.budget, 'right') - 1 - np.arange(blocks)
        else:
            fits = cost.budget // np.maximum(rows.max(1), 1) // multiple
        following, begins = (np.arange(blocks) + np.minimum(fits, self._batch // multiple)).tolist(), list[int]()
        at = 0
        while at < blocks:
            begins.append(at)
            at = following[at]
        bounds = np.array([*begins, blocks]) * multiple
        bounds[1:] = np.minimum(bounds[1:], blocks * multiple)
        ranks = np.arange(len(begins)) if self._key is None else _ranks(self._key, window, len(begins))
        sizes = np.diff(bounds)[ranks]
        ends = np.cumsum(sizes)
        moved = np.repeat(bounds[ranks] - (ends - sizes), sizes) + np.arange(blocks * multiple)
        return (
            np.concatenate([places[moved], places[blocks * multiple :]]),
            np.append(ends, len(costs)) if rest else ends,
        )

    def ends(self, window: int) -> IntArray:
        """The positions after the batches of a window, with ``batch_cost``."""
        if window not in self._ends:
            self._ids(window)
        return self._ends[window]

    @cached_property
    def window_batches(self) -> NDArray[np.uint32]:
        """By window, how many batches it has, with ``batch_cost``: 0.2 us for each sample, once for each machine."""
        if len(self) < _FEW_SAMPLES:
            return np.array([len(self.ends(window)) for window in range(self.num_windows)], np.uint32)
        key = permutation_key(self.mixture, self._config, self.epoch)
        return self._costs.kept(key, self.num_windows, self._count)

    def _count(self, out: NDArray[np.uint32]) -> None:
        _log.info('Counting the batches of epoch %d, once for each machine, since its length is asked.', self.epoch)

        def count(first: int) -> None:
            # With `batch_cost` decisions change the mixture where epochs begin, so the epoch has one native order.
            order = BucketedOrder(NativeOrder(self.mixture, self._config, self.epoch), self._config, self._costs)
            for window in range(first, min(first + _TOGETHER, self.num_windows)):
                out[window] = len(order.ends(window))

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for _ in pool.map(count, range(0, self.num_windows, _TOGETHER)):
                pass

    def window_of(self, position: int) -> int:
        """The window that has a position; `num_windows` for the epoch's end."""
        return self.num_windows if position == len(self) else (position - self.first) // self.window

    def batch_at(self, position: int) -> tuple[int, int]:
        """The positions [begin, end) of the batch that has a position below the epoch's end, with ``batch_cost``."""
        window = self.window_of(position)
        begin = self.first + window * self.window
        ends = self.ends(window)
        number = int(ends.searchsorted(position, 'right'))
        return int(ends[number - 1]) if number else begin, int(ends[number])

    @property
    def multiple(self) -> int:
        """Divides the rows of all batches but an epoch's last."""
        return self._batch if self._batch_cost is None else self._batch_cost.multiple

    @property
    def whole_rows(self) -> int:
        """The position at which a last batch of fewer rows than `multiple` begins; the epoch's end if none does."""
        return len(self) - (len(self) - self.first) % self.multiple

    def stream_counts(self, begin: int, end: int) -> IntArray:
        if len(self.mixture.streams) == 1 or self._keeps_streams:
            return self._inner.stream_counts(begin, end)
        counts = np.zeros(len(self.mixture.streams), np.int64)
        at = begin
        while at < end:
            start = at - (at - self.first) % self.window
            whole = end - (end - self.first) % self.window if end < len(self) else end
            if at == start and whole > at:  # windows as a whole have the same samples
                counts += self._inner.stream_counts(at, whole)
                at = whole
                continue
            stop = min(start + self.window, end)
            streams = self.mixture.streams_of(self.at(np.arange(at, stop)))
            counts += np.bincount(streams, minlength=len(counts))
            at = stop
        return counts

    def _find(self, stream: int, sample_id: int, start: int) -> Iterator[int]:
        del stream
        first = start - (start - self.first) % self.window if start > self.first else self.first
        inner_positions = self._inner.find(sample_id, first)
        for window, positions in groupby(inner_positions, lambda position: (position - self.first) // self.window):
            begin = self.first + window * self.window
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
        plan, cost = self._inner.plan(batches, start, epoch=epoch, skip=skip), self._batch_cost
        if cost is not None:
            if cost.multiple % batches.topology.replicas and batches.uneven is None:
                raise TopologyError(
                    f'`batch_cost` makes batches of a multiple of {cost.multiple} rows, which the '
                    f'{batches.topology.replicas} data-parallel replicas do not divide. Start a new run with '
                    f'a `multiple` that they divide, such as `batch_cost: {{budget: {cost.budget}, multiple: '
                    f'{math.lcm(cost.multiple, batches.topology.replicas)}}}`. A run that resumes needs its own: set '
                    f'`uneven: pad`, or use ranks that divide it.'
                )
            ranges = merged((self.batch_at(begin)[0], self.batch_at(end - 1)[1]) for begin, end in plan.skip)
            return replace(plan, order=self, skip=ranges, cut=partial(WindowCuts, self))
        # Otherwise later batches would not begin where those of windows do.
        ranges = in_whole_batches(plan.skip, self.first, self._batch, len(self))
        return replace(plan, order=self, skip=ranges)


class WindowCuts(Cuts):
    """Batches of a `BucketedOrder` that are cut by cost, each window when a batch of it is asked for.

    ConfigError: the first position is in the middle of a batch.
    """

    __slots__ = ('_before', '_cut', '_first', '_order', '_start', '_unskipped')

    def __init__(self, order: BucketedOrder, start: int, unskipped: UnskippedPositions, remainder: Remainder) -> None:
        if (start - order.first) % order.window and start < len(order) and order.batch_at(start)[0] != start:
            begin, end = order.batch_at(start)
            raise ConfigError(
                f'With `batch_cost` a pass begins where a batch does, but position {start} is in the middle of one. '
                f'The nearest are {begin} and {end}.'
            )
        self._unskipped, self._order, self._first = unskipped, order, order.window_of(start)
        kept = len(order) if remainder != 'drop' else order.whole_rows
        self._start = unskipped.before(start)
        self.stop = max(unskipped.before(kept), self._start)
        self.multiple = order.multiple
        self._before = array('q', [0])  # by window from the first one on: the batches before it
        self._cut = -1, np.zeros(0, np.int64)  # the last window that was cut

    def _begins_in(self, window: int) -> IntArray:
        """The first numbers of a window's batches; skipped batches have none."""
        cut, begins = self._cut
        if cut != window:
            edges = np.minimum(self._unskipped.befores(self._order.ends(window)), self.stop)
            begin = max(self._unskipped.before(self._order.first + window * self._order.window), self._start)
            begins = np.unique(np.append(edges[edges > begin], begin))[:-1]
            self._cut = window, begins
        return begins

    def _reach(self, window: int) -> bool:
        """Know the batches before a window, if there is such a window, or an end."""
        order, reached = self._order, self._first + len(self._before) - 1
        if window > order.num_windows:
            return False
        if window - reached > _NEAR:  # all of them: their numbers may be known on this machine
            edges = np.minimum(order.first + np.arange(reached, order.num_windows + 1) * order.window, len(order))
            left = np.diff(np.clip(self._unskipped.befores(edges), self._start, self.stop))
            batches = np.where(left == np.diff(edges), order.window_batches[reached:], 0)
            for cut in ((left > 0) & (left < np.diff(edges))).nonzero()[0].tolist():
                batches[cut] = len(self._begins_in(reached + cut))
            self._before.extend((self._before[-1] + np.cumsum(batches)).tolist())
        for cut in range(self._first + len(self._before) - 1, window):
            self._before.append(self._before[-1] + len(self._begins_in(cut)))
        return True

    @property
    def count(self) -> int:
        self._reach(self._order.num_windows)
        return self._before[-1]

    def has(self, k: int) -> bool:
        while self._before[-1] <= k and self._reach(self._first + len(self._before)):
            pass
        return k < self._before[-1]

    def begin(self, k: int) -> int:
        return int(self.begins(range(k, k))[0])

    def begins(self, batches: range) -> IntArray:
        pieces, k = [np.zeros(0, np.int64)], batches.start
        while k <= batches.stop and self.has(k):
            window = bisect.bisect_right(self._before, k) - 1
            pieces.append(self._begins_in(self._first + window)[k - self._before[window] :])
            k = self._before[window + 1]
        return np.concatenate([*pieces, [self.stop]])[: batches.stop - batches.start + 1]

    def batch_of(self, number: int) -> int:
        if number >= self.stop:
            return self.count
        window = self._order.window_of(self._unskipped.position(number))
        self._reach(window)
        return self._before[window - self._first] + int(self._begins_in(window).searchsorted(number, 'right')) - 1


def check_batch_cost(cost: BatchCost | None, costs: Costs, skip: Skip) -> None:
    """Raise a ConfigError unless the budget has room for the longest sample, and `skip` counts samples."""
    if cost is None:
        return
    most = cost.multiple * costs.largest
    if most > cost.budget:
        raise ConfigError(
            f'A batch of `batch_cost` has at least {cost.multiple} rows, its `multiple`. The longest sample costs '
            f'{costs.largest}, so such a batch may cost {most}, but the budget is {cost.budget}. Raise the budget to '
            f'{most}, lower `multiple`, or leave longer samples out by `where`.'
        )
    refuse_exclusions({'batch_cost': cost, 'skip': skip})


def check_balance(balance: float | None, config: OrderConfig) -> None:
    """Raise a ConfigError unless `balance` is a power, and the order has batches whose rows can be dealt by cost."""
    if balance is None:
        return
    if balance is True or not 0 < balance < 10:
        raise ConfigError(f'`balance` is the power of the cost, such as 1, or 2 for attention, got {balance!r}.')
    refuse_exclusions({'balance': balance, 'shuffle_algo': config.algorithm, 'batching_method': config.batching})


def _ranks(key: int, window: int, batches: int) -> IntArray:
    """By batch of a window, its rank in the order of costs."""
    return keyed_order(derive(key, window), batches)


@dataclass(frozen=True, slots=True)
class BalancedPlan(Plan):
    """A plan whose batches have the same rows, dealt to the replicas of a node by cost.

    The last batch of an epoch is dealt by position if it is not full, or no multiple of ``batch_cost``'s.
    """

    costs: CostsOf = lambda ids: ids  # Gives the costs of samples.
    power: float = 1.0  # The cost of a row is its sample's to this power: 2 for attention without a bound.

    def positions(self, k: int) -> IntArray:
        begin, rows = self._numbers(k)
        by_position = Plan.positions(self, k)
        if rows % self._cuts.multiple:
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
    shares = np.empty(len(costs), np.int64)
    for row in np.argsort(-costs, kind='stable').tolist():
        load, share = heapq.heappop(loads)
        shares[row] = share
        left[share] -= 1
        if left[share]:
            heapq.heappush(loads, (load + float(costs[row]), share))
    return shares
