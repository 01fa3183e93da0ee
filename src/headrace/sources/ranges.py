"""Reads byte ranges of many objects: concurrently, with retries, in bounded memory.

Formats read the footers and heads of their objects with it when they index a dataset.
"""

from __future__ import annotations

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import ChecksumError, ConfigError
from headrace.storage import Retry
from headrace.storage.transfer.retry import BrokenTransferError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.storage import Store

__all__ = ['ByteRange', 'read_range', 'read_ranges']

REQUESTS: Final = 16
"""Concurrent requests of one index."""
WINDOW: Final = 64 << 20
"""Bytes that may be read ahead of the caller."""
PATIENT: Final = Retry(patience=30.0)
"""Retries of a request: also for half a minute of an outage."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of one object."""

    key: str
    """The object, relative to the store's root."""
    offset: int
    """The first byte."""
    size: int
    """Number of bytes. The object has them."""
    etag: str = ''
    """The version of the object, as `ObjectInfo.etag` names it; empty: any."""


def read_ranges(
    store: Store, ranges: Iterable[ByteRange], *, retry: Retry = PATIENT, requests: int = REQUESTS, window: int = WINDOW
) -> Iterator[bytes]:
    """The bytes of each range, in the order of the ranges.

    Args:
        store: the objects.
        ranges: the bytes to read; taken as they are needed.
        retry: how often each request is tried.
        requests: concurrent requests.
        window: bytes that are read ahead of the caller, at most, or one range.

    Raises:
        ChecksumError: an object is shorter than its range, or was replaced.
        StorageError: the store failed, `TransferError` after all attempts.
    """
    waiting: deque[tuple[int, Future[bytes]]] = deque()
    ahead = 0
    # The threads end before the caller's process forks: a fork copies the locks that threads hold.
    with ThreadPoolExecutor(requests, thread_name_prefix='headrace-ranges') as pool:
        try:
            for wanted in ranges:
                while waiting and (len(waiting) >= 2 * requests or ahead + wanted.size > window):
                    size, oldest = waiting.popleft()
                    yield oldest.result()
                    ahead -= size
                waiting.append((wanted.size, pool.submit(read_range, store, wanted, retry=retry)))
                ahead += wanted.size
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()


def read_range(store: Store, wanted: ByteRange, *, retry: Retry = PATIENT) -> bytes:
    """The bytes of one range; see `read_ranges`."""
    if not wanted.size:
        return b''
    url = f'{store.url.rstrip("/")}/{wanted.key}'

    def attempt() -> bytes:
        out = io.BytesIO()
        try:
            store.get(wanted.key, out, offset=wanted.offset, size=wanted.size, etag=wanted.etag or None)
        except BrokenTransferError as error:
            if not (error.changed and wanted.etag):
                raise
            raise ChecksumError(f'{url} was replaced after it was listed or indexed. Start again.') from error
        return out.getvalue()

    try:
        data = retry.call(f'Reading {url}', attempt)
    except ConfigError as error:
        # The store refused the range: the object is shorter, unless it is the caller who errs.
        if store.head(wanted.key).size >= wanted.offset + wanted.size:
            raise
        raise _shorter(url, wanted) from error
    if len(data) != wanted.size:
        raise _shorter(url, wanted)
    return data


def _shorter(url: str, wanted: ByteRange) -> ChecksumError:
    return ChecksumError(
        f'{url} has fewer than the {wanted.offset + wanted.size} bytes that its listing or index gives: it was '
        f'replaced meanwhile, or is damaged. Start again, or restore it.'
    )
