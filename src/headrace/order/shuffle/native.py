"""The native order: any position of any epoch by arithmetic, with set-up in proportion to the number of shards.

How position p of epoch e becomes a sample:

1. p is slot j = p div C of canonical node c = p mod C.
2. `interleave` says which stream's turn it is, and which of the stream's draws on this node.
3. The node's i-th draw of a stream is a number d in the stream's endless sequence, which runs through all epochs: epoch
   e has draws e·choose to (e+1)·choose - 1. The sequence is one pass over all samples after another, each in a new
   order: no sample is seen twice before all are seen once, whatever the weights and the length of an epoch.
4. A pass is dealt to the canonical nodes: position q of pass k belongs to node (q + phase) mod C. Each node's
   positions are shuffled among its own part of the stream (`lanes`), which is a stretch of the stream's shards in an
   order that is the same in all passes. A node therefore reads the same shards in every pass, but for a few at the
   ends of its stretch.

Whose node is a draw? By its turn (steps 1 and 2), the quotas' line: (Q + t) mod C for draw t of the epoch, Q being the
draws of earlier streams. By its place in the pass (step 4): (Q + begin of the pass + q) mod C, where the begin is
counted in the run or, if an epoch is a whole number of passes, in the epoch. So the two agree where an epoch is whole
passes. Otherwise they are out of step by e·choose, and each node's turns go to its own draws by step 4 as far as
these last: per epoch and stream at most C/2 draws, the last of the node that has one too many, are taken by another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ConfigError
from headrace.order.hashing import derive, hash_text, hashes, keyed_order
from headrace.order.interleave import Interleave, RandomInterleave, quotas
from headrace.order.permute import column_bits
from headrace.order.shuffle.lanes import CellTable, Parts

if TYPE_CHECKING:
    from headrace.order.config import OrderConfig
    from headrace.order.mixture import IntArray, Mixture, StreamSize

__all__ = ['NativeOrder', 'StoredOrder', 'native_order']

_VERSION_KEY = hash_text('headrace native order 1')
_INTERLEAVE, _STREAM = 1, 2
_LINE, _PASS = 1, 2
_SHARD, _CELL = 1, 2
_BULK = 16384  # positions evaluated at once: arrays that fit the CPU's cache


def native_order(mixture: Mixture, config: OrderConfig, epoch: int) -> NativeOrder | StoredOrder:
    """Make the sequence of one epoch.

    Raises:
        ConfigError: the batching method is not one that the native order has.
    """
    if config.batching != 'random':
        raise ConfigError(f"batching_method must be one of ['random'], got {config.batching!r}.")
    return NativeOrder(mixture, config, epoch) if config.shuffle else StoredOrder(mixture, config, epoch)


class StoredOrder:
    """The sequence without shuffle: the streams' draws in stored order, one stream after another.

    The line of the epoch's draws is cut into a stretch for each canonical node; with one canonical node, positions are
    draws. A stream that an epoch draws a part of goes on from there in the next epoch.
    """

    def __init__(self, mixture: Mixture, config: OrderConfig, epoch: int) -> None:
        """Take a config with its defaults filled in."""
        self.num_canonical_nodes = config.num_canonical_nodes or 1
        self._size = mixture.epoch_size
        choose = np.array(mixture.choose, np.int64)
        self._ends = np.cumsum(choose)
        self._first_draws = epoch * choose - (self._ends - choose)
        self._sizes = np.diff(mixture.sample_offsets)
        self._offsets = mixture.sample_offsets
        per_node = quotas(np.array([self._size]), self.num_canonical_nodes)[0]
        self._begins = np.cumsum(per_node) - per_node

    def __len__(self) -> int:
        return self._size

    def at(self, positions: IntArray) -> IntArray:
        """Return global sample ids int64[n] at positions int64[n].

        Raises:
            IndexError: a position is out of range.
        """
        _check_positions(positions, self._size)
        slots, nodes = np.divmod(positions, self.num_canonical_nodes)
        slots += self._begins[nodes]
        streams = self._ends.searchsorted(slots, 'right')
        return self._offsets[streams] + (self._first_draws[streams] + slots) % self._sizes[streams]


class NativeOrder:
    """The shuffled sequence of an epoch.

    It keeps what it computed of canonical nodes, passes and windows that were used lately, so that a batch that goes
    on where the last one ended costs little more than arithmetic.
    """

    def __init__(self, mixture: Mixture, config: OrderConfig, epoch: int) -> None:
        """Take a config with its defaults filled in."""
        self.num_canonical_nodes = nodes = config.num_canonical_nodes or 1
        self._size = mixture.epoch_size
        key = derive(_VERSION_KEY, config.seed)
        drawn = [i for i, choose in enumerate(mixture.choose) if choose]
        choose = np.array([mixture.choose[i] for i in drawn], np.int64)
        self._sizes = np.array([mixture.streams[i].size for i in drawn], np.int64)
        self._offsets = mixture.sample_offsets[drawn]
        self._first_draws = epoch * choose
        blocks = [max(1, (config.block_size or 1) * int(c) // self._size) for c in choose]
        before = np.cumsum(choose) - choose
        node_quotas = quotas(choose, nodes)
        self._interleave: Interleave | None = (
            RandomInterleave(node_quotas, derive(key, _INTERLEAVE, epoch)) if len(drawn) > 1 else None
        )
        self._turns = _Turns(choose, before, np.where(choose % self._sizes, self._first_draws, 0), node_quotas)
        self._streams = [
            _Stream(
                mixture.streams[i],
                num_nodes=nodes,
                block_size=block,
                key=key,
                before=int(before[s]),
                choose=int(choose[s]),
            )
            for s, (i, block) in enumerate(zip(drawn, blocks, strict=True))
        ]
        self._max_units = 65536 + 4 * (mixture.num_shards + len(drawn) * nodes)
        self._forget()

    def __len__(self) -> int:
        return self._size

    def at(self, positions: IntArray) -> IntArray:
        """Return global sample ids int64[n] at positions int64[n].

        Raises:
            IndexError: a position is out of range.
        """
        _check_positions(positions, self._size)
        if len(positions) <= _BULK:
            return self._at(positions)
        # In ascending order each window and cell is made once.
        ids = np.empty(len(positions), np.int64)
        ascending = np.argsort(positions, kind='stable')
        for i in range(0, len(positions), _BULK):
            where = ascending[i : i + _BULK]
            ids[where] = self._at(positions[where])
        return ids

    def _at(self, positions: IntArray) -> IntArray:
        slots, nodes = np.divmod(positions, self.num_canonical_nodes)
        if self._interleave is None:
            draws, streams = slots, np.zeros_like(slots)
        else:
            streams, draws = self._interleave.at(nodes, slots)
        draws, nodes = self._turns.at(streams, nodes, draws)
        draws += self._first_draws.take(streams)
        sizes = self._sizes.take(streams)
        passes = draws // sizes
        draws -= passes * sizes
        places = draws // self.num_canonical_nodes
        cells = self._cells(streams, nodes, passes)  # may begin a new table
        ids = self._table.at(cells, places)
        ids += self._offsets.take(streams)
        return ids

    def _cells(self, streams: IntArray, nodes: IntArray, passes: IntArray) -> IntArray:
        """Return the table's cells int64[n] of streams, nodes and passes int64[n], adding those that are new."""
        place = streams * self.num_canonical_nodes
        place += nodes
        missing = self._latest_pass.take(place) != passes
        if not missing.any():
            return self._latest_cell.take(place)
        if self._table.units > self._max_units:
            self._forget()
            missing[:] = True
        cells = self._latest_cell.take(place)
        where = missing.nonzero()[0]
        found: list[int] = []
        for where_place, k in zip(place[where].tolist(), passes[where].tolist(), strict=True):
            cell = self._known.get((where_place, k))
            if cell is None:
                s, node = divmod(where_place, self.num_canonical_nodes)
                cell = self._known[where_place, k] = self._streams[s].add_cell(self._table, node, k)
            self._latest_pass[where_place], self._latest_cell[where_place] = k, cell
            found.append(cell)
        cells[where] = found
        return cells

    def _forget(self) -> None:
        """Start with an empty table."""
        places = len(self._streams) * self.num_canonical_nodes
        self._table = CellTable()
        self._known: dict[tuple[int, int], int] = {}
        self._latest_pass = np.full(places, -1, np.int64)
        self._latest_cell = np.zeros(places, np.int64)


