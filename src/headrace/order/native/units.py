"""Batches of one stream: a global batch, or a device's part of one, goes to a stream as a whole.

A global batch of G samples has V *units* of U = G / V samples. ``per_stream`` has one unit, the batch. Under
``device_per_stream`` V is the number of device batches that the run began with. Position p belongs to unit p mod V, as
a `Plan` deals positions to replicas. So a unit is a replica's batch on V replicas, a part of it on fewer, and holds
whole batches on more.

The streams share units as they share slots in stratified batches (`stratified`). A stream's share of the V units of a
global batch is rounded down or up. The units before any batch are near the share. Instead of the C canonical nodes,
there are g = gcd(C, V) groups. Unit h belongs to group h mod g. It has equally many positions on each node there.

The samples after an epoch's last full batch are listed position by position.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.order.arrays import IntArray
from headrace.order.native.interleave import BatchInterleave, Interleave
from headrace.order.native.stratified import StratifiedInterleave, grid_quotas


def unit_quotas(counts: IntArray, batch_size: int, num_units: int, num_nodes: int) -> IntArray:
    """Return int64[streams, nodes], the draws of each stream on each node in a segment of whole batches.

    `counts`, int64[streams], are whole units, and fill the batches exactly, of a multiple of units and of nodes.
    """
    groups = math.gcd(num_nodes, num_units)
    size = batch_size // num_units
    of_groups = grid_quotas(counts // size, num_units, groups)
    return of_groups[:, np.arange(num_nodes) % groups] * (size * groups // num_nodes)


class UnitInterleave(BatchInterleave):
    """Each unit of the segment's batches belongs to one stream."""

    __slots__ = ('_begin', '_grid', '_groups', '_nodes', '_repeats', '_units')

    def __init__(
        self, counts: IntArray, batch_size: int, num_units: int, num_nodes: int, *, begin: int, key: int
    ) -> None:
        """Arguments as `unit_quotas`'s, the segment's first position, and a key of the segment."""
        self._groups = math.gcd(num_nodes, num_units)
        size = batch_size // num_units
        self._grid = StratifiedInterleave(counts // size, num_units, self._groups, key)
        self._begin, self._nodes, self._units = begin, num_nodes, num_units
        self._repeats = size * self._groups // num_nodes  # a unit's slots on each node of its group
        super().__init__((len(counts), num_nodes), int(counts.sum()) // batch_size, batch_size // num_nodes)

    def batches(self, node: int, first: int, last: int) -> tuple[IntArray, IntArray]:
        before, streams = self._grid.batches(node % self._groups, first, last)
        # A node's slots are C positions apart, and so go through the units of its group round-robin.
        position = self._begin + (node - self._begin) % self._nodes
        units = (position + np.arange(self._units // self._groups) * self._nodes) % self._units // self._groups
        return before * self._repeats, np.tile(streams[:, units], self._repeats)

    def draws_before_batch(self, node: int, batch: int) -> IntArray:
        return self._grid.draws_before_batch(node % self._groups, batch) * self._repeats


def listed_quotas(streams: IntArray, num_streams: int, num_nodes: int, begin: int) -> IntArray:
    """Return int64[streams, nodes], the draws of each stream on each node; arguments as `ListedInterleave`'s."""
    places = streams * num_nodes + (begin + np.arange(len(streams))) % num_nodes
    return np.bincount(places, minlength=num_streams * num_nodes).reshape(num_streams, num_nodes)


class ListedInterleave(Interleave):
    """A segment of which the stream of each position is given."""

    __slots__ = ('_begin', '_draws', '_nodes', '_num_streams', '_streams')

    def __init__(self, streams: IntArray, num_streams: int, num_nodes: int, begin: int) -> None:
        """Take the streams int64[positions] of the segment's positions, of which `begin` is the first."""
        self._streams, self._num_streams = streams, num_streams
        self._nodes, self._begin = num_nodes, begin
        places = streams * num_nodes + (begin + np.arange(len(streams))) % num_nodes
        order = places.argsort(kind='stable')
        counts = np.bincount(places, minlength=num_streams * num_nodes)
        self._draws = np.empty_like(streams)
        self._draws[order] = np.arange(len(streams)) - np.repeat(np.cumsum(counts) - counts, counts)

    def at(self, nodes: IntArray, slots: IntArray) -> tuple[IntArray, IntArray]:
        positions = (nodes - self._begin) % self._nodes + slots * self._nodes
        return self._streams[positions], self._draws[positions]

    def draws_before(self, node: int, slot: int) -> IntArray:
        return np.bincount(self._of_node(node)[:slot], minlength=self._num_streams)

    def slot_of(self, node: int, stream: int, draw: int) -> int:
        return int((self._of_node(node) == stream).nonzero()[0][draw])

    def _of_node(self, node: int) -> IntArray:
        return self._streams[(node - self._begin) % self._nodes :: self._nodes]
