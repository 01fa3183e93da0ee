"""Downloads of objects into files, in one request or in parallel ranges. A retry resumes at the byte it had reached."""

from __future__ import annotations

import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import BinaryIO, Final, cast

from headrace.errors import ChecksumError, ConfigError, ObjectNotFoundError, TransferError
from headrace.storage.protocol import Store, is_blocking
from headrace.storage.stats import CacheCounts, CacheStats
from headrace.storage.transfer.http import BadRangeError
from headrace.storage.transfer.process_local import PerProcess
from headrace.storage.transfer.retry import BrokenTransferError, Retry, outages

__all__ = ['DEFAULT', 'RANGE', 'REQUESTS', 'AlmostDone', 'Transfer', 'TransferPool', 'download']


class AlmostDone:
    """Calls once when an object's last bytes are about to come, at the pace and after the latency of those before.

    Bytes of failed attempts count, too, so the call may come early.
    """

    def __init__(self, size: int, call: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._left, self._call, self._clock = size, call, clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._begun: float | None = None
        self._since_begun = 0
        self._called = False

    def ask(self) -> None:
        with self._lock:
            if self._asked is None:
                self._asked = self._clock()

    def count(self, size: int) -> None:
        now = self._clock()
        with self._lock:
            self._left -= size
            if self._begun is None or self._asked is None:
                self._begun = now
                is_now = self._left <= 0
            else:
                self._since_begun += size
                latency, elapsed = self._begun - self._asked, now - self._begun
                # Sooner the pace is unknown: bytes in the system's buffer come at once.
                is_now = elapsed >= latency and self._left * elapsed <= latency * self._since_begun
                is_now = is_now or self._left <= 0
            is_now, self._called = is_now and not self._called, is_now or self._called
        if is_now:
            self._call()


RANGE: Final = 8 << 20
"""Bytes of a range that is requested by itself. An object of two ranges gains from a second request if one connection
is slower than the network. Smaller ranges cost servers more than they gain."""
UNKNOWN: Final = 1 << 30
"""The most bytes of an object of unknown size, such as an index."""
REQUESTS: Final = 8
"""The most concurrent requests of a process for prefetches, and again as many for waiting readers."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The urgency and the callback of a download."""

    urgent: bool = False
    """A reader waits for it: it goes before prefetches."""
    almost_done: Callable[[], None] | None = None
    """Called once, in any thread, when the remaining transfer takes less than one round trip. Not called for
    objects of unknown size."""


DEFAULT: Final = Transfer()


@dataclass(slots=True)
class _Queue:
    """Calls that wait for a thread, and the number of running ones."""

    waiting: deque[tuple[Future[None], Callable[[], None]]] = field(default_factory=deque)
    running: int = 0

    def unfinished(self, most: int) -> int:
        return min(len(self.waiting) + self.running, most)


class TransferPool:
    """Threads for transfers: urgent ones first, then in the order of the requests.

    So the bytes that are needed first come first, however many objects are requested at the same time. Urgent transfers
    have threads of their own, since all others may wait for a silent server. The threads are daemons, so that a process
    can end while the network hangs.
    """

    def __init__(self, size: int) -> None:
        """Take the number of threads for urgent calls, and as many for others; each is started when it is needed."""
        self._size = size
        self._queues = _Queue(), _Queue()  # urgent and not
        self._lock = threading.Condition()
        self._threads = 0

    def run(
        self,
        calls: Sequence[Callable[[], None]],
        *,
        urgent: bool = False,
        meanwhile: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Run calls and wait for all of them; the first failure is raised, and cancels calls that have not begun.

        Args:
            calls: The calls, in their order.
            urgent: A reader waits for them.
            meanwhile: Called while it waits. Returns the seconds after which it is called again; None: not again.
        """
        futures = _futures(len(calls))
        with self._lock:
            self._queues[not urgent].waiting.extend(zip(futures, calls, strict=True))
            self._start_threads()
            is_alone = not self._threads
            if is_alone:
                self._queues[not urgent].waiting.clear()
            self._lock.notify_all()
        if is_alone:
            for call in calls:
                call()
            return
        while not _is_over(futures):
            wait(futures, meanwhile(), FIRST_EXCEPTION)
        failure = _first_failure(futures)
        futures.clear()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame: a cycle

    def _start_threads(self) -> None:
        """Start as many threads as have calls. Needs the lock."""
        while self._threads < sum(queue.unfinished(self._size) for queue in self._queues):
            try:
                threading.Thread(target=self._work, name='headrace-transfer', daemon=True).start()
            except RuntimeError:  # the limit of threads
                return
            self._threads += 1

    def _next_queue(self) -> _Queue | None:
        return next((queue for queue in self._queues if queue.waiting and queue.running < self._size), None)

    def _work(self) -> None:
        while True:
            with self._lock:
                while (queue := self._next_queue()) is None:
                    self._lock.wait()
                queue.running += 1
                future, call = queue.waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
            del future, call  # they hold files and buffers, and the next one may be long in coming
            with self._lock:
                queue.running -= 1


def _futures(count: int) -> list[Future[None]]:
    """Futures; the first failure cancels those that have not begun."""
    futures = [Future[None]() for _ in range(count)]

    def leave_out_the_rest(future: Future[None]) -> None:
        if not future.cancelled() and future.exception() is not None:
            for other in futures:
                other.cancel()

    for future in futures:
        future.add_done_callback(leave_out_the_rest)
    return futures


def _is_over(futures: Sequence[Future[None]]) -> bool:
    """Whether all are done, or one has failed."""
    return all(one.done() for one in futures) or any(_is_done(one) and one.exception() for one in futures)


def _first_failure(futures: Sequence[Future[None]]) -> BaseException | None:
    """Cancel the futures that have not begun, and return the first error of the others."""
    for future in futures:
        future.cancel()
    return next((error for future in futures if _is_done(future) and (error := future.exception())), None)


def _is_done(future: Future[None]) -> bool:
    return future.done() and not future.cancelled()


transfer_pool: Final = PerProcess(lambda: TransferPool(REQUESTS))
"""This process' own."""


def download(
    store: Store,
    key: str,
    out: BinaryIO,
    retry: Retry,
    *,
    size: int | None = None,
    how: Transfer = DEFAULT,
    stats: CacheStats | None = None,
    most: int = UNKNOWN,
    on_version: Callable[[str], None] | None = None,
) -> int:
    """Write a whole object into an empty file and return the number of its bytes.

    Objects of two `RANGE` and more are fetched in ranges; the ranges of several versions are never mixed.

    One of known size that is absent, or has another size, is asked for again after each of `Retry.pauses`: its owner
    may be replacing it, in two steps.

    Args:
        store: Where from.
        key: The object.
        out: A file with a descriptor; nothing else may write to it until this returns.
        retry: How often to try; each range for itself.
        size: Bytes that the object must have; None: any number, in one request.
        how: Its urgency and callback.
        stats: Counts requests, retries, and bytes, also those of failed attempts.
        most: Bytes that an object of any size may have.
        on_version: Called with the version that was read, as `Store.get` names it.

    Raises:
        ChecksumError: The object has another size, more bytes than it may have, or was replaced in between.
        StorageError: The store failed, `TransferError` after all attempts.
    """
    stats = stats or CacheStats()
    first = ''
    for pause in (*retry.pauses, None):
        try:
            return _download(store, key, out, retry, size, how, stats, most, on_version)
        except (ChecksumError, ObjectNotFoundError) as error:
            first = first or str(error)
            if size is None or (pause is None and first == str(error)):
                raise
            if pause is None:
                raise type(error)(f'{error} It changes: the first answer was another. {first}') from error
        stats.add(CacheCounts(retries=1))
        retry.sleep(pause)
    raise AssertionError('the last pause is None')


def _download(
    store: Store,
    key: str,
    out: BinaryIO,
    retry: Retry,
    size: int | None,
    how: Transfer,
    stats: CacheStats,
    most: int,
    on_version: Callable[[str], None] | None,
) -> int:
    """See `download`; without waiting for an object that its owner replaces."""
    url = f'{store.url.rstrip("/")}/{key}'
    what = f'Downloading {url}'
    count = 1 if size is None or size < 2 * RANGE else -(-size // RANGE)
    near = None if size is None or how.almost_done is None else AlmostDone(size, how.almost_done)
    heard = outages.listener(url, retry.clock)
    spans = [
        _Span(out, number * RANGE, RANGE if number + 1 < count else None, size, most, url, stats, near, heard)
        for number in range(count)
    ]
    versions: dict[str, None] = {}

    def fetch(span: _Span) -> None:
        etag: str | None = None

        def attempt() -> None:
            nonlocal etag
            stats.add(CacheCounts(requests=1))
            if near is not None:
                near.ask()
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

        span.heard = retry.clock()
        before = is_blocking.set(how.urgent)
        try:
            retry.call(
                what,
                attempt,
                progress=lambda: span.written,
                on_retry=lambda: stats.add(CacheCounts(retries=1)),
            )
        finally:
            is_blocking.reset(before)
            span.heard = None

    def name_silent_server() -> float:
        now = retry.clock()
        times = [span.heard for span in spans]  # read once: other threads end the requests meanwhile
        since = max((time for time in times if time is not None), default=now)
        return outages.waiting(what, url, clock=retry.clock, since=since)

    try:
        transfer_pool.get().run(
            [lambda span=span: fetch(span) for span in spans], urgent=how.urgent, meanwhile=name_silent_server
        )
    except ConfigError as error:
        # A range was refused: the object is, or was, shorter than it should be, unless it is the caller who errs.
        if size is None:
            raise
        found = store.head(key)
        if found.size == size and not isinstance(error, BadRangeError):
            raise
        raise _other_size(found.size, size, found.etag) from None
    finally:
        for span in spans:
            span.close()
    total = sum(span.written for span in spans)
    if len(versions) > 1:
        raise ChecksumError(f'{url} was replaced while it was being read: its versions are {list(versions)}.')
    if size is not None and total != size:
        raise _other_size(total, size, next(iter(versions), ''))
    if os.fstat(out.fileno()).st_size > total:  # a longer version was begun before
        os.ftruncate(out.fileno(), total)
    if on_version is not None:
        on_version(next(iter(versions), ''))
    return total


def _other_size(found: int, expected: int, version: str) -> ChecksumError:
    """The error for an object of another size; of the right one if that changed in the middle."""
    told = f', in its version {version!r}' if version else ''
    return ChecksumError(f'It has {found} bytes{told}, the index gives {expected}.')


class _AbandonedError(Exception):
    """Another part of the object failed for good; this one is not to be tried again."""


class _Span(io.RawIOBase):
    """A part of a file, as a store writes to it; other parts are written at the same time."""

    def __init__(
        self,
        out: BinaryIO,
        start: int,
        size: int | None,
        total: int | None,
        most: int,
        source: str,
        stats: CacheStats,
        near: AlmostDone | None,
        hear: Callable[[], float],
    ) -> None:
        """Take a file, the part's first byte and its bytes (None: to the end), those of the whole, and its URL.

        Of a whole whose bytes are not known it takes how many there may be.
        """
        self.start, self.size = start, size
        self.written = 0
        self.heard: float | None = None  # when the last bytes came, or the first request began; None: not under way
        self._near, self._hear = near, hear
        self._handle: int | None = out.fileno()
        self._total, self._most, self._source, self._stats = total, most, source, stats
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._total is not None and self.start + self.written + len(data) > self._total:
            raise ChecksumError(
                f'{self._source} is larger than the {self._total} bytes that its index gives. '
                f'Write the dataset again, or restore the index that belongs to it.'
            )
        if self._total is None and self.written + len(data) > self._most:
            raise ChecksumError(f'{self._source} has more than {self._most} bytes. Check what lies there.')
        view = memoryview(data)
        while view:
            with self._lock:
                if self._handle is None:
                    raise _AbandonedError(f'Nobody waits for {self._source} any more.')
                count = os.pwrite(self._handle, view, self.start + self.written)
            self.written += count
            self.heard = self._hear()
            self._stats.add(CacheCounts(bytes_downloaded=count))
            if self._near is not None:
                self._near.count(count)
            view = view[count:]
        return len(data)

    def close(self) -> None:
        """Write nothing more: the file may be closed, and its descriptor be another's."""
        with self._lock:
            self._handle = None
        super().close()