class _Turns:
    """Which of its draws a stream gives to a node's turn; step 4 of this module's description, "Whose node…"."""

    def __init__(self, choose: IntArray, before: IntArray, shift: IntArray, node_quotas: IntArray) -> None:
        """Make the tables.

        Args:
            choose: int64[streams], draws in the epoch.
            before: int64[streams], draws of earlier streams.
            shift: int64[streams], by how much the two ways to number nodes are out of step.
            node_quotas: int64[streams, nodes].
        """
        self._num_nodes = num_nodes = node_quotas.shape[1]
        first = (np.arange(num_nodes) - (before + shift)[:, None]) % num_nodes
        own = -((first - choose[:, None]) // num_nodes)  # first >= choose can only be 0 draws, rounded up
        # A stream's own numbers and quotas are both its draws / nodes, rounded up on as many nodes.
        self._strays: dict[tuple[int, int], tuple[int, int]] = {}
        for s in (own != node_quotas).any(1).nonzero()[0].tolist():
            givers = (own[s] > node_quotas[s]).nonzero()[0].tolist()
            takers = (own[s] < node_quotas[s]).nonzero()[0].tolist()
            for giver, taker in zip(givers, takers, strict=True):
                last = int(first[s, giver] + (own[s, giver] - 1) * num_nodes)
                self._strays[s, taker] = last, giver
        self._first = first.reshape(-1)
        self._own = own.reshape(-1)

    def at(self, streams: IntArray, nodes: IntArray, turns: IntArray) -> tuple[IntArray, IntArray]:
        """Return draws of the epoch int64[n], and the nodes whose shards hold them int64[n], for turns int64[n]."""
        place = streams * self._num_nodes + nodes
        draws = turns * self._num_nodes
        draws += self._first.take(place)
        if self._strays:
            stray = turns >= self._own.take(place)
            if stray.any():
                nodes = nodes.copy()
                for i in stray.nonzero()[0].tolist():
                    draws[i], nodes[i] = self._strays[int(streams[i]), int(nodes[i])]
        return draws, nodes


class _Stream:
    """The shards of a stream in their fixed order, and the cells made of them."""

    def __init__(
        self, stream: StreamSize, *, num_nodes: int, block_size: int, key: int, before: int, choose: int
    ) -> None:
        self._size, self._num_nodes, self._block_size = stream.size, num_nodes, block_size
        self._before, self._choose = before, choose
        self._key = derive(key, _STREAM, hash_text(stream.name))
        order = keyed_order(derive(self._key, _LINE), len(stream.shard_sizes))
        self._shards = order[stream.shard_sizes[order] > 0]
        self._sizes = stream.shard_sizes[self._shards]
        self._starts = (np.cumsum(stream.shard_sizes) - stream.shard_sizes)[self._shards]
        self._bits = column_bits(self._sizes)
        self._ends = np.cumsum(self._sizes)
        self._pass_keys = (-1, 0, 0)

    def add_cell(self, table: CellTable, node: int, k: int) -> int:
        """Add to the table what a node has of pass k, and return the cell's number."""
        begin, end = self._stretch(node, k)
        first = int(self._ends.searchsorted(begin, 'right'))
        last = int(self._ends.searchsorted(end, 'left')) + 1
        ends, sizes = self._ends[first:last], self._sizes[first:last]
        skipped = np.maximum(begin - (ends - sizes), 0)
        if self._pass_keys[0] != k:
            key = derive(self._key, _PASS, k)
            self._pass_keys = k, derive(key, _SHARD), derive(key, _CELL)
        _, shard_key, cell_key = self._pass_keys
        parts = Parts(
            sizes=np.minimum(ends, end) - (ends - sizes) - skipped,
            skipped=skipped,
            starts=self._starts[first:last],
            shard_sizes=sizes,
            bits=self._bits[first:last],
            keys=hashes(shard_key, self._shards[first:last]),
        )
        return table.add(parts, self._block_size, derive(cell_key, node))

    def _stretch(self, node: int, k: int) -> tuple[int, int]:
        """Return begin and end of a node's stretch of the line of shards, in samples, for pass k."""
        begin = k * self._size
        phase = self._before + (begin if self._choose % self._size else begin % self._choose)
        full, rest = divmod(self._size, self._num_nodes)
        # The nodes with one sample more are the `rest` ones from `phase` on, cyclically.
        phase %= self._num_nodes
        wrapped = max(0, phase + rest - self._num_nodes)

        def cut(c: int) -> int:
            return c * full + min(c, wrapped) + min(max(c - phase, 0), rest - wrapped)

        return cut(node), cut(node + 1)


def _check_positions(positions: IntArray, size: int) -> None:
    if len(positions) and (int(positions.min()) < 0 or int(positions.max()) >= size):
        raise IndexError(f'positions must be in [0, {size}), got {positions.min()} to {positions.max()}.')
