"""The bytes in the cache folders of a loader's streams, counted seldom."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataset

__all__ = ['CacheFill', 'CacheUse']

_LEAST = 10.0  # seconds between two counts
_SHARE = 100  # and so many times as long as a count takes


class CacheUse(NamedTuple):
    """The bytes in the caches of this machine, and the bytes that they may reach."""

    used: int
    most: int
    """The cache limit, or the size of the data if that is less."""


class CacheFill:
    """Counts the files in the cache folders of datasets, at most every 10 s and 1 % of the time."""

    def __init__(self) -> None:
        self._use: CacheUse | None = None
        self._next = 0.0

    def read(self, datasets: Iterable[StreamingDataset]) -> CacheUse | None:
        """The use of the caches, as it was lately; None if all data are local."""
        begun = time.monotonic()
        if begun < self._next:
            return self._use
        folders: set[Path] = set()
        most = 0
        for dataset in datasets:
            remote = [stream for stream in dataset.streams if not stream.is_local]
            folders.update(stream.folder for stream in remote)
            size = sum(int(stream.shards.raw_bytes().sum()) for stream in remote)
            most += size if dataset.cache_limit is None else min(size, dataset.cache_limit)
        self._use = CacheUse(sum(map(_bytes_in, folders)), most) if folders else None
        now = time.monotonic()
        self._next = now + max(_LEAST, _SHARE * (now - begun))
        return self._use


def _bytes_in(folder: str | Path) -> int:
    """Bytes of the shards in a folder and below; indexes and files that vanish meanwhile do not count."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == 'index.json' or entry.name.startswith('.'):  # headrace's own
                    continue
                if entry.is_dir(follow_symlinks=False):
                    total += _bytes_in(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    total += _size(entry)
    except OSError:
        return total
    return total


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # evicted just now
        return 0
