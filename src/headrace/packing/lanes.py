"""All lanes of a run: those of this rank as they are, all others as far as they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from headrace.errors import ResumeError
from headrace.order.pinned import short
from headrace.packing.lane import START, Cut, Lane
from headrace.packing.settings import Packing

__all__ = ['Lanes', 'place_of', 'share']

_KEPT = 3  # known cuts of a lane of another rank
_MOST_AGAIN = 1_000_000  # sequences that a lane makes again at a resume: hours of tokenising


def share(lane: int, lanes: int, total: int) -> int:
    """How many of the numbers below `total` are a lane's: those that are `lane` modulo `lanes`."""
    return max(-((lane - total) // lanes), 0)


def place_of(lane: int, document: int, lanes: int, size: int) -> tuple[int, int]:
    """The pass over `size` documents, and the position in it, of a lane's document."""
    epoch, turn = divmod(document, share(lane, lanes, size))
    return epoch, turn * lanes + lane


class Lanes:
    """What each lane can be taken up from.

    A cut is a hint, and never a part of the position: a lane whose latest cut is not known is worked out from an
    earlier one, in the end from the beginning of the run.

    Args:
        packing: how lanes pack.
        count: how many there are.
        documents: samples in a pass over the data.
    """

    def __init__(self, packing: Packing, count: int, documents: int) -> None:
        self._packing = packing
        self._documents = documents
        self.count = count
        self.window = max(min(packing.rows_per_window, documents // count), 1)
        """Sequences that a lane fills at a time; no more than it has documents in a pass."""
        self._known: dict[int, list[Cut]] = {}
        self._live: dict[int, Lane] = {}

    def take_up(self, lanes: Iterable[int], row: int) -> dict[int, Lane]:
        """Lanes that can hand out what they have from sequence `row` of the run on."""
        found: dict[int, Lane] = {}
        for number in lanes:
            first = share(number, self.count, row)
            lane = self._live.get(number)
            if lane is None or lane.next_row > first:
                cut = self._cut(number, first)
                first_window = 1 + number * self.window // self.count
                lane = Lane(
                    self._packing, cut, window=self.window, first_window=first_window, documents=self._documents
                )
                self._remember(number, cut)
            found[number] = lane
        self._live = found
        return found

    def _cut(self, number: int, row: int) -> Cut:
        lane = self._live.get(number)
        cut = None if lane is None else lane.cut_before(row)
        known = [known for known in self._known.get(number, ()) if known.row <= row]
        return max([START, *known, *([cut] if cut else [])], key=lambda cut: cut.row)

    def _remember(self, number: int, cut: Cut) -> None:
        if cut is not START:
            known = self._known.setdefault(number, [])
            if cut not in known:
                known.append(cut)
                known.sort(key=lambda cut: cut.row)
                del known[1:-_KEPT]  # the first is from a checkpoint, and holds for all that comes

    def cuts_at(self, row: int) -> dict[str, Any]:
        """For a state at sequence `row` of the run: JSON values by lane, those from the beginning left out."""
        cuts = {number: self._cut(number, share(number, self.count, row)) for number in self._numbers()}
        return {str(number): _json(cut) for number, cut in cuts.items() if cut.row}

    def _numbers(self) -> list[int]:
        return sorted({*self._known, *self._live})

    def load(self, cuts: Mapping[str, Any], row: int) -> None:
        """Take up every lane where a state at sequence `row` of the run says.

        Raises:
            ResumeError: a cut is none, or a lane is too far behind the position.
        """
        self._live = {}
        self._known = {}
        for name, value in cuts.items():
            number = int(name) if name.isdecimal() and len(name) <= len(str(self.count)) else -1
            cut = _cut(value, self._packing.sequence_length)
            if cut is None or not 0 <= number < self.count or cut.row > share(number, self.count, row):
                raise ResumeError(
                    f'a lane of packing is taken up at [sequences, document, [[document, token], ...]] before the '
                    f'position, got {short(value)} for lane {short(name)} of {self.count}. The checkpoint is damaged.'
                )
            self._known[number] = [cut]
        behind = max(share(number, self.count, row) - self._cut(number, row).row for number in {0, *self._known})
        if behind > _MOST_AGAIN:
            raise ResumeError(
                f'a lane of packing may make {_MOST_AGAIN:,} sequences again from its last cut, got {behind:,}. '
                f'The checkpoint is damaged, or `exchange_cuts` was never called.'
            )

    def exchange(self, gather: Callable[[dict[int, Cut]], Sequence[Mapping[int, Cut]]]) -> None:
        """Learn from all ranks where their lanes are, so that a state of this one knows it."""
        own = {number: lane.cut_before(lane.next_row) or START for number, lane in self._live.items()}
        for others in gather(own):
            for number, cut in others.items():
                if number not in self._live:
                    self._remember(number, cut)


def _json(cut: Cut) -> list[Any]:
    return [cut.row, cut.next_document, [list(piece) for piece in cut.carried]]


def _cut(value: Any, most_pieces: int) -> Cut | None:
    """A cut from JSON; None where it is none."""

    def is_number(number: Any) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 10**15

    if not (isinstance(value, list) and len(cast('list[Any]', value)) == 3):
        return None
    row, next_document, carried = cast('list[Any]', value)
    if not (is_number(row) and is_number(next_document) and isinstance(carried, list)):
        return None
    pieces = cast('list[Any]', carried)
    if len(pieces) > most_pieces:
        return None
    for piece in pieces:
        pair = cast('list[Any]', piece) if isinstance(piece, list) else []
        if len(pair) != 2 or not all(map(is_number, pair)) or pair[0] >= next_document:
            return None
    return Cut(row, next_document, tuple((document, begin) for document, begin in pieces))
