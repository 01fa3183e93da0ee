"""Requests and answers of stores over HTTP: bodies, as all backends read and write them, and the errors of statuses."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import urlsplit

from headrace.errors import (
    AccessDeniedError,
    ChecksumError,
    ConfigError,
    ObjectNotFoundError,
    StorageError,
    import_optional,
)
from headrace.storage.protocol import ObjectInfo, StoreOptions
from headrace.storage.transfer.answer_bounds import bound_session
from headrace.storage.transfer.retry import BrokenTransferError

ANONYMOUS = 'no credentials (anonymous)'  # The credentials of an unsigned request, for messages.

BUSY = frozenset({408, 425, 429})  # Statuses below 500 that waiting may cure.

UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of clients at malformed answers: a header is missing, or is not a number."""

CHUNK: Final = 1 << 17
"""Bytes of a body that are read at a time. Fewer cost more calls; more hide a download's progress, so that the next
one begins too late."""

PAGE: Final = 64 << 20  # Bytes of an answer that is not an object and is held in memory, at most.

_CERTIFICATES: Final = ('REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE', 'AWS_CA_BUNDLE', 'SSL_CERT_FILE')
_MISSING: Final = frozenset({None, errno.ENOENT})
_CONTENT_RANGE: Final = re.compile(r'bytes +([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)')


def error_of_status(
    status: int,
    what: str,
    *,
    url: str,
    absent: Callable[[], str],
    credentials: Callable[[], str],
    remedy: str,
    retry_after: str | None = None,
) -> StorageError:
    """The exception for an answer's status.

    `what`: the operation, its place, and the store's text, without a full stop. `absent`: says for 404 why the object
        may be missing; `credentials`: names those of the request for 401 and 403. `remedy`: the user's fix for a
        refusal.
    """
    if status in {404, 410}:
        return not_found(url, absent())
    if status in {401, 403}:
        return AccessDeniedError(f'{what}. The request was made with {credentials()}. {remedy}')
    if status == 412:
        return changed(url)
    if status >= 500 or status in BUSY:
        return BrokenTransferError.at(f'{what}.', retry_after=seconds_to_wait(retry_after))
    return StorageError(f'{what}.')


def not_found(url: str, why: str) -> ObjectNotFoundError:
    return ObjectNotFoundError(f'No such file or directory: {url}: {why}')


def why_absent(exists: bool | None, container: str, server: str, name: str) -> str:
    """Why an object may not be there, without a full stop. `exists`: whether its container does; None: unknown."""
    if exists is None:
        return f'{server} does not say whether {container} exists'
    return f'{container} exists at {server}, but not {name}' if exists else f'{container} does not exist at {server}'


def unreadable(what: str, error: Exception, *, etag: str | None = None) -> BrokenTransferError:
    """The error for an answer that the store's client cannot read. `etag`: the version that has come in part."""
    return BrokenTransferError.at(
        f'{what} brought an answer that breaks the rules of its service: {type(error).__name__}: {error}. Check that '
        f'the endpoint is such a service, and any proxy between.',
        etag=etag,
    )


def changed(url: str, wanted: str | None = None, received: str = '') -> BrokenTransferError:
    versions = f', from version {wanted!r} to {received!r}' if wanted and received else ''
    return BrokenTransferError.at(f'{url} changed while it was being read{versions}.', changed=True)


def proxy_note(server: str) -> str:
    """A sentence on the environment's proxy for a server, to follow another one in a message; empty if it has none."""
    from urllib.request import proxy_bypass  # takes milliseconds

    url = urlsplit(server)
    names = [name for kind in (url.scheme, 'all') for name in (f'{kind}_proxy', f'{kind.upper()}_PROXY')]
    used = next(filter(os.environ.get, names), None)
    if not used or not url.hostname or proxy_bypass(url.netloc.rpartition('@')[2]):
        return ''
    exceptions = 'no_proxy' if os.environ.get('no_proxy') else 'NO_PROXY'  # the first wins
    return (
        f' {used} names a proxy for {url.hostname}: correct it, or add {url.hostname} to {exceptions} if the proxy '
        f'does not reach it.'
    )


