"""The shards of a stream in a line, and each canonical node's stretch of it in each pass."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from headrace.order.native.cell_table import CellTable, Parts
from headrace.order.random.feistel import column_bits, feistel_unpermute
from headrace.order.random.hashing import derive, hash_text, hashes, keyed_order

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray
    from headrace.order.mixture.mixture import StreamSize
    from headrace.order.native.stream_passes import StreamPasses

__all__ = ['StreamLine']

_STREAM = 2
_LINE, _PASS = 1, 2
_SHARD, _CELL = 1, 2


class StreamLine:
    """The shards of a stream in their fixed order, and each node's share of each pass over them."""

    def __init__(self, stream: StreamSize, passes: StreamPasses, *, num_nodes: int, key: int) -> None:
        self.name, self.fingerprint, self.passes = stream.name, stream.fingerprint, passes
        self._sizes_as_stored, self._num_nodes = stream.shard_sizes, num_nodes
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

    def rest(self, *, is_shuffled: bool) -> IntArray:
        """Return the samples of the rest by draw, int64[samples]."""
        samples: list[IntArray] = []
        for cell in self.passes.cells:
            left = np.array(cell.left, np.int64)
            if is_shuffled:
                table = CellTable()
                parts, _, key = self.parts(cell.begin, cell.end, cell.node, cell.number)
                left = table.at(np.full_like(left, table.add(parts, cell.block, key)), left)
            else:
                left = left + cell.begin
            samples.append(left)
        return np.concatenate(samples)[self.passes.rest_order]

    def node_of(self, sample: int, k: int, *, is_shuffled: bool) -> int:
        """Return the node whose stretch of pass k has a sample."""
        place = sample
        if is_shuffled:
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
