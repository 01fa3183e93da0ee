"""Many small files from servers of others: bounded in connections, time, bytes and redirects, and polite to hosts.

The requests run in a thread with an event loop, and the results come in the order of the URLs.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from headrace.errors import ConfigError, ConversionError, import_optional

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_REFUSALS: Final = frozenset({'noai', 'noimageai', 'noindex', 'noimageindex', 'none'})
"""Words of ``X-Robots-Tag`` by which an owner refuses to be in a dataset."""
_PIECE: Final = 1 << 16
_NAT64: Final = ipaddress.IPv6Network('64:ff9b::/96')
"""Its last 32 bits are an address of IPv4, to which a gateway leads."""


class DownloadError(ConversionError):
    """A file that cannot be had. If no server answers at all, the network may be down."""

    wait: float | None = None  # Seconds before another attempt; None: it would fail, too.


class AnswerError(DownloadError):
    """A file that cannot be had, as the answer of a server says."""


def _passing(error: DownloadError, wait: float = 1.0) -> DownloadError:
    """An error that may be gone after some seconds."""
    error.wait = wait
    return error


@dataclass(frozen=True, kw_only=True)
class Limits:
    user_agent: str  # Name and contact for servers.
    connections: int = 32  # Concurrent requests.
    per_host: int = 2  # Concurrent requests to one host.
    seconds: float = 10.0  # From the connection to the last byte.
    max_bytes: int = 16 << 20  # Size limit of a file.
    redirects: int = 4  # Redirects of one URL.
    attempts: int = 2  # Failures may be temporary.
    longest_wait: float = 10.0  # Seconds before another attempt.
    private_hosts: bool = False  # Addresses of this network may be asked, too.

    def __post_init__(self) -> None:
        for name in ('connections', 'per_host', 'seconds', 'max_bytes', 'attempts'):
            if getattr(self, name) <= 0:
                raise ConfigError(f'`{name}` of downloads is above 0, but is {getattr(self, name)!r}.')
        if not self.user_agent.isprintable() or not self.user_agent.isascii() or not self.user_agent:
            raise ConfigError(f'`user_agent` is a line of ASCII text, but is {self.user_agent!r:.80}.')


def require_aiohttp() -> ModuleType:
    return import_optional('aiohttp', 'Downloads need aiohttp', 'downloads')


def download_all(urls: Iterable[str], limits: Limits) -> Iterator[bytes | DownloadError]:
    """The content of each URL, or why there is none, in order. Some are fetched ahead: two for each connection."""
    require_aiohttp()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name='headrace-downloads', daemon=True)
    thread.start()
    fetches = _Fetches(limits)
    try:
        left = iter(urls)
        ahead = deque(
            asyncio.run_coroutine_threadsafe(fetches.fetch(url), loop) for url in islice(left, 2 * limits.connections)
        )
        while ahead:
            yield ahead.popleft().result()
            ahead.extend(asyncio.run_coroutine_threadsafe(fetches.fetch(url), loop) for url in islice(left, 1))
    finally:
        asyncio.run_coroutine_threadsafe(fetches.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Fetches:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._session: Any = None
        self._all = asyncio.Semaphore(limits.connections)
        self._of_host: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(limits.per_host))

    async def close(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def fetch(self, url: str) -> bytes | DownloadError:
        for attempt in range(1, self._limits.attempts + 1):
            try:
                return await self._follow(url)
            except DownloadError as error:  # noqa: PERF203 - two attempts
                if error.wait is None or attempt == self._limits.attempts:
                    return error
                await asyncio.sleep(min(error.wait, self._limits.longest_wait))
            except Exception as error:  # a strange answer costs its own file only
                return DownloadError(f'The request failed: {type(error).__name__}: {error}')
        raise AssertionError  # the last attempt returns

    async def _follow(self, url: str) -> bytes:
        for _ in range(self._limits.redirects + 1):
            host = _host(url)
            # A task that waits for its host holds no connection that others could use.
            async with self._of_host[host], self._all:
                try:
                    answer = await asyncio.wait_for(self._request(url), self._limits.seconds)
                except asyncio.TimeoutError:
                    message = f'{host} did not send it within {self._limits.seconds:g} s'
                    raise _passing(DownloadError(message)) from None
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer)
        raise AnswerError(f'A URL is redirected at most {self._limits.redirects} times.')

    async def _request(self, url: str) -> bytes | str:
        import aiohttp

        try:
            async with self._opened().get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS and 'Location' in response.headers:
                    return response.headers['Location']
                self._check(response)
                pieces: list[bytes] = []
                total = 0
                async for piece in response.content.iter_chunked(_PIECE):
                    pieces.append(piece)
                    total += len(piece)
                    self._check_size(total)
                return b''.join(pieces)
        except (aiohttp.InvalidURL, ValueError) as error:
            raise DownloadError(f'This is no URL of the Web: {type(error).__name__}: {error}.') from None
        except (aiohttp.ClientError, OSError) as error:
            raise _passing(DownloadError(f'The request failed: {type(error).__name__}: {error}')) from None

    def _check(self, response: Any) -> None:
        if response.status in _AGAIN:
            wait = response.headers.get('Retry-After', '')
            error = AnswerError(f'The server answered {response.status}')
            raise _passing(error, float(wait)) if wait.isdecimal() else _passing(error)
        if response.status != 200:
            raise AnswerError(f'The server answered {response.status}.')
        for tag in response.headers.getall('X-Robots-Tag', ()):
            # A robot's name may come first: "otherbot: noai".
            words = {word.rpartition(':')[2].strip().lower() for word in tag.split(',')}
            if words & _REFUSALS:
                raise AnswerError(f'Its owner refuses to have it in datasets: X-Robots-Tag {tag!r:.80}.')
        if response.headers.get('Content-Encoding', 'identity').lower() != 'identity':
            raise AnswerError('The server sent it compressed, though it was asked not to.')
        if response.content_length is not None:
            self._check_size(response.content_length)

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_bytes:
            raise AnswerError(f'A file has at most {self._limits.max_bytes} bytes, but this one has more.')

    def _opened(self) -> Any:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=self._socket),
                headers={'User-Agent': self._limits.user_agent, 'Accept-Encoding': 'identity'},
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        return self._session

    def _socket(self, address: Any) -> socket.socket:
        """A socket for a resolved address, so that no name leads to another one."""
        family, kind, protocol, _, place = address
        if not self._limits.private_hosts and not _is_public(str(place[0])):
            raise OSError(errno.EACCES, f'{place[0]} is no public address')
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        return opened


def _is_public(text: str) -> bool:
    """Whether an address is one of the whole Internet, also that of IPv4 which a gateway makes of one of IPv6."""
    address = ipaddress.ip_address(text.partition('%')[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.sixtofour
        if inner is not None:
            return inner.is_global
    return address.is_global


def _host(url: str) -> str:
    parts = None
    with suppress(ValueError):
        parts = urlsplit(url)
    if parts is None or parts.scheme.lower() not in ('http', 'https') or not parts.hostname:
        raise DownloadError(f'A URL begins with http:// or https:// and a host, but this one is {url!r:.200}.')
    return parts.hostname
