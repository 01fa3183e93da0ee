"""Few cases that have together all that matters in many: each pair of values that can meet, for example."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

Case = TypeVar('Case', bound=Hashable)


def pairs(values: Sequence[Hashable]) -> set[Hashable]:
    """The pairs of values of a case, each value with its dimension."""
    return set(itertools.combinations(enumerate(values), 2))


def covering(
    cases: Sequence[Case], shows: Callable[[Case], set[Hashable]], cost: Callable[[Case], float]
) -> Iterator[Case]:
    """Cases that show together all that all of them show: each time the one that shows most new things for its cost.

    Deterministic: of equal cases the first.
    """
    missing: set[Hashable] = set().union(*map(shows, cases))
    # The gain of a case never grows. So the case with the best old gain is the best one if its gain is unchanged.
    heap = [(-len(shows(case)) / cost(case), number) for number, case in enumerate(cases)]
    heapq.heapify(heap)
    while missing:
        _, number = heapq.heappop(heap)
        case = cases[number]
        worth = -len(shows(case) & missing) / cost(case)
        if heap and (worth, number) > heap[0]:
            heapq.heappush(heap, (worth, number))
        else:
            missing -= shows(case)
            yield case
