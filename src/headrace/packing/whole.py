"""A pass over the documents that is packed once and whole, for evaluation: each token once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError, EmptyDatasetError
from headrace.packing.lane import START, Document, Lane, Piece, piece_of
from headrace.packing.packer import Chunk, ChunkKey, DocumentCount, count_documents, first_sequence

if TYPE_CHECKING:
    from headrace.dataset.statistics import WorkerBatch
    from headrace.order import BatchPlan
    from headrace.packing.lanes import Lanes, PieceTable
    from headrace.packing.settings import Packing

_AT_ONCE = 512  # documents


def count_tokens_of(read: Callable[[ChunkKey], WorkerBatch], documents: int) -> npt.NDArray[np.int32]:
    """Read and tokenise documents 0 to `documents` of the first pass, and count their tokens, int32[documents]."""
    lengths = [
        read(ChunkKey(0, ((0, range(first, min(first + _AT_ONCE, documents))),))).batch.lengths
        for first in range(0, documents, _AT_ONCE)
    ]
    return np.concatenate(lengths)


class WholePass:
    """The sequences of one pass over documents of lengths int32[documents]; EmptyDatasetError: all are 0."""

    def __init__(self, packing: Packing, lengths: npt.NDArray[np.int32]) -> None:
        if not lengths.any():
            raise EmptyDatasetError(
                f'Packing needs documents with tokens, but none of {len(lengths)} has any. Check column '
                f'{packing.document_column!r} and the tokenizer.'
            )
        self.lengths = lengths
        window = packing.rows_per_window
        lane = Lane(packing, START, window=window, first_window=window, documents=len(lengths) + 1)
        rows: list[list[Piece]] = []
        for number, length in enumerate(lengths.tolist()):
            tokens = np.broadcast_to(np.int32(0), (length,))  # all that packing needs is their number
            lane.receive([number], [Document(tokens)])
            while lane.rows_ahead:
                rows.append(lane.take(lane.next_row))
        rows += lane.finish()
        places = [(piece.document, piece.begin, piece.begin + len(piece.tokens)) for row in rows for piece in row]
        self._pieces = np.array(places, np.int64).reshape(-1, 3)
        self._bounds = np.cumsum([0, *map(len, rows)])

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def pieces(self, sequence: int) -> npt.NDArray[np.int64]:
        """Document of the pass, first token and end of each piece, int64[pieces, 3]."""
        return self._pieces[self._bounds[sequence] : self._bounds[sequence + 1]]

    def tables(self, ids: npt.NDArray[np.int64], numbers: Sequence[int], lanes: Lanes) -> dict[int, PieceTable]:
        """The pieces of sequences, without skipped documents; `ids` are those of the pass, int64[documents]."""
        by_number: dict[int, PieceTable] = {}
        for number in numbers:
            pieces = self.pieces(number % len(self))
            table = np.concatenate([ids[pieces[:, :1]], pieces], axis=1)
            by_number[number] = table[[not lanes.is_skipped(sample_id) for sample_id in table[:, 0].tolist()]]
        return by_number


class WholePacker:
    """Requests the documents of each batch of a `WholePass`, and delivers its sequences.

    `count` takes the documents of each stream by its number. A document of several batches counts in each.
    """

    def __init__(
        self, whole: WholePass, plan: BatchPlan, lanes: Lanes, count: Callable[[Mapping[int, DocumentCount]], None]
    ) -> None:
        self._whole, self._plan, self._lanes, self._count = whole, plan, lanes, count
        self._unreadable = 0

    def keys(self) -> Iterator[ChunkKey]:
        plan = self._plan
        row = first_sequence(plan) + plan.start
        for number in range(plan.num_batches):
            documents = self._documents(plan.positions(number)[: plan.own_samples(number)].tolist())
            if documents:
                yield ChunkKey(row, ((0, documents),))

    def _documents(self, sequences: Sequence[int]) -> tuple[int, ...]:
        documents = [self._whole.pieces(sequence)[:, 0] for sequence in sequences]
        return tuple(np.unique(np.concatenate(documents)).tolist()) if documents else ()

    def sequences(self, numbers: Sequence[int], chunks: Iterator[WorkerBatch]) -> list[list[Piece]]:
        """Sequences of the run, by their numbers, from chunks in the order of `keys`."""
        if not numbers:
            return []
        received = next(chunks)
        chunk: Chunk = received.batch
        counts = count_documents(received)
        self._unreadable += sum(count.left_out for count in counts.values())
        self._count(counts)
        bad = [False] * len(chunk.lengths) if chunk.bad is None else chunk.bad.tolist()
        ((_, places),) = chunk.key.parts
        received_documents = zip(places, chunk.documents(), bad, strict=True)
        documents = {number: document for number, document, is_bad in received_documents if not is_bad}
        for number, document in documents.items():
            if len(document.tokens) != self._whole.lengths[number]:
                raise ConfigError(
                    f'A tokenizer must give the same tokens each time, but document {document.sample_id} had '
                    f'{self._whole.lengths[number]} tokens when the pass was counted, and has {len(document.tokens)} '
                    f'now. Make the tokenizer or `get_item` deterministic; if the data changed, start again.'
                )
        rows: list[list[Piece]] = []
        for number in numbers:
            pieces = self._whole.pieces(number % len(self._whole)).tolist()
            row = [piece_of(place, begin, end, documents[place]) for place, begin, end in pieces if place in documents]
            rows.append(self._lanes.without_skipped(row))
        return rows

    def receive_ahead(self, rows: int, chunks: Iterator[WorkerBatch]) -> None:
        """No-op: a batch has its documents."""

    def take_unreadable(self) -> int:
        unreadable, self._unreadable = self._unreadable, 0
        return unreadable