def missing_certificates(error: BaseException) -> str:
    """The sentence that explains an error by a missing file of certificates; empty if that is not its cause."""
    cause: BaseException | None = error
    while cause is not None and not _is_of_missing_file(cause):
        cause = cause.__cause__ or cause.__context__
    names = [name for name in _CERTIFICATES if name in os.environ and not Path(os.environ[name]).exists()]
    if cause is None or not names:
        return ''
    return f'There is no such file of certificates. Correct or unset {" and ".join(names)}.'


def _is_of_missing_file(error: BaseException) -> bool:
    """Whether it may say that a file is missing. The one of requests has no number."""
    return isinstance(error, OSError) and type(error) in {OSError, FileNotFoundError} and error.errno in _MISSING


def seconds_to_wait(header: str | None) -> float | None:
    """The seconds of a Retry-After header, which may be a number or a date; None where it says nothing."""
    if not header:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return None


def new_session(options: StoreOptions, connections: int) -> Any:
    """A session of requests that repeats nothing, and whose answers have bounds."""
    requests = import_optional('requests', 'This store needs requests', 'hf')
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    for scheme in ('https://', 'http://'):
        session.mount(scheme, HTTPAdapter(pool_maxsize=connections, max_retries=0))
    bound_session(session, options.answer_seconds)
    return session


def unchanged(request: Any) -> Any:
    """Leave a request as it is; given as ``auth``, it keeps requests from looking into ``~/.netrc``."""
    return request


def read_json(answer: Any, what: str, advice: str) -> Any:
    """The content of an answer of requests, None if it is empty. `what`: names the operation and the server."""
    body: bytes = answer.raw.read(PAGE + 1, decode_content=True)
    if len(body) > PAGE:
        raise StorageError(f'{what} answered with more than {PAGE >> 20} MiB, as no page of a listing has. {advice}')
    try:
        return json.loads(body) if body else None
    except ValueError as error:
        raise StorageError(f'{what} answered with something else than JSON. {advice}') from error


class SourcePart:
    """The next ``size`` bytes of a file, as SDKs want the body of an upload: with a length and a way back."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._file, self._begin, self._size, self._at = source, source.tell(), size, 0

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, to the beginning at least, and the file's; returns it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        self._file.seek(self._begin + self._at)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Exactly that many bytes, or what is left; a source that ends early raises ``ConfigError``."""
        left = self._size - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        chunk = self._file.read(wanted)
        while len(chunk) < wanted:
            # An unbuffered file may give less than it was asked for; an SDK would upload that as the whole.
            more = self._file.read(wanted - len(chunk))
            if not more:
                raise ConfigError(
                    f'put() was told {self._size} bytes, but the source ended {left - len(chunk)} bytes early. Pass '
                    f'the number of bytes that are left in the source.'
                )
            chunk += more
        self._at += len(chunk)
        return chunk


