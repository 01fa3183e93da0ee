"""Batches of packed sequences: workers tokenise documents, the training process packs them and makes the batches."""

from __future__ import annotations

import bisect
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.dataset.batch_keys import LOSS_WEIGHT, STREAM, is_bad_sample, marked
from headrace.dataset.prefetch.horizon import Upcoming, UpcomingBatch, knows_of_node
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.dataset.reading.batch_reader import Pass, Reader, SampleSource, Weigh
from headrace.dataset.reading.sample_errors import naming_samples, read_each
from headrace.dataset.reading.skipping_reader import BadRows
from headrace.dataset.statistics import WorkerBatch
from headrace.errors import DocumentError
from headrace.errors.mapping import add_note
from headrace.packing.document_order import LaneOrder
from headrace.packing.lane import Document
from headrace.packing.packer import Chunk, ChunkKey, DocumentCount, Packer, first_sequence
from headrace.packing.rows import batch_of
from headrace.packing.run import PackedRun
from headrace.packing.tokenizers import Encoder, encoder_of
from headrace.packing.whole import WholePacker

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.order import BatchPlan, BatchSpec, Decision
    from headrace.packing.document_order import PassOrder
    from headrace.packing.lanes import Lanes
    from headrace.packing.settings import Packing

BLOCK = 16  # Documents of a block in a turn of the lanes, on average
_KEPT = 64  # blocks behind the latest, for lanes that are behind


class _Begin(NamedTuple):
    sequence: float  # of the run, about
    documents: Mapping[int, float]  # by stream, the first document of each of its lanes


