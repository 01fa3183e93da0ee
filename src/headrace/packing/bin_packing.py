"""Which pieces of documents share a sequence: functions of their lengths alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

__all__ = ['best_fit', 'concatenate']


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins for pieces, each piece whole: best fit decreasing.

    Pieces are taken from the longest to the shortest, and go into the fullest bin that has room (Johnson et al.,
    "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974: at most 11/9 of the fewest bins
    possible, and one more). Bins come in the order of their earliest pieces, pieces in a bin in their own order, so
    that neither is sorted by length.

    Args:
        lengths: of the pieces, each from 1 to `capacity`.
        capacity: of a bin.

    Returns:
        The numbers of the pieces in each bin.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # of the bins that have some, rising, with their numbers
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
        The numbers of the pieces in the bin, and how much of the last one is in it.
    """
    taken, number = 0, 0
    while taken + lengths[number] < capacity:
        taken += lengths[number]
        number += 1
    return list(range(number + 1)), capacity - taken
