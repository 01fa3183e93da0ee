"""Batches of packed sequences: workers tokenise documents, whoever trains packs them."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.batch_reader import BatchReader, Feed
from headrace.dataset.look_ahead import look_ahead
from headrace.dataset.padding import marked
from headrace.dataset.sample_errors import naming_samples, read_each
from headrace.dataset.statistics import Delivery
from headrace.dataset.tolerant_reader import BadRows
from headrace.dataset.upcoming import Upcoming, UpcomingBatch, knows_of_node
from headrace.notes import add_note
from headrace.packing.dataset import DocumentCount, PackedDataset
from headrace.packing.lane import Document
from headrace.packing.lanes import Lanes, place_of
from headrace.packing.rows import batch_of
from headrace.packing.tokenizers import Encoder, encoder_of

if TYPE_CHECKING:
    from headrace.order import BatchPlan, Order, Remainder, Topology

__all__ = ['PackedReader']

_MOST_DOCUMENTS = 512  # of a chunk
_BLOCK = 16  # documents of each lane whose shards are looked up together, to fetch them ahead
_MOST_ORDERS = 4
_FEW_DOCUMENTS = 1_000_000
_EAGERNESS = 1.5  # tokens received for each one handed out, while lanes have less than they should


class ChunkKey(NamedTuple):
    """Documents of one lane, by their numbers there."""

    row: int
    """The sequence of the run that the pass begins with."""
    lane: int
    numbers: tuple[int, ...]


class Chunk(NamedTuple):
    """These documents, end to end."""

    key: ChunkKey
    tokens: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32] | None
    lengths: npt.NDArray[np.int32]
    """int32[documents]."""
    bad: BadRows | None
    """bool[documents], True for one that could not be read, and has no tokens; None: all could."""

    def documents(self) -> list[Document]:
        """One by one."""
        ends = np.cumsum(self.lengths)[:-1]
        tokens = np.split(self.tokens, ends)
        if self.labels is None:
            return [Document(found) for found in tokens]
        return [Document(*found) for found in zip(tokens, np.split(self.labels, ends), strict=True)]


class PackedReader(BatchReader):
    """Reads and tokenises chunks of documents by their keys, in workers or here; and packs them, here.

    A chunk depends on its key alone, so any worker may have any. Lanes are in the process that iterates, which asks for
    what they want next.
    """

    packs_here = True

    def __init__(
        self, dataset: PackedDataset, topology: Topology, global_batch_size: int, remainder: Remainder
    ) -> None:
        super().__init__(dataset, topology, global_batch_size, remainder, None)
        self._packed = dataset
        self._count: int | None = None  # of lanes, for workers
        self._own: range | None = None  # lanes
        self._of_node: range | None = None
        self._encode: Encoder | None = None
        self._orders: OrderedDict[int, Order] = OrderedDict()
        self._row: int | None = None
        self._blocks_from = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), '_encode': None, '_orders': OrderedDict(), '_row': None}

    # -- in the process that iterates --------------------------------------------------------------------------------

    def deliveries(
        self,
        plan: BatchPlan,
        epoch: int,
        start: int,
        feed: Feed,
        *,
        goes_on: bool = False,  # noqa: ARG002 - documents have no end
    ) -> Iterator[Delivery]:
        """Batches of a pass."""
        lanes = self._packed.run.lanes
        replicas = self._topology.replicas
        if plan.num_batches:
            topology = self._topology
            self._own = range(topology.node + topology.nodes * topology.local_replica, lanes.count, replicas)
            self._of_node = range(topology.node, lanes.count, topology.nodes)
            self._count = lanes.count
            packer = _Packer(self._packed, lanes, self._own, epoch * len(plan.order) + start)
            chunks = feed(packer.keys())
            first = epoch * len(plan.order)
            for number in range(plan.num_batches):
                numbers = plan.positions(number) + first
                # A row that only fills up the last batch would be another rank's; it has no tokens here.
                own = plan.own_samples(number)
                rows = packer.rows(numbers[:own].tolist(), chunks) + [[]] * (len(numbers) - own)
                packing = self._packed.packing
                batch = batch_of(rows, packing.sequence_length, packing.pad_token_id)
                if self._remainder == 'exact':
                    batch = marked(batch, rows=len(rows), own_samples=own)
                left_out, packer.left_out = packer.left_out, 0
                yield Delivery(batch, len(rows), None, left_out=left_out)

    # -- where documents are read ------------------------------------------------------------------------------------

    def __getitem__(self, key: ChunkKey) -> Delivery:  # pyright: ignore[reportIncompatibleMethodOverride]
        dataset = self._packed
        if self._encode is None:
            self._begin_here()
        assert self._encode is not None
        self._prefetch(key)
        ids, epochs = self._ids_of([(key.lane, number) for number in key.numbers])
        values, bad = self._values(ids, epochs)
        try:
            documents = self._documents(values, bad)
        except Exception as error:
            add_note(error, naming_samples('While tokenising', ids.tolist(), dataset.pool.describe))
            raise
        labels = None
        if any(document.labels is not None for document in documents):
            labels = np.concatenate([d.tokens if d.labels is None else d.labels for d in documents])
        chunk = Chunk(
            key,
            np.concatenate([document.tokens for document in documents]),
            labels,
            np.array([len(document.tokens) for document in documents], np.int32),
            bad,
        )
        streams = dataset.run.documents.mixture.streams_of(ids).astype(self._number_type)
        return Delivery(chunk, len(ids), streams, bad_rows=bad)

    def _values(self, ids: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64]) -> tuple[Any, BadRows | None]:
        """What is to be tokenised, and which of it could not be read."""
        column = self._packed.packing.document_column
        if self._is_columnar:
            if self._tolerant is not None:
                return self._tolerant.readable_values(ids, column)
            return self._packed.pool.values(ids, column), None
        values: list[Any] = [None] * len(ids)
        bad = np.zeros(len(ids), np.bool_)
        for epoch in np.unique(epochs).tolist():  # what samples draw is another in each pass over them
            places = np.flatnonzero(epochs == epoch)
            read = partial(self._value, epoch)
            if self._tolerant is not None:
                found, bad_rows = self._tolerant.readable(ids[places].tolist(), read)
                bad[places] = False if bad_rows is None else bad_rows
            else:
                found = list(read_each(ids[places].tolist(), read, self._packed.pool.describe))
            for place, value in zip(places.tolist(), found, strict=True):
                values[place] = value
        return values, bad if bad.any() else None

    def _value(self, epoch: int, sample_id: int) -> Any:
        return self._sample(epoch, sample_id)[self._packed.packing.document_column]

    def _documents(self, values: Any, bad: BadRows | None) -> list[Document]:
        """Tokens of each value; of those that are bad none, so that the sequences are as if they were not there."""
        assert self._encode is not None
        if bad is None:
            return self._encode(values)
        readable = [value for value, is_bad in zip(values, bad.tolist(), strict=True) if not is_bad]
        documents = iter(self._encode(readable) if readable else ())
        return [Document(np.empty(0, np.int32)) if is_bad else next(documents) for is_bad in bad.tolist()]

    def _begin_here(self) -> None:
        if torch.utils.data.get_worker_info() is not None:
            os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # workers share the cores
        self._encode = encoder_of(self._packed.packing)

    def _ids_of(self, documents: list[tuple[int, int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sample ids of lanes' documents, and in which pass over the data they are."""
        count, size = self._lanes_and_size()
        epochs, positions = np.array([place_of(*document, count, size) for document in documents], np.int64).T
        ids = np.empty(len(documents), np.int64)
        for epoch in np.unique(epochs).tolist():
            is_there = epochs == epoch
            ids[is_there] = self._order(epoch).at(positions[is_there])
        return ids, epochs

    def _lanes_and_size(self) -> tuple[int, int]:
        assert self._count is not None
        return self._count, self._packed.run.documents.mixture.epoch_size

    def _order(self, epoch: int) -> Order:
        order = self._orders.get(epoch)
        if order is None:
            # Lanes are in one pass over the data or in the next, the look-ahead is in a later one; of few documents, in
            # many at once.
            most = _MOST_ORDERS if self._packed.run.documents.mixture.epoch_size > _FEW_DOCUMENTS else 16 * _MOST_ORDERS
            while len(self._orders) >= most:
                self._orders.popitem(last=False)
            order = self._orders[epoch] = self._packed.run.documents.order(epoch, self._topology.nodes, self._count)
        return order

    def _prefetch(self, key: ChunkKey) -> None:
        """Have shards fetched that are needed soon, along the lanes of this rank."""
        block = min(key.numbers) // _BLOCK
        if self._row != key.row:
            self._row, self._blocks_from = key.row, block
            if self._tolerant is not None:
                self._tolerant.begin_pass()
            packing = self._packed.packing
            ahead = look_ahead(self._dataset.predownload, max(self._rows * _BLOCK, packing.window))
            progress = self._dataset.progress
            self._dataset.pool.follow(self._blocks(), first=block, ahead=ahead, progress=progress)
        self._dataset.pool.advance(block)

    def _blocks(self) -> Upcoming:
        assert self._own is not None
        assert self._of_node is not None
        block = self._blocks_from
        while True:
            numbers = range(block * _BLOCK, (block + 1) * _BLOCK)
            of_node = None
            if knows_of_node(self._dataset, self._topology):
                of_node = self._shards_of(self._of_node, numbers)
            yield UpcomingBatch(block, self._shards_of(self._own, numbers), of_node)
            block += 1

    def _shards_of(self, lanes: range, numbers: range) -> npt.NDArray[np.int64]:
        ids, _ = self._ids_of([(lane, number) for number in numbers for lane in lanes])
        return self._dataset.locate(ids)[0]