class ComingDocuments:
    """Blocks of documents, in which each stream has as many as its share and the length of its documents need."""

    def __init__(self, order: LaneOrder, sequence_length: int) -> None:
        self._order, self._sequence_length = order, sequence_length
        self._read = np.zeros((2, order.streams), np.int64)  # documents and tokens of streams
        self.begin(0)

    def begin(self, sequence: int) -> None:
        self._reached: dict[int, int] = {}
        self._known = self._dropped = 0
        self._begins = [_Begin(sequence, {})]

    def count(self, lane: int, documents: int, tokens: int) -> None:
        """Take the number of documents of a lane that were read, and of their tokens."""
        self._read[:, lane // self._order.lanes] += documents, tokens

    def reach(self, lane: int, document: int) -> bool:
        """Move to a document; True if blocks begin again, since more is known of places or documents' lengths."""
        stream = lane // self._order.lanes
        self._reached[stream] = max(document, self._reached.get(stream, 0))
        count = len(self._reached)
        if self._order.streams > 1:
            count += int(np.count_nonzero(self._read[0]))
        if count == self._known:
            return False
        sequence = self._begins[self.block(lane, document) - self._dropped].sequence
        firsts = {stream: float(number // BLOCK * BLOCK) for stream, number in self._reached.items()}
        self._known, self._dropped, self._begins = count, 0, [_Begin(sequence, firsts)]
        return True

    def block(self, lane: int, document: int) -> int:
        """The number of the block of a document, among those that `blocks` gave."""
        stream = lane // self._order.lanes
        block = bisect.bisect_right(self._begins, document, key=lambda begin: begin.documents.get(stream, float('inf')))
        block = max(block - 1, 0) + self._dropped
        drop = max(block - _KEPT - self._dropped, 0)
        del self._begins[:drop]
        self._dropped += drop
        return block

    def blocks(self) -> Iterator[tuple[int, dict[int, range]]]:
        """The blocks from the first one on: the number, and by stream the documents of each of its lanes."""
        lanes, streams = self._order.lanes, range(self._order.streams)
        while True:
            sequence, firsts = self._begins[-1]
            documents, tokens = self._read.tolist()
            means = [max(tokens[s], 1) / documents[s] if documents[s] else self._sequence_length / 4 for s in streams]
            documents_per_token = np.array(self._order.expected_shares(int(sequence))) / means
            rate = float(documents_per_token.sum())
            counts = (BLOCK * (documents_per_token / rate)).tolist()
            ends = {stream: first + counts[stream] for stream, first in firsts.items()}
            yield (
                self._dropped + len(self._begins) - 1,
                {stream: range(int(firsts[stream]), int(end)) for stream, end in ends.items()},
            )
            self._begins.append(_Begin(sequence + BLOCK / rate * lanes / self._sequence_length, ends))


_LOCATED = 4096  # documents whose shards are found together for the prefetch, about; of 64 passes, if that is fewer
_MOST_ORDERS = 4
_FEW_DOCUMENTS = 1_000_000
_NO_TOKENS = Document(np.empty(0, np.int32))


class PackedReader(Reader[ChunkKey]):
    """Reads and tokenises chunks of documents by key, in workers or here, and packs them here.

    A chunk depends on its key alone, so any worker may read it. Lanes live in the iterating process.
    """

    def __init__(self, source: SampleSource, run: PackedRun, batches: BatchSpec, lanes: Lanes | None = None) -> None:
        super().__init__(source)
        self._run, self._packing, self._pool = run, run.packing, source.pool
        self._packings: list[Packing] = []  # those that differ
        for packing in run.packings:
            if packing not in self._packings:
                self._packings.append(packing)
        self._packing_of_stream = np.array([self._packings.index(packing) for packing in run.packings])
        self._mixture = run.documents.mixture
        self._number_type = np.min_scalar_type(len(self._mixture.streams) - 1)
        lanes = lanes or run.lanes
        self._document_order = lanes.documents  # for workers, which have no lanes
        self._encoders: list[Encoder] = []  # of each packing
        self._orders: OrderedDict[tuple[int, int], PassOrder] = OrderedDict()
        self.change(batches)
        self._coming = ComingDocuments(lanes.documents, self._packing.sequence_length)
        self.prefetches = True  # Whether to fetch shards ahead. Only one reader of a process may.

    def change(self, batches: BatchSpec, decisions: tuple[Decision, ...] = ()) -> None:  # noqa: ARG002 - there are none
        self._row: int | None = None
        self._batch_size, self._topology = batches.batch_size, batches.topology
        count, topology = self._document_order.lanes, batches.topology
        if count == 1:  # of a whole pass, or of the only rank
            lanes = of_node = range(1)
        else:
            lanes = range(topology.node + topology.nodes * topology.local_replica, count, topology.replicas)
            of_node = range(topology.node, count, topology.nodes)
        self._own, self._of_node = map(self._document_order.lanes_at, (lanes, of_node))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_encoders': [], '_orders': OrderedDict(), '_row': None}

    @property
    def sent_to_workers(self) -> dict[str, Any]:
        return {**super().sent_to_workers, 'dataset.packing': self._packings}

    def begin(
        self,
        plan: BatchPlan,
        count: Callable[[Mapping[int, DocumentCount]], None],
        mark_streams: bool,
        weigh: Weigh | None,
    ) -> Pass:
        """Begin a pass in the process that iterates. `count` takes documents by stream; `weigh`: see `BatchReader`."""
        if not plan.num_batches:
            return Pass(plan, self, iter(()))
        row, run, packing = first_sequence(plan) + plan.start, self._run, self._packing
        if run.whole is None:
            packer = Packer(row, packing, run.lanes, self._own, count)
        else:
            packer = WholePacker(run.whole, plan, run.lanes, count)
        return Pass(plan, self, packer.keys(), partial(self._batches, plan, packer, mark_streams, weigh))

    def _batches(
        self,
        plan: BatchPlan,
        packer: Packer | WholePacker,
        mark_streams: bool,
        weigh: Weigh | None,
        chunks: Iterator[WorkerBatch],
    ) -> Iterator[WorkerBatch]:
        """The batches of a pass, from chunks in the order of the packer's keys."""
        first, length = first_sequence(plan), self._packing.sequence_length
        for number in range(plan.num_batches):
            numbers = plan.positions(number) + first
            # A row that only pads a batch belongs to another rank's lane; it has no tokens here.
            count = plan.own_samples(number)
            rows = packer.sequences(numbers[:count].tolist(), chunks) + [[]] * (len(numbers) - count)
            packer.receive_ahead(len(numbers), chunks)
            batch = batch_of(rows, length, self._packing.pad_token_id)
            pieces = [piece for row in rows for piece in row]
            lengths = np.array([len(piece.tokens) for piece in pieces], np.int64)
            streams = self._mixture.streams_of(np.array([piece.sample_id for piece in pieces], np.int64))
            if mark_streams:  # int64[rows, length]: the stream of each token, and -1 for padding
                used = np.array([sum(len(piece.tokens) for piece in row) for row in rows])
                marks = np.full((len(rows), length), -1, np.int64)
                marks[np.arange(length) < used[:, None]] = np.repeat(streams, lengths)
                batch[STREAM] = torch.from_numpy(marks)
            if plan.has_padding:
                batch = marked(batch, rows=len(rows), own_samples=count)
            if weigh is not None:
                batch[LOSS_WEIGHT] = torch.from_numpy(weigh(plan, number, numbers))
            tokens = np.bincount(streams, lengths, len(self._mixture.streams)).astype(np.int64)
            yield WorkerBatch(batch, len(rows), None, unreadable=packer.take_unreadable(), stream_tokens=tokens)

    def __getitem__(self, key: ChunkKey) -> WorkerBatch:
        if not self._encoders:
            self._begin_here()
        if self.prefetches:
            self._prefetch(key)
        lanes, counts = [lane for lane, _ in key.parts], [len(numbers) for _, numbers in key.parts]
        numbers = np.fromiter(itertools.chain.from_iterable(numbers for _, numbers in key.parts), np.int64)
        ids, epochs = self._ids_of(np.repeat(lanes, counts), numbers)
        documents, bad = self._documents(ids, epochs)
        labels = None
        if any(document.labels is not None for document in documents):
            labels = np.concatenate([d.tokens if d.labels is None else d.labels for d in documents])
        chunk = Chunk(
            key,
            np.concatenate([document.tokens for document in documents]),
            labels,
            np.array([len(document.tokens) for document in documents], np.int32),
            ids,
            bad,
        )
        tokens = np.add.reduceat(chunk.lengths, np.cumsum([0, *counts[:-1]]), dtype=np.int64)
        for lane, count, total in zip(lanes, counts, tokens.tolist(), strict=True):
            self._coming.count(lane, count, total)
        streams = self._mixture.streams_of(ids).astype(self._number_type)
        return WorkerBatch(chunk, len(ids), streams, bad_rows=bad)

    def _values(
        self, ids: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64], column: str
    ) -> tuple[Any, BadRows | None]:
        """Values to tokenise, and a mask of the unreadable ones."""
        # In place of a bad sample, samples of other streams are tried, which may lack the column.
        if self._is_columnar and (self._skipping_reader is None or len(self._packings) == 1):
            if self._skipping_reader is not None:
                return self._skipping_reader.readable_values(ids, column)
            return self._pool.values(ids, column), None
        return self._each(ids, epochs, self._value)

    def _each(
        self, ids: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64], read: Callable[[int, int], Any]
    ) -> tuple[list[Any], BadRows | None]:
        """Results of `read(epoch, sample_id)`, and a mask of the unreadable ones, which are None."""
        values: list[Any] = [None] * len(ids)
        bad = np.zeros(len(ids), np.bool_)
        for epoch in np.unique(epochs).tolist():  # samples draw other random numbers in each pass
            places = np.flatnonzero(epochs == epoch)
            if self._skipping_reader is not None:
                documents, bad_rows = self._skipping_reader.readable(ids[places].tolist(), partial(read, epoch))
                bad[places] = False if bad_rows is None else bad_rows
            else:
                documents = list(read_each(ids[places].tolist(), partial(read, epoch), self._pool.describe))
            for place, value in zip(places.tolist(), documents, strict=True):
                values[place] = value
        return values, bad if bad.any() else None

    def _packings_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._packing_of_stream[self._mixture.streams_of(ids)]

    def _value(self, epoch: int, sample_id: int) -> Any:
        (kind,) = self._packings_of(np.array([sample_id]))
        return self._sample(epoch, sample_id)[self._packings[kind].document_column]

    def _documents(
        self, ids: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64]
    ) -> tuple[list[Document], BadRows | None]:
        """Documents, and a mask of the bad ones. These have no tokens, as if they did not exist."""
        kinds = self._packings_of(ids)
        _, erased = self._pool.erased.replaced(ids)
        if erased is not None:
            kinds = np.where(erased, -1, kinds)
        if len(distinct := np.unique(kinds)) == 1 and erased is None:
            return self._documents_of(distinct[0], ids, epochs)
        documents, bad = [_NO_TOKENS] * len(ids), np.zeros(len(ids), np.bool_)
        for kind in distinct:
            places = np.flatnonzero(kinds == kind)
            if kind < 0:
                bad[places] = True
                continue
            of_kind, bad_rows = self._documents_of(kind, ids[places], epochs[places])
            bad[places] = False if bad_rows is None else bad_rows
            for place, document in zip(places.tolist(), of_kind, strict=True):
                documents[place] = document
        return documents, bad if bad.any() else None

    def _documents_of(
        self, kind: int, ids: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64]
    ) -> tuple[list[Document], BadRows | None]:
        """As `_documents`, of one packing."""
        encode, column = self._encoders[kind], self._packings[kind].document_column
        values, bad = self._values(ids, epochs, column)
        try:
            if bad is None:
                return encode(values), None
            readable = [value for value, is_bad in zip(values, bad.tolist(), strict=True) if not is_bad]
            encoded = iter(encode(readable) if readable else ())
            return [_NO_TOKENS if is_bad else next(encoded) for is_bad in bad.tolist()], bad
        except Exception as error:
            add_note(error, naming_samples('While tokenising', ids.tolist(), self._pool.describe))
            if not is_bad_sample(error, from_user=True):
                raise
            documents, bad = self._each(ids, epochs, self._document)  # raises the error of one of them
            if bad is None:
                raise
            return [_NO_TOKENS if document is None else document for document in documents], bad

    def _document(self, epoch: int, sample_id: int) -> Document:
        (kind,) = self._packings_of(np.array([sample_id]))
        column, value = self._packings[kind].document_column, self._value(epoch, sample_id)
        try:
            return self._encoders[kind]([value])[0]
        except DocumentError as error:
            place = self._pool.describe(sample_id)
            fix = (
                f'`where: {{{column}: {{not: null}}}}` leaves such rows out'
                if value is None
                else 'Correct or remove the text'
                if isinstance(value, str)
                else 'Name another `column`'
            )
            raise DocumentError(
                f'Column {column!r} of {place}: {error} {fix}, or `on_bad_sample: skip` skips them.'
            ) from None
        except Exception as error:
            if self._skipping_reader is None:
                raise
            raise DocumentError(f'The tokenizer takes no {value!r:.80}: {type(error).__name__}: {error}') from error

    def _begin_here(self) -> None:
        if torch.utils.data.get_worker_info() is not None:
            os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # workers share the cores
        self._encoders = [encoder_of(packing) for packing in self._packings]

    def _ids_of(
        self, lanes: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sample ids of lanes' documents, and the pass over the data of each."""
        mixtures, epochs, positions = self._document_order.places(lanes, documents)
        ids = np.empty_like(documents)
        for mixture, epoch in sorted(set(zip(mixtures.tolist(), epochs.tolist(), strict=True))):
            is_there = (mixtures == mixture) & (epochs == epoch)
            ids[is_there] = self._order(mixture, epoch).at(positions[is_there])
        return ids, epochs

    def _order(self, mixture: int, epoch: int) -> PassOrder:
        order = self._orders.get((mixture, epoch))
        if order is None:
            # Lanes are in one pass over the data or in the next, the look-ahead is in a later one; of few documents, in
            # many at once.
            most = _MOST_ORDERS if self._mixture.epoch_size > _FEW_DOCUMENTS else 16 * _MOST_ORDERS
            most *= self._document_order.streams
            while len(self._orders) >= most:
                self._orders.popitem(last=False)
            order = self._orders[mixture, epoch] = self._document_order.order(mixture, epoch)
        return order

    def _prefetch(self, key: ChunkKey) -> None:
        """Have shards fetched that are needed soon, along the lanes of this rank."""
        firsts = [(lane, min(numbers)) for lane, numbers in key.parts]
        if self._row != key.row:
            self._row = key.row
            self._coming.begin(key.row)
            if self._skipping_reader is not None:
                self._skipping_reader.begin_pass()
        if any([self._coming.reach(*first) for first in firsts]):  # noqa: C419 - each must be reached
            limits = prefetch_limits(self._source.predownload, max(self._batch_size * BLOCK, self._packing.window))
            progress = self._source.progress
            self._pool.shards.follow(self._blocks(), first=0, limits=limits, progress=progress)
        self._pool.shards.advance(min(self._coming.block(*first) for first in firsts))

    def _blocks(self) -> Upcoming:
        some = max(min(_LOCATED, 64 * self._mixture.epoch_size) // (BLOCK * len(self._own)), 1)
        blocks = self._coming.blocks()
        while True:
            numbers, documents = zip(*itertools.islice(blocks, some), strict=True)
            of_node: Iterable[npt.NDArray[np.int64] | None] = itertools.repeat(None)
            if knows_of_node(self._pool, self._topology):
                of_node = self._shards_of(self._of_node, documents)
            yield from map(UpcomingBatch, numbers, self._shards_of(self._own, documents), of_node)

    def _shards_of(self, lanes: Sequence[int], blocks: Sequence[Mapping[int, range]]) -> list[npt.NDArray[np.int64]]:
        of_stream = len(lanes) // self._document_order.streams  # stream after stream
        of_blocks: list[npt.NDArray[np.int64]] = []
        for documents in blocks:
            each = (
                np.stack(np.meshgrid(np.array(numbers, np.int64), lanes[stream * of_stream :][:of_stream])).reshape(
                    2, -1
                )
                for stream, numbers in documents.items()
            )
            of_blocks.append(np.concatenate([*each], axis=1))
        numbers, of_lanes = np.concatenate(of_blocks, axis=1)
        ids, _ = self._ids_of(of_lanes, numbers)
        ends = np.cumsum([block.shape[1] for block in of_blocks])
        return np.split(self._pool.locate(ids)[0], ends[:-1])
