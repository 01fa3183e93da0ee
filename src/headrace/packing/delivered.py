"""The documents of the latest sequences, so that a step can be explained without tokenising again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.packing.lane import Piece

__all__ = ['DeliveredSequences', 'PieceTable']

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
        """Keep at least so many sequences from now on."""
        self._most = max(self._most, sequences)

    def add(self, number: int, pieces: Sequence[Piece]) -> None:
        """Remember a sequence."""
        table = [(piece.sample_id, piece.document, piece.begin, piece.begin + len(piece.tokens)) for piece in pieces]
        self.update({number: np.array(table, np.int64).reshape(-1, 4)})

    def update(self, tables: Mapping[int, PieceTable]) -> None:
        """Remember sequences that another rank delivered."""
        for number, table in tables.items():
            self._tables[number] = table
            self._tables.move_to_end(number)
        while len(self._tables) > self._most:
            self._tables.popitem(last=False)

    def of(self, numbers: Sequence[int]) -> dict[int, PieceTable]:
        """Those of these sequences that are known."""
        return {number: self._tables[number] for number in numbers if number in self._tables}
