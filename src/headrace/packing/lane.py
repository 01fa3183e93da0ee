"""One lane: documents in, sequences out; and the cuts from which it can be worked out again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import EmptyDatasetError, ResumeError
from headrace.packing.bin_packing import best_fit, concatenate
from headrace.packing.settings import Packing

__all__ = ['START', 'Cut', 'Document', 'Lane', 'Piece']

_KEPT_ROWS = 2048  # that a trainer may count less than it was handed out, with accumulated batches
_BETWEEN_CUTS = 32  # sequences, at least
_LEAST_EMPTY = 100


class Document(NamedTuple):
    """The tokens of one sample."""

    tokens: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32] | None = None
    """What to predict, of the same length; None: the tokens."""


class Piece(NamedTuple):
    """A part of a document, or all of it."""

    document: int
    """Number in the lane of the document that it is from."""
    begin: int
    """Tokens of that document before it."""
    tokens: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32] | None


class Cut(NamedTuple):
    """Where a lane can be taken up: a place between two windows."""

    row: int
    """Sequences that the lane has made before."""
    next_document: int
    """The document that it takes next."""
    carried: tuple[tuple[int, int], ...] = ()
    """Of documents before that, what is in no sequence yet: their numbers, and where their pieces begin."""


START = Cut(0, 0)


class Lane:
    """Packs its documents, in their order, window by window. What it makes depends on nothing else.

    A window takes documents until they fill a number of sequences. What is left over is carried into the next one.

    Args:
        packing: how.
        cut: where to take it up.
        window: sequences that are filled at a time.
        first_window: sequences of the very first window; where lanes differ in it, not all need documents at once.
        documents: in a pass over the data, of all lanes.
    """

    def __init__(self, packing: Packing, cut: Cut, *, window: int, first_window: int, documents: int) -> None:
        self._packing = packing
        self._window = first_window if cut is START or not cut.row else window
        self._later_window = window
        self._most_empty = max(documents, _LEAST_EMPTY)
        self.cuts: deque[Cut] = deque([cut])
        """The latest places from which it can be taken up, in rising order."""
        self._made = cut.row
        self._next_row = cut.row
        self._rows: deque[list[Piece]] = deque()
        self._tokens_in_rows = 0
        self._pieces: list[Piece] = []  # those that were carried come first
        self._num_carried = len(cut.carried)
        self._tokens = 0
        self._empty_documents = 0
        self._carried = deque(cut.carried)  # what is not there yet
        self._taken = cut.next_document  # the next document for a window
        self._inbox: deque[Document] = deque()
        self.received = cut.next_document
        """The first document that was not received."""
        self.tokens_ahead = 0
        """Tokens that were received and are in no sequence that was handed out."""

    @property
    def next_row(self) -> int:
        """The next sequence that it can hand out."""
        return self._next_row

    @property
    def missing(self) -> tuple[int, ...]:
        """Documents to receive before all others: those with pieces that were carried."""
        return tuple(dict.fromkeys(document for document, _ in self._carried))

    def receive(self, numbers: Sequence[int], documents: Sequence[Document]) -> None:
        """Take documents: what is missing, or those from `received` on.

        Raises:
            EmptyDatasetError: the lane's documents have no tokens.
        """
        if self._carried:
            self._receive_carried(dict(zip(numbers, documents, strict=True)))
        else:
            assert not numbers or numbers[0] == self.received
            self.received += len(numbers)
            self._inbox.extend(documents)
            self.tokens_ahead += sum(len(document.tokens) for document in documents)
        while self._inbox and len(self._rows) < 2 * self._later_window:
            self._take(self._inbox.popleft())

    def _receive_carried(self, documents: dict[int, Document]) -> None:
        for number, begin in self._carried:
            document = documents[number]
            end = len(document.tokens)
            if self._packing.method == 'best_fit':
                end = min(begin + self._packing.sequence_length, end)
            if begin >= end:
                raise ResumeError(
                    f'a lane goes on with what a checkpoint carries of a document, from token {begin} on, but it has '
                    f'{len(document.tokens)}. The checkpoint is damaged, or the data or the tokenizer have changed.'
                )
            self._add(_piece(number, begin, end, document))
        self.tokens_ahead += self._tokens
        self._carried.clear()

    def _take(self, document: Document) -> None:
        size = len(document.tokens)
        step = self._packing.sequence_length if self._packing.method == 'best_fit' else max(size, 1)
        for begin in range(0, size, step):
            self._add(_piece(self._taken, begin, min(begin + step, size), document))
        self._taken += 1
        self._empty_documents = 0 if size else self._empty_documents + 1
        if self._empty_documents >= self._most_empty:
            raise EmptyDatasetError(
                f'Packing needs documents with tokens, but {self._empty_documents} in a row of one lane have none. '
                f'Check column {self._packing.document_column!r} and the tokenizer.'
            )
        while self._tokens >= self.window_tokens:
            self._close()

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._tokens += len(piece.tokens)

    def _close(self) -> None:
        """Make the window's sequences."""
        lengths = [len(piece.tokens) for piece in self._pieces]
        if self._packing.method == 'best_fit':
            bins = best_fit(lengths, self._packing.sequence_length)
            # The emptiest one waits for what comes next, with which it may be filled better; but no piece waits twice.
            may_wait = [place for place, found in enumerate(bins) if found[0] >= self._num_carried]
            left: list[int] = []
            if may_wait and len(bins) > 1:
                left = bins.pop(min(may_wait, key=lambda place: sum(lengths[number] for number in bins[place])))
            rows = [[self._pieces[number] for number in found] for found in bins]
            carried = [self._pieces[number] for number in left]
        else:
            numbers, used = concatenate(lengths, self._packing.sequence_length)
            last = self._pieces[numbers[-1]]
            row = [*(self._pieces[number] for number in numbers[:-1]), _part(last, 0, used)]
            rows, carried = [row], self._pieces[len(numbers) :]
            if used < len(last.tokens):
                carried = [_part(last, used, len(last.tokens)), *carried]
        self._rows.extend(rows)
        self._tokens_in_rows += _tokens_of(*rows)
        self._pieces, self._num_carried = carried, len(carried)
        self._tokens = _tokens_of(carried)
        self._window = self._later_window
        self._made += len(rows)
        if self._made - self.cuts[-1].row >= min(_BETWEEN_CUTS, self._window):
            references = tuple((piece.document, piece.begin) for piece in carried)
            self.cuts.append(Cut(self._made, self._taken, references))

    def has(self, row: int) -> bool:
        """Whether a sequence is made; what comes before it is thrown away. None that was handed out comes again."""
        assert row >= self._next_row
        while self._next_row < row and self._rows:
            self._hand_out()
        while not self._rows and self._inbox:
            self._take(self._inbox.popleft())
            while self._next_row < row and self._rows:
                self._hand_out()
        return bool(self._rows) and self._next_row == row

    def take(self, row: int) -> list[Piece]:
        """Hand out a sequence that is made."""
        assert self.has(row)
        return self._hand_out()

    def _hand_out(self) -> list[Piece]:
        pieces = self._rows.popleft()
        self._next_row += 1
        while len(self.cuts) > 1 and self.cuts[1].row <= self._next_row - _KEPT_ROWS:
            self.cuts.popleft()
        tokens = _tokens_of(pieces)
        self.tokens_ahead -= tokens
        self._tokens_in_rows -= tokens
        return pieces

    @property
    def rows_ahead(self) -> int:
        """Sequences that are made, and not handed out."""
        return len(self._rows)

    @property
    def window_tokens(self) -> int:
        """Tokens that it must have beyond its sequences to make more of them."""
        return self._window * self._packing.sequence_length

    @property
    def pending_tokens(self) -> int:
        """Tokens that it has beyond its sequences."""
        return self.tokens_ahead - self._tokens_in_rows

    def cut_before(self, row: int) -> Cut | None:
        """The latest kept cut from which a sequence can be worked out, if there is one."""
        return next((cut for cut in reversed(self.cuts) if cut.row <= row), None)


def _tokens_of(*rows: Sequence[Piece]) -> int:
    return sum(len(piece.tokens) for row in rows for piece in row)


def _piece(number: int, begin: int, end: int, document: Document) -> Piece:
    labels: Any = document.labels
    return Piece(number, begin, document.tokens[begin:end], None if labels is None else labels[begin:end])


def _part(piece: Piece, begin: int, end: int) -> Piece:
    labels = None if piece.labels is None else piece.labels[begin:end]
    return Piece(piece.document, piece.begin + begin, piece.tokens[begin:end], labels)
