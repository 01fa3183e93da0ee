"""Batches of a pass from its packed sequences: tensors, marks, and the tokens of each stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from headrace.dataset.batch_keys import STREAM, marked
from headrace.dataset.statistics import WorkerBatch
from headrace.packing.packer import first_sequence
from headrace.packing.rows import batch_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.order import BatchPlan, Mixture
    from headrace.packing.lane import Piece
    from headrace.packing.settings import Packing

__all__ = ['BatchMaker']

_NO_STREAM = -1
"""The mark of padding."""


class SequenceSource(Protocol):
    """Delivers sequences, from chunks of documents."""

    def sequences(self, numbers: Sequence[int], chunks: Iterator[WorkerBatch]) -> list[list[Piece]]:
        """Sequences of the run, by their rising numbers."""
        ...

    def receive_ahead(self, rows: int, chunks: Iterator[WorkerBatch]) -> None:
        """Receive a little more than a batch of `rows` sequences needs."""
        ...

    def take_unreadable(self) -> int:
        """The number of unreadable documents since the last call."""
        ...


class BatchMaker(NamedTuple):
    """Makes the batches of a pass."""

    plan: BatchPlan
    packing: Packing
    mixture: Mixture
    """The streams of the documents."""
    mark_streams: bool
    """Whether to mark the stream of each token."""

    def batches(self, packer: SequenceSource, chunks: Iterator[WorkerBatch]) -> Iterator[WorkerBatch]:
        """The batches, from chunks in the order of the packer's keys."""
        plan, first = self.plan, first_sequence(self.plan)
        for number in range(plan.num_batches):
            numbers = plan.positions(number) + first
            # A row that only pads the last batch belongs to another rank's lane; it has no tokens here.
            own = plan.own_samples(number)
            rows = packer.sequences(numbers[:own].tolist(), chunks) + [[]] * (len(numbers) - own)
            packer.receive_ahead(len(numbers), chunks)
            batch = batch_of(rows, self.packing.sequence_length, self.packing.pad_token_id)
            pieces = [piece for row in rows for piece in row]
            lengths = np.array([len(piece.tokens) for piece in pieces], np.int64)
            streams = self.mixture.streams_of(np.array([piece.sample_id for piece in pieces], np.int64))
            if self.mark_streams:
                batch[STREAM] = self._stream_marks(rows, np.repeat(streams, lengths))
            if plan.remainder == 'exact':
                batch = marked(batch, rows=len(rows), own_samples=own)
            tokens = np.bincount(streams, lengths, len(self.mixture.streams)).astype(np.int64)
            yield WorkerBatch(batch, len(rows), None, unreadable=packer.take_unreadable(), stream_tokens=tokens)

    def _stream_marks(self, rows: Sequence[Sequence[Piece]], streams: npt.NDArray[np.int64]) -> torch.Tensor:
        """The stream of each token, int64[rows, S]; -1 for padding. `streams` are those of all tokens in a row."""
        used = np.array([sum(len(piece.tokens) for piece in row) for row in rows])
        marks = np.full((len(rows), self.packing.sequence_length), _NO_STREAM, np.int64)
        marks[np.arange(self.packing.sequence_length) < used[:, None]] = streams
        return torch.from_numpy(marks)
