"""Where the passes over one stream begin, on each canonical node.

A stream is one endless sequence, pass after pass over all its samples. The mixture deals its draws to the canonical
nodes (`node_quotas`). A node's share of a pass is its part of the pass's draws. So nodes never share a sample, and each
pass has each sample once. This holds for any mixture, any change of it, and any number of passes in an epoch.

After a change of the mixture within a pass, some nodes are ahead of the new mixture and others behind. Passes that any
node has begun keep their cut. The next ones give most to the nodes that are behind, until the new mixture is met.

A small share of an epoch may always fall to the same few nodes. After a change the others then never draw the samples
that are left of their shares. These samples, of all nodes, become a pass of their own (the *rest*), which the new
mixture deals to the nodes that draw.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ResumeError
from headrace.order.mixture.takeover import OpenCell, StreamPosition
from headrace.order.random.hashing import keyed_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.order.arrays import IntArray
    from headrace.order.native.node_quotas import NodeQuotas

__all__ = ['StreamPasses']

_MEMORY = 64  # begins of passes that are kept
_NEVER = 1 << 62
_MOST = 1 << 23  # begins of passes of all nodes; 64 MiB
_MOST_REST = 1 << 16  # samples of a stream, and of its rest; a larger one would need too long for a pass to matter


def _ahead(difference: IntArray) -> int:
    """How many draws nodes have had more than the mixture gives them."""
    return int(np.maximum(difference, 0).sum())


class StreamPasses:
    """The passes over one stream. Draws are counted from the stream's first draw ever."""

    def __init__(
        self,
        node_quotas: NodeQuotas,
        stream: int,
        size: int,
        block_size: int,
        start: StreamPosition | None,
        *,
        rule: int = 1,
        key: int | None = None,
    ) -> None:
        """Begin a stream, or continue where it was.

        Args:
            node_quotas: of the mixture.
            stream: its number there.
            size: samples of the stream.
            block_size: samples over which passes that are begun now are shuffled.
            start: how far it was when the mixture took over; None: not begun.
            rule: of the takeover.
            key: of the order of the rest; None: in stored order.
        """
        self.cells: tuple[OpenCell, ...] = ()
        """The shares that the rest is of."""
        self._key = key
        self._node_quotas, self._stream, self._block_size = node_quotas, stream, block_size
        self.size = size
        """Samples of a pass."""
        self._known: dict[int, IntArray] = {}
        self._first_inherited = self._first_computed = 0
        self._inherited: list[IntArray] = []
        self._blocks: dict[int, int] = {}
        self.node_draws = np.zeros(node_quotas.num_nodes, np.int64)
        """int64[nodes], draws before the mixture took over."""
        self.first_regular = 0
        """The first pass of those whose numbers are draws / size: all whose begins follow from the mixture alone."""
        self._difference = np.zeros(node_quotas.num_nodes, np.int64)
        if start is not None:
            self.node_draws = np.array(start.node_draws, np.int64)
            self._first_inherited = start.first_pass
            self._inherited = [np.array(row, np.int64) for row in start.begins]
            self._blocks = dict(enumerate(start.blocks, start.first_pass))
            if start.cells or (not self._align() and rule > 1 and size <= _MOST_REST):
                self._collect(start)
        self._first_computed = self._first_inherited + len(self._inherited)
        self._begins = np.array(self._inherited, np.int64).reshape(-1, node_quotas.num_nodes)

    @property
    def draws(self) -> int:
        """Draws before the mixture took over."""
        return int(self.node_draws.sum())

    def _align(self) -> bool:
        """Add passes to the inherited ones until one begins where the mixture begins it; return whether one does."""
        k = self._first_inherited + len(self._inherited) - 1
        difference = self._inherited[-1] - self._regular(k)
        ahead, since = _ahead(difference), k
        period, settled = self._node_quotas.period(self._stream)
        while difference.any():
            # A whole period without any gain: nodes that are ahead get nothing more. Nodes behind catch up.
            if (k - since - 1) * self.size > settled and (difference[period == 0] >= 0).all():
                self._difference, self.first_regular = difference, _NEVER
                return False
            if len(self._inherited) * len(difference) > _MOST:
                raise ResumeError(
                    f'canonical nodes have had too different numbers of samples of a stream of {self.size} for '
                    f'another mixture to take over in the middle of an epoch. Change it at the end of one.'
                )
            k += 1
            regular = self._regular(k)
            needed = np.maximum(regular - self._inherited[-1], 0)
            self._inherited.append(self._inherited[-1] + needed - self._left_for_later(needed, period))
            difference = self._inherited[-1] - regular
            if _ahead(difference) < ahead:
                ahead, since = _ahead(difference), k
        self.first_regular = k
        return True

    def _collect(self, start: StreamPosition) -> None:
        """Make a rest of the undrawn samples of all begun passes, unless it is too large."""
        first = start.first_pass + len(start.begins) - 1
        if not start.cells and first * self.size - self.draws > _MOST_REST:
            return
        cells = list(start.cells)
        for i, block in enumerate(start.blocks):
            shares = np.subtract(start.begins[i + 1], start.begins[i])
            drawn = np.maximum(self.node_draws - start.begins[i], 0)
            for node in (drawn < shares).nonzero()[0].tolist():
                end, share = int(shares[: node + 1].sum()), int(shares[node])
                left = tuple(range(int(drawn[node]), share))
                cells.append(OpenCell(start.first_pass + i, node, end - share, end, block, left))
        self.cells = tuple(cells)
        self.first_regular, self._first_inherited = first, first - 1
        self._inherited, self._blocks = [self.node_draws], {}
        self._difference = np.zeros_like(self.node_draws)

    @property
    def rest(self) -> int | None:
        """The number of the pass that is the rest; None: there is none."""
        return self._first_inherited if self.cells else None

    @cached_property
    def rest_order(self) -> IntArray:
        """int64[samples]: the samples of the rest by draw, numbered through the cells; earlier passes come first."""
        numbers = np.repeat([cell.number for cell in self.cells], [len(cell.left) for cell in self.cells])
        order = np.arange(len(numbers)) if self._key is None else keyed_order(self._key, len(numbers))
        return order[np.argsort(numbers[order], kind='stable')]

    def node_draw_of_rest(self, draw: int) -> tuple[int, int]:
        """Return the node of the n-th draw of the rest, n from 0, and its index among the draws of that node."""
        before, after = (self._node_quotas.node_draws_after(self._stream, n) for n in (draw, draw + 1))
        node = int((after - before).argmax())
        return node, int(self.node_draws[node] + before[node])

    def _cells_left(self, node_draws: IntArray) -> tuple[OpenCell, ...]:
        """Return the cells of the rest that remain after some draws of the nodes, int64[nodes]."""
        places = (self.node_draw_of_rest(draw) for draw in range(len(self.rest_order)))
        left = np.sort(self.rest_order[[node_draw >= node_draws[node] for node, node_draw in places]])
        cells: list[OpenCell] = []
        end = 0
        for cell in self.cells:
            begin, end = end, end + len(cell.left)
            some = left[left.searchsorted(begin) : left.searchsorted(end)] - begin
            if len(some):
                cells.append(replace(cell, left=tuple(np.array(cell.left)[some].tolist())))
        return tuple(cells)

    def _left_for_later(self, needed: IntArray, period: IntArray) -> IntArray:
        """Return int64[nodes], draws deferred to the next pass because other nodes are ahead.

        Those wait that will have draws again in every period.
        """
        left = np.zeros_like(needed)
        for may_wait in (period > 0, period == 0):
            most = np.where(may_wait, needed, 0).cumsum().tolist()
            wait = min(int(needed.sum()) - int(left.sum()) - self.size, most[-1])
            if wait > 0:
                left += np.diff([total * wait // most[-1] for total in most], prepend=0)
        return left

    def _regular(self, k: int) -> IntArray:
        return self.node_draws + self._node_quotas.node_draws_after(self._stream, k * self.size - self.draws)

    def begin(self, k: int) -> IntArray:
        """Return int64[nodes], each node's draws before pass k, which some node had not ended at the takeover."""
        if k < self._first_computed:
            return self._inherited[k - self._first_inherited]
        found = self._known.get(k)
        if found is None:
            if len(self._known) >= _MEMORY:
                self._known.clear()
            found = self._known[k] = self._regular(k) + self._difference
        return found

    def numbers(self, node_draws: IntArray, nodes: IntArray, near: IntArray) -> IntArray:
        """Return the passes that draws on nodes belong to, looking for them near others; int64[n] each."""
        numbers = near.copy()
        for node in np.unique(nodes).tolist():
            where = (nodes == node).nonzero()[0]
            begins = self._begins[:, node]
            rows = begins.searchsorted(node_draws[where], 'right')
            numbers[where] = self._first_inherited + rows - 1
            for i in where[rows == len(begins)].tolist():
                numbers[i] = self._number(int(node_draws[i]), node, max(int(near[i]), self._first_computed - 1))
        return numbers

    def _number(self, node_draw: int, node: int, k: int) -> int:
        while self.begin(k)[node] > node_draw:
            k -= 1
        while self.begin(k + 1)[node] <= node_draw:
            k += 1
        return k

    def spanned(self, first: IntArray, last: IntArray) -> Iterator[int]:
        """Yield the passes, in order, that any draws from first on and below last, int64[nodes], belong to."""
        k = max(int(first.sum()) // self.size, self._first_inherited)
        while k > self._first_inherited and (self.begin(k) > first).any():
            k -= 1
        while (self.begin(k) < last).any():
            yield k
            k += 1

    def block_size(self, k: int) -> int:
        """Return the samples over which pass k is shuffled."""
        return self._blocks.get(k, self._block_size)

    def position(self, node_draws: IntArray, fingerprint: str) -> StreamPosition:
        """Return how far the stream is when its nodes have had some draws, int64[nodes], not below the origin's."""
        cells: tuple[OpenCell, ...] = ()
        first = int(node_draws.sum()) // self.size
        if self.cells and (node_draws < self.begin(self.first_regular)).any():
            first, cells = self.first_regular, self._cells_left(node_draws)
        while not cells and (self.begin(first) > node_draws).any():
            first -= 1
        begins = [self.begin(first)]
        while (begins[-1] < node_draws).any():
            begins.append(self.begin(first + len(begins)))
        return StreamPosition(
            fingerprint=fingerprint,
            node_draws=tuple(node_draws.tolist()),
            first_pass=first,
            begins=tuple(tuple(row.tolist()) for row in begins),
            blocks=tuple(self.block_size(first + i) for i in range(len(begins) - 1)),
            cells=cells,
        )
