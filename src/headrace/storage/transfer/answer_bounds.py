"""Bounds of an answer in bytes and seconds, and of a listing in pages, against any server.

The clients of the clouds read an error whole, and read interim answers (``100 Continue``) for as long as they come. A
time-out of a socket counts silence only. All clients use urllib3 over http.client, some of them a copy of their own. So
the bounds are here, below all of them: in the class of the answers that their connections make.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from headrace.errors import StorageError

T = TypeVar('T')

HEAD: Final = 1 << 20  # Bytes of status lines and headers, those of interim answers included.
ERROR_BODY: Final = 1 << 20  # The most bytes of an error, both as received and unpacked. The rest is cut off.
EMPTY_PAGES: Final = 1000
"""Pages of a listing in a row that may bring nothing; some servers send a few where many objects were deleted."""
PAGES: Final = 100_000
"""Pages of a listing at most: no folder has as many objects, but a server may invent new ones forever."""
SLOWEST: Final = 1 << 10
"""Bytes a second. The time that a body takes at this pace comes on top of the bound of a request."""


class BoundError(ConnectionError):
    """An answer is longer than it may be, takes longer, or breaks a rule of HTTP that clients trust."""


def bound_session(session: Any, seconds: float) -> None:
    """Bound the answers to all requests of a session of requests, or of a copy of it.

    `seconds`: for one request, besides the time for its bytes.
    """
    for adapter in session.adapters.values():
        if getattr(adapter, 'poolmanager', None) is not None:
            _bound(adapter.poolmanager, seconds)
            adapter.proxy_manager_for = _bounding(type(adapter).proxy_manager_for.__get__(adapter), seconds)


def bound_botocore(client: Any, seconds: float) -> None:
    """Bound the answers to all requests of a client of botocore; as `bound_session`."""
    session = client._endpoint.http_session
    session._get_connection_manager = _bounding(session._get_connection_manager, seconds)


def exceeded(error: BaseException) -> str:
    """The text of the bound that an error comes from, for messages; empty if it comes from none."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, BoundError):
        seen = seen.__cause__ or seen.__context__
    return '' if seen is None else f' ({seen})'


def _bounding(manager_for: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def bounded(*args: Any, **options: Any) -> Any:
        manager = manager_for(*args, **options)
        _bound(manager, seconds)
        return manager

    return bounded


def _bound(manager: Any, seconds: float) -> None:
    """Bound the answers of the connections that a pool manager of urllib3 makes from now on."""
    manager.pool_classes_by_scheme = {
        scheme: _bounded_pool(pool, seconds) for scheme, pool in manager.pool_classes_by_scheme.items()
    }


@functools.cache
def _bounded_pool(pool: type[Any], seconds: float) -> type[Any]:
    connection = pool.ConnectionCls
    if issubclass(connection, _BoundedConnection):
        return pool
    bounded = type(connection.__name__, (_BoundedConnection, connection), {'bound_seconds': seconds})
    return type(pool.__name__, (pool,), {'ConnectionCls': bounded})


class _BoundedConnection:
    bound_seconds: float
    _answers: Any = http.client.HTTPResponse

    @property
    def response_class(self) -> Any:
        """Makes the answers. botocore sets another one where an error comes before a body was sent."""
        answers = self._answers
        if isinstance(answers, functools.partial):
            return functools.partial(
                bounded_answer(answers.func, self.bound_seconds), *answers.args, **answers.keywords
            )
        return bounded_answer(answers, self.bound_seconds)

    @response_class.setter
    def response_class(self, answers: Any) -> None:
        self._answers = answers

    def _consume_headers(self, fp: Any) -> None:
        """Read the headers of ``100 Continue``; botocore's own continues for ever where the connection ends in them."""
        for _ in range(100):
            if fp.readline(1 << 16) in {b'\r\n', b'\n', b''}:
                return
        raise BoundError('the headers of an interim answer do not end')


@functools.cache
def bounded_answer(answers: type[Any], seconds: float, error_body: int = ERROR_BODY) -> type[Any]:
    """A class of answers with bounds. `error_body`: bytes of an error that are read."""
    if issubclass(answers, _BoundedAnswer):
        return answers
    bounds = {'bound_seconds': seconds, 'error_body': error_body}
    return type(answers.__name__, (_BoundedAnswer, answers), bounds)


class _BoundedAnswer(http.client.HTTPResponse):
    bound_seconds: float
    error_body: int

    def begin(self) -> None:
        """Read the head, and of an error the body."""
        incoming = Incoming(self.fp.detach(), self.bound_seconds)  # pyright: ignore[reportAttributeAccessIssue]
        self.fp = io.BufferedReader(incoming)
        super().begin()
        incoming.ends_head()
        self._check_length()
        if self.status >= 300 and self.status != 304 and self._method != 'HEAD':  # pyright: ignore[reportAttributeAccessIssue]
            self._keep_error()

    def _check_length(self) -> None:
        for length in self.headers.get_all('Content-Length', ()):
            if not (length.isascii() and length.strip().isdigit()):
                raise BoundError(f'its Content-Length is not a number: {length[:100]!r}')

    def _keep_error(self) -> None:
        """Take the beginning of the body, for clients to read it as if it were all."""
        kept = bytearray()
        # The status has come. It says more than a text that breaks off.
        with contextlib.suppress(OSError, http.client.HTTPException):
            while (left := self.error_body - len(kept)) and (chunk := self.read(min(1 << 16, left))):
                kept += chunk
        if not self.isclosed():
            self._close_conn()  # pyright: ignore[reportAttributeAccessIssue]
            self.will_close = True
        body = _unpacked(bytes(kept), self.headers.get('Content-Encoding'))
        for name in ('Content-Encoding', 'Content-Length', 'Transfer-Encoding'):
            del self.headers[name]
        self.headers['Content-Length'] = str(len(body))
        self.chunked, self.chunk_left, self.length = False, None, len(body)
        self.fp = io.BufferedReader(io.BytesIO(body))  # pyright: ignore[reportArgumentType]


def _unpacked(body: bytes, encoding: str | None) -> bytes:
    if not encoding or encoding.strip().lower() == 'identity':
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, ERROR_BODY)  # gzip, or zlib's own format
    except zlib.error:
        return b''


