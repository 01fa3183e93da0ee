"""Whose turn it is: which stream a slot of the sequence belongs to, and which of the stream's draws it is.

Slots and draws are counted per canonical node, from 0 in each epoch: `quotas` says how many draws of each stream a
node has, and every interleaving uses each of them once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from headrace.order.hashing import derive, keyed_order

if TYPE_CHECKING:
    from headrace.order.mixture import IntArray

__all__ = ['Interleave', 'RandomInterleave', 'quotas']

_SLOTS_IN_WINDOWS = 131072
_MIN_WINDOW = 4096


class Interleave(Protocol):
    """A way for streams to share a node's slots, evaluated at any slots."""

    def at(self, nodes: IntArray, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Return streams int64[n], and their draws' numbers int64[n], of slots int64[n] on canonical nodes int64[n]."""
        ...


def quotas(choose: IntArray, num_canonical_nodes: int) -> IntArray:
    """Return int64[streams, nodes], how many of its draws each stream has on each canonical node.

    The streams' draws, choose int64[streams], form one line, stream after stream, dealt to the nodes in turn: a node
    gets exactly its number of slots, a stream exactly its number of draws, and its nodes differ by at most one.
    """
    ends = np.cumsum(choose)[:, None]
    begins = ends - choose[:, None]
    nodes = np.arange(num_canonical_nodes)
    return (ends - nodes - 1) // num_canonical_nodes - (begins - nodes - 1) // num_canonical_nodes


class RandomInterleave:
    """The streams' draws in random order: a batch has a random number of each stream's, as in a shuffled sequence.

    A node's slots are cut into windows of equal length. The number of each stream's draws in all windows up to one is
    its share rounded down, the node's largest stream taking the rest, so that it is known without looking at earlier
    windows, and exact at the end. Within a window, draws are in the order of sorted hashes, which is made for the
    window as a whole and kept, two windows a node.

    Windows do not depend on the batch size, which may change in mid-epoch. Together the nodes' windows hold some
    100,000 slots, so that a batch takes a small part of them and its counts vary as freely as in a shuffled sequence.
    They are longer where streams are many: rounding may take a slot from the largest stream for every other one, so
    its share of the shortest window is at least the number of streams.
    """

    __slots__ = ('_begins', '_draws', '_held', '_key', '_largest', '_quotas', '_row', '_slots', '_streams', '_windows')

    def __init__(self, node_quotas: IntArray, key: int) -> None:
        """Take `quotas` int64[streams, nodes] and a key of the epoch."""
        num_streams, num_nodes = node_quotas.shape
        self._quotas = node_quotas
        self._key = key
        self._slots = np.maximum(node_quotas.sum(0), 1)
        self._largest = node_quotas.argmax(0)
        # Windows have more than half this length.
        fair = 2 * num_streams * -(-self._slots // np.maximum(node_quotas.max(0), 1))
        self._windows = -(-self._slots // np.maximum(fair, max(_MIN_WINDOW, _SLOTS_IN_WINDOWS // num_nodes)))
        self._held = np.full((num_nodes, 2), -1)  # windows in memory: even and odd ones
        self._row = np.zeros((num_nodes, 2), np.int64)  # and where they are in the following
        longest = int((-(-self._slots // self._windows)).max())
        small = np.uint16 if longest <= 1 << 16 else np.uint32
        self._streams = np.zeros((0, longest), small)
        self._draws = np.zeros((0, longest), small)  # counted from the window's first of the stream
        self._begins = np.zeros((0, num_streams), np.int64)

    def at(self, nodes: IntArray, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Return streams int64[n], and their draws' numbers int64[n], of slots int64[n] on canonical nodes int64[n]."""
        total, windows = self._slots.take(nodes), self._windows.take(nodes)
        window = (slots + 1) * windows
        window -= 1
        window //= total
        offset = slots - window * total // windows
        odd = window & 1
        if (self._held[nodes, odd] == window).all():
            return self._look_up(nodes, odd, offset)
        streams, draws = np.empty_like(slots), np.empty_like(slots)
        # Two windows of a node at a time; a call that spans more goes through them in turn.
        for pair in np.unique(window >> 1):
            where = (window >> 1 == pair).nonzero()[0]
            for node, w in set(zip(nodes[where].tolist(), window[where].tolist(), strict=True)):
                if self._held[node, w & 1] != w:
                    self._hold(node, w)
            streams[where], draws[where] = self._look_up(nodes[where], odd[where], offset[where])
        return streams, draws

    def _look_up(self, nodes: IntArray, odd: IntArray, offset: IntArray) -> tuple[IntArray, IntArray]:
        row = self._row[nodes, odd]
        streams = self._streams[row, offset].astype(np.int64)
        return streams, self._begins[row, streams] + self._draws[row, offset]

    def _hold(self, node: int, window: int) -> None:
        """Make a window and put it in the place of the node's earlier even or odd one."""
        odd = window & 1
        if self._held[node, odd] < 0:
            self._row[node, odd] = self._make_row()
        row = self._row[node, odd]
        begins, counts = self._counts(node, window), self._counts(node, window + 1)
        counts -= begins
        length = int(counts.sum())
        order = keyed_order(derive(self._key, node, window), length)
        streams = np.repeat(np.arange(len(counts)), counts)
        self._streams[row, order] = streams
        # Each stream's slots in their own order: the sort key is (stream, slot).
        bits = length.bit_length()
        order |= streams << bits
        order.sort()
        order &= (1 << bits) - 1
        self._draws[row, order] = np.arange(length) - (np.cumsum(counts) - counts)[streams]
        self._begins[row] = begins
        self._held[node, odd] = window

    def _make_row(self) -> int:
        """Return the number of an unused row, doubling the tables when there is none."""
        row = int((self._held >= 0).sum())
        if row == len(self._streams):
            most = self._held.size
            more = max(1, min(row, most - row))
            self._streams, self._draws, self._begins = (
                np.concatenate([table, np.zeros((more, table.shape[1]), table.dtype)])
                for table in (self._streams, self._draws, self._begins)
            )
        return row

    def _counts(self, node: int, window: int) -> IntArray:
        """Return int64[streams], the draws before a window; Python's integers, since products exceed 64 bits."""
        total = int(self._slots[node])
        before = window * total // int(self._windows[node])
        counts = [before * quota // total for quota in self._quotas[:, node].tolist()]
        largest = self._largest[node]
        counts[largest] += before - sum(counts)
        return np.array(counts, np.int64)
