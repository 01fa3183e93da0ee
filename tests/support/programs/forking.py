"""Cheap forks of a process that has imported much: tests and their programs fork thousands of times."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
from pathlib import Path

__all__ = ['prepare_forks']

_FEW = 10
"""Forks that take less together than large pages do."""
_LARGE_PAGE = 1 << 21
_MADV_COLLAPSE = 25  # of Linux 6.1 and later; Python has no name for it


def prepare_forks() -> None:
    """Make forks of this process cheap. Call this when all is imported.

    No collection of garbage looks through what is there by now: a process that was forked would copy its pages. And
    after a few forks, the memory lies in large pages where the system has them: a fork then copies one entry in place
    of 512, and takes half the time.
    """
    gc.collect()
    gc.freeze()
    process, forks = os.getpid(), itertools.count(1)

    def count() -> None:
        if os.getpid() == process and next(forks) == _FEW:
            _use_large_pages()

    os.register_at_fork(before=count)


def _use_large_pages() -> None:
    maps = Path('/proc/self/maps')
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in maps.read_text().splitlines() if maps.exists() else ():
        addresses, rights, _, _, _, *name = line.split()
        if rights == 'rw-p' and name in ([], ['[heap]']):
            begin, end = (int(address, 16) // _LARGE_PAGE * _LARGE_PAGE for address in addresses.split('-'))
            begin += _LARGE_PAGE  # it may begin within a large page
            if begin < end:
                advise(begin, end - begin, _MADV_COLLAPSE)  # an older kernel refuses
