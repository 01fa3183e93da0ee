"""Few cases in which any two values meet that can."""

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
    cases: Sequence[Case], values: Callable[[Case], Sequence[Hashable]], cost: Callable[[Case], float]
) -> Iterator[Case]:
    """Cases that have together all the pairs that all of them have: each time the one with most new pairs for its cost.

    Deterministic: of equal cases the first.
    """
    missing = set().union(*(pairs(values(case)) for case in cases))
    # What a case adds only ever gets less, so the best at its old worth is the best if its worth is still that.
    heap = [(-len(pairs(values(case))) / cost(case), number) for number, case in enumerate(cases)]
    heapq.heapify(heap)
    while missing:
        _, number = heapq.heappop(heap)
        case = cases[number]
        worth = -len(pairs(values(case)) & missing) / cost(case)
        if heap and (worth, number) > heap[0]:
            heapq.heappush(heap, (worth, number))
        else:
            missing -= pairs(values(case))
            yield case
