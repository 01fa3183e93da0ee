"""The documents of any sequences of a run, packed again from the nearest states of their lanes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.packing.packer import Packer

if TYPE_CHECKING:
    from headrace.packing.delivered import PieceTable
    from headrace.packing.lanes import Lanes
    from headrace.packing.reader import PackedReader
    from headrace.packing.settings import Packing

__all__ = ['documents_placed', 'pieces_of']


def pieces_of(packing: Packing, lanes: Lanes, reader: PackedReader, numbers: Collection[int]) -> dict[int, PieceTable]:
    """The pieces of sequences, by their numbers in the run.

    The given lanes do not move. Documents are read and tokenised in this process, from each lane's latest state
    before its sequence on.

    Args:
        packing: how documents are packed.
        lanes: all lanes of the run.
        reader: reads their documents.
        numbers: of the sequences.
    """
    if not numbers:
        return {}
    wanted = sorted(numbers)
    lanes = lanes.copy_at(wanted[0])
    own = sorted({lane for lane, _ in lanes.documents.sequences(wanted)})
    packer = Packer(wanted[0], packing, lanes, own, lambda _: None)
    packer.sequences(wanted, map(reader.__getitem__, packer.keys()))
    return lanes.delivered.of(wanted)


def documents_placed(packing: Packing, lanes: Lanes, reader: PackedReader, row: int) -> dict[int, int]:
    """By lane, the documents that its sequences before `row` of the run took, with all of their windows.

    The lanes move there.

    Args:
        packing: how documents are packed.
        lanes: all lanes of the run.
        reader: reads their documents.
        row: a sequence of the run.
    """
    last = range(max(row - lanes.count, 0), row)  # the last sequence of each lane
    packer = Packer(last.start, packing, lanes, [number % lanes.count for number in last], lambda _: None)
    packer.sequences(last, map(reader.__getitem__, packer.keys()))
    return lanes.documents_placed
