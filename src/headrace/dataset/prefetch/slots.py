"""The running fetches, and the check whether one more may begin."""

from __future__ import annotations

from collections.abc import Callable

from headrace.dataset.prefetch.concurrency import Concurrency

__all__ = ['FetchSlots']


class FetchSlots:
    """The shards that this process fetches now.

    They share the network, so each delays the others, and only `Concurrency.width` may run. A shard whose last bytes
    come makes room for the next one, so that its bytes follow without a pause. So does a shard that does not come for
    a while.

    Args:
        patience: seconds for which a shard that does not come delays others.
        concurrency: limits concurrent fetches.
        clock: the time in seconds.
    """

    def __init__(self, patience: float, concurrency: Concurrency, clock: Callable[[], float]) -> None:
        self._patience, self._clock = patience, clock
        self.concurrency = concurrency
        self.reader_fetches = False
        """Whether the reader itself fetches a shard."""
        self._until: dict[int, float] = {}  # shard, and until when it delays others
        self._almost_done: set[int] = set()

    def __contains__(self, shard: int) -> bool:
        return shard in self._until

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, shard: int) -> None:
        """Note the start of a fetch."""
        self._until[shard] = self._clock() + self._patience

    def almost_done(self, shard: int) -> bool:
        """Note that the last bytes of a shard are about to come; False if its fetch has ended."""
        if shard in self._until:
            self._almost_done.add(shard)
        return shard in self._until

    def end(self, shard: int) -> None:
        """Note the end of a fetch."""
        del self._until[shard]
        self._almost_done.discard(shard)

    def is_free(self, delays: int) -> bool:
        """Whether one more may begin, beside `delays` fetches of other processes."""
        now = self._clock()
        own = sum(now < until for shard, until in self._until.items() if shard not in self._almost_done)
        return own + self.reader_fetches + delays < self.concurrency.width
