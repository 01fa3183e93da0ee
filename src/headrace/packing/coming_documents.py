"""The documents of each lane that are needed at about the same time, for the prefetch."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from headrace.packing.document_order import LaneOrder

__all__ = ['BLOCK', 'ComingDocuments']

BLOCK = 16
"""Documents of a block in a turn of the lanes, on average."""
_KEPT = 64  # blocks behind the latest, for lanes that are behind


class _Begin(NamedTuple):
    """The begin of a block."""

    sequence: float
    """Of the run, about."""
    documents: Mapping[int, float]
    """By stream, the first document of each of its lanes."""


class ComingDocuments:
    """Blocks of documents, in which each stream has as many as its share and the length of its documents need.

    Args:
        order: the lanes.
        sequence_length: tokens of a sequence.
    """

    def __init__(self, order: LaneOrder, sequence_length: int) -> None:
        self._order, self._sequence_length = order, sequence_length
        self._read = np.zeros((2, order.streams), np.int64)  # documents and tokens of streams
        self.begin(0)

    def begin(self, sequence: int) -> None:
        """Begin a pass at a sequence of the run."""
        self._reached: dict[int, int] = {}
        self._known = self._dropped = 0
        self._begins = [_Begin(sequence, {})]

    def count(self, lane: int, documents: int, tokens: int) -> None:
        """Take the number of documents of a lane that were read, and of their tokens."""
        self._read[:, lane // self._order.lanes] += documents, tokens

    def reach(self, lane: int, document: int) -> bool:
        """Move to a document. Blocks begin anew when one more stream's place is known, or its documents' length.

        Returns:
            Whether they do.
        """
        stream = lane // self._order.lanes
        self._reached[stream] = max(document, self._reached.get(stream, 0))
        known = len(self._reached)
        if self._order.streams > 1:
            known += int(np.count_nonzero(self._read[0]))
        if known == self._known:
            return False
        sequence = self._begins[self.block(lane, document) - self._dropped].sequence
        firsts = {stream: float(number // BLOCK * BLOCK) for stream, number in self._reached.items()}
        self._known, self._dropped, self._begins = known, 0, [_Begin(sequence, firsts)]
        return True

    def block(self, lane: int, document: int) -> int:
        """The number of the block of a document, among those that `blocks` gave."""
        stream = lane // self._order.lanes
        found = bisect.bisect_right(self._begins, document, key=lambda begin: begin.documents.get(stream, float('inf')))
        found = max(found - 1, 0) + self._dropped
        drop = max(found - _KEPT - self._dropped, 0)
        del self._begins[:drop]
        self._dropped += drop
        return found

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
