"""Open descriptors of a process."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from multiprocessing import resource_sharer
from pathlib import Path

__all__ = ['close_leftovers', 'open_descriptors']


def close_leftovers() -> None:
    """Close this process's descriptors that nothing needs.

    The garbage of earlier tests has some. The thread of multiprocessing that sends descriptors to other processes
    closes its own after the receiver goes on: it has closed them when it ends.
    """
    resource_sharer.stop(timeout=60)
    gc.collect()


def open_descriptors(below: Path | str = '') -> Counter[str]:
    """Of this process, by their files, deleted or not: another process may delete a file that a fork has open.

    Args:
        below: a folder, for its files only.
    """
    found = Counter[str]()
    for link in Path('/proc/self/fd').iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[str(link.readlink()).removesuffix(' (deleted)')] += 1
    return Counter({name: count for name, count in found.items() if name.startswith(str(below))})
