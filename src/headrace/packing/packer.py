"""Chunks of tokenised documents become sequences, in the process that trains or in one that explains a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.dataset.reading.skipping_reader import BadRows
from headrace.dataset.statistics import WorkerBatch
from headrace.packing.lane import Document, Piece

if TYPE_CHECKING:
    from headrace.order import BatchPlan
    from headrace.packing.lanes import Lanes, PieceTable
    from headrace.packing.settings import Packing

_MOST_DOCUMENTS = 512  # of a chunk
_TOKENS = 1 << 16  # of a chunk, about; reading this many documents costs little beside their tokens
_KEPT_BATCHES = 4  # Documents of these are remembered: a trainer judges a batch when it has fetched later ones.
_LEAST_LOOK_AHEAD = 8  # sequences of each lane
_EAGERNESS = 1.5  # Tokens received for each one delivered, while lanes are below their target.


class DocumentCount(NamedTuple):
    """Documents and tokens taken from a stream."""

    documents: int
    """Documents taken."""
    tokens: int
    """Their tokens."""
    left_out: int = 0
    """Unreadable documents among them, without tokens; see `on_bad_sample`."""


class ChunkKey(NamedTuple):
    row: int  # first sequence of the pass, counted through the run
    parts: tuple[tuple[int, Sequence[int]], ...]  # lanes, and the numbers of their documents there, one at least


class Chunk(NamedTuple):
    key: ChunkKey
    tokens: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32] | None
    lengths: npt.NDArray[np.int32]  # int32[documents]
    ids: npt.NDArray[np.int64]  # global sample ids, int64[documents]
    bad: BadRows | None  # bool[documents], True for an unreadable one, without tokens; None if all were read

    def documents(self) -> list[Document]:
        bounds, ids = pairwise(np.cumsum([0, *self.lengths]).tolist()), self.ids.tolist()
        tokens, labels = self.tokens, self.labels
        return [
            Document(tokens[begin:end], None if labels is None else labels[begin:end], sample_id)
            for (begin, end), sample_id in zip(bounds, ids, strict=True)
        ]


class Packer:
    """The run's sequences of lanes `own` from `row` on: requests documents, counts them by stream, delivers."""

    def __init__(
        self,
        row: int,
        packing: Packing,
        lanes: Lanes,
        lane_numbers: Collection[int],
        count: Callable[[Mapping[int, DocumentCount]], None],
    ) -> None:
        self._packing = packing
        self._add = count
        self._row = row
        self._all_lanes = lanes
        self._lanes = lanes.resume_at(lane_numbers, row)
        self._order = lanes.documents
        self._asked = {number: lane.received for number, lane in self._lanes.items()}
        self._is_missing = {number for number, lane in self._lanes.items() if lane.missing}
        self._documents = [1] * self._order.streams
        self._tokens = [packing.sequence_length // 4] * self._order.streams  # a first guess
        self._looked_until: float = row
        self._look_ahead(row)
        self._received = 0  # tokens, for the batch under way
        self._unreadable = 0  # unreadable documents

    def keys(self) -> Iterator[ChunkKey]:
        """Chunks that lanes need; the lane that runs out first comes first."""
        while True:
            parts: dict[int, Sequence[int]] = {}
            tokens = documents = 0
            while tokens < _TOKENS and documents < _MOST_DOCUMENTS:
                for number in self._changed:
                    self._supplies[number] = self._supply(number)
                self._changed.clear()
                number = min(self._supplies, key=self._supplies.__getitem__)
                if number in parts:
                    break
                parts[number] = self._next_documents(number)
                documents += len(parts[number])
                tokens += len(parts[number]) * self._mean(number)
                self._changed.add(number)
            yield ChunkKey(self._row, tuple(parts.items()))

    def _next_documents(self, number: int) -> Sequence[int]:
        """The documents that a lane needs next, which count as requested from now on."""
        if number in self._is_missing:
            self._is_missing.remove(number)
            return self._lanes[number].missing
        first = self._asked[number]
        window = self._all_lanes.window(number)
        rows = max(window // 4, 2) if window > 1 else _LEAST_LOOK_AHEAD
        mean = max(self._mean(number), 1)
        self._asked[number] += min(max(round(rows * self._packing.sequence_length / mean), 1), _MOST_DOCUMENTS)
        return range(first, self._asked[number])

    def _supply(self, number: int) -> float:
        """Sequences that a lane will have once all requested documents have arrived, by its share of all sequences."""
        share = self._shares[number // self._order.lanes]
        if not share:
            return math.inf
        if number in self._is_missing:
            return -1
        lane = self._lanes[number]
        coming = (self._asked[number] - lane.received) * self._mean(number)
        windows = (lane.pending_tokens + coming) / lane.window_tokens
        return (lane.rows_ahead + (int(windows) + windows / 1000) * self._all_lanes.window(number)) / share

    def _mean(self, number: int) -> float:
        """Tokens of a document of a lane, on average."""
        stream = number // self._order.lanes
        return self._tokens[stream] / self._documents[stream]

    def _look_ahead(self, number: int) -> None:
        """Know the share of each stream in the sequences from one on, until half of them are delivered."""
        if number < self._looked_until:
            return
        count = self._order.lanes * max(self._packing.rows_per_window, _LEAST_LOOK_AHEAD)
        self._shares = self._order.shares(number, 2 * count)
        self._looked_until = number + count if self._order.streams > 1 else math.inf
        self._supplies: dict[int, float] = {}
        self._changed = set(self._lanes)  # lanes whose supplies are not known
        windows = (self._all_lanes.window(lane) for lane in self._lanes if self._shares[lane // self._order.lanes])
        self._enough = self._packing.sequence_length * sum(window + 1 for window in windows)

    def sequences(self, numbers: Sequence[int], chunks: Iterator[WorkerBatch]) -> list[list[Piece]]:
        """Sequences of the run, by their rising numbers, from chunks in the order of `keys`."""
        rows: list[list[Piece]] = []
        self._received = 0
        self._all_lanes.delivered.keep(_KEPT_BATCHES * len(numbers))
        for number, (lane_number, row) in zip(numbers, self._order.sequences(numbers), strict=True):
            self._look_ahead(number)
            lane = self._lanes[lane_number]
            while not lane.has(row):
                self._receive(next(chunks))
            rows.append(self._all_lanes.without_skipped(lane.take(row)))
            self._changed.add(lane_number)
        self._all_lanes.delivered.add(numbers, rows)
        return rows

    def receive_ahead(self, rows: int, chunks: Iterator[WorkerBatch]) -> None:
        """Receive a little more than a batch of `rows` sequences needs, until lanes have enough."""
        wanted = _EAGERNESS * rows * self._packing.sequence_length
        while self._received < wanted and sum(lane.tokens_ahead for lane in self._lanes.values()) < self._enough:
            self._receive(next(chunks))

    def take_unreadable(self) -> int:
        """The number of unreadable documents since the last call."""
        unreadable, self._unreadable = self._unreadable, 0
        return unreadable

    def _receive(self, received: WorkerBatch) -> None:
        chunk: Chunk = received.batch
        documents = iter(chunk.documents())
        for lane, numbers in chunk.key.parts:
            of_lane = list(islice(documents, len(numbers)))
            self._lanes[lane].receive(numbers, of_lane)
            stream = lane // self._order.lanes
            self._documents[stream] += len(of_lane)
            self._tokens[stream] += sum(len(document.tokens) for document in of_lane)
            self._changed.add(lane)
        counts = count_documents(received)
        self._unreadable += sum(count.left_out for count in counts.values())
        self._add(counts)
        self._received += len(chunk.tokens)


def count_documents(received: WorkerBatch) -> dict[int, DocumentCount]:
    chunk: Chunk = received.batch
    assert received.streams is not None
    bad = np.zeros(len(chunk.lengths), np.bool_) if chunk.bad is None else chunk.bad
    return {
        stream: DocumentCount(int(is_of.sum()), int(chunk.lengths[is_of].sum()), int((is_of & bad).sum()))
        for stream in np.unique(received.streams).tolist()
        for is_of in [received.streams == stream]
    }


def first_sequence(plan: BatchPlan) -> int:
    return plan.order.epoch * len(plan.order)


def pieces_of(
    packing: Packing, lanes: Lanes, read: Callable[[ChunkKey], WorkerBatch], numbers: Collection[int]
) -> dict[int, PieceTable]:
    """The pieces of sequences by number, of documents read and tokenised here; the given lanes do not move."""
    if not numbers:
        return {}
    wanted = sorted(numbers)
    lanes = lanes.copy_at(wanted[0])
    needed = sorted({lane for lane, _ in lanes.documents.sequences(wanted)})
    packer = Packer(wanted[0], packing, lanes, needed, lambda _: None)
    packer.sequences(wanted, map(read, packer.keys()))
    return lanes.delivered.of(wanted)


def documents_placed(
    packing: Packing, lanes: Lanes, read: Callable[[ChunkKey], WorkerBatch], row: int
) -> dict[int, int]:
    """By lane, the documents of its sequences before `row`, and of all of their windows; moves lanes there."""
    last = range(max(row - lanes.count, 0), row)  # the last sequence of each lane
    packer = Packer(last.start, packing, lanes, [number % lanes.count for number in last], lambda _: None)
    packer.sequences(last, map(read, packer.keys()))
    return lanes.documents_placed