class ReadRequest(NamedTuple):
    url: str  # Of the object.
    offset: int = 0  # The first byte.
    size: int | None = None  # Number of bytes; None for the rest.
    etag: str | None = None  # The version; None: any.

    @property
    def range(self) -> str | None:
        """The value of a Range header; None for the whole object."""
        if not self.offset and self.size is None:
            return None
        return f'bytes={self.offset}-' + ('' if self.size is None else str(self.offset + self.size - 1))

    def receive(
        self,
        read: Callable[[], bytes],
        out: BinaryIO,
        *,
        etag: str,
        length: int | str | None,
        part: str | None,
        mapped_errors: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> str:
        """Copy the body of an answer to a GET, once its headers are what was asked for; returns ``etag``.

        `read`: the next bytes, none at the end. `etag`: empty if the answer does not say. `part`: the Content-Range of
        an answer that is a range, empty if it has none; None if the answer is the whole. `mapped_errors` turns the
        network's errors into headrace's; those of ``out`` are the caller's.

        BrokenTransferError: the body broke off, is of another version or another range, or is a part without a version:
        parts of two versions could be mixed. ConfigError: the object has no such range.
        """
        expected = None if length is None else int(length)
        if self.etag and self.etag != etag:  # not every server knows conditions
            raise changed(self.url, self.etag, etag)
        is_longer = self.size is not None and expected is not None and expected > self.size
        if part is None and (self.offset or is_longer):
            raise self._other_range('the whole object')
        if part is not None:
            if not etag:
                raise lacks(self.url, 'ETag')
            in_range = self._length_of(part)
            if expected not in {None, in_range}:
                raise self._other_range(f'{part!r} of {expected} bytes')
            expected = in_range
        if expected is None:
            expected = self.size
        elif self.size is not None and expected != self.size:
            raise bad_range(self, expected)
        arrived = 0
        while True:
            with mapped_errors():
                chunk = read()
            if not chunk:
                break
            if expected is not None and arrived + len(chunk) > expected:  # an answer that does not say its length
                raise self._other_range(f'more than {expected} bytes')
            out.write(chunk)
            arrived += len(chunk)
        if expected not in {None, arrived}:
            raise BrokenTransferError.at(
                f'{self.url} broke off after {arrived} of {expected} bytes.', etag=etag or None
            )
        return etag

    def _length_of(self, part: str) -> int:
        """The bytes of an answer with this Content-Range. One that ends with its object may be shorter."""
        if not part:
            raise lacks(self.url, 'Content-Range')
        match = _CONTENT_RANGE.fullmatch(part.strip())
        if match is None:
            raise self._other_range(repr(part[:100]))
        first, last = int(match[1]), int(match[2])
        ends = [] if match[3] == '*' else [int(match[3])]
        if self.size is not None:
            ends.append(self.offset + self.size)
        if first != self.offset or last + 1 < first or (ends and last + 1 != min(ends)):
            raise self._other_range(repr(part))
        return last + 1 - first

    def _other_range(self, answered: str) -> BrokenTransferError:
        return BrokenTransferError.at(
            f'The server ignored the range of a request: {self.url} was asked for {self.range or "the whole object"}, '
            f'and it answered with {answered}. Use one that honours ranges, and check any proxy between.'
        )

    def nothing_left(self, info: ObjectInfo) -> str:
        """The result of `Store.get` after status 416, which also answers an empty range at the end of an object.

        BrokenTransferError: the object is another version, or has such a range by now. ConfigError: it has no such
        range.
        """
        if (self.etag and self.etag != info.etag) or self.check(info):
            raise changed(self.url, self.etag, info.etag)
        return info.etag

    def check(self, info: ObjectInfo) -> int:
        """The number of bytes that are wanted, or ``ConfigError`` if the object has fewer."""
        left = info.size - self.offset
        if self.offset < 0 or left < 0 or (self.size is not None and not 0 <= self.size <= left):
            raise bad_range(self, max(left, 0))
        return left if self.size is None else self.size


def lacks(url: str, header: str) -> BrokenTransferError:
    return BrokenTransferError.at(
        f'The answer to a request for {url} has no {header}. Check that the endpoint is such a store, and whether a '
        f'proxy takes headers away.'
    )


def version(etag: object) -> str:
    """The version that a header names, in quotes or not; empty if it is missing (None)."""
    return str(etag or '').strip('"')


def described(key: str, url: str, size: object, etag: object) -> ObjectInfo:
    """Describe an object by the headers of an answer to a HEAD; without a version the object has none.

    BrokenTransferError: the size is missing, or is not a number.
    """
    if size is None:
        raise lacks(url, 'Content-Length')
    if not str(size).isdecimal():
        raise lacks(url, f'Content-Length that is a number, but {str(size)[:100]!r}')
    return ObjectInfo(key, int(str(size)), version(etag))


class BadRangeError(ChecksumError, ConfigError):
    """An object does not have the range that was asked for: it is shorter than its index says, or the caller errs."""


def bad_range(wanted: ReadRequest, size: int) -> BadRangeError:
    return BadRangeError(
        f'A range lies inside its object; got offset {wanted.offset}, size {wanted.size} of {wanted.url}, which has '
        f'{size} bytes from there. It is shorter than its index says: restore it, or make the index again.'
    )


def truncated(url: str, missing: int, *, etag: str | None = None) -> BrokenTransferError:
    return BrokenTransferError.at(f'{url} ended {missing} bytes early: it was truncated while being read.', etag=etag)
