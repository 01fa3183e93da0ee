"""The progress bar of a writer: samples with rate and time left, and bytes as they are stored."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from headrace.format import ShardInfo

__all__ = ['Progress']


class Progress:
    """A bar of samples. Shards are stored behind the samples, so their bytes are a text beside it.

    Args:
        total: samples of the dataset, for the time left. None: not known.
        initial: samples that are stored already.
    """

    def __init__(self, total: int | None, initial: int) -> None:
        self._bar = tqdm(desc='write', unit=' samples', unit_scale=True, total=total, initial=initial)
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._shards = self._bytes = 0

    def written(self, count: int) -> None:
        """Count samples that were given."""
        self._bar.update(count)

    def stored(self, shard: ShardInfo) -> None:
        """Count the bytes of a shard. Any thread may call it."""
        with self._lock:
            self._shards += 1
            self._bytes += sum(shard.stored.values())
            rate = self._bytes / max(time.monotonic() - self._begin, 1e-9)
            self._bar.set_postfix_str(
                f'{self._shards} shards, {_in_units(self._bytes)}B, {_in_units(rate)}B/s', refresh=False
            )

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


def _in_units(number: float) -> str:
    return tqdm.format_sizeof(number, divisor=1024)
