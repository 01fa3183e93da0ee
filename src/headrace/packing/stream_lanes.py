"""Lanes of single streams, with which the proportions of a mixture count tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import ConfigError
from headrace.order import ExpectedCounts, Mixture, OrderConfig, make_order
from headrace.order.native.order import NativeOrder
from headrace.packing.document_order import LaneOrder, PassOrder, Place, ShiftedOrder, share

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['StreamLanes']

_TURNS = 1 << 20
"""Sequences of each lane that make an epoch of the proportions, which are rounded to them."""
_KEPT_EPOCHS = 2  # the one of the batches, and the one of the look-ahead


class StreamLanes(LaneOrder):
    """The mixture gives the stream of each sequence, and each stream has lanes of its own.

    L is the number of lanes for ranks and batches. Lane s · L + l packs documents of stream s: those at positions l
    modulo L of each pass over the stream. Sequence n of the run, of stream s, is the next one of lane s · L + n mod L.

    Sequences are positions of a stratified native order with batches of L and L canonical nodes. It knows the draws of
    a stream on a node before any position, which are the earlier sequences of a lane.

    Args:
        lanes: L.
        mixture: the streams and their proportions.
        config: the order of the documents, with its defaults filled in.

    Raises:
        ConfigError: a stream has fewer documents than lanes.
    """

    counts = 'tokens'

    def __init__(self, lanes: int, mixture: Mixture, config: OrderConfig) -> None:
        super().__init__(lanes, len(mixture.streams))
        for stream, is_drawn in zip(mixture.streams, mixture.is_drawn, strict=True):
            if is_drawn and stream.size < lanes:
                raise ConfigError(
                    f"`weights_count` 'tokens' needs a document of each stream for each lane at least, but there are "
                    f'{lanes} lanes and {stream.size} samples of stream {stream.name!r}. Set `lanes` to a divisor of '
                    f'{lanes} that is no greater, but a multiple of the ranks.'
                )
        self._streams, self._offsets = mixture.streams, mixture.sample_offsets
        self._mixture = Mixture.resolve(
            mixture.streams, epoch_size=lanes * _TURNS, seed=config.seed, schedule=mixture.schedule
        )
        self._config = replace(config, batching='random', global_batch_size=None)
        self._of_sequences = replace(config, batching='stratified', global_batch_size=lanes, num_canonical_nodes=lanes)
        self._epochs: OrderedDict[int, NativeOrder] = OrderedDict()
        self._before: tuple[int, IntArray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_epochs': OrderedDict(), '_before': None}  # workers read documents only

    def _epoch(self, number: int) -> NativeOrder:
        """An epoch of the mixture, in sequences."""
        if number not in self._epochs:
            order = make_order(self._mixture, self._of_sequences, number)
            assert isinstance(order, NativeOrder)
            self._epochs[number] = order
            while len(self._epochs) > _KEPT_EPOCHS:
                self._epochs.popitem(last=False)
        return self._epochs[number]

    def _draws(self, numbers: Iterable[int]) -> tuple[IntArray, IntArray]:
        """Streams int64[n] of sequences of the run, and the earlier sequences int64[n] of their lanes."""
        epochs, positions = np.divmod(np.array(list(numbers), np.int64), self._mixture.epoch_size)
        streams, draws = np.empty_like(positions), np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            where = epochs == epoch
            streams[where], draws[where] = self._epoch(epoch).draws_at(positions[where])
        return streams, draws

    def lanes_at(self, places: Sequence[int]) -> list[int]:
        """As in the parent class."""
        return [stream * self.lanes + place for stream in range(self.streams) for place in places]

    def sequences(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """As in the parent class."""
        streams, draws = self._draws(numbers)
        lanes = streams * self.lanes + np.array(numbers, np.int64) % self.lanes
        return list(zip(lanes.tolist(), draws.tolist(), strict=True))

    def sequences_before(self, lane: int, number: int) -> int:
        """As in the parent class."""
        if self._before is None or self._before[0] != number:
            epoch, position = divmod(number, self._mixture.epoch_size)
            self._before = number, self._epoch(epoch).node_draws_before(position).reshape(-1)
        return int(self._before[1][lane])

    def shares(self, number: int, count: int) -> list[float]:
        """As in the parent class."""
        streams, _ = self._draws(range(number, number + count))
        return (np.bincount(streams, minlength=self.streams) / count).tolist()

    def expected_shares(self, number: int) -> list[float]:
        """As in the parent class."""
        return (ExpectedCounts(self._mixture).between(0, number, number + self.lanes) / self.lanes).tolist()

    def first_size(self, lane: int) -> int:
        """As in the parent class."""
        return self._streams[lane // self.lanes].size

    @property
    def most_documents(self) -> int:
        """As in the parent class."""
        return max(stream.size for stream in self._streams)

    def place(self, lane: int, document: int) -> Place:
        """As in the parent class; the stream is in the place of the mixture."""
        stream, of_stream = divmod(lane, self.lanes)
        passes, turn = divmod(document, share(of_stream, self.lanes, self._streams[stream].size))
        return Place(stream, passes, turn * self.lanes + of_stream)

    def order(self, mixture: int, epoch: int) -> PassOrder:
        """As in the parent class, of a stream."""
        stream = replace(self._streams[mixture], proportion=None)
        order = make_order(Mixture.resolve([stream], seed=self._config.seed), self._config, epoch)
        return ShiftedOrder(order, self._offsets[mixture : mixture + 1])
