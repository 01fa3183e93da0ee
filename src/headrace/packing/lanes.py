"""All lanes of a run: this rank's own, the last known states of the others, and the latest sequences."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import ResumeError
from headrace.order.pinned import short
from headrace.packing.document_order import LaneOrder
from headrace.packing.lane import START, Lane, LaneState, Piece
from headrace.packing.settings import Packing

if TYPE_CHECKING:
    from headrace.order.skip import Ranges

PieceTable: TypeAlias = npt.NDArray[np.int64]
"""int64[pieces, 4], the pieces of a sequence in their order: the document's sample id and its number in the lane, the
first token, and the end."""

_MOST = 4096  # sequences, at least: some hundred bytes each


class DeliveredSequences:
    """The pieces of sequences, by their numbers in the run; the oldest are forgotten."""

    def __init__(self) -> None:
        self._tables: OrderedDict[int, PieceTable] = OrderedDict()
        self._most = _MOST

    def keep(self, sequences: int) -> None:
        self._most = max(self._most, sequences)

    def add(self, numbers: Sequence[int], rows: Sequence[Sequence[Piece]]) -> None:
        pieces = [piece for row in rows for piece in row]
        each = [(piece.sample_id, piece.document, piece.begin, piece.begin + len(piece.tokens)) for piece in pieces]
        table = np.array(each, np.int64).reshape(-1, 4)
        bounds = pairwise(itertools.accumulate(map(len, rows), initial=0))
        self.update({number: table[begin:end] for number, (begin, end) in zip(numbers, bounds, strict=True)})

    def update(self, tables: Mapping[int, PieceTable]) -> None:
        for number, table in tables.items():
            self._tables[number] = table
            self._tables.move_to_end(number)
        while len(self._tables) > self._most:
            self._tables.popitem(last=False)

    def of(self, numbers: Sequence[int]) -> dict[int, PieceTable]:
        return {number: self._tables[number] for number in numbers if number in self._tables}


_KEPT = 3  # known states of another rank's lane
_MOST_AGAIN = 1_000_000  # sequences that a lane repeats at a resume: hours of tokenising


class Lanes:
    """States from which each lane can restart.

    A state is a hint, never a part of the position. A lane without a recent state restarts from an earlier one, at
    worst from the beginning of the run.
    """

    def __init__(self, packing: Packing, documents: LaneOrder, skipped: Ranges = ()) -> None:
        self._packing = packing
        self.documents = documents  # the place of each lane's documents in the run
        self._skipped = skipped
        self._skip_begins = [begin for begin, _ in skipped]
        self.count = documents.lanes
        self._known: dict[int, list[LaneState]] = {}
        self._live: dict[int, Lane] = {}
        self.delivered = DeliveredSequences()  # the pieces of the latest sequences
        self._first_document: int | None = None

    def window(self, lane: int) -> int:
        """Sequences that a lane fills at a time, at most its documents in a pass when the run began."""
        return max(min(self._packing.rows_per_window, self.documents.first_size(lane) // self.count), 1)

    def copy_at(self, row: int) -> Lanes:
        """Lanes that can deliver sequences from `row` of the run on, and leave these alone."""
        copied = Lanes(self._packing, self.documents, self._skipped)
        for number, state in self._states(self._numbers(), row).items():
            copied._remember(number, state)
        return copied

    def resume_at(self, lanes: Iterable[int], row: int) -> dict[int, Lane]:
        """Lanes that deliver their sequences from `row` of the run on."""
        resumed: dict[int, Lane] = {}
        for number in lanes:
            first = self.documents.sequences_before(number, row)
            lane = self._live.get(number)
            if lane is None or lane.next_row > first:
                state = self._latest_state(number, first)
                window = self.window(number)
                first_window = 1 + number % self.count * window // self.count
                most = self.documents.most_documents
                lane = Lane(self._packing, state, window=window, first_window=first_window, documents=most)
                self._remember(number, state)
            resumed[number] = lane
        self._live = resumed
        if self._first_document is None:
            self._first_document = min(self._turns(), default=0)
        return resumed

    def without_skipped(self, pieces: list[Piece]) -> list[Piece]:
        return [piece for piece in pieces if not self.is_skipped(piece.sample_id)] if self._skipped else pieces

    def is_skipped(self, sample_id: int) -> bool:
        place = bisect_right(self._skip_begins, sample_id) - 1
        return place >= 0 and sample_id < self._skipped[place][1]

    @property
    def documents_taken(self) -> tuple[int, int]:
        """Approximate range [first, end) of mixture positions consumed by the live lanes."""
        return (self._first_document or 0) * self.count, max(self._turns(), default=0) * self.count

    def _turns(self) -> Collection[int]:
        """Positions of the mixture that lanes took, by place."""
        if self.documents.counts == 'documents':
            return [lane.received for lane in self._live.values()]
        turns: Counter[int] = Counter()
        for number, lane in self._live.items():
            turns[number % self.count] += lane.next_row
        return turns.values()

    @property
    def documents_placed(self) -> dict[int, int]:
        """By live lane, the documents that the windows of its delivered sequences took."""
        return {number: lane.documents_placed for number, lane in self._live.items()}

    def _latest_state(self, number: int, row: int) -> LaneState:
        lane = self._live.get(number)
        state = None if lane is None else lane.state_before(row)
        kept = [kept for kept in self._known.get(number, ()) if kept.row <= row]
        return max([START, *kept, *([state] if state else [])], key=lambda state: state.row)

    def _remember(self, number: int, state: LaneState) -> None:
        if state is not START:
            states = self._known.setdefault(number, [])
            if state not in states:
                states.append(state)
                states.sort(key=lambda state: state.row)
                del states[1:-_KEPT]  # the first is from a checkpoint, before all later rows

    def states_at(self, row: int) -> dict[str, Any]:
        """JSON values by lane for a checkpoint at sequence `row` of the run, without lanes at their beginning."""
        states = self._states(self._numbers(), row)
        return {str(number): _to_json(state) for number, state in states.items() if state.row}

    def needed_documents(self, row: int) -> dict[int, int]:
        """By lane, the first document that a restart for sequences from `row` of the run on needs."""
        return {
            number: min([state.next_document, *(document for document, _ in state.leftover)])
            for number, state in self._states(range(self.documents.lane_count), row).items()
        }

    def _states(self, numbers: Iterable[int], row: int) -> dict[int, LaneState]:
        """The latest states of lanes before sequence `row` of the run."""
        return {number: self._latest_state(number, self.documents.sequences_before(number, row)) for number in numbers}

    def _numbers(self) -> list[int]:
        return sorted({*self._known, *self._live})

    def load(self, states: Mapping[str, Any], row: int) -> None:
        """Set lanes to states at sequence `row` of the run; ResumeError: malformed, or too far behind it."""
        self._live = {}
        self._known = {}
        lanes = self.documents.lane_count
        for name, value in states.items():
            number = int(name) if name.isdecimal() and len(name) <= len(str(lanes)) else -1
            state = _from_json(value, self._packing.sequence_length if self._packing.method == 'best_fit' else 1)
            if state is None or not 0 <= number < lanes or state.row > self.documents.sequences_before(number, row):
                raise ResumeError(
                    f'a lane of packing resumes at [sequences, document, [[document, token], ...]] before the '
                    f'position, got {short(value)} for lane {short(name)} of {lanes}. The checkpoint is damaged.'
                )
            self._known[number] = [state]
        behind = max(
            self.documents.sequences_before(number, row) - self._latest_state(number, row).row
            for number in {*self.documents.lanes_at([0]), *self._known}
        )
        if behind > _MOST_AGAIN:
            raise ResumeError(
                f'a lane of packing may make {_MOST_AGAIN:,} sequences again from its last state, got {behind:,}. '
                f'The checkpoint is damaged, or `sync_lane_states` was never called.'
            )

    def exchange(self, gather: Callable[[dict[int, LaneState]], Sequence[Mapping[int, LaneState]]]) -> None:
        """Learn the lane states of all ranks, for checkpoints of this one."""
        states = {number: lane.state_before(lane.next_row) or START for number, lane in self._live.items()}
        for others in gather(states):
            for number, state in others.items():
                if number not in self._live:
                    self._remember(number, state)


def _to_json(state: LaneState) -> list[Any]:
    return [state.row, state.next_document, [list(piece) for piece in state.leftover]]


def _from_json(value: Any, most_pieces: int) -> LaneState | None:
    """A state from JSON; None if it is malformed."""

    def is_number(number: Any) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 10**15

    if not (isinstance(value, list) and len(cast('list[Any]', value)) == 3):
        return None
    row, next_document, leftover = cast('list[Any]', value)
    if not (is_number(row) and is_number(next_document) and isinstance(leftover, list)):
        return None
    pieces = cast('list[Any]', leftover)
    if len(pieces) > most_pieces:
        return None
    for piece in pieces:
        pair = cast('list[Any]', piece) if isinstance(piece, list) else []
        if len(pair) != 2 or not all(map(is_number, pair)) or pair[0] >= next_document:
            return None
    return LaneState(row, next_document, tuple((document, begin) for document, begin in pieces))
