"""The documents of each lane, through all mixtures of a run, and the lanes of single streams.

A mixture that takes over at a resume begins at one place of the documents: after the last one that any lane has placed
by then. Lanes that are behind take the earlier mixture's documents up to there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from headrace.errors import ConfigError, ResumeError
from headrace.order import ExpectedCounts, Mixture, OrderConfig, make_order
from headrace.order.config import MAX_EPOCH_SIZE, is_count
from headrace.order.native.order import NativeOrder
from headrace.order.pinned import pinned_errors, short
from headrace.order.resume import recorded_mixture

if TYPE_CHECKING:
    from headrace.order import Order
    from headrace.order.arrays import IntArray
    from headrace.packing.settings import WeightsCount

_KEYS = ('streams', 'stages', 'schedule', 'origin')  # the keys of a mixture in a checkpoint
_MOST_CHANGES = 1000


Number = TypeVar('Number', int, 'IntArray')


def share(lane: Number, lanes: int, total: Number | int) -> Number:
    """The count of numbers below `total` that are `lane` modulo `lanes`."""
    return -((lane - total) // lanes)


class Place(NamedTuple):
    """The place of a document in the run."""

    mixture: int  # The number of the mixture in the run.
    epoch: int  # The pass over the documents.
    position: int  # Its position in that pass.


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierMixture:
    begin: tuple[int, int]  # epoch and position of its first document
    end: tuple[int, int]  # epoch and position after its last document
    size: int  # documents of an epoch
    pinned: Mapping[str, Any] | None  # its record in a checkpoint; None once no lane needs its documents

    def to_json(self) -> dict[str, Any]:
        """Plain types, which `earlier_from_json` takes."""
        record = {} if self.pinned is None else {'mixture': {k: self.pinned[k] for k in _KEYS if k in self.pinned}}
        return {'begin': list(self.begin), 'end': list(self.end), 'documents': self.size, **record}


def earlier_from_json(
    value: Any, pinned: Mapping[str, Any], *, nodes: int, lanes: int, begin: tuple[int, int]
) -> list[EarlierMixture]:
    """Read the earlier mixtures of a checkpoint that has the record `pinned`; ResumeError: malformed."""
    others = {key: value for key, value in pinned.items() if key not in _KEYS}
    mixtures: list[EarlierMixture] = []
    entries = cast('list[Any]', value) if isinstance(value, list) else [None]
    for entry in entries[: _MOST_CHANGES + 1]:
        mixture = _mixture_from_json(entry, others, nodes, lanes)
        if mixture is None:
            raise ResumeError(
                f'an earlier mixture of a packed run has begin, end, documents, and perhaps streams, got '
                f'{short(entry)}. The checkpoint is damaged.'
            )
        mixtures.append(mixture)
    bounds = [*((mixture.begin, mixture.end) for mixture in mixtures), (begin, begin)]
    if len(mixtures) > _MOST_CHANGES or any(end > later for (_, end), (later, _) in pairwise(bounds)):
        raise ResumeError(
            f'earlier mixtures of a packed run follow one another, at most {_MOST_CHANGES}, got {short(bounds)}. The '
            f'checkpoint is damaged.'
        )
    return mixtures


def _mixture_from_json(value: Any, others: Mapping[str, Any], nodes: int, lanes: int) -> EarlierMixture | None:
    if not isinstance(value, dict):
        return None
    entry = cast('dict[str, Any]', value)
    begin: Any = entry.get('begin')
    end: Any = entry.get('end')
    size: Any = entry.get('documents')
    pinned: Any = entry.get('mixture')
    if not (is_count(size, lanes, MAX_EPOCH_SIZE) and _is_place(begin, size) and _is_place(end, size) and begin < end):
        return None
    if pinned is not None:
        if not isinstance(pinned, dict) or any(pinned_errors({**others, **pinned}, nodes=nodes, epoch_size=size)):
            return None
        origin = cast('dict[str, Any]', pinned).get('origin', {'epoch': 0, 'sample': 0})
        if [origin['epoch'], origin['sample']] != begin:
            return None
    return EarlierMixture(begin=tuple(begin), end=tuple(end), size=size, pinned=pinned)


def _is_place(value: Any, size: int) -> bool:
    return (
        isinstance(value, list)
        and len(cast('list[Any]', value)) == 2
        and is_count(value[0])
        and is_count(value[1], 0, size)
    )


class LaneOrder(ABC):
    """The documents of each lane, and its sequences; with `streams` above 1, each stream has `lanes` of its own."""

    counts: WeightsCount = 'documents'  # the unit of a position of the mixture: a document, or a sequence

    def __init__(self, lanes: int, streams: int = 1) -> None:
        self.lanes, self.streams = lanes, streams

    @property
    def lane_count(self) -> int:
        return self.lanes * self.streams

    def lanes_at(self, places: Sequence[int]) -> Sequence[int]:
        """The lanes that make the sequences whose numbers in the run are `places` modulo `lanes`."""
        return places

    def sequences(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """The lane of each sequence of the run, and the number there."""
        return [(number % self.lanes, number // self.lanes) for number in numbers]

    def sequences_before(self, lane: int, number: int) -> int:
        """Sequences that a lane makes before a sequence of the run."""
        return share(lane, self.lanes, number)

    def shares(self, number: int, count: int) -> list[float]:  # noqa: ARG002
        """The share of each of `streams` in some sequences of the run from `number` on."""
        return [1.0]

    def expected_shares(self, number: int) -> list[float]:  # noqa: ARG002
        """The same at about a sequence, from the proportions."""
        return [1.0]

    @abstractmethod
    def first_size(self, lane: int) -> int:
        """Documents, of all lanes for it, in a pass of the run's first mixture."""

    @property
    @abstractmethod
    def most_documents(self) -> int: ...

    @abstractmethod
    def places(self, lanes: IntArray, documents: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The columns of `Place`, int64[n] each, of documents int64[n] by their numbers in the lanes int64[n]."""

    def place(self, lane: int, document: int) -> Place:
        return Place(*(int(place[0]) for place in self.places(np.array([lane]), np.array([document]))))

    @abstractmethod
    def order(self, mixture: int, epoch: int) -> PassOrder:
        """The documents of a pass; ResumeError: those of the mixture are not known any more."""


class DocumentOrder(LaneOrder):
    """The order of documents in each pass, and their places. The one at position p is of lane p modulo the lanes.

    `begin`, `size` and `order` are those of the last mixture; `config` is that of the `earlier` ones. `mixture` has the
    ids.
    """

    def __init__(
        self,
        lanes: int,
        earlier: Sequence[EarlierMixture],
        *,
        begin: tuple[int, int],
        size: int,
        order: Callable[[int], PassOrder],
        mixture: Mixture,
        config: OrderConfig,
    ) -> None:
        super().__init__(lanes)
        self.earlier = tuple(earlier)
        self._first_size = self.earlier[0].size if self.earlier else size
        self._parts = [(mixture.begin, mixture.size) for mixture in self.earlier] + [(begin, size)]
        self._orders: list[Callable[[int], PassOrder] | None] = [
            None if old.pinned is None else partial(earlier_order, old.pinned, old.size, mixture, config)
            for old in self.earlier
        ]
        self._orders.append(order)

    def first_size(self, lane: int) -> int:  # noqa: ARG002
        return self._first_size

    @property
    def most_documents(self) -> int:
        return max(size for _, size in self._parts)

    def _counts(self, lane: IntArray, number: int) -> IntArray:
        """Documents that lanes take of an earlier mixture."""
        (first, at), size = self._parts[number]
        last, end = self.earlier[number].end
        of_pass = share(lane, self.lanes, size)
        return (last - first) * of_pass + share(lane, self.lanes, end) - share(lane, self.lanes, at)

    def places(self, lanes: IntArray, documents: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        mixtures = np.zeros_like(lanes)
        for number in range(len(self.earlier)):
            counts = self._counts(lanes, number)
            is_later = (mixtures == number) & (documents >= counts)
            documents = documents - np.where(is_later, counts, 0)
            mixtures += is_later
        epochs, turns = np.empty_like(lanes), np.empty_like(lanes)
        for number in np.unique(mixtures).tolist():
            where, ((epoch, at), size) = mixtures == number, self._parts[number]
            lane = lanes[where]
            turn = documents[where] + share(lane, self.lanes, at)
            epochs[where], turns[where] = np.divmod(turn, share(lane, self.lanes, size))
            epochs[where] += epoch
        return mixtures, epochs, turns * self.lanes + lanes

    def order(self, mixture: int, epoch: int) -> PassOrder:
        make = self._orders[mixture]
        if make is None:
            raise ResumeError(
                f'the mixture of a packed run changed in pass {self.earlier[mixture].end[0]}, and the checkpoint does '
                f'not hold the one before. Use a checkpoint from before the change for earlier sequences.'
            )
        return make(epoch)

    def without_unneeded(self, documents: Iterable[tuple[int, int]]) -> list[EarlierMixture]:
        """The earlier mixtures from which lanes still need one of `documents`, each (lane, number), or a later one."""
        first = min(self.place(lane, document).mixture for lane, document in documents)
        return [
            old if number >= first else EarlierMixture(begin=old.begin, end=old.end, size=old.size, pinned=None)
            for number, old in enumerate(self.earlier)
        ]


class ShiftedOrder:
    """The order of an earlier mixture, in current sample ids."""

    def __init__(self, order: Order, shifts: IntArray) -> None:
        self._order, self._shifts = order, shifts

    def at(self, positions: IntArray) -> IntArray:
        """Global sample ids int64[n] at positions int64[n]."""
        ids = self._order.at(positions)
        return ids + self._shifts[self._order.mixture.streams_of(ids)]


PassOrder: TypeAlias = 'Order | ShiftedOrder'  # the documents of a pass


def earlier_order(pinned: Mapping[str, Any], size: int, now: Mixture, config: OrderConfig, epoch: int) -> PassOrder:
    """A pass of an earlier mixture, in current sample ids."""
    streams = {stream.name: stream for stream in now.streams}
    order = make_order(recorded_mixture(pinned, size, streams), config, epoch)
    first = dict(zip(streams, now.sample_offsets.tolist(), strict=False))
    offsets = zip(order.mixture.streams, order.mixture.sample_offsets.tolist(), strict=False)
    shifts = [first.get(stream.name, 0) - offset for stream, offset in offsets]
    return ShiftedOrder(order, np.array(shifts, np.int64))


def check_streams(earlier: Collection[EarlierMixture], now: Mixture) -> None:
    """Refuse a mixture without a stream that earlier ones drew from, or with other data under its name."""
    fingerprints = {stream.name: stream.fingerprint for stream in now.streams}
    for old in earlier:
        if old.pinned is None:
            continue
        recorded = recorded_mixture(old.pinned, old.size)
        for stream, is_drawn in zip(recorded.streams, recorded.is_drawn, strict=True):
            if is_drawn and fingerprints.get(stream.name) != stream.fingerprint:
                what = 'has other data now' if stream.name in fingerprints else 'is missing'
                raise ResumeError(
                    f'a packed run needs the streams of the mixture before for documents that lanes hold, but stream '
                    f'{stream.name!r} {what}. Keep it as it was, with a weight of 0 (`proportion: 0`, or `repeat: 0`). '
                    f'New data need a new name. A later change may remove the stream.'
                )


_TURNS = 1 << 20  # sequences of each lane that make an epoch of the proportions, which are rounded to them
_KEPT_EPOCHS = 2  # the one of the batches, and the one of the look-ahead


class StreamLanes(LaneOrder):
    """The mixture gives the stream of each sequence, and each stream has lanes of its own.

    L is the number of lanes for ranks and batches. Lane s · L + l packs documents of stream s: those at positions l
    modulo L of each pass over the stream. Sequence n of the run, of stream s, is the next one of lane s · L + n mod L.
    Sequences are positions of a stratified native order with batches of L and L canonical nodes. It knows the draws of
    a stream on a node before any position, which are the earlier sequences of a lane.
    """

    counts = 'tokens'

    def __init__(self, lanes: int, mixture: Mixture, config: OrderConfig) -> None:
        super().__init__(lanes, len(mixture.streams))
        for stream, is_drawn in zip(mixture.streams, mixture.is_drawn, strict=True):
            if is_drawn and stream.size < lanes:
                raise ConfigError(
                    f"`weights_count` 'tokens' needs a document of each stream for each lane at least, but there are "
                    f'{lanes} lanes and {stream.size} samples of stream {stream.name!r}. Set `lanes` to a divisor of '
                    f'{lanes} that is at most as large and a multiple of the ranks.'
                )
        self._streams, self._offsets = mixture.streams, mixture.sample_offsets
        self._sizes = np.array([stream.size for stream in mixture.streams])
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
        return [stream * self.lanes + place for stream in range(self.streams) for place in places]

    def sequences(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        streams, draws = self._draws(numbers)
        lanes = streams * self.lanes + np.array(numbers, np.int64) % self.lanes
        return list(zip(lanes.tolist(), draws.tolist(), strict=True))

    def sequences_before(self, lane: int, number: int) -> int:
        if self._before is None or self._before[0] != number:
            epoch, position = divmod(number, self._mixture.epoch_size)
            self._before = number, self._epoch(epoch).node_draws_before(position).reshape(-1)
        return int(self._before[1][lane])

    def shares(self, number: int, count: int) -> list[float]:
        streams, _ = self._draws(range(number, number + count))
        return (np.bincount(streams, minlength=self.streams) / count).tolist()

    def expected_shares(self, number: int) -> list[float]:
        return (ExpectedCounts(self._mixture).between(0, number, number + self.lanes) / self.lanes).tolist()

    def first_size(self, lane: int) -> int:
        return self._streams[lane // self.lanes].size

    @property
    def most_documents(self) -> int:
        return max(stream.size for stream in self._streams)

    def places(self, lanes: IntArray, documents: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The stream replaces the mixture."""
        streams, of_stream = np.divmod(lanes, self.lanes)
        passes, turns = np.divmod(documents, share(of_stream, self.lanes, self._sizes[streams]))
        return streams, passes, turns * self.lanes + of_stream

    def order(self, mixture: int, epoch: int) -> PassOrder:
        stream = replace(self._streams[mixture], proportion=None)
        order = make_order(Mixture.resolve([stream], seed=self._config.seed), self._config, epoch)
        return ShiftedOrder(order, self._offsets[mixture : mixture + 1])
