"""The link as a process of its own, whose times others may lengthen; test_relay.py has its timetable to the percent."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import support_file
from tests.support.programs.processes import is_alive
from tests.support.servers.link import Link
from tests.support.servers.process import free_port, running, wait_for_port, wait_until


@pytest.fixture(scope='module')
def server() -> Iterator[str]:
    port = free_port()
    with running([sys.executable, '-I', str(support_file('servers/byte_server.py')), str(port)]) as process:
        wait_for_port(port, process)
        yield f'http://127.0.0.1:{port}'


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
def test_it_is_not_faster_than_its_bandwidth(server: str, rate: float) -> None:
    size = int(rate * 0.5)
    with Link(server, rate=rate) as link, connect(link) as connection:
        start = time.perf_counter()
        assert get(connection, size) - start >= 0.99 * size / rate
        assert link.bytes_received == size
        assert link.connections == 1


def test_nor_are_connections_together(server: str) -> None:
    rate, size = 40e6, 6_000_000
    with Link(server, latency=0.01, rate=rate) as link, ThreadPoolExecutor(4) as threads:
        connections = [connect(link) for _ in range(4)]
        start = time.perf_counter()
        ends = [end - start for end in threads.map(get, connections, [size] * 4)]
        assert max(ends) >= 0.99 * 4 * size / rate
        assert link.bytes_received == 4 * size
        assert link.connections == 4
        for connection in connections:
            connection.close()


def test_nor_than_its_latency(server: str) -> None:
    with Link(server, latency=0.1) as link:
        start = time.perf_counter()
        with connect(link) as connection:
            first = get(connection, 1)
            assert first - start >= 0.2
            assert get(connection, 1) - first >= 0.1


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
        wait_until(lambda: link.bytes_received > 1_000_000)
        link.wait_idle()
        assert 1_000_000 < link.bytes_received < 30_000_000


def test_a_client_that_leaves_is_forgotten(server: str) -> None:
    with Link(server, rate=20e6) as link:
        with connect(link) as connection:
            connection.sendall(b'100000000\n')
            connection.recv(1)
        wait_until(lambda: not link.open_connections)
        assert link.bytes_received < 20_000_000
        with connect(link) as connection:
            before = link.bytes_received
            get(connection, 2_000_000)
            assert link.bytes_received == before + 2_000_000


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as deaf:
        deaf.bind(('127.0.0.1', 0))
        with Link(f'http://127.0.0.1:{deaf.getsockname()[1]}') as link, connect(link) as connection:
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
    wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize(('latency', 'rate'), [(-1.0, None), (0.0, 0.0)])
def test_what_is_no_link(latency: float, rate: float | None) -> None:
    with pytest.raises(ValueError, match='rate must be positive'):
        Link('http://127.0.0.1:1', latency=latency, rate=rate)