class Pace:
    """Checks the duration of an answer's body: `seconds`, besides the time for its bytes."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._begin = seconds, time.monotonic()
        self._bytes = 0

    def count(self, size: int) -> None:
        self._bytes += size

    def check(self) -> None:
        """Raise ``BoundError`` if it takes too long."""
        elapsed = time.monotonic() - self._begin
        if elapsed > self._seconds + self._bytes / SLOWEST:
            raise BoundError(
                f'the answer takes too long: {self._bytes} bytes of its body in {elapsed:.0f} s. A slow link may need '
                f'a larger `request_timeout`'
            )


def items_of(url: str, pages: Iterable[Iterable[T]], name: Callable[[T], str]) -> Iterator[T]:
    """The items of the pages of a listing, which must get further. `name`: of an item.

    StorageError: `EMPTY_PAGES` pages in a row are empty, a page begins as one before it did, or there are more than
    `PAGES`.
    """
    begins, empty = set[str](), 0
    for number, page in enumerate(pages):
        items = iter(page)
        first = next(items, None)
        if number >= PAGES:
            what = f'more than {PAGES} pages'
        elif first is None:
            empty += 1
            if empty < EMPTY_PAGES:
                continue
            what = f'{empty} empty pages in a row'
        elif name(first) not in begins:
            begins.add(name(first))
            empty = 0
            yield first
            yield from items
            continue
        else:
            what = f'the page that begins with {name(first)!r} again'
        raise StorageError(
            f'Listing {url}: the server sent {what}, so that the listing does not end. Check that the endpoint is such '
            f'a service, and any proxy between.'
        )


class Incoming(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, seconds: float) -> None:
        self._raw, self._pace = raw, Pace(seconds)
        self._head = 0
        self._is_in_head = True

    def ends_head(self) -> None:
        """Begin the body, which gets time for its bytes."""
        self._is_in_head = False

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def readinto(self, buffer: Any, /) -> int | None:
        self._pace.check()
        if self._is_in_head and self._head > HEAD:
            raise BoundError(f'its headers have more than {HEAD} bytes')
        count = self._raw.readinto(buffer)
        if self._is_in_head:
            self._head += count or 0
        else:
            self._pace.count(count or 0)
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
