from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.testing.link import Link
from headrace.testing.servers.process import free_port, running, wait_for_port


@pytest.fixture(scope='module')
def server() -> Iterator[str]:
    port = free_port()
    with running([sys.executable, '-I', str(Path(__file__).with_name('byte_server.py')), str(port)]) as process:
        wait_for_port(port, process)
        yield f'http://127.0.0.1:{port}'


def at_a_quiet_moment(test: Callable[..., None]) -> Callable[..., None]:
    """A test of times, which other processes may disturb: it has to pass once out of five."""

    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        for _ in range(4):
            try:
                return test(*args, **kwargs)
            except AssertionError:
                time.sleep(0.5)
        return test(*args, **kwargs)

    return wrapper


def connect(link: Link) -> socket.socket:
    host, _, port = link.endpoint_url.rpartition('://')[2].rpartition(':')
    found = socket.create_connection((host, int(port)))
    found.settimeout(30)
    return found


def get(connection: socket.socket, size: int) -> float:
    """When the last of so many bytes was there."""
    connection.sendall(f'{size}\n'.encode())
    buffer = bytearray(1 << 18)
    while size:
        size -= connection.recv_into(buffer, min(size, len(buffer)))
    return time.perf_counter()


@pytest.mark.parametrize('rate', [20e6, 200e6])
@at_a_quiet_moment
def test_bandwidth(server: str, rate: float) -> None:
    size = int(rate * 0.5)
    with Link(server, rate=rate) as link, connect(link) as connection:
        start = time.perf_counter()
        assert (get(connection, size) - start) * rate == pytest.approx(size, rel=0.1)
        assert link.bytes_received == size
        assert link.connections == 1


@at_a_quiet_moment
def test_connections_share_the_bandwidth_equally(server: str) -> None:
    rate, size = 40e6, 6_000_000
    with Link(server, latency=0.01, rate=rate) as link, ThreadPoolExecutor(4) as threads:
        connections = [connect(link) for _ in range(4)]
        start = time.perf_counter()
        ends = [end - start for end in threads.map(get, connections, [size] * 4)]
        assert max(ends) == pytest.approx(4 * size / rate, rel=0.1)
        assert min(ends) == pytest.approx(max(ends), rel=0.1)
        assert link.bytes_received == 4 * size
        assert link.connections == 4
        for connection in connections:
            connection.close()


@at_a_quiet_moment
def test_a_late_comer_gets_its_share_at_once(server: str) -> None:
    rate = 20e6
    with Link(server, rate=rate) as link, connect(link) as first, connect(link) as second:
        busy = threading.Thread(target=get, args=(first, 12_000_000))
        busy.start()
        time.sleep(0.2)
        start = time.perf_counter()
        took = get(second, 2_000_000) - start
        busy.join()
    assert took == pytest.approx(2 * 2_000_000 / rate, rel=0.15)


@at_a_quiet_moment
def test_an_idle_link_saves_nothing_up(server: str) -> None:
    rate = 20e6
    with Link(server, rate=rate) as link, connect(link) as connection:
        get(connection, 1)
        time.sleep(0.5)
        start = time.perf_counter()
        assert get(connection, 4_000_000) - start == pytest.approx(4_000_000 / rate, rel=0.1)


@at_a_quiet_moment
def test_a_round_trip_and_the_handshake_take_their_time(server: str) -> None:
    with Link(server, latency=0.1) as link:
        start = time.perf_counter()
        with connect(link) as connection:
            first = get(connection, 1)
            assert first - start == pytest.approx(0.2, abs=0.03)
            assert get(connection, 1) - first == pytest.approx(0.1, abs=0.03)


@at_a_quiet_moment
def test_latency_costs_no_bandwidth(server: str) -> None:
    rate, size = 100e6, 50_000_000
    with Link(server, latency=0.2, rate=rate) as link, connect(link) as connection:
        get(connection, 1)
        start = time.perf_counter()
        assert get(connection, size) - start == pytest.approx(0.2 + size / rate, rel=0.1)


@at_a_quiet_moment
def test_requests_sent_together_share_a_round_trip(server: str) -> None:
    with Link(server, latency=0.1) as link, connect(link) as connection:
        get(connection, 1)
        start = time.perf_counter()
        connection.sendall(b'1\n')
        time.sleep(0.03)
        get(connection, 2)
        assert time.perf_counter() - start == pytest.approx(0.13, abs=0.03)


def test_bytes_arrive_as_they_were_sent(server: str) -> None:
    data = os.urandom(3_000_000)
    with Link(server, latency=0.02, rate=50e6) as link, connect(link) as connection:
        connection.sendall(b'echo\n' + data)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile('rb') as answer:
            assert answer.read() == data
        assert link.bytes_received == len(data)
        assert link.bytes_sent == len(data) + 5


def test_a_client_that_does_not_read_stops_the_server(server: str) -> None:
    with Link(server, rate=200e6) as link, connect(link) as connection:
        connection.sendall(b'100000000\n')
        link.wait_idle()
        assert 1_000_000 < link.bytes_received < 30_000_000


@at_a_quiet_moment
def test_a_client_that_leaves_is_forgotten(server: str) -> None:
    with Link(server, rate=20e6) as link:
        with connect(link) as connection:
            connection.sendall(b'100000000\n')
            connection.recv(1)
        link.wait_idle()
        assert link.bytes_received < 20_000_000
        with connect(link) as connection:
            start = time.perf_counter()
            assert get(connection, 2_000_000) - start == pytest.approx(0.1, rel=0.2)


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(('127.0.0.1', 0)) as probe:
        port = probe.getsockname()[1]
    with Link(f'http://127.0.0.1:{port}') as link, connect(link) as connection:
        assert connection.recv(1) == b''
        assert link.connections == 0


def _hold(server: str, pipe: multiprocessing.connection.Connection) -> None:
    with Link(server) as link:
        pipe.send(link._pid)
        time.sleep(60)


@pytest.mark.skipif(not Path('/proc/self/schedstat').exists(), reason='needs Linux')
def test_it_dies_with_its_parent(server: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context('spawn').Process(target=_hold, args=(server, theirs))
    process.start()
    pid = ours.recv()
    process.kill()
    process.join()
    deadline = time.monotonic() + 5
    while Path(f'/proc/{pid}/schedstat').exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f'/proc/{pid}/schedstat').exists()


@pytest.mark.parametrize(('latency', 'rate'), [(-1.0, None), (0.0, 0.0)])
def test_what_is_no_link(latency: float, rate: float | None) -> None:
    with pytest.raises(ValueError, match='rate must be positive'):
        Link('http://127.0.0.1:1', latency=latency, rate=rate)
