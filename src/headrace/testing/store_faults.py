"""The contract of stores when a server or the network fails, as tests to inherit.

A backend's test class inherits `StoreFaultContract` and gives it two fixtures. ``direct`` is an empty store.
``proxied`` has the same objects behind a `FaultProxy` or a proxy like it, with the time-outs of the fixture
``read_timeout``. A store whose protocol is not HTTP also gives it other tables of faults.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pytest

from headrace.errors import AccessDeniedError, ObjectNotFoundError, TransferError
from headrace.storage.transfer.download import download
from headrace.storage.transfer.retry import BrokenTransferError, Retry
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.stores import put_bytes, read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from headrace.storage.protocol import Store

__all__ = ['ProxiedStore', 'StoreFaultContract', 'through_proxy']

DATA = os.urandom((3 << 20) + 12345)
MIDDLE = 1_500_000
RANGE: dict[str, Any] = {'offset': 1000, 'size': len(DATA) - 2000}


class ProxiedStore(NamedTuple):
    """A store, and the proxy in front of its server."""

    store: Store
    proxy: Any
    """A `FaultProxy`, or an object with ``faults`` and ``requests`` like it."""


@contextlib.contextmanager
def through_proxy(server: str, make: Callable[..., Store], *, read_timeout: float) -> Generator[ProxiedStore]:
    """A store whose server is behind a `FaultProxy`.

    Args:
        server: its URL.
        make: Makes the store, from fields of `StoreOptions` as keywords: ``endpoint_url`` and the time-outs.
        read_timeout: seconds, also to connect.
    """
    with FaultProxy(server) as proxy:
        store = make(endpoint_url=proxy.endpoint_url, read_timeout=read_timeout, connect_timeout=read_timeout)
        yield ProxiedStore(store, proxy)


OPERATIONS: dict[str, Callable[[Store], Any]] = {
    'get': lambda store: read_bytes(store, 'x'),
    'range': lambda store: read_bytes(store, 'x', **RANGE),
    'head': lambda store: store.head('x').size,
    'list': lambda store: [info.key for info in store.list('')],
    'put': lambda store: put_bytes(store, 'y', b'1'),
    'delete': lambda store: store.delete('absent'),
}
FAULTS: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    'no connection': (lambda: Fault(drop=True), TransferError),
    '500': (lambda: Fault(status=500), TransferError),
    '502': (lambda: Fault(status=502), TransferError),
    '503': (lambda: Fault(status=503), TransferError),
    '429': (lambda: Fault(status=429), TransferError),
    'no first byte': (lambda: Fault(latency=60.0), TransferError),
    '401': (lambda: Fault(status=401), AccessDeniedError),
    '403': (lambda: Fault(status=403), AccessDeniedError),
}
BROKEN_BODIES: dict[str, Callable[[int], Any]] = {
    'reset': lambda after: Fault(match='GET', reset_after=after, times=1),
    'truncated': lambda after: Fault(match='GET', close_after=after, times=1),
    'stalled': lambda after: Fault(match='GET', stall_after=after, times=1),
}


class StoreFaultContract:
    """Tests of the `Store` protocol on a network that fails."""

    ROW: ClassVar[str] = ''
    """Store and server, for the tables of results."""

    OPERATIONS: ClassVar = OPERATIONS
    FAULTS: ClassVar = FAULTS
    """Faults of each operation, and their errors."""
    BROKEN_BODIES: ClassVar = BROKEN_BODIES
    """Ends of a transfer after a number of bytes."""
    RETRY: ClassVar = Retry(attempts=4, first_delay=0.01)
    REQUESTS: ClassVar[dict[str, int]] = {}
    """Maximum requests of an operation, if more than one."""
    SILENT: ClassVar[frozenset[str]] = frozenset({'no first byte', 'stalled'})
    """The rows of both tables that only a time-out ends."""
    SILENCE: ClassVar = 0.5
    """Their time-out in seconds; raise it for a server that is slow on a busy machine."""
    SLOWEST: ClassVar = 20.0
    """Seconds in which any failure must be reported."""

    def slow(self) -> Any:
        """The fault of a slow connection that is never silent for long."""
        return Fault(match='GET', rate=2_000_000)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test that names a row of a table with each row of this class."""
        given = {name for mark in metafunc.definition.iter_markers('parametrize') for name in _names(mark.args[0])}
        tables = {
            'operation': self.OPERATIONS,
            'fault': self.FAULTS,
            'kind': self.BROKEN_BODIES,
            'passing_fault': [name for name, (_, error) in self.FAULTS.items() if error is TransferError],
        }
        for name, rows in tables.items():
            if name in metafunc.fixturenames and name not in given:
                metafunc.parametrize(name, rows)

    @pytest.fixture
    def read_timeout(self, request: pytest.FixtureRequest) -> float:
        """Seconds that ``proxied`` waits for a byte: few if none comes, else more than a busy machine pauses."""
        rows = request.node.callspec.params.values() if hasattr(request.node, 'callspec') else ()
        return self.SILENCE if any(isinstance(row, str) and row in self.SILENT for row in rows) else 30.0

    @pytest.fixture(autouse=True)
    def objects(self, direct: Store) -> None:
        put_bytes(direct, 'x', DATA)

    def test_a_failure_is_told_soon_and_once(self, proxied: ProxiedStore, operation: str, fault: str) -> None:
        store, proxy = proxied
        make, expected = self.FAULTS[fault]
        act = self.OPERATIONS[operation]
        proxy.faults = [make()]
        begin = time.monotonic()
        with pytest.raises(expected) as caught:
            act(store)
        assert time.monotonic() - begin < self.SLOWEST
        assert store.url in str(caught.value)
        # The SDK's own retries are off, so that all attempts are counted.
        assert len(proxy.requests) <= self.REQUESTS.get(operation, 1)
        proxy.faults = []
        self.RETRY.call(operation, lambda: act(store))  # on a busy machine the time-out may come before the answer

    @pytest.mark.parametrize('operation', ['get', 'range', 'head'])
    def test_404_is_told(self, proxied: ProxiedStore, operation: str) -> None:
        proxied.proxy.faults = [Fault(status=404)]
        with pytest.raises(ObjectNotFoundError):
            self.OPERATIONS[operation](proxied.store)

    @pytest.mark.parametrize('operation', ['get', 'range', 'head', 'list'])
    def test_retry_after_is_heard(self, proxied: ProxiedStore, operation: str) -> None:
        proxied.proxy.faults = [Fault(status=503, retry_after=7)]
        with pytest.raises(BrokenTransferError) as caught:
            self.OPERATIONS[operation](proxied.store)
        assert caught.value.retry_after == 7

    @pytest.mark.parametrize('after', [0, MIDDLE, len(DATA) - 3000])
    def test_a_broken_body_is_an_error_and_what_came_is_right(
        self, proxied: ProxiedStore, kind: str, after: int
    ) -> None:
        for how in ({}, RANGE):
            expected = DATA if not how else DATA[1000:-1000]
            proxied.proxy.faults = [self.BROKEN_BODIES[kind](after)]
            out = io.BytesIO()
            with pytest.raises(TransferError):
                proxied.store.get('x', out, **how)
            assert expected.startswith(out.getvalue())

    @pytest.mark.parametrize('after', [0, MIDDLE, len(DATA) - 1])
    def test_a_broken_download_continues(self, proxied: ProxiedStore, tmp_path: Path, kind: str, after: int) -> None:
        proxied.proxy.faults = [self.BROKEN_BODIES[kind](after)]
        assert self._download(proxied.store, tmp_path) == DATA

    def test_a_download_survives_a_burst(self, proxied: ProxiedStore, tmp_path: Path, passing_fault: str) -> None:
        fault = self.FAULTS[passing_fault][0]()
        fault.times = 2
        proxied.proxy.faults = [fault]
        assert self._download(proxied.store, tmp_path) == DATA

    def test_a_dead_server_is_given_up(self, proxied: ProxiedStore, tmp_path: Path) -> None:
        proxied.proxy.faults = [self.FAULTS['no connection'][0]()]
        with pytest.raises(TransferError, match=r'after 4 attempts'):
            self._download(proxied.store, tmp_path)

    def test_slow_is_not_broken(self, proxied: ProxiedStore, tmp_path: Path) -> None:
        """The time-out is for a connection without a byte, not for the whole object."""
        proxied.proxy.faults = [self.slow()]
        assert self._download(proxied.store, tmp_path) == DATA

    def _download(self, store: Store, folder: Path) -> bytes:
        with open(folder / 'out', 'w+b', buffering=0) as out:
            count = download(store, 'x', out, self.RETRY)
        assert (folder / 'out').stat().st_size == count
        return (folder / 'out').read_bytes()


def _names(argument: str | list[str] | tuple[str, ...]) -> list[str]:
    """The names of a ``parametrize`` mark, which may be one text."""
    return [name.strip() for name in argument.split(',')] if isinstance(argument, str) else list(argument)
