"""Assignment of pieces to sequences, from their lengths alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

__all__ = ['best_fit', 'concatenate']


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins of whole pieces: best fit decreasing.

    Each piece, longest first, goes into the fullest bin that has room. At most 11/9 of the optimum, plus one bin, are
    used: Johnson et al., "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974. Bins come
    in the order of their earliest pieces, and pieces in their own order, so neither is sorted by length.

    Args:
        lengths: of the pieces, each from 1 to `capacity`.
        capacity: of a bin.

    Returns:
        The numbers of the pieces in each bin.
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
    return sorted(sorted(found) for found in bins)


def concatenate(lengths: Sequence[int], capacity: int) -> tuple[list[int], int]:
    """The pieces that fill one bin when they follow one another.

    Args:
        lengths: of the pieces, `capacity` or more in all.
        capacity: of the bin.

    Returns:
        The numbers of the pieces in the bin, and the part of the last one that fits.
    """
    taken, number = 0, 0
    while taken + lengths[number] < capacity:
        taken += lengths[number]
        number += 1
    return list(range(number + 1)), capacity - taken
