"""The shards of the next batches of a pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.order import BatchPlan, Topology

__all__ = ['Upcoming', 'UpcomingBatch', 'knows_of_node', 'upcoming_batches']

_CHUNK = 64  # batches of a rank's size whose ids are computed together


class UpcomingBatch(NamedTuple):
    """A coming batch and its shards; int64, repeats allowed."""

    number: int
    shards: npt.NDArray[np.int64]
    of_node: npt.NDArray[np.int64] | None = None
    """Shards of all ranks of the node, for a cache with a limit; None: the same."""


class Located(Protocol):
    """A dataset that knows the shards of its samples."""

    @property
    def cache_limit(self) -> int | None:
        """Bytes that the shards may take on disk; None: any number."""
        ...

    def locate(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Shards of sample ids, and the samples' places in them."""
        ...


Upcoming = Iterator[UpcomingBatch]
"""In the order of their numbers."""


def knows_of_node(source: Located, topology: Topology) -> bool:
    """Whether the shards of the node's other ranks matter: they share a cache with a limit."""
    return topology.replicas_per_node > 1 and source.cache_limit is not None


def upcoming_batches(
    source: Located,
    plan: BatchPlan,
    shards_of: Callable[[int], npt.NDArray[np.int64]],
    *,
    first: int,
) -> Iterator[UpcomingBatch]:
    """The shards of a rank's batches, and of its node's if they share a cache with a limit.

    Args:
        source: where samples are.
        plan: the pass.
        shards_of: the shards of the rank's samples of a batch; int64.
        first: the batch to begin with.
    """
    step = max(1, _CHUNK // plan.topology.replicas_per_node)
    for begin in range(first, plan.num_batches, step):
        numbers = range(begin, plan.num_batches)[:step]
        of_node: Iterator[npt.NDArray[np.int64] | None] = itertools.repeat(None)
        if knows_of_node(source, plan.topology):
            positions = [plan.node_positions(number) for number in numbers]
            shards, _ = source.locate(plan.order.at(np.concatenate(positions)))
            of_node = iter(np.split(shards, np.cumsum([len(part) for part in positions])[:-1]))
        for number, shards in zip(numbers, of_node, strict=False):
            yield UpcomingBatch(number, shards_of(number), shards)
