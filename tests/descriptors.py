"""Open descriptors of a process."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

__all__ = ['open_descriptors']


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
