"""Bodies of requests and answers, as all backends read and write them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Final

from headrace.errors import ConfigError, StorageError
from headrace.storage.answers import changed
from headrace.storage.protocol import ObjectInfo
from headrace.storage.retry import BrokenTransferError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

__all__ = [
    'CHUNK',
    'SourcePart',
    'check_range',
    'described',
    'nothing_left',
    'range_header',
    'receive',
    'truncated',
    'version',
]

CHUNK: Final = 1 << 17
"""Bytes of a body that are read at a time. Fewer cost more calls; with more it is seen too late how far a download has
come, for the next one to begin before it ends."""


class SourcePart:
    """The next ``size`` bytes of a file, as SDKs want the body of an upload: with a length and a way back."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source, self._size = source, size
        self._start = source.tell()
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes from its beginning."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As any file's."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        self._source.seek(self._start + self._at)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Exactly that many bytes, or what is left; a source that ends early raises ``ConfigError``."""
        left = self._size - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        chunk = self._source.read(wanted)
        while len(chunk) < wanted:
            # An unbuffered file may give less than it was asked for; an SDK would upload that as the whole.
            more = self._source.read(wanted - len(chunk))
            if not more:
                raise ConfigError(
                    f'put() was told {self._size} bytes, but the source ended {left - len(chunk)} bytes early. Pass '
                    f'the number of bytes that are left in the source.'
                )
            chunk += more
        self._at += len(chunk)
        return chunk


def range_header(offset: int, size: int | None) -> str | None:
    """The value of a Range header for what `Store.get` is asked for; None for the whole object."""
    if not offset and size is None:
        return None
    return f'bytes={offset}-' + ('' if size is None else str(offset + size - 1))


def receive(
    read: Callable[[], bytes],
    out: BinaryIO,
    *,
    url: str,
    etag: str,
    wanted: str | None,
    expected: int | None,
    offset: int,
    size: int | None,
    is_part: bool,
    mapped_errors: Callable[[], contextlib.AbstractContextManager[None]],
) -> str:
    """Copy the body of an answer to a GET, once its headers are what was asked for.

    Args:
        read: The next bytes of the body, none at its end.
        out: Receives them.
        url: The object.
        etag: The version that the answer is of; empty if it does not say.
        wanted: The version that was asked for; None for any.
        expected: Bytes of the body, as the answer says; None if it does not.
        offset: First byte that was asked for.
        size: Bytes that were asked for; None: to the end.
        is_part: Whether the answer says that it is a range.
        mapped_errors: Turns the network's errors into headrace's. Those of ``out`` are the caller's.

    Returns:
        ``etag``.

    Raises:
        BrokenTransferError: The body broke off, or is of another version.
        ConfigError: The object has no such range.
        StorageError: The server ignored the range.
    """
    if wanted and wanted != etag:  # not every server knows conditions
        raise changed(url)
    if not is_part and (offset or (size is not None and expected is not None and expected > size)):
        raise ignored_range(url)
    if expected is None:
        expected = size
    elif size is not None and expected != size:
        raise bad_range(url, offset, size, expected)
    arrived = 0
    while True:
        with mapped_errors():
            chunk = read()
        if not chunk:
            break
        if expected is not None and arrived + len(chunk) > expected:  # an answer that does not say its length
            raise ignored_range(url)
        out.write(chunk)
        arrived += len(chunk)
    if expected not in {None, arrived}:
        raise BrokenTransferError.at(f'{url} broke off after {arrived} of {expected} bytes.', etag=etag or None)
    return etag


def ignored_range(url: str) -> StorageError:
    """The error for an answer with more bytes than were asked for."""
    return StorageError(f'The server ignored the range of a request for {url}. Use one that honours it.')


def lacks(url: str, header: str) -> BrokenTransferError:
    """The error for an answer without a header that says what must be known."""
    return BrokenTransferError.at(
        f'The answer to a request for {url} has no {header}. Check that the endpoint is such a store, and whether a '
        f'proxy takes headers away.'
    )


def version(url: str, etag: object, *, is_part: bool) -> str:
    """The version that an answer to a GET names, for stores whose answers all do.

    Args:
        url: The object.
        etag: The header, in quotes or not; None: it is missing.
        is_part: Whether the answer says that it is a range.

    Raises:
        BrokenTransferError: It names none, and is a part: parts of two versions could be mixed.
    """
    if is_part and not etag:
        raise lacks(url, 'ETag')
    return str(etag or '').strip('"')


def described(key: str, url: str, size: object, etag: object) -> ObjectInfo:
    """What the headers of an answer to a HEAD say.

    Args:
        key: The object.
        url: Of the object.
        size: The Content-Length, a number or text; None: it is missing.
        etag: The version, in quotes or not; None: it is missing.

    Raises:
        BrokenTransferError: There is no size, or it is no number. Without a version the object has none.
    """
    if size is None:
        raise lacks(url, 'Content-Length')
    if not str(size).isdecimal():
        raise lacks(url, f'Content-Length that is a number, but {str(size)[:100]!r}')
    return ObjectInfo(key, int(str(size)), str(etag or '').strip('"'))


def nothing_left(info: ObjectInfo, url: str, *, offset: int, size: int | None, wanted: str | None) -> str:
    """What `Store.get` comes to after status 416, which a range right at the end of an object is answered with, too.

    Args:
        info: What the store says of the object now.
        url: The object.
        offset: First byte that was asked for.
        size: Bytes that were asked for; None: to the end.
        wanted: The version that was asked for; None for any.

    Returns:
        The version that has nothing from there on.

    Raises:
        BrokenTransferError: The object is another version, or has such a range by now.
        ConfigError: The object has no such range.
    """
    if (wanted and wanted != info.etag) or check_range(info, url, offset, size):
        raise changed(url)
    return info.etag


def bad_range(url: str, offset: int, size: int | None, found: int) -> ConfigError:
    """The error for a range that its object does not have; ``found`` bytes are there from ``offset``."""
    return ConfigError(
        f'A range lies inside its object; got offset {offset}, size {size} of {url}, which has {found} bytes from '
        f'there.'
    )


def check_range(info: ObjectInfo, url: str, offset: int, size: int | None) -> int:
    """The number of bytes from ``offset`` that were asked for, or ``ConfigError`` if the object has fewer."""
    left = info.size - offset
    if offset < 0 or left < 0 or (size is not None and not 0 <= size <= left):
        raise bad_range(url, offset, size, max(left, 0))
    return left if size is None else size


def truncated(url: str, missing: int, *, etag: str | None = None) -> BrokenTransferError:
    """The error for an object that ended before the size that it had when its reading began."""
    return BrokenTransferError.at(f'{url} ended {missing} bytes early: it was truncated while being read.', etag=etag)
