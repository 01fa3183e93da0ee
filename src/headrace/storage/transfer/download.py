"""Downloads of objects into files, in one request or in parallel ranges. A retry resumes at the byte it had reached."""

from __future__ import annotations

import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Final, cast

from headrace.errors import ChecksumError, ConfigError, ObjectNotFoundError, TransferError
from headrace.storage.protocol import Store, is_blocking
from headrace.storage.stats import CacheCounts, CacheStats
from headrace.storage.transfer.http import BadRangeError
from headrace.storage.transfer.process_local import PerProcess
from headrace.storage.transfer.retry import BrokenTransferError, Retry, server_of

RANGE: Final = 8 << 20
"""Bytes of a range that is requested by itself. An object of two ranges gains from a second request if one connection
is slower than the network. Smaller ranges cost servers more than they gain."""

UNKNOWN: Final = 1 << 30  # The most bytes of an object of unknown size, such as an index.

REQUESTS: Final = 8  # The most concurrent requests of a process for prefetches, and again as many for waiting readers.


class GeneratorPool(ThreadPoolExecutor):
    """Threads of a generator, which end before it does.

    A generator that is closed before its end does not wait for them. The garbage collector may close it, in a thread
    that holds the locks of `threading`: to join a thread there would wait for ever.
    """

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.shutdown(wait=kind is not GeneratorExit, cancel_futures=kind is not None)


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


@dataclass(frozen=True, slots=True)
class Transfer:
    """The urgency and the callback of a download."""

    urgent: bool = False
    """A reader waits for it: it goes before prefetches."""
    almost_done: Callable[[], None] | None = None
    """Called once, in any thread, when the remaining transfer takes less than one round trip. Not called for
    objects of unknown size."""


DEFAULT: Final = Transfer()


class _Calls:
    """Calls that somebody waits for. After the first failure no other one begins."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.failure: BaseException | None = None
        self.is_over = threading.Event()


@dataclass(slots=True)
class _Queue:
    """Calls that wait for a thread, and the number of running ones."""

    waiting: deque[tuple[_Calls, Callable[[], None]]] = field(default_factory=deque)
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

        `urgent`: a reader waits for them. `meanwhile`: called while it waits; returns the seconds after which it is
        called again; None: not again.
        """
        together = _Calls(len(calls))
        with self._lock:
            self._queues[not urgent].waiting.extend((together, call) for call in calls)
            self._start_threads()
            is_alone = not self._threads
            if is_alone:
                self._queues[not urgent].waiting.clear()
            self._lock.notify_all()
        if is_alone:
            for call in calls:
                call()
            return
        while not together.is_over.wait(meanwhile()):
            pass
        failure, together.failure = together.failure, None
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
                together, call = queue.waiting.popleft()
            failure = None
            if not together.is_over.is_set():
                try:
                    call()
                except BaseException as error:
                    failure = error
            with self._lock:
                queue.running -= 1
                together.left -= 1
                together.failure = together.failure or failure
                if failure is not None or not together.left:
                    together.is_over.set()
            del together, call, failure  # they hold files and buffers, and the next one may be long in coming


transfer_pool: Final = PerProcess(lambda: TransferPool(REQUESTS))  # This process' own.


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
        size: Bytes that the object must have; by default any number, in one request.
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
            total, version = _Download(store, key, out, retry, size, how, stats, most).run()
        except (ChecksumError, ObjectNotFoundError) as error:
            first = first or str(error)
            if size is None or (pause is None and first == str(error)):
                raise
            if pause is None:
                raise type(error)(f'{error} It changes: the first answer was another. {first}') from error
        else:
            if on_version is not None:
                on_version(version)
            return total
        stats.add(CacheCounts(retries=1))
        retry.sleep(pause)
    raise AssertionError('the last pause is None')


