"""How inputs are cut into tasks: the same for any number of workers, so that shards are, too.

A task is a run of consecutive inputs. One worker writes it into separate shards, of which the last is usually not full.
So a task is as large as one to four shards. Small tasks give work to many processes, large ones make fewer shards that
are not full.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.convert.protocol import Inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ['Task', 'cut']

_FILL: Final = 0.97
"""Part of a shard's limit that a task plans with: an estimate that is a little low must not cost another shard."""
_SHARDS_PER_TASK: Final = 4
_TASKS: Final = 64
"""Tasks below which they are of one shard, so that many processes have work."""
_TASKS_OF_UNKNOWN_SIZE: Final = 256


@dataclass(frozen=True, slots=True)
class Task:
    """A run of inputs."""

    number: int
    begin: int
    """The first input."""
    end: int
    """After the last input."""
    digest: str | None = None
    """Of the inputs; see `Inputs.digest`."""
    inputs: Inputs | None = None
    """The inputs, if the parent has read them: only one process can iterate an iterable."""


def cut(inputs: Inputs, size_limit: int | None) -> Iterator[Task]:
    """The tasks for all inputs, in order.

    Args:
        inputs: with sizes, if they are known.
        size_limit: bytes of a shard; None: one shard for all, so one task.
    """
    count = len(inputs)
    if not count:
        return
    bounds = [0, count] if size_limit is None else _bounds(inputs, count, size_limit)
    for number, (begin, end) in enumerate(pairwise(bounds)):
        yield Task(number, begin, end, inputs.digest(begin, end))


def _bounds(inputs: Inputs, count: int, size_limit: int) -> list[int]:
    sizes = inputs.sizes
    if sizes is None:
        step = -(-count // _TASKS_OF_UNKNOWN_SIZE)
        return [*range(0, count, step), count]
    if sizes.each is not None:
        ends = np.cumsum(sizes.each, dtype=np.float64)
    else:
        ends = np.arange(1, count + 1) * max(1.0, sizes.mean or 1.0)
    shard = size_limit * _FILL
    # Estimates may be too high by half. So a task of two estimated shards has a full one.
    fewest = 1 if sizes.is_exact else 2
    task = shard * min(max(int(ends[-1] / shard / _TASKS), fewest), _SHARDS_PER_TASK)
    bounds = [0]
    while bounds[-1] < count:
        begin = bounds[-1]
        limit = (ends[begin - 1] if begin else 0.0) + task
        bounds.append(max(begin + 1, int(np.searchsorted(ends, limit, side='right'))))
    return bounds
