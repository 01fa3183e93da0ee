"""One lane packs documents into sequences, by their lengths alone, and keeps states from which packing can restart."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import EmptyDatasetError, ResumeError
from headrace.packing.settings import Packing


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The numbers of the pieces in each bin: best fit decreasing.

    Each piece, longest first, goes into the fullest bin that has room. At most 11/9 of the optimum, plus one bin, are
    used: Johnson et al., "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974. Bins come
    in the order of their earliest pieces, and pieces in their own order, so neither is sorted by length.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # free places and number of each bin that is not full, rising
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        at = bisect_left(room, (length, -1))
        if at < len(room):
            left, place = room.pop(at)
            bins[place].append(number)
        else:
            left, place = capacity, len(bins)
            bins.append([number])
        if left > length:
            insort(room, (left - length, place))
    return sorted(sorted(numbers) for numbers in bins)


_KEPT_ROWS = 2048  # delivered sequences that a trainer may not have counted yet
_BETWEEN_STATES = 32  # sequences, at least
_LEAST_EMPTY = 100


class Document(NamedTuple):
    tokens: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32] | None = None  # targets, of the same length; the tokens by default
    sample_id: int = -1  # its global sample id


class Piece(NamedTuple):
    document: int  # its document's number in the lane
    begin: int  # tokens of that document before it
    tokens: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32] | None
    sample_id: int = -1  # its document's global sample id


class LaneState(NamedTuple):
    """A place between two windows, from which a lane can restart. In checkpoints its key is `cuts`."""

    row: int  # sequences that the lane made before it
    next_document: int  # the first document after it
    leftover: tuple[tuple[int, int], ...] = ()  # earlier pieces that are in no sequence yet: (document, first token)


START = LaneState(0, 0)


class Lane:
    """Packs its documents in their order, window by window. Its sequences depend on nothing else.

    A window takes documents until they fill `window` sequences. Leftover pieces go into the next one. The first window
    differs among lanes, so that they need documents in turn.
    """

    def __init__(self, packing: Packing, state: LaneState, *, window: int, first_window: int, documents: int) -> None:
        self._packing = packing
        self._window = first_window if state is START or not state.row else window
        self._later_window = window
        self._most_empty = max(documents, _LEAST_EMPTY)
        self.states: deque[LaneState] = deque([state])  # the latest states from which it can restart, in rising order
        self._made = state.row
        self._next_row = state.row
        self._rows: deque[tuple[list[Piece], int]] = deque()  # and their tokens
        self._windows: deque[tuple[int, int]] = deque()  # of undelivered rows: sequences and documents up to their ends
        self._tokens_in_rows = 0
        self._pieces: list[Piece] = []  # leftover ones first
        self._num_leftover = len(state.leftover)
        self._tokens = 0
        self._empty_documents = 0
        self._leftover = deque(state.leftover)  # not received yet
        self._placed = state.next_document
        self._taken = state.next_document  # the next document for a window
        self._inbox: deque[Document] = deque()
        self.received = state.next_document  # the first document not received yet
        self.tokens_ahead = 0  # Received tokens that no delivered sequence holds

    @property
    def next_row(self) -> int:
        return self._next_row

    @property
    def missing(self) -> tuple[int, ...]:
        """Documents to receive before all others, for their leftover pieces."""
        return tuple(dict.fromkeys(document for document, _ in self._leftover))

    def receive(self, numbers: Sequence[int], documents: Sequence[Document]) -> None:
        """Take documents: the missing ones, or those from `received` on. EmptyDatasetError: all are without tokens."""
        if self._leftover:
            self._receive_leftover(dict(zip(numbers, documents, strict=True)))
        else:
            assert not numbers or numbers[0] == self.received
            self.received += len(numbers)
            self._inbox.extend(documents)
            self.tokens_ahead += sum(len(document.tokens) for document in documents)
        while self._inbox and len(self._rows) < 2 * self._later_window:
            self._take(self._inbox.popleft())

    def _receive_leftover(self, documents: dict[int, Document]) -> None:
        for number, begin in self._leftover:
            document = documents[number]
            end = len(document.tokens)
            if self._packing.method == 'best_fit':
                end = min(begin + self._packing.sequence_length, end)
            if begin >= end:
                raise ResumeError(
                    f'a lane continues with what a checkpoint carries of a document, from token {begin} on, but it has '
                    f'{len(document.tokens)}. The checkpoint is damaged, or the data or the tokenizer have changed.'
                )
            self._add(piece_of(number, begin, end, document))
        self.tokens_ahead += self._tokens
        self._leftover.clear()
        self._close_full()

    def _take(self, document: Document) -> None:
        size = len(document.tokens)
        step = self._packing.sequence_length if self._packing.method == 'best_fit' else max(size, 1)
        for begin in range(0, size, step):
            self._add(piece_of(self._taken, begin, min(begin + step, size), document))
        self._taken += 1
        self._empty_documents = 0 if size else self._empty_documents + 1
        if self._empty_documents >= self._most_empty:
            raise EmptyDatasetError(
                f'Packing needs documents with tokens, but {self._empty_documents} in a row of one lane have none. '
                f'Check column {self._packing.document_column!r} and the tokenizer.'
            )
        self._close_full()

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._tokens += len(piece.tokens)

    def _close_full(self) -> None:
        while self._tokens >= self._window * self._packing.sequence_length:
            self._close()

    def _close(self) -> None:
        length = self._packing.sequence_length
        if self._packing.method == 'best_fit':
            lengths = [len(piece.tokens) for piece in self._pieces]
            bins = best_fit(lengths, length)
            # The emptiest bin waits for the next window, which may fill it better. No piece waits twice.
            may_wait = [place for place, numbers in enumerate(bins) if numbers[0] >= self._num_leftover]
            left: list[int] = []
            if may_wait and len(bins) > 1:
                left = bins.pop(min(may_wait, key=lambda place: sum(lengths[number] for number in bins[place])))
            rows = [
                ([self._pieces[number] for number in numbers], sum(lengths[number] for number in numbers))
                for numbers in bins
            ]
            leftover = [self._pieces[number] for number in left]
        else:
            rows, leftover = [(self._pieces, length)], []
            if self._tokens > length:  # the last piece has them: without it, the window was not full
                last = self._pieces.pop()
                used = len(last.tokens) - (self._tokens - length)
                self._pieces.append(_part(last, 0, used))
                leftover = [_part(last, used, len(last.tokens))]
        self._rows.extend(rows)
        tokens = sum(of_row for _, of_row in rows)
        self._tokens_in_rows += tokens
        self._pieces, self._num_leftover = leftover, len(leftover)
        self._tokens -= tokens
        self._window = self._later_window
        self._made += len(rows)
        self._windows.append((self._made, self._taken))
        if self._made - self.states[-1].row >= min(_BETWEEN_STATES, self._window):
            references = tuple((piece.document, piece.begin) for piece in leftover)
            self.states.append(LaneState(self._made, self._taken, references))

    def finish(self) -> list[list[Piece]]:
        """The sequences of all documents that no other sequence holds, at the end of the data; the last has room."""
        rows = [pieces for pieces, _ in self._rows]
        lengths = [len(piece.tokens) for piece in self._pieces]
        if self._packing.method == 'best_fit':
            bins = best_fit(lengths, self._packing.sequence_length)
            return [*rows, *([self._pieces[number] for number in numbers] for numbers in bins)]
        return [*rows, list(self._pieces)] if self._pieces else rows

    def has(self, row: int) -> bool:
        """Whether a sequence is made. Earlier ones are dropped; a delivered one never comes again."""
        assert row >= self._next_row
        while self._next_row < row and self._rows:
            self._hand_out()
        while not self._rows and self._inbox:
            self._take(self._inbox.popleft())
            while self._next_row < row and self._rows:
                self._hand_out()
        return bool(self._rows) and self._next_row == row

    def take(self, row: int) -> list[Piece]:
        assert self._next_row == row
        return self._hand_out()

    def _hand_out(self) -> list[Piece]:
        pieces, tokens = self._rows.popleft()
        self._next_row += 1
        self._placed = self._windows[0][1]
        if self._windows[0][0] == self._next_row:
            self._windows.popleft()
        while len(self.states) > 1 and self.states[1].row <= self._next_row - _KEPT_ROWS:
            self.states.popleft()
        self.tokens_ahead -= tokens
        self._tokens_in_rows -= tokens
        return pieces

    @property
    def rows_ahead(self) -> int:
        """Sequences that are made and not delivered."""
        return len(self._rows)

    @property
    def window_tokens(self) -> int:
        """Tokens that fill the next window."""
        return self._window * self._packing.sequence_length

    @property
    def pending_tokens(self) -> int:
        """Tokens received that are in no sequence yet."""
        return self.tokens_ahead - self._tokens_in_rows

    @property
    def documents_placed(self) -> int:
        """Documents that the windows of all delivered sequences took, whether a sequence holds them yet or not."""
        return self._placed

    def state_before(self, row: int) -> LaneState | None:
        """The latest state before a sequence, if there is one."""
        return next((state for state in reversed(self.states) if state.row <= row), None)


def piece_of(number: int, begin: int, end: int, document: Document) -> Piece:
    labels: Any = document.labels
    return Piece(
        number, begin, document.tokens[begin:end], None if labels is None else labels[begin:end], document.sample_id
    )


def _part(piece: Piece, begin: int, end: int) -> Piece:
    labels = None if piece.labels is None else piece.labels[begin:end]
    return Piece(piece.document, piece.begin + begin, piece.tokens[begin:end], labels, piece.sample_id)
