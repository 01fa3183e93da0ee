"""Stratified batches whose size the canonical nodes do not divide.

With g = gcd(C, G), the nodes fall into g groups of T = C / g: node c belongs to group c mod g. The grid of `stratified`
deals streams to the groups as if they were nodes, H = G / g slots of a batch each. So each batch and each group of it
holds floor or ceil of every stream's share. The nodes of a group take its slots round-robin, through all batches. The
h-th slot of batch k is slot x = k·H + h. It goes to the group's node x mod T. As T and H have no common divisor, each
h comes to each node equally often.

Stream s is an interval of the grid's numbers y = h·nb·g + v(k). The number of a node's slots below a y, before batch k,
has two parts: the h that are below it in every batch, and the one h that is in some. For the first part it counts the
batches i with a small -i·H modulo T. For the second it counts those of one residue modulo T with a small v(i). Both are
floor sums.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.order.arrays import IntArray
from headrace.order.native.interleave import MIN_WINDOW, SLOTS_IN_WINDOWS, Interleave, WindowTable, last_not_above
from headrace.order.native.stratified import floor_sums, multiplier, residues
from headrace.order.random.hashing import derive, hashes


def free_grid_quotas(counts: IntArray, batch_size: int, num_nodes: int, begin: int) -> IntArray:
    """Return int64[streams, nodes], the draws of each stream on each node in a segment of whole batches.

    `counts`, int64[streams], are the streams' draws, which fill the batches exactly.
    """
    grid = _Grid(counts, batch_size, num_nodes, begin)
    return grid.draws(np.arange(num_nodes), grid.num_batches)


class _Grid:
    """The numbers of a segment, and which slots have them."""

    __slots__ = (
        '_begin', '_ends', '_inverse', 'groups', 'multiplier', 'nodes_per_group', 'num_batches', 'num_nodes', 'rows',
    )  # fmt: skip

    def __init__(self, counts: IntArray, batch_size: int, num_nodes: int, begin: int) -> None:
        self._ends, self._begin = np.cumsum(counts), begin
        self.num_nodes = num_nodes
        self.num_batches = int(self._ends[-1]) // batch_size
        self.groups = math.gcd(num_nodes, batch_size)
        self.rows = batch_size // self.groups  # H, slots of a group in a batch.
        self.nodes_per_group = num_nodes // self.groups  # T, nodes of a group.
        self._inverse = pow(self.rows, -1, self.nodes_per_group)
        self.multiplier = multiplier(self.num_batches, self.groups, self.nodes_per_group)

    def first_slot(self, nodes: IntArray) -> IntArray:
        """Return the first of their group's slots that nodes have; any other is a multiple of T later."""
        return (nodes - self._begin) % self.num_nodes // self.groups

    def streams(self, node: int, slots: IntArray) -> IntArray:
        """Return the streams of a group's slots int64[n], ascending ones, of the group of a node."""
        batches, rows = np.divmod(slots, self.rows)
        first, last = int(batches[0]), int(batches[-1])
        nb, total = self.num_batches, self.num_batches * self.groups
        pi = np.array([self.multiplier * k % nb for k in range(first, last + 1)])  # products may exceed 64 bits
        u = self.groups * pi + pi * math.gcd(self.groups, nb) // nb
        v = (u + nb * (node % self.groups)) % total
        return self._ends.searchsorted(rows * total + v[batches - first], 'right')

    def draws(self, nodes: IntArray, before: int) -> IntArray:
        """Return int64[streams, nodes], the draws of each stream on nodes int64[nodes] before a batch."""
        nb, size = self.num_batches, self.nodes_per_group
        total = nb * self.groups
        rows, rest = (a[:, None] for a in np.divmod(self._ends, total))
        first = self.first_slot(nodes)
        low, high, wrapped = residues(rest, nodes % self.groups, nb, self.groups)
        # Batches in which the h at the end of the stream's whole rows falls to the node, and how many there are.
        batch = (first - rows) % size * self._inverse % size
        count = np.maximum((before - batch + size - 1) // size, 0)
        if nb >> 31:  # Python's integers hold the sums
            first, batch, count, low, high, wrapped = (
                a.astype(object) for a in (first, batch, count, low, high, wrapped)
            )
        draws = before * (rows // size) + _below(before, size, -self.rows % size, first, rows % size)
        step, begin = self.multiplier * size % nb, self.multiplier * batch % nb
        for limit, sign in ((low, -1), (high, 1), (wrapped, 1)):
            draws = draws + sign * _below(count, nb, step, begin, limit)
        return np.diff(draws.astype(np.int64), axis=0, prepend=0)


def _below(n: NDArray[Any] | int, m: int, a: int, b: NDArray[Any], limit: NDArray[Any]) -> NDArray[Any]:
    """Return how many (a·i + b) mod m are below a limit for 0 <= i < n; 0 <= b < m, 0 <= limit <= m."""
    shape = np.broadcast_shapes(np.shape(n), b.shape, limit.shape)
    begins = np.broadcast_to(b + m, shape)
    return floor_sums(n, m, a, begins) - floor_sums(n, m, a, begins - limit)


class FreeStratifiedInterleave(Interleave):
    """Each batch of the segment has floor or ceil of each stream's share.

    In a batch on a node, the order of streams is that of sorted hashes.
    """

    __slots__ = ('_grid', '_key', '_per_window', '_table')

    def __init__(self, counts: IntArray, batch_size: int, num_nodes: int, *, begin: int, key: int) -> None:
        """Arguments as `free_grid_quotas`'s, and a key of the segment."""
        self._grid = grid = _Grid(counts, batch_size, num_nodes, begin)
        self._key = key
        slots = max(MIN_WINDOW, SLOTS_IN_WINDOWS // num_nodes)
        self._per_window = min(max(1, slots * num_nodes // batch_size), grid.num_batches)
        longest = -(-self._per_window * grid.rows // grid.nodes_per_group) + 1
        self._table = WindowTable((len(counts), num_nodes), longest, self._arrange)

    def at(self, nodes: IntArray, slots: IntArray) -> tuple[IntArray, IntArray]:
        first = self._grid.first_slot(nodes)
        windows = (first + slots * self._grid.nodes_per_group) // (self._grid.rows * self._per_window)
        return self._table.at(nodes, windows, slots - self._slots_before(first, windows))

    def draws_before(self, node: int, slot: int) -> IntArray:
        first = self._grid.first_slot(np.array(node))
        last = -(-self._grid.num_batches // self._per_window) - 1
        window = np.minimum((first + slot * self._grid.nodes_per_group) // (self._grid.rows * self._per_window), last)
        return self._table.draws_before(node, int(window), slot - int(self._slots_before(first, window)))

    def slot_of(self, node: int, stream: int, draw: int) -> int:
        windows = -(-self._grid.num_batches // self._per_window)
        window, before = last_not_above(draw, windows, lambda window: int(self._draws_before(node, window)[stream]))
        offset = (self._arrange(node, window)[1] == stream).nonzero()[0][draw - before]
        return int(self._slots_before(self._grid.first_slot(np.array(node)), np.array(window))) + int(offset)

    def _slots_before(self, first: IntArray, windows: IntArray) -> IntArray:
        """Return how many slots nodes have before windows, by their first slots of their groups; int64[n] each."""
        ends = windows * (self._per_window * self._grid.rows)
        return (ends - first + self._grid.nodes_per_group - 1) // self._grid.nodes_per_group

    def _draws_before(self, node: int, window: int) -> IntArray:
        return self._grid.draws(np.array([node]), window * self._per_window)[:, 0]

    def _arrange(self, node: int, window: int) -> tuple[IntArray, IntArray]:
        grid = self._grid
        begin = window * self._per_window * grid.rows
        end = min(begin + self._per_window * grid.rows, grid.num_batches * grid.rows)
        first = int(grid.first_slot(np.array(node)))
        slots = np.arange(begin + (first - begin) % grid.nodes_per_group, end, grid.nodes_per_group)
        before = self._draws_before(node, window)
        if not len(slots):
            return before, slots
        streams = grid.streams(node, slots)
        shuffled = np.lexsort((hashes(derive(self._key, node), slots), slots // grid.rows))
        return before, streams[shuffled]
