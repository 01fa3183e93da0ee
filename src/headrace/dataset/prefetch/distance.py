"""The look-ahead of the prefetch."""

from __future__ import annotations

import bisect
import math
from collections import deque
from typing import NamedTuple

from headrace.errors import ConfigError
from headrace.redaction import warn

__all__ = ['LookAhead', 'ShardsAhead', 'check_predownload', 'look_ahead']

_SAMPLES = 1 << 16
_BYTES = 512 << 20
_SHARDS = 1024  # of a few KB each, these hide any latency; to plan and look for more takes seconds
_FEWEST = 2  # shards ahead, however large they are


class LookAhead(NamedTuple):
    """Distance of the prefetch from its reader."""

    batches: int
    bytes: float
    """Bytes of shards that were fetched and not yet used."""
    lag: int = 8
    """Batches by which another rank may be behind: its workers read ahead of its trainer."""
    shards: float = math.inf
    """The same as ``bytes``, in shards."""


def check_predownload(predownload: int | None, batch_size: int | None) -> None:
    """Check the number of samples to prefetch for each worker; warn if it is below a batch.

    Raises:
        ConfigError: it is negative.
    """
    if predownload is None:
        return
    if predownload < 0:
        raise ConfigError(f'`predownload` must not be negative, but is {predownload}.')
    if batch_size is not None and predownload < batch_size:
        warn(
            f'predownload < batch_size ({predownload} < {batch_size}). This may result in slower batch time. '
            f'Recommendation is to set predownload to at least the batch size.',
            stacklevel=4,
        )


def look_ahead(predownload: int | None, batch_size: int, workers: int = 1) -> LookAhead:
    """The look-ahead of a process that makes batches.

    Args:
        predownload: the dataset's number of samples for each worker; None: a default, bounded in bytes and shards.
        batch_size: samples of a batch on this rank.
        workers: processes that make batches of this rank in turn.
    """
    lag = max(8, 4 * workers)  # each has some batches ready, 2 as a rule
    if predownload is None:
        return LookAhead(max(8, _SAMPLES // batch_size), _BYTES, lag, _SHARDS)
    return LookAhead(math.ceil(predownload / batch_size) * workers, math.inf, lag)


class ShardsAhead:
    """The shards that were fetched ahead of the reader and not used yet."""

    def __init__(self, ahead: LookAhead) -> None:
        """Take the bytes and shards that are enough."""
        self._most, self._most_shards = ahead.bytes, ahead.shards
        self._first_uses: deque[tuple[int, int]] = deque()  # (first batch, bytes)
        self.bytes = 0
        """Bytes of all these shards."""

    @property
    def is_enough(self) -> bool:
        """Whether the prefetch is far enough ahead."""
        count = len(self._first_uses)
        return count >= self._most_shards or (self.bytes >= self._most and count >= _FEWEST)

    def add(self, first: int, size: int) -> None:
        """Count a shard of `size` bytes that batch `first` uses."""
        bisect.insort(self._first_uses, (first, size))
        self.bytes += size

    def drop_until(self, batch: int) -> None:
        """Forget the shards that this batch uses, or an earlier one."""
        while self._first_uses and self._first_uses[0][0] <= batch:
            self.bytes -= self._first_uses.popleft()[1]

    def clear(self) -> None:
        """Forget all."""
        self._first_uses.clear()
        self.bytes = 0
