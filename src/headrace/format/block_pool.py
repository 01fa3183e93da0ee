"""Blocks of memory that are used again and again: the page faults of fresh memory cost twice the copy into it.

A block returns to its pool when the last view of it goes, in whichever thread. So nobody has to give one back, and none
is used again while anybody still reads it.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Final

import numpy as np

__all__ = ['BLOCK', 'BlockPool', 'shared_pool']

BLOCK: Final = 2 << 20
"""Bytes of a block. numpy asks for no huge pages for so few: to find some can take long on a busy machine."""


class BlockPool:
    """Blocks of `BLOCK` bytes. It holds as many as were lent at one time. Threads may share it."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray[Any, np.dtype[np.uint8]]] = deque()

    def take(self) -> memoryview:
        """A block of any content, with one axis of bytes."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(BLOCK, np.uint8)
        lent = memory[:]
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent.data


_shared: Final[weakref.WeakValueDictionary[str, BlockPool]] = weakref.WeakValueDictionary()


def shared_pool() -> BlockPool:
    """The pool of this process, which lives as long as somebody uses it."""
    return _shared.setdefault('', BlockPool())
