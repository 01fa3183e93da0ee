"""Moving an object into a file: in one request or in parallel ranges, each going on at the byte it had reached."""

from __future__ import annotations

import io
import itertools
import os
import queue
import threading
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from headrace.errors import ChecksumError, ConfigError, TransferError
from headrace.storage.per_process import PerProcess
from headrace.storage.retry import BrokenTransferError, Retry
from headrace.storage.stats import CacheStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.storage.protocol import Store

__all__ = ['RANGE', 'REQUESTS', 'TransferPool', 'download', 'transfer_pool']

RANGE: Final = 8 << 20
"""Bytes of a part that is asked for by itself. Twice as many are worth a second request where one connection is slower
than the network; more parts cost servers more than they gain."""
REQUESTS: Final = 8
"""Requests that a process has under way at most."""


class TransferPool:
    """Threads that transfer, in the order in which they are asked, what somebody waits for first.

    So the bytes of what is needed first come first, however many objects are asked for at the same time. The threads
    are daemons, so that a process can end while the network hangs.
    """

    def __init__(self, size: int) -> None:
        """Take the number of threads; each is started when it is first needed."""
        self._size = size
        self._waiting: queue.PriorityQueue[tuple[int, int, Future[None], Callable[[], None]]] = queue.PriorityQueue()
        self._number = itertools.count()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def run(self, calls: Sequence[Callable[[], None]], *, urgent: bool = False) -> None:
        """Have calls made, and wait for all of them; the first failure is raised, and those not begun are left out.

        Args:
            calls: What to do, in this order.
            urgent: Before all that is not.
        """
        futures = [Future[None]() for _ in calls]

        def leave_out_the_rest(future: Future[None]) -> None:
            if not future.cancelled() and future.exception() is not None:
                for other in futures:
                    other.cancel()

        for future, call in zip(futures, calls, strict=True):
            future.add_done_callback(leave_out_the_rest)
            self._enqueue(future, call, urgent=urgent)
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future.done() and not future.cancelled():
                future.result()

    def _enqueue(self, future: Future[None], call: Callable[[], None], *, urgent: bool) -> None:
        with self._lock:
            self._waiting.put((0 if urgent else 1, next(self._number), future, call))
            if self._waiting.qsize() > self._idle and self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, name='headrace-transfer', daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            _, _, future, call = self._waiting.get()
            with self._lock:
                self._idle -= 1
            if not future.set_running_or_notify_cancel():
                continue
            try:
                call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            del future, call  # they hold files and buffers, and the next one may be long in coming


transfer_pool: Final = PerProcess(lambda: TransferPool(REQUESTS))
"""This process' own."""


def download(
    store: Store,
    key: str,
    out: BinaryIO,
    retry: Retry,
    *,
    size: int | None = None,
    urgent: bool = False,
    stats: CacheStats | None = None,
) -> int:
    """Write a whole object into an empty file and return the number of its bytes.

    Objects of two `RANGE` and more are fetched in ranges; the ranges of several versions are never mixed.

    Args:
        store: Where from.
        key: The object.
        out: A file with a descriptor; nothing else may write to it until this returns.
        retry: How often to try; each range for itself.
        size: Bytes that the object must have; None: any number, in one request.
        urgent: Somebody waits for it: before other downloads of this process.
        stats: Counts requests, retries, and bytes, those that came in vain included.

    Raises:
        ChecksumError: The object has another size, or was replaced in between.
        StorageError: The store failed, `TransferError` after all attempts.
    """
    url = f'{store.url.rstrip("/")}/{key}'
    stats = stats or CacheStats()
    count = 1 if size is None or size < 2 * RANGE else -(-size // RANGE)
    spans = [
        _Span(out, number * RANGE, RANGE if number + 1 < count else None, size, url, stats) for number in range(count)
    ]
    versions: dict[str, None] = {}

    def fetch(span: _Span) -> None:
        etag: str | None = None

        def attempt() -> None:
            nonlocal etag
            stats.add(requests=1)
            offset, left = span.start + span.written, None if span.size is None else span.size - span.written
            try:
                versions[store.get(key, cast('BinaryIO', span), offset=offset, size=left, etag=etag)] = None
            except TransferError as error:
                if isinstance(error, BrokenTransferError):
                    etag = None if error.changed else error.etag or etag
                if not etag:
                    # Nothing says which version the bytes are of: start over.
                    span.written = 0
                raise

        retry.call(f'Downloading {url}', attempt, progress=lambda: span.written, on_retry=lambda: stats.add(retries=1))

    try:
        transfer_pool.get().run([lambda span=span: fetch(span) for span in spans], urgent=urgent)
    except ConfigError:
        # A range was refused: the object is shorter than it should be, unless it is the caller who errs.
        found = store.head(key).size
        if size is None or found == size:
            raise
        raise ChecksumError(f'It has {found} bytes, the index gives {size}.') from None
    finally:
        for span in spans:
            span.close()
    total = sum(span.written for span in spans)
    if len(versions) > 1:
        raise ChecksumError(f'{url} was replaced by another version while it was being read.')
    if size is not None and total != size:
        raise ChecksumError(f'It has {total} bytes, the index gives {size}.')
    if os.fstat(out.fileno()).st_size > total:  # a longer version was begun before
        os.ftruncate(out.fileno(), total)
    return total


class _Span(io.RawIOBase):
    """A part of a file, as a store writes to it; other parts are written at the same time."""

    def __init__(
        self, out: BinaryIO, start: int, size: int | None, total: int | None, source: str, stats: CacheStats
    ) -> None:
        """Take a file, the part's first byte and its bytes (None: to the end), those of the whole, and its URL."""
        self.start, self.size = start, size
        self.written = 0
        self._handle: int | None = out.fileno()
        self._total, self._source, self._stats = total, source, stats
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._total is not None and self.start + self.written + len(data) > self._total:
            raise ChecksumError(
                f'{self._source} is larger than the {self._total} bytes that its index gives. '
                f'Write the dataset again, or restore the index that belongs to it.'
            )
        view = memoryview(data)
        while view:
            with self._lock:
                if self._handle is None:
                    raise TransferError(f'Nobody waits for {self._source} any more.')
                count = os.pwrite(self._handle, view, self.start + self.written)
            self.written += count
            self._stats.add(bytes_downloaded=count)
            view = view[count:]
        return len(data)

    def close(self) -> None:
        """Write nothing more: the file may be closed, and its descriptor be another's."""
        with self._lock:
            self._handle = None
        super().close()
