"""Where the passes over one stream begin, on each canonical node, and the node's stretch of the shards in each.

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

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from headrace.errors import ResumeError
from headrace.order.arrays import IntArray
from headrace.order.mixture.mixture import StreamSize
from headrace.order.mixture.takeover import OpenCell, StreamPosition
from headrace.order.native.cell_table import CellTable, Parts
from headrace.order.native.node_quotas import NodeQuotas
from headrace.order.native.special.inverse import CellInverse
from headrace.order.random.feistel import column_bits, feistel_unpermute
from headrace.order.random.hashing import derive, hash_text, hashes, keyed_order

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
        """Begin a stream, or continue at `start`.

        `block_size` is of passes that are begun now. `rule` is the takeover's. `key` is that of the order of the rest;
        None if it is in stored order.
        """
        self.cells: tuple[OpenCell, ...] = ()  # The shares that the rest is of.
        self._key = key
        self._node_quotas, self._stream, self._block_size = node_quotas, stream, block_size
        self.size = size  # Samples of a pass.
        self._known: dict[int, IntArray] = {}
        self._first_inherited = self._first_computed = 0
        self._inherited: list[IntArray] = []
        self._blocks: dict[int, int] = {}
        self.node_draws = np.zeros(node_quotas.num_nodes, np.int64)  # int64[nodes], draws before the mixture took over.
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
        """The number of the pass that is the rest, or None without one."""
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
        """Draws deferred to the next pass, int64[nodes]: other nodes are ahead, and these draw in each period again."""
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
        begins = self._known.get(k)
        if begins is None:
            if len(self._known) >= _MEMORY:
                self._known.clear()
            begins = self._known[k] = self._regular(k) + self._difference
        return begins

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


_STREAM = 2
_LINE, _PASS = 1, 2
_SHARD, _CELL = 1, 2


class StreamLine:
    """The shards of a stream in their fixed order, and each node's share of each pass over them."""

    def __init__(
        self, stream: StreamSize, passes: StreamPasses, *, num_nodes: int, key: int, is_shuffled: bool
    ) -> None:
        self.name, self.fingerprint, self.passes = stream.name, stream.fingerprint, passes
        self._sizes_as_stored, self._num_nodes, self._is_shuffled = stream.shard_sizes, num_nodes, is_shuffled
        self._key = derive(key, _STREAM, hash_text(stream.name))
        self._cuts: tuple[int, IntArray] = (-1, np.zeros(0, np.int64))
        self._pass_keys = (-1, 0, 0)

    @cached_property
    def _line(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Numbers, sizes, first samples, column bits and ends in the line of the stream's shards, int64[shards]."""
        stored = self._sizes_as_stored
        order = keyed_order(derive(self._key, _LINE), len(stored))
        shards = order[stored[order] > 0]
        sizes = stored[shards]
        return shards, sizes, (np.cumsum(stored) - stored)[shards], column_bits(sizes), np.cumsum(sizes)

    def stretch(self, node: int, k: int) -> tuple[int, int, int]:
        """Return begin and end of a node's stretch of the line in pass k, in samples, and its draws before the pass."""
        begins = self.passes.begin(k)
        if self._cuts[0] != k:
            self._cuts = k, np.cumsum(self.passes.begin(k + 1) - begins)
        end = int(self._cuts[1][node])
        return (int(self._cuts[1][node - 1]) if node else 0), end, int(begins[node])

    @cached_property
    def rest(self) -> IntArray:
        """The samples of the rest by draw, int64[samples]."""
        samples: list[IntArray] = []
        for cell in self.passes.cells:
            left = np.array(cell.left, np.int64)
            if self._is_shuffled:
                table = CellTable()
                parts, _, key = self.parts(cell.begin, cell.end, cell.node, cell.number)
                left = table.at(np.full_like(left, table.add(parts, cell.block, key)), left)
            else:
                left = left + cell.begin
            samples.append(left)
        return np.concatenate(samples)[self.passes.rest_order]

    def node_draws_of(self, sample: int, k: int) -> list[tuple[int, int]]:
        """Return the nodes that have a sample in pass k, with their draws; only the rest has several."""
        if k == self.passes.rest:
            return [self.passes.node_draw_of_rest(draw) for draw in (self.rest == sample).nonzero()[0].tolist()]
        node = self._node_of(sample, k)
        begin, end, node_draw = self.stretch(node, k)
        if not self._is_shuffled:
            return [(node, node_draw + sample - begin)]
        return [(node, node_draw + int(CellInverse(*self.parts(begin, end, node, k)).find(np.array([sample]))[0]))]

    def _node_of(self, sample: int, k: int) -> int:
        """Return the node whose stretch of pass k has a sample."""
        place = sample
        if self._is_shuffled:
            shards, sizes, starts, bits, ends = self._line
            shard = ((starts <= sample) & (sample < starts + sizes)).nonzero()[0]
            keys = hashes(self._keys(k)[0], shards[shard])
            # A shard's samples go to the nodes in the order in which they are drawn.
            number = sample - starts[shard]
            draw = feistel_unpermute(*(a.view(np.uint64) for a in (number, sizes[shard], bits[shard], keys)))
            place = int((ends - sizes)[shard[0]]) + int(draw[0])
        cuts = np.cumsum(self.passes.begin(k + 1) - self.passes.begin(k))
        return int(cuts.searchsorted(place, 'right'))

    def parts(self, begin: int, end: int, node: int, k: int) -> tuple[Parts, int, int]:
        """Return the parts of shards in a node's stretch of pass k, their block size, and the pass's key there."""
        shards, sizes, starts, bits, line_ends = self._line
        first = int(line_ends.searchsorted(begin, 'right'))
        last = int(line_ends.searchsorted(end, 'left')) + 1
        ends, sizes = line_ends[first:last], sizes[first:last]
        skipped = np.maximum(begin - (ends - sizes), 0)
        shard_key, cell_key = self._keys(k)
        parts = Parts(
            sizes=np.minimum(ends, end) - (ends - sizes) - skipped,
            skipped=skipped,
            starts=starts[first:last],
            shard_sizes=sizes,
            bits=bits[first:last],
            keys=hashes(shard_key, shards[first:last]),
        )
        return parts, self.passes.block_size(k), derive(cell_key, node)

    def _keys(self, k: int) -> tuple[int, int]:
        """Return the keys of pass k: of its shards, and of its cells."""
        if self._pass_keys[0] != k:
            key = derive(self._key, _PASS, k)
            self._pass_keys = k, derive(key, _SHARD), derive(key, _CELL)
        return self._pass_keys[1:]