class _Packer:
    """Lanes of one rank in one pass: asks for documents, and hands out sequences."""

    def __init__(self, dataset: PackedDataset, lanes: Lanes, own: range, row: int) -> None:
        self._dataset = dataset
        self._row = row
        self._count = lanes.count
        self._lanes = lanes.take_up(own, row)
        self._window = lanes.window
        self._asked = {number: lane.received for number, lane in self._lanes.items()}
        self._is_missing = {number for number, lane in self._lanes.items() if lane.missing}
        self._documents, self._tokens = 1, dataset.packing.sequence_length // 4  # until they are known
        self._supplies = {number: self._supply(number) for number in self._lanes}
        self._enough = len(own) * dataset.packing.sequence_length * (lanes.window + 1)
        self.left_out = 0
        """Documents that could not be read, of those received since this was last set to 0."""

    def keys(self) -> Iterator[ChunkKey]:
        """What lanes want, those first that will run out first."""
        while True:
            number = min(self._supplies, key=self._supplies.__getitem__)
            lane = self._lanes[number]
            if number in self._is_missing:
                self._is_missing.remove(number)
                self._supplies[number] = self._supply(number)
                yield ChunkKey(self._row, number, lane.missing)
                continue
            first = self._asked[number]
            mean = max(self._tokens / self._documents, 1)
            rows = max(self._window // 4, 2)
            count = min(max(round(rows * self._dataset.packing.sequence_length / mean), 1), _MOST_DOCUMENTS)
            self._asked[number] = first + count
            self._supplies[number] = self._supply(number)
            yield ChunkKey(self._row, number, tuple(range(first, first + count)))

    def _supply(self, number: int) -> float:
        """Sequences that a lane will have when all has come that was asked for."""
        if number in self._is_missing:
            return -1
        lane = self._lanes[number]
        coming = (self._asked[number] - lane.received) * self._tokens / self._documents
        windows = (lane.pending_tokens + coming) / lane.window_tokens
        return lane.rows_ahead + (int(windows) + windows / 1000) * self._window

    def rows(self, numbers: list[int], chunks: Iterator[Delivery]) -> list[Any]:
        """Sequences of the run, by their numbers."""
        received, rows = 0, list[Any]()
        for number in numbers:
            lane, row = self._lanes[number % self._count], number // self._count
            while not lane.has(row):
                received += self._receive(next(chunks))
            rows.append(lane.take(row))
            self._supplies[number % self._count] = self._supply(number % self._count)
        wanted = _EAGERNESS * len(numbers) * self._dataset.packing.sequence_length
        while received < wanted and self._tokens_ahead() < self._enough:
            received += self._receive(next(chunks))
        return rows

    def _tokens_ahead(self) -> int:
        return sum(lane.tokens_ahead for lane in self._lanes.values())

    def _receive(self, delivery: Delivery) -> int:
        chunk: Chunk = delivery.batch
        tokens = len(chunk.tokens)
        self._lanes[chunk.key.lane].receive(chunk.key.numbers, chunk.documents())
        self._documents += len(chunk.lengths)
        self._tokens += tokens
        self._supplies[chunk.key.lane] = self._supply(chunk.key.lane)
        assert delivery.streams is not None
        bad = np.zeros(len(chunk.lengths), np.bool_) if chunk.bad is None else chunk.bad
        self.left_out += int(bad.sum())
        self._dataset.count(
            {
                stream: DocumentCount(int(is_of.sum()), int(chunk.lengths[is_of].sum()), int((is_of & bad).sum()))
                for stream in np.unique(delivery.streams).tolist()
                for is_of in [delivery.streams == stream]
            }
        )
        return tokens
