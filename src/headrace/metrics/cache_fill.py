"""The bytes in the cache folders of a loader's streams, counted seldom."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataset

__all__ = ['CacheFill', 'CacheUse']

_LEAST = 10.0  # Seconds between two counts, at least.
_SHARE = 100  # Durations of a portion between two counts, at least.
_LONGEST = 0.02  # seconds of a portion
_PORTION = 100  # files between two looks at the clock


class CacheUse(NamedTuple):
    """The bytes in the caches of this machine, and the bytes that they may reach."""

    used: int
    most: int
    """The cache limit, or the size of the data if that is less."""


class CacheFill:
    """Counts the files in the cache folders of datasets, at most every 10 s and 1 % of the time.

    A large cache is counted in portions of 20 ms, so that no batch waits longer.

    Args:
        clock: seconds, from anywhere.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._use: CacheUse | None = None
        self._next = float('-inf')
        self._sizes: Iterator[int] | None = None
        """Of the files that a count has not reached; None: no count has begun."""
        self._used = self._most = 0
        """Of that count."""

    def read(self, datasets: Iterable[StreamingDataset]) -> CacheUse | None:
        """The use of the caches, as it was lately; None if all data are local, or the first count is not done."""
        begun = self._clock()
        if begun < self._next:
            return self._use
        if self._sizes is None:
            self._begin(datasets)
        least = 0.0 if self._go_on(begun) else _LEAST
        now = self._clock()
        self._next = now + max(least, _SHARE * (now - begun))
        return self._use

    def _begin(self, datasets: Iterable[StreamingDataset]) -> None:
        folders: set[Path] = set()
        self._used = self._most = 0
        for dataset in datasets:
            remote = [stream for stream in dataset.streams if not stream.is_local]
            folders.update(stream.folder for stream in remote)
            size = sum(int(stream.shards.raw_bytes().sum()) for stream in remote)
            self._most += size if dataset.cache_limit is None else min(size, dataset.cache_limit)
        self._sizes = itertools.chain.from_iterable(map(_sizes_in, folders)) if folders else None

    def _go_on(self, begun: float) -> bool:
        """Continue with the count for a while; returns whether files are left."""
        while self._sizes is not None:
            sizes = list(itertools.islice(self._sizes, _PORTION))
            self._used += sum(sizes)
            if len(sizes) < _PORTION:
                self._use, self._sizes = CacheUse(self._used, self._most), None
            elif self._clock() - begun >= _LONGEST:
                break
        return self._sizes is not None


def _sizes_in(folder: str | Path) -> Iterator[int]:
    """Bytes of each shard in a folder and below; indexes and files that vanish meanwhile do not count."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == 'index.json' or entry.name.startswith('.'):  # headrace's own
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes_in(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield _size(entry)
    except OSError:
        return


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # evicted just now
        return 0
