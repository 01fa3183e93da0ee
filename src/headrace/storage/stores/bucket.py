"""Common parts of the stores over HTTP: names below a prefix, reads of ranges, and the errors of requests."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Any, BinaryIO, NamedTuple

from headrace.errors import ConfigError, HeadraceError
from headrace.errors.mapping import mapping_errors
from headrace.storage.protocol import ObjectInfo, StoreOptions, check_extra, check_key, check_prefix, count_option
from headrace.storage.transfer.http import UNREADABLE, ReadRequest, missing_certificates, proxy_note, unreadable
from headrace.storage.transfer.process_local import PerProcess
from headrace.storage.transfer.retry import BrokenTransferError


class Body(NamedTuple):
    """The body of an answer to a GET, which has not been read. See `ReadRequest.receive`."""

    read: Callable[[], bytes]
    close: Callable[[], object]
    etag: str
    length: int | str | None
    part: str | None


class BucketStore(ABC):
    """Objects with names below a prefix, as in a bucket. The client is made at the first request of each process."""

    def __init__(
        self, prefix: str, options: StoreOptions | None, *, extra: Iterable[str], title: str, connections: int = 32
    ) -> None:
        """Check the options. `title`: the backend's name in messages; `connections`: of a process, by default."""
        self.prefix = prefix.removesuffix('/')
        self._root = f'{self.prefix}/' if prefix else ''
        self.options = options or StoreOptions()
        check_extra(self.options, extra, title)
        self._pool = count_option(self.options, 'max_pool_connections', connections)
        self._connection: PerProcess[Any] = PerProcess(self._connect)

    @property
    @abstractmethod
    def url(self) -> str: ...

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.url!r})'

    @abstractmethod
    def head(self, key: str) -> ObjectInfo: ...

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        name = self._name(key)
        if size == 0:
            return ''
        wanted = ReadRequest(f'{self.url}/{key}', offset, size, etag)
        with self._mapped_errors('Reading', key):
            body = self._open(name, wanted)
        if body is None:
            return wanted.nothing_left(self.head(key))
        with contextlib.ExitStack() as stack:
            stack.callback(body.close)
            return wanted.receive(
                body.read,
                out,
                etag=body.etag,
                length=body.length,
                part=body.part,
                mapped_errors=lambda: self._mapped_errors('Reading', key, etag=body.etag or None),
            )

    @abstractmethod
    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        """Ask for the object of a name; None if it ends before the range begins."""

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def _server(self) -> str:
        """Where requests go, for messages."""

    @abstractmethod
    def _explained(self, doing: str, key: str, error: Exception, connection: Any) -> Exception | None:
        """Explain an error of the client, if there is more to say than that the network failed.

        `doing`: 'Reading', 'Writing', 'Looking up', 'Listing' or 'Deleting'. `connection`: what made the request.
        """

    def _network_errors(self) -> tuple[type[Exception], ...]:
        """Errors with which the client says that the network failed, besides Python's own; here those of requests."""
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        return RequestException, HTTPError

    def _told(self, error: BaseException) -> str:
        return f'{type(error).__name__}: {error}'

    @mapping_errors
    def _mapped_errors(
        self, doing: str, key: str, *, etag: str | None = None, connection: Any = None
    ) -> Generator[None]:
        used = connection or self._connection.get()  # which says what is missing, before the client is imported
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            mapped = self._explained(doing, key, error, used)
            if mapped is None:
                what = f'{doing} {self.url}/{key} at {self._server()}'
                if note := missing_certificates(error):
                    mapped = ConfigError(f'{what} failed: {self._told(error)}. {note}')
                elif isinstance(error, (*self._network_errors(), ConnectionError, TimeoutError)):
                    note = proxy_note(self._server())
                    mapped = BrokenTransferError.at(f'{what} broke: {self._told(error)}.{note}', etag=etag)
                elif isinstance(error, UNREADABLE) and doing != 'Writing':  # else it may be the source's
                    mapped = unreadable(what, error, etag=etag)
                else:
                    raise
            raise mapped from error

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    def _name_prefix(self, prefix: str) -> str:
        """The common prefix of the names of all objects whose keys begin with ``prefix``."""
        return self._root + check_prefix(prefix)

    def _shown(self, key: str) -> str:
        """A result of `_name` or `_name_prefix`, for messages."""
        return self._root + key

    def _key(self, name: str) -> str:
        return name[len(self._root) :]
