"""Shards are fetched ahead of the reader, in the order in which the plan first uses them."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ['Prefetcher', 'Upcoming', 'look_ahead']

Upcoming = Iterator[tuple[int, npt.NDArray[np.int64]]]  # (batch number, shards it reads), in order of use

_SCAN = 64  # batches looked at in one call at most, so that no single batch waits for the whole look-ahead


def look_ahead(predownload: int | None, batch_size: int) -> dict[str, int]:
    """How far a process that makes batches looks ahead for shards to fetch.

    Args:
        predownload: samples, as the dataset was given them; None: a few shards.
        batch_size: samples of a batch on this rank.
    """
    if predownload is None:
        return {'batches_ahead': max(8, 65_536 // batch_size), 'shards_ahead': 8}
    return {'batches_ahead': math.ceil(predownload / batch_size), 'shards_ahead': 64}


class Prefetcher:
    """Fetches, in one process, the shards that its next batches need.

    Single reader: `follow`, `advance`, `wait` and `close` are called by the thread that reads batches; only `fetch`
    runs in threads. They are daemons, started at the first missing shard, so that a process can end while the network
    hangs.

    Args:
        fetch: makes one shard present; may raise, or return False to be asked again later.
        is_present: whether a shard needs no fetching.
        shards_ahead: how many shards may be fetched or waiting before their first use.
        batches_ahead: how many batches ahead of the reader to look.
        threads: concurrent fetches.
    """

    def __init__(
        self,
        *,
        fetch: Callable[[int], bool],
        is_present: Callable[[int], bool],
        shards_ahead: int,
        batches_ahead: int,
        threads: int,
    ) -> None:
        self._fetch = fetch
        self._is_present = is_present
        self._shards_ahead = shards_ahead
        self._batches_ahead = batches_ahead
        self._num_threads = threads
        self._lock = threading.Condition()
        self._queue: deque[int] = deque()
        self._state: dict[int, Literal['queued', 'running'] | BaseException] = {}
        self._refused: list[int] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._upcoming: Upcoming | None = None
        self._looked: deque[tuple[int, list[int]]] = deque()  # (batch, shards), from the reader's on
        self._uses: dict[int, deque[int]] = {}  # the same by shard
        self._first_uses: deque[tuple[int, int]] = deque()  # (batch, shard) of what was fetched ahead
        self._seen = -1  # last batch that was looked at

    def follow(self, upcoming: Upcoming, *, first: int) -> None:
        """Look ahead along another sequence of batches, whose first is number `first`."""
        with self._lock:
            self._queue.clear()
            self._refused.clear()
            self._state = {shard: state for shard, state in self._state.items() if state == 'running'}
            self._uses.clear()
        self._upcoming = upcoming
        self._looked.clear()
        self._first_uses.clear()
        self._seen = first - 1

    def advance(self, batch: int) -> None:
        """Say that the reader is at `batch`, and look further ahead."""
        while self._first_uses and self._first_uses[0][0] <= batch:
            self._first_uses.popleft()
        with self._lock:
            while self._looked and self._looked[0][0] < batch:
                for shard in self._looked.popleft()[1]:
                    uses = self._uses[shard]
                    uses.popleft()
                    if not uses:
                        del self._uses[shard]
            for shard in self._refused:
                self._state[shard] = 'queued'
                self._queue.append(shard)
                self._lock.notify()
            self._refused.clear()
        for _ in range(_SCAN):
            if self._upcoming is None or len(self._first_uses) >= self._shards_ahead:
                return
            if self._seen >= batch + self._batches_ahead:
                return
            item = next(self._upcoming, None)
            if item is None:
                self._upcoming = None
                return
            self._seen, shards = item
            distinct = list(dict.fromkeys(shards.tolist()))
            self._looked.append((self._seen, distinct))
            for shard in distinct:
                self._expect(shard)

    def _expect(self, shard: int) -> None:
        with self._lock:
            is_new = shard not in self._uses
            self._uses.setdefault(shard, deque()).append(self._seen)
        if is_new and not self._is_present(shard):
            self._first_uses.append((self._seen, shard))
            with self._lock:
                if not isinstance(self._state.get(shard), str):
                    self._state[shard] = 'queued'
                    self._queue.append(shard)
                    self._lock.notify()
            if len(self._threads) < min(self._num_threads, len(self._first_uses)):
                thread = threading.Thread(target=self._work, name='headrace-fetch', daemon=True)
                self._threads.append(thread)
                thread.start()

    def wait(self, shard: int) -> None:
        """Wait until a shard that is being fetched is there.

        Raises:
            BaseException: what fetching it raised. The next call tries again.
        """
        with self._lock:
            if shard in self._refused:
                self._refused.remove(shard)
            if self._state.get(shard) == 'queued':  # no thread has taken it yet: the caller fetches it at once
                self._queue.remove(shard)
                del self._state[shard]
                return
            while self._state.get(shard) == 'running':
                self._lock.wait()
            state = self._state.pop(shard, None)
        if isinstance(state, BaseException):
            raise state

    def next_use(self, shard: int) -> float:
        """Number of the next batch that uses a shard, inf where none is in sight."""
        with self._lock:
            uses = self._uses.get(shard)
            return uses[0] if uses else math.inf

    def close(self) -> None:
        """Take no more shards. Fetches under way end by themselves."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._lock.notify_all()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
                shard = self._queue.popleft()
                self._state[shard] = 'running'
            is_present, failure = False, None
            try:
                is_present = self._fetch(shard)
            except BaseException as error:  # raised again in the reader, by `wait`
                failure = error
            with self._lock:
                del self._state[shard]
                if failure is not None:
                    self._state[shard] = failure
                elif not is_present:
                    self._refused.append(shard)
                self._lock.notify_all()
