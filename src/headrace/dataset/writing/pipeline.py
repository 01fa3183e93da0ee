"""Full shards are packed, written and uploaded in threads, in the background of the caller's encoding.

Memory is bounded by the number of shards that wait to be packed, or are being packed. The order of the index is that of
the shards, whichever ends first. After an error no further shard begins, and the caller's next call raises it.

`Progress` shows samples with rate and time left, and bytes as they are stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from headrace.errors.mapping import add_note
from headrace.format import CollectedShard, ShardInfo, ShardPieces


class ShardPipeline:
    """Threads that take shards through three steps: pack, `write` to the disk, `upload` when their memory is free.

    `fail` is called after an error, in its thread. `threads`: shards in work at one time; `packed_ahead`: shards in
    memory besides the one that is being collected.
    """

    def __init__(
        self,
        write: Callable[[ShardPieces], None],
        upload: Callable[[ShardInfo], None],
        fail: Callable[[], None],
        *,
        threads: int,
        packed_ahead: int,
    ) -> None:
        self._write, self._upload, self._fail = write, upload, fail
        self._threads = threads
        self._room = threading.Semaphore(packed_ahead)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._waiting: dict[int, CollectedShard] = {}
        self._done: dict[int, ShardInfo] = {}
        self.error: BaseException | None = None  # The first error of a thread.

    def put(self, shard: CollectedShard) -> None:
        """Take a shard; waits while too many are in memory. Raises an earlier shard's error, which its note names."""
        self._room.acquire()
        try:
            self.check()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix='headrace-writer')
            self._waiting[shard.number] = shard
            self._pool.submit(self._store, shard.number)
        except BaseException:
            self._room.release()
            raise

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def finish(self) -> list[ShardInfo]:
        """Wait for all shards; their entries of the index, in order."""
        if self._pool is not None:
            self._pool.shutdown()
        self.check()
        return [self._done[number] for number in sorted(self._done)]

    def stop(self) -> None:
        """Begin no further shard, and wait for those that have begun."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._waiting.clear()

    def _store(self, number: int) -> None:
        # The queue of the pool holds a number only: a shard's memory is free once it is written.
        shard = self._waiting.pop(number)
        try:
            try:
                if self.error is not None:
                    return
                packed = shard.pack_pieces()
                del shard
                self._write(packed)
                info = packed.info
                del packed
            finally:
                self._room.release()
            self._upload(info)
            with self._lock:
                self._done[number] = info
        except BaseException as error:
            add_note(error, f'While storing shard {number} of the dataset. None is begun after it.')
            with self._lock:
                self.error = self.error or error
            self._fail()


class Progress:
    """A bar of samples, of which `initial` are stored already; `total` None: not known.

    Shards are stored behind the samples, so their bytes are a text beside it.
    """

    def __init__(self, total: int | None, initial: int) -> None:
        self._bar = tqdm(desc='write', unit=' samples', unit_scale=True, total=total, initial=initial)
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._shards = self._bytes = 0

    def written(self, count: int) -> None:
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
        self._bar.close()


def _in_units(number: float) -> str:
    return tqdm.format_sizeof(number, divisor=1024)
