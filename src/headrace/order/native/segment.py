"""A segment of an epoch: the stream of each of its slots, and which of its draws."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from headrace.order.arrays import IntArray
from headrace.order.config import OrderConfig
from headrace.order.native.interleave import Interleave, RandomInterleave, SequentialInterleave
from headrace.order.native.node_quotas import DrawIndex, NodeQuotas
from headrace.order.native.special.stratified_free import FreeStratifiedInterleave
from headrace.order.native.stratified import StratifiedInterleave
from headrace.order.native.units import ListedInterleave, UnitInterleave
from headrace.order.random.hashing import derive


class Segment:
    """The part of an epoch's segment that finds a position's draw."""

    def __init__(
        self, node_quotas: NodeQuotas, epoch: int, number: int, config: OrderConfig, node_draws: IntArray, key: int
    ) -> None:
        """Take the streams' draws int64[streams, nodes] from before the mixture took over, and a key of the epoch."""
        self._segment = segment = node_quotas.segments(epoch)[number]
        self.begin = segment.begin
        self._node_quotas, self._epoch, self._number = node_quotas, epoch, number
        self._num_nodes = node_quotas.num_nodes
        self._config, self._key = config, derive(key, segment.begin)
        self._node_draws = node_draws

    @cached_property
    def quotas(self) -> IntArray:
        """int64[streams, nodes], draws in the segment."""
        return self._node_quotas.quotas(self._epoch, self._number)

    @cached_property
    def node_draws(self) -> IntArray:
        """int64[streams · nodes], draws on each node before the segment, since the streams' first draws ever."""
        return (self._node_quotas.before(self._epoch, self._number)[1] + self._node_draws).reshape(-1)

    @cached_property
    def _draws(self) -> IntArray:
        return self._node_quotas.before(self._epoch, self._number)[0] + self._node_draws.sum(1)

    @cached_property
    def interleave(self) -> Interleave:
        """How the streams share the slots."""
        segment, config = self._segment, self._config
        if np.count_nonzero(segment.counts) == 1:
            return SequentialInterleave(self.quotas)
        if segment.kind == 'stratified':
            size = config.global_batch_size
            assert size is not None
            if size % self._num_nodes:
                return FreeStratifiedInterleave(segment.counts, size, self._num_nodes, begin=self.begin, key=self._key)
            return StratifiedInterleave(segment.counts, size, self._num_nodes, self._key)
        if segment.kind == 'units':
            assert config.global_batch_size is not None
            return UnitInterleave(
                segment.counts,
                config.global_batch_size,
                config.units,
                self._num_nodes,
                begin=self.begin,
                key=self._key,
            )
        if segment.streams is not None:
            return ListedInterleave(segment.streams, len(segment.counts), self._num_nodes, self.begin)
        # A stratified epoch's last, smaller batch is mixed, too.
        is_mixed = config.shuffle or config.batching == 'stratified'
        return RandomInterleave(self.quotas, self._key) if is_mixed else SequentialInterleave(self.quotas)

    @cached_property
    def _draw_index(self) -> DrawIndex:
        return DrawIndex(self.quotas)

    def draws_of(self, streams: IntArray, nodes: IntArray, places: IntArray, node_draws: IntArray) -> IntArray:
        """Return the streams' draws, counted from their first ever, of node draws in this segment; int64[n] each."""
        draw_index = self._draw_index
        draws = node_draws * self._num_nodes
        draws += nodes
        if draw_index.excess.shape[1]:
            level = node_draws - draw_index.least.take(streams)
            where = (level >= 0).nonzero()[0]
            draws[where] = draw_index.excess[places[where], level[where]]
        draws += self._draws.take(streams)
        return draws

    def position_of(self, stream: int, node: int, node_draw: int) -> int | None:
        """Return the position of a draw of a stream on a node, counted from its first ever; None if it is not here."""
        draw = node_draw - int(self.node_draws[stream * self._num_nodes + node])
        if not 0 <= draw < self.quotas[stream, node]:
            return None
        slot = self.interleave.slot_of(node, stream, draw)
        return self.begin + (node - self.begin) % self._num_nodes + slot * self._num_nodes
