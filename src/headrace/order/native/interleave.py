"""The stream of each slot of a segment, and which of the stream's draws on the node it is.

Slots and draws are counted per canonical node, from 0 in each segment. `quotas` says how many draws each stream has on
each node. Every interleaving uses each of them once.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.order.arrays import IntArray
from headrace.order.native.long_window import LongWindow
from headrace.order.random.hashing import derive, keyed_order

SLOTS_IN_WINDOWS = 131072
MIN_WINDOW = 4096
_WHOLE = 16384  # slots of a window that is arranged as a whole, at most
_PART = 4096


class Interleave(ABC):
    """A way for streams to share a node's slots, evaluated at any slots."""

    __slots__ = ()

    @abstractmethod
    def at(self, nodes: IntArray, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Return streams int64[n], and their draws int64[n], of slots int64[n] on canonical nodes int64[n]."""

    @abstractmethod
    def draws_before(self, node: int, slot: int) -> IntArray:
        """Return the draws of each stream before a slot of a node, int64[streams]; its end is a slot, too."""

    @abstractmethod
    def slot_of(self, node: int, stream: int, draw: int) -> int:
        """Return the slot of a node that a draw of a stream has: the inverse of `at`."""


def quotas(counts: IntArray, num_nodes: int, begin: int = 0) -> IntArray:
    """Return int64[streams, nodes], the draws of each stream on each canonical node.

    The streams' draws, counts int64[streams], form one line, stream after stream. The line is dealt to the nodes
    round-robin from position ``begin`` on. Nodes get exactly their slots, and streams exactly their draws. A stream's
    draws on two nodes differ by at most one.
    """
    ends = (begin % num_nodes + np.cumsum(counts))[:, None]
    begins = ends - counts[:, None]
    nodes = np.arange(num_nodes)
    return (ends - nodes - 1) // num_nodes - (begins - nodes - 1) // num_nodes


class SequentialInterleave(Interleave):
    """The streams one after another, in their own order."""

    __slots__ = ('_begins', '_ends', '_flat', '_length')

    def __init__(self, node_quotas: IntArray) -> None:
        """Take `quotas` int64[streams, nodes]."""
        self._ends = np.cumsum(node_quotas, 0)
        self._begins = self._ends - node_quotas
        self._length = int(self._ends[-1].max()) + 1
        # All nodes' ends in one ascending line, so that one search serves every slot.
        self._flat = (self._ends + np.arange(node_quotas.shape[1]) * self._length).T.reshape(-1)

    def at(self, nodes: IntArray, slots: IntArray) -> tuple[IntArray, IntArray]:
        streams = self._flat.searchsorted(nodes * self._length + slots, 'right') - nodes * len(self._ends)
        return streams, slots - self._begins[streams, nodes]

    def draws_before(self, node: int, slot: int) -> IntArray:
        return np.clip(slot - self._begins[:, node], 0, self._ends[:, node] - self._begins[:, node])

    def slot_of(self, node: int, stream: int, draw: int) -> int:
        return int(self._begins[stream, node]) + draw


class WindowTable:
    """Draws of windows of slots, made for a window as a whole by a callable, and kept, two windows a node."""

    __slots__ = ('_arrange', '_begins', '_counted', '_draws', '_held', '_row', '_streams')

    def __init__(
        self, shape: tuple[int, int], longest: int, arrange: Callable[[int, int], tuple[IntArray, IntArray]]
    ) -> None:
        """Make an empty table of streams x nodes.

        For a node and the number of its window, `arrange` gives int64[streams], the draws of each stream before it, and
        int64[slots], the streams of its slots.
        """
        num_streams, num_nodes = shape
        self._arrange = arrange
        self._held = np.full((num_nodes, 2), -1)  # windows in memory: even and odd ones
        self._row = np.zeros((num_nodes, 2), np.int64)  # and where they are in the following
        small = np.uint16 if max(longest, num_streams) <= 1 << 16 else np.uint32
        self._streams = np.zeros((0, longest), small)
        self._draws = np.zeros((0, longest), small)  # counted from the window's first of the stream
        self._begins = np.zeros((0, num_streams), np.int64)
        self._counted: dict[int, tuple[int, IntArray, Any]] = {}  # by node, the window counted in last, arranged

    def at(self, nodes: IntArray, windows: IntArray, offsets: IntArray) -> tuple[IntArray, IntArray]:
        """Return streams int64[n], and their draws int64[n], at offsets int64[n] into windows int64[n] of nodes."""
        odd = windows & 1
        if (self._held[nodes, odd] == windows).all():
            return self._look_up(nodes, odd, offsets)
        streams, draws = np.empty_like(offsets), np.empty_like(offsets)
        # Two windows of a node at a time; a call that spans more goes through them one by one.
        for pair in np.unique(windows >> 1):
            where = (windows >> 1 == pair).nonzero()[0]
            for node, window in set(zip(nodes[where].tolist(), windows[where].tolist(), strict=True)):
                if self._held[node, window & 1] != window:
                    self._hold(node, window)
            streams[where], draws[where] = self._look_up(nodes[where], odd[where], offsets[where])
        return streams, draws

    def draws_before(self, node: int, window: int, offset: int) -> IntArray:
        """Return the draws of each stream before an offset of a window, int64[streams]."""
        counted = self._counted.get(node)
        if counted is None or counted[0] != window:
            begins, streams = self._arrange(node, window)
            counted = self._counted[node] = window, begins, streams.astype(self._streams.dtype)
        _, begins, streams = counted
        return begins + np.bincount(streams[:offset], minlength=len(begins))

    def _look_up(self, nodes: IntArray, odd: IntArray, offsets: IntArray) -> tuple[IntArray, IntArray]:
        row = self._row[nodes, odd]
        streams = self._streams[row, offsets].astype(np.int64)
        return streams, self._begins[row, streams] + self._draws[row, offsets]

    def _hold(self, node: int, window: int) -> None:
        """Make a window, and replace the node's earlier even or odd one with it."""
        odd = window & 1
        if self._held[node, odd] < 0:
            self._row[node, odd] = self._make_row()
        row = self._row[node, odd]
        begins, streams = self._arrange(node, window)
        length = len(streams)
        self._streams[row, :length] = streams
        # Each stream's slots in their own order: the sort key is (stream, slot).
        bits = length.bit_length()
        order = (streams << bits) | np.arange(length)
        order.sort()
        order &= (1 << bits) - 1
        counts = np.bincount(streams, minlength=len(begins))
        self._draws[row, order] = np.arange(length) - np.repeat(np.cumsum(counts) - counts, counts)
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


def last_not_above(draw: int, num_windows: int, before: Callable[[int], int]) -> tuple[int, int]:
    """Return the window of a draw of a stream, and its draws before that window, which ``before`` gives."""
    window = bisect.bisect_right(range(num_windows), draw, key=before) - 1
    return window, before(window)


class BatchInterleave(Interleave):
    """Windows of whole batches, of which a node has equally many slots each."""

    __slots__ = ('_batches', '_per_window', '_slots', '_table')

    def __init__(self, shape: tuple[int, int], num_batches: int, slots: int) -> None:
        """Take the numbers of streams and of nodes, of batches, and of a node's slots in a batch."""
        self._batches, self._slots = num_batches, slots
        most = max(MIN_WINDOW, SLOTS_IN_WINDOWS // shape[1])
        self._per_window = min(max(1, most // slots), num_batches)
        self._table = WindowTable(shape, self._per_window * slots, self._arrange)

    @abstractmethod
    def batches(self, node: int, first: int, last: int) -> tuple[IntArray, IntArray]:
        """Draws of streams before batches of a node, int64[streams], and their streams, int64[batches, slots]."""

    @abstractmethod
    def draws_before_batch(self, node: int, batch: int) -> IntArray:
        """Return the draws of each stream on a node before a batch, int64[streams]."""

    def at(self, nodes: IntArray, slots: IntArray) -> tuple[IntArray, IntArray]:
        windows, offsets = np.divmod(slots, self._per_window * self._slots)
        return self._table.at(nodes, windows, offsets)

    def draws_before(self, node: int, slot: int) -> IntArray:
        length = self._per_window * self._slots
        window = min(slot // length, -(-self._batches // self._per_window) - 1)
        return self._table.draws_before(node, window, slot - window * length)

    def slot_of(self, node: int, stream: int, draw: int) -> int:
        windows, per_window = -(-self._batches // self._per_window), self._per_window
        window, before = last_not_above(
            draw, windows, lambda window: int(self.draws_before_batch(node, window * per_window)[stream])
        )
        offset = (self._arrange(node, window)[1] == stream).nonzero()[0][draw - before]
        return window * per_window * self._slots + int(offset)

    def _arrange(self, node: int, window: int) -> tuple[IntArray, IntArray]:
        first = window * self._per_window
        before, streams = self.batches(node, first, min(first + self._per_window, self._batches))
        return before, streams.reshape(-1)


class RandomInterleave(Interleave):
    """The streams' draws in random order: a batch has a random number of each stream's, as in a shuffled sequence.

    A node's slots are cut into windows of equal length. A stream's draws up to the end of a window are its share,
    rounded down; the node's largest stream takes the rest. Earlier windows need not be evaluated, and the totals are
    exact. Within a window, draws are in the order of sorted hashes.

    Windows do not depend on the batch size, which may change in mid-epoch. Together the nodes' windows hold some
    100,000 slots. A batch takes a small part of them, so its counts vary as in a shuffled sequence. Many streams make
    windows longer: rounding may take a slot from the largest stream for every other one. So the largest stream's share
    of the shortest window is at least the number of streams.

    A window is arranged as a whole, or where it is long in parts (`long_window`).
    """

    __slots__ = ('_key', '_largest', '_long', '_part', '_parts', '_quotas', '_slots', '_table', '_windows')

    def __init__(self, node_quotas: IntArray, key: int) -> None:
        """Take `quotas` int64[streams, nodes] and a key of the segment."""
        num_streams, num_nodes = node_quotas.shape
        self._quotas = node_quotas
        self._key = key
        self._slots = np.maximum(node_quotas.sum(0), 1)
        self._largest = node_quotas.argmax(0)
        # Windows have more than half this length.
        fair = 2 * num_streams * -(-self._slots // np.maximum(node_quotas.max(0), 1))
        self._windows = -(-self._slots // np.maximum(fair, max(MIN_WINDOW, SLOTS_IN_WINDOWS // num_nodes)))
        longest = int((-(-self._slots // self._windows)).max())
        self._part = longest if longest <= _WHOLE else _PART
        self._parts = -(-longest // self._part)
        self._long: dict[tuple[int, int], tuple[int, LongWindow]] = {}  # by node: even and odd windows, as the table's
        self._table = WindowTable(node_quotas.shape, self._part, self._arrange)

    def at(self, nodes: IntArray, slots: IntArray) -> tuple[IntArray, IntArray]:
        total, windows = self._slots.take(nodes), self._windows.take(nodes)
        window = (slots + 1) * windows
        window -= 1
        window //= total
        offsets = slots - window * total // windows
        if self._parts > 1:
            window *= self._parts
            window += offsets // self._part
            offsets %= self._part
        return self._table.at(nodes, window, offsets)

    def draws_before(self, node: int, slot: int) -> IntArray:
        total, windows = int(self._slots[node]), int(self._windows[node])
        window = min(max((slot + 1) * windows - 1, 0) // total, windows - 1)
        begin = window * total // windows
        # Past a window's last slot its last part continues.
        part = min(slot - begin, (window + 1) * total // windows - begin - 1) // self._part
        return self._table.draws_before(node, window * self._parts + part, slot - begin - part * self._part)

    def slot_of(self, node: int, stream: int, draw: int) -> int:
        total, windows = int(self._slots[node]), int(self._windows[node])
        window, before = last_not_above(draw, windows, lambda window: int(self._counts(node, window)[stream]))
        begin, draw = window * total // windows, draw - before
        if self._parts > 1:
            return begin + self._long_window(node, window).slot_of(stream, draw)
        return begin + int((self._arrange(node, window)[1] == stream).nonzero()[0][draw])

    def _arrange(self, node: int, part: int) -> tuple[IntArray, IntArray]:
        window, number = divmod(part, self._parts)
        begins = self._counts(node, window)
        if self._parts > 1:
            total, windows = int(self._slots[node]), int(self._windows[node])
            length = (window + 1) * total // windows - window * total // windows
            begin = number * self._part
            held = self._long_window(node, window, begin)
            before, streams = held.part(begin, min(begin + self._part, length))
            return begins + before, streams
        counts = self._counts(node, window + 1) - begins
        order = keyed_order(derive(self._key, node, window), int(counts.sum()))
        streams = np.empty_like(order)
        streams[order] = np.repeat(np.arange(len(counts)), counts)
        return begins, streams

    def _long_window(self, node: int, window: int, near: int = 0) -> LongWindow:
        held = self._long.get((node, window & 1))
        if held is None or held[0] != window:
            counts = self._counts(node, window + 1) - self._counts(node, window)
            held = self._long[node, window & 1] = window, LongWindow(derive(self._key, node, window), counts, near)
        return held[1]

    def _counts(self, node: int, window: int) -> IntArray:
        """Return int64[streams], the draws before a window."""
        total = int(self._slots[node])
        before = window * total // int(self._windows[node])
        largest = self._largest[node]
        quotas = self._quotas[:, node]
        if before * int(quotas[largest]) >> 63:  # Python's integers hold it
            counts = np.array([before * quota // total for quota in quotas.tolist()], np.int64)
        else:
            counts = before * quotas // total
        counts[largest] += before - counts.sum()
        return counts
