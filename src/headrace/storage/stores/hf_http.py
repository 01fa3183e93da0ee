"""Requests to the Hugging Face Hub through the session of huggingface_hub, whose proxies and certificates they share.

The session is requests' before its version 1.0 and httpx's since: here they look the same.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from headrace.errors import StorageError
from headrace.storage.transfer.answer_bounds import Pace, bound_session
from headrace.storage.transfer.http_body import CHUNK, SourcePart

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

__all__ = ['LINKED_ETAG', 'Answer', 'UploadBody', 'network_errors', 'send']

MAX_TEXT = 1 << 20
"""Bytes of an answer that is no object and is read whole, such as an error."""
REDIRECTS = 5
LINKED_ETAG = 'x-linked-etag'
"""The header with which the Hub names the version of an object that lies elsewhere."""


class UploadBody(SourcePart):
    """A body of a request, as both libraries want it."""

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read(CHUNK):
            yield chunk


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose body has not been read."""

    status: int
    headers: Mapping[str, str]
    """Of the last server; the case of names does not matter."""
    hub_headers: Mapping[str, str]
    """Of the Hub: of its redirection to where the object is, which describes it, else as ``headers``."""
    url: str
    response: Any
    pace: Pace = field(default_factory=lambda: Pace(math.inf))

    @property
    def redirects(self) -> bool:
        """Whether it says that another server has the object."""
        return self.status in {301, 302, 303, 307, 308}

    @property
    def lacks_entry(self) -> bool:
        """Whether it says that the repository and its revision are there, but not the file or folder."""
        return self.status == 404 and self.headers.get('x-error-code') == 'EntryNotFound'

    @property
    def etag(self) -> str:
        """The version of the object."""
        return (self.hub_headers.get(LINKED_ETAG) or self.hub_headers.get('etag', '')).removeprefix('W/').strip('"')

    @property
    def retry_after(self) -> str | None:
        """The seconds to wait, if it says so; ``RateLimit: "api";r=0;t=55`` means that none are left for 55."""
        limit = re.search(r';\s*t=(\d+)', self.headers.get('ratelimit', ''))
        return self.headers.get('retry-after') or (limit[1] if limit else None)

    def chunks(self) -> Iterator[bytes]:
        """The body as it was sent."""
        if hasattr(self.response, 'iter_raw'):
            for chunk in self.response.iter_raw():
                self.pace.check()
                self.pace.count(len(chunk))
                yield chunk
        else:
            while chunk := self.response.raw.read(CHUNK, decode_content=False):
                yield chunk

    def read(self, limit: int | None = None) -> bytes:
        """The body, or its first ``limit`` bytes or a few more."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if limit is not None and len(data) >= limit:
                break
        return bytes(data)


def network_errors() -> tuple[type[Exception], ...]:
    """The exceptions of the session's library for failures of the network."""
    from huggingface_hub import get_session

    # httpx gets renamed, and users make subclasses: the root of the classes tells whose they are.
    library = type(get_session()).__mro__[-2].__module__.partition('.')[0]
    if library != 'requests':
        module = importlib.import_module(library)
        return module.HTTPError, module.InvalidURL, module.StreamError, ConnectionError, TimeoutError
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    return RequestException, HTTPError, ConnectionError, TimeoutError


@contextlib.contextmanager
def send(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    timeout: tuple[float, float],
    seconds: float,
    body: UploadBody | bytes | None = None,
    until: Callable[[Mapping[str, str]], bool] = lambda _: False,
) -> Generator[Answer]:
    """Make one request, and follow where the answer redirects it; the token goes to the Hub only.

    Args:
        method: Of HTTP.
        url: Where to.
        headers: Of the request.
        timeout: Seconds to connect, and between bytes.
        seconds: For the whole answer, besides the time for its bytes.
        body: Of the request.
        until: Told the headers of a redirection, whether it is the answer.
    """
    from huggingface_hub import get_session

    session: Any = get_session()
    if not hasattr(session, 'build_request'):
        bound_session(session, seconds)
    # Bytes are wanted as they are stored, and their number as it is.
    headers = {**headers, 'Accept-Encoding': 'identity'}
    if body is not None:
        headers['Content-Length'] = str(len(body))
    hub: Mapping[str, str] = {}
    for _ in range(REDIRECTS + 1):
        response = _send_once(session, method, url, headers, timeout, body)
        try:
            hub = hub if LINKED_ETAG in hub else response.headers
            answer = Answer(response.status_code, response.headers, hub, url, response, Pace(seconds))
            target = response.headers.get('location') if method in {'GET', 'HEAD'} and answer.redirects else None
            if not target or until(response.headers):
                yield answer
                return
            answer.read(MAX_TEXT)  # so that the connection is used again
        finally:
            response.close()
        target = urljoin(url, target)
        if urlsplit(target)[:2] != urlsplit(url)[:2]:
            headers = {name: value for name, value in headers.items() if name.lower() != 'authorization'}
        url = target
    raise StorageError(f'{url} was redirected more than {REDIRECTS} times. Check the endpoint.')


def _send_once(
    session: Any,
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeout: tuple[float, float],
    body: UploadBody | bytes | None,
) -> Any:
    connect, read = timeout
    if not hasattr(session, 'build_request'):
        return session.request(
            method, url, headers=headers, data=body, timeout=timeout, stream=True, allow_redirects=False
        )
    request = session.build_request(method, url, headers=headers, content=body, timeout=(connect, read, read, read))
    return session.send(request, stream=True, follow_redirects=False)