class _Download:
    """One download of an object, in one or several spans; see `download`. It does not wait for an object's owner."""

    def __init__(
        self,
        store: Store,
        key: str,
        out: BinaryIO,
        retry: Retry,
        size: int | None,
        how: Transfer,
        stats: CacheStats,
        most: int,
    ) -> None:
        self.store, self.key, self.out, self.retry = store, key, out, retry
        self.size, self.how, self.stats, self.most = size, how, stats, most
        self.url = f'{store.url.rstrip("/")}/{key}'
        self.near = None if size is None or how.almost_done is None else AlmostDone(size, how.almost_done)
        self.server = server_of(self.url, retry.clock)
        self._versions: dict[str, None] = {}

    def run(self) -> tuple[int, str]:
        """Fetch all spans; returns the bytes of the object, and its version."""
        size, out = self.size, self.out
        count = 1 if size is None or size < 2 * RANGE else -(-size // RANGE)
        spans = [_Span(self, n * RANGE, RANGE if n + 1 < count else None) for n in range(count)]
        calls = [partial(self._fetch, span) for span in spans]
        try:
            transfer_pool.get().run(calls, urgent=self.how.urgent, meanwhile=lambda: self._name_silent_server(spans))
        except ConfigError as error:
            # A range was refused: the object is, or was, shorter than it should be, unless it is the caller who errs.
            if size is None:
                raise
            info = self.store.head(self.key)
            if info.size == size and not isinstance(error, BadRangeError):
                raise
            raise _other_size(info.size, size, info.etag) from None
        finally:
            for span in spans:
                span.close()
        total = sum(span.written for span in spans)
        version = next(iter(self._versions), '')
        if len(self._versions) > 1:
            raise ChecksumError(
                f'{self.url} was replaced while it was being read: its versions are {list(self._versions)}.'
            )
        if size is not None and total != size:
            raise _other_size(total, size, version)
        if os.fstat(out.fileno()).st_size > total:  # a longer version was begun before
            os.ftruncate(out.fileno(), total)
        return total, version

    def _fetch(self, span: _Span) -> None:
        etag: str | None = None

        def attempt() -> None:
            nonlocal etag
            self.stats.add(CacheCounts(requests=1))
            if self.near is not None:
                self.near.ask()
            offset, left = span.start + span.written, None if span.size is None else span.size - span.written
            try:
                version = self.store.get(self.key, cast('BinaryIO', span), offset=offset, size=left, etag=etag)
            except TransferError as error:
                if isinstance(error, BrokenTransferError):
                    etag = None if error.changed else error.etag or etag
                if not etag:
                    # Nothing says which version the bytes are of: start over.
                    span.written = 0
                raise
            self._versions[version] = None

        span.heard = self.retry.clock()
        before = is_blocking.set(self.how.urgent)
        try:
            self.retry.call(
                f'Downloading {self.url}',
                attempt,
                progress=lambda: span.written,
                on_retry=lambda: self.stats.add(CacheCounts(retries=1)),
            )
        finally:
            is_blocking.reset(before)
            span.heard = None

    def _name_silent_server(self, spans: Sequence[_Span]) -> float:
        now = self.retry.clock()
        times = [span.heard for span in spans]  # read once: other threads end the requests meanwhile
        since = max((time for time in times if time is not None), default=now)
        return self.server.waiting(f'Downloading {self.url}', since=since)


def _other_size(size: int, expected: int, version: str) -> ChecksumError:
    told = f', in its version {version!r}' if version else ''
    return ChecksumError(f'It has {size} bytes{told}, the index gives {expected}.')


class _AbandonedError(Exception):
    """Another part of the object failed for good; this one is not to be tried again."""


class _Span(io.RawIOBase):
    """A part of a file, as a store writes to it; other parts are written at the same time."""

    def __init__(self, whole: _Download, start: int, size: int | None) -> None:
        """Take the download, the part's first byte and its bytes (None: to the end)."""
        self.start, self.size = start, size
        self.written = 0
        self.heard: float | None = None  # when the last bytes came, or the first request began; None if not under way
        self._whole = whole
        self._handle: int | None = whole.out.fileno()
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        whole = self._whole
        if whole.size is not None and self.start + self.written + len(data) > whole.size:
            raise ChecksumError(
                f'{whole.url} is larger than the {whole.size} bytes that its index gives. '
                f'Write the dataset again, or restore the index that belongs to it.'
            )
        if whole.size is None and self.written + len(data) > whole.most:
            raise ChecksumError(f'{whole.url} has more than {whole.most} bytes. Check that object.')
        view = memoryview(data)
        while view:
            with self._lock:
                if self._handle is None:
                    raise _AbandonedError(f'Nobody waits for {whole.url} any more.')
                count = os.pwrite(self._handle, view, self.start + self.written)
            self.written += count
            self.heard = whole.server.heard()
            whole.stats.add(CacheCounts(bytes_downloaded=count))
            if whole.near is not None:
                whole.near.count(count)
            view = view[count:]
        return len(data)

    def close(self) -> None:
        """Write nothing more: the file may be closed, and its descriptor be another's."""
        with self._lock:
            self._handle = None
        super().close()
