"""The shards that other processes fetch."""

from __future__ import annotations

from collections.abc import Callable, Container

__all__ = ['POLL', 'OtherFetches']

POLL = 0.02
"""Seconds between two looks at whether another process is done."""


class OtherFetches:
    """Shards that other processes fetch. Each delays the shards that are needed after it, but not for ever.

    Args:
        patience: seconds for which a shard that does not come delays others.
        clock: the time in seconds.
    """

    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        self._patience, self._clock = patience, clock
        self._shards: dict[int, tuple[int, float]] = {}  # first batch, and until when it delays others
        self._next_look = 0.0

    def __bool__(self) -> bool:
        return bool(self._shards)

    def add(self, first: int, shard: int) -> None:
        """Add a shard of another process that batch `first` uses."""
        self._shards.setdefault(shard, (first, self._clock() + self._patience))

    def discard(self, shard: int) -> bool:
        """Forget a shard; True if it was known."""
        return self._shards.pop(shard, None) is not None

    def keep(self, shards: Container[int]) -> None:
        """Forget all but these shards."""
        self._shards = {shard: item for shard, item in self._shards.items() if shard in shards}

    def clear(self) -> None:
        """Forget all."""
        self._shards.clear()

    def to_look_at(self) -> list[int]:
        """The shards, if it is time to check which have arrived."""
        now = self._clock()
        if now < self._next_look:
            return []
        self._next_look = now + POLL / 2
        return list(self._shards)

    def delays(self, first: int, besides: Container[int]) -> int:
        """Number of shards, without `besides`, that delay a shard of batch `first`."""
        now = self._clock()
        return sum(
            its_first <= first and now < until and shard not in besides
            for shard, (its_first, until) in self._shards.items()
        )
