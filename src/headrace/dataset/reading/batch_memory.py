"""Memory for the large arrays of a batch: a worker makes them where the trainer reads them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Final

import numpy as np
import numpy.typing as npt

Allocate = Callable[[int], 'npt.NDArray[np.uint8] | None']
"""Takes a number of bytes, and returns as many; None if it has none."""

_LEAST: Final = 1 << 16  # bytes; smaller arrays are copied as quickly

_allocate: ContextVar[Allocate | None] = ContextVar('headrace_batch_memory', default=None)


@contextlib.contextmanager
def batch_memory(allocate: Allocate) -> Generator[None]:
    """Inside the block, which reads one batch, large arrays are made in its memory."""
    token = _allocate.set(allocate)
    try:
        yield
    finally:
        _allocate.reset(token)


def empty_in_batch(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """A new array of uint8 with arbitrary values, which becomes a part of the batch that is read, and nothing else."""
    allocate, size = _allocate.get(), math.prod(shape)
    memory = allocate(size) if allocate is not None and size >= _LEAST else None
    return np.empty(shape, np.uint8) if memory is None else memory.reshape(shape)
