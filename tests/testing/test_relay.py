"""The link's timetable, by a clock that only the tests turn, so that no other process can disturb it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.support.servers.relay import CONNECTIONS, COUNTERS, TO_CLIENT, TO_SERVER, Relay

ROUND = 0.0001
"""Seconds that the clock is turned on at least."""


class Transfer:
    """Bytes that a client asks for, at some time, over a connection that it made before."""

    def __init__(self, connection: Connection, size: int, at: float) -> None:
        self.connection = connection
        self.size = size
        self.at = at
        self.is_asked = self.is_known = False
        """Whether the client has asked, and whether the server has heard of it."""
        self.sent = 0
        self.received = 0
        self.end: float | None = None

    @property
    def seconds(self) -> float:
        """From asking until the last byte."""
        assert self.end is not None
        return self.end - self.at


class Connection:
    """A client's and a server's end, with the link between them."""

    def __init__(self, relay: Relay) -> None:
        self.client, near = socket.socketpair()
        self.server, far = socket.socketpair()
        relay.join(near, far)
        for end in (self.client, self.server):
            end.setblocking(False)

    def step(self, transfer: Transfer, now: float) -> bool:
        """Have client and server do what they can now; whether they did anything."""
        before = vars(transfer).copy()
        with contextlib.suppress(BlockingIOError):
            if not transfer.is_asked and now >= transfer.at:
                self.client.sendall(b'?')
                transfer.is_asked = True
            if transfer.is_asked and not transfer.is_known:
                transfer.is_known = self.server.recv(1) == b'?'
        with contextlib.suppress(BlockingIOError):
            while transfer.is_known and transfer.sent < transfer.size:
                transfer.sent += self.server.send(bytes(min(transfer.size - transfer.sent, 1 << 18)))
        with contextlib.suppress(BlockingIOError):
            while transfer.received < transfer.size:
                transfer.received += len(self.client.recv(1 << 18))
        if transfer.received == transfer.size and transfer.end is None:
            transfer.end = now
        return vars(transfer) != before


class Simulation:
    """A link, clients and a server in simulated time."""

    def __init__(self, latency: float = 0.0, rate: float = 0.0) -> None:
        self.now = 1000.0
        self.counts = memoryview(bytearray(8 * COUNTERS)).cast('q')
        self.relay = Relay(latency, rate, self.counts, clock=lambda: self.now)
        self.connections: list[Connection] = []
        self.pauses: list[tuple[float, float]] = []
        """When the link's process is kept from running, and for how many seconds."""

    def connect(self) -> Connection:
        """A new connection."""
        self.connections.append(Connection(self.relay))
        return self.connections[-1]

    def run(self, *transfers: Transfer) -> None:
        """Until all are over."""
        while any(transfer.end is None for transfer in transfers):
            ready = self.relay.turn(0)
            moved = [transfer.connection.step(transfer, self.now) for transfer in transfers]
            if ready or any(moved):
                continue
            due = [transfer.at for transfer in transfers if not transfer.is_asked]
            patience = self.relay.patience()
            if patience is not None:
                due.append(self.now + patience)
            self.now = max(min(due), self.now + ROUND)
            if self.pauses and self.now >= self.pauses[0][0]:
                self.now += self.pauses.pop(0)[1]

    def close(self) -> None:
        """Both ends of all connections."""
        for connection in self.connections:
            connection.client.close()
            connection.server.close()
        while self.relay.turn(0):
            pass
        self.relay._selector.close()


@pytest.fixture
def simulate() -> Iterator[type[Simulation]]:
    made: list[Simulation] = []

    class Closed(Simulation):
        def __init__(self, latency: float = 0.0, rate: float = 0.0) -> None:
            super().__init__(latency, rate)
            made.append(self)

    yield Closed
    for simulation in made:
        simulation.close()


@pytest.mark.parametrize('rate', [20e6, 200e6])
def test_bandwidth(simulate: type[Simulation], rate: float) -> None:
    link = simulate(rate=rate)
    transfer = Transfer(link.connect(), int(rate * 0.5), link.now)
    link.run(transfer)
    assert transfer.seconds == pytest.approx(0.5, rel=0.01)
    assert link.counts[TO_CLIENT] == transfer.size
    assert link.counts[TO_SERVER] == 1
    assert link.counts[CONNECTIONS] == 1


def test_connections_share_the_bandwidth_equally(simulate: type[Simulation]) -> None:
    rate, size = 40e6, 6_000_000
    link = simulate(0.01, rate)
    transfers = [Transfer(link.connect(), size, link.now) for _ in range(4)]
    link.run(*transfers)
    took = [transfer.seconds for transfer in transfers]
    assert max(took) == pytest.approx(0.02 + 4 * size / rate, rel=0.01)
    assert min(took) == pytest.approx(max(took), rel=0.02)
    assert link.counts[TO_CLIENT] == 4 * size
    assert link.counts[CONNECTIONS] == 4


def test_a_late_comer_gets_its_share_at_once(simulate: type[Simulation]) -> None:
    rate = 20e6
    link = simulate(rate=rate)
    first = Transfer(link.connect(), 12_000_000, link.now)
    second = Transfer(link.connect(), 2_000_000, link.now + 0.2)
    link.run(first, second)
    assert second.seconds == pytest.approx(2 * 2_000_000 / rate, rel=0.02)
    assert first.seconds == pytest.approx(14_000_000 / rate, rel=0.01)


def test_an_idle_link_saves_nothing_up(simulate: type[Simulation]) -> None:
    rate = 20e6
    link = simulate(rate=rate)
    connection = link.connect()
    link.run(Transfer(connection, 1, link.now))
    transfer = Transfer(connection, 4_000_000, link.now + 0.5)
    link.run(transfer)
    assert transfer.seconds == pytest.approx(4_000_000 / rate, rel=0.01)


@pytest.mark.parametrize(('paused', 'lost'), [(0.08, 0.0), (0.3, 0.2)])
def test_what_other_processes_take_is_made_up_for_up_to_100_ms(
    simulate: type[Simulation], paused: float, lost: float
) -> None:
    rate = 1e6  # of which the sockets keep more than 100 ms
    link = simulate(rate=rate)
    transfer = Transfer(link.connect(), 500_000, link.now)
    link.pauses = [(link.now + 0.2, paused)]
    link.run(transfer)
    assert transfer.seconds == pytest.approx(0.5 + lost, rel=0.01)


def test_a_round_trip_and_the_handshake_take_their_time(simulate: type[Simulation]) -> None:
    link = simulate(0.1)
    connection = link.connect()
    first = Transfer(connection, 1, link.now)
    link.run(first)
    assert first.seconds == pytest.approx(0.2, abs=0.001)
    second = Transfer(connection, 1, link.now)
    link.run(second)
    assert second.seconds == pytest.approx(0.1, abs=0.001)


def test_latency_costs_no_bandwidth(simulate: type[Simulation]) -> None:
    rate, size = 100e6, 50_000_000
    link = simulate(0.2, rate)
    connection = link.connect()
    link.run(Transfer(connection, 1, link.now))
    transfer = Transfer(connection, size, link.now)
    link.run(transfer)
    assert transfer.seconds == pytest.approx(0.2 + size / rate, rel=0.01)


def test_requests_sent_together_share_a_round_trip(simulate: type[Simulation]) -> None:
    link = simulate(0.1)
    connection = link.connect()
    link.run(Transfer(connection, 1, link.now))
    start, to_send, arrived = link.now, [(0.0, b'1'), (0.03, b'2')], list[tuple[bytes, float]]()
    while len(arrived) < 2:
        while to_send and link.now >= start + to_send[0][0]:
            connection.client.sendall(to_send.pop(0)[1])
        link.relay.turn(0)
        with contextlib.suppress(BlockingIOError):
            arrived.append((connection.server.recv(10), link.now - start))
        link.now += ROUND
    assert arrived == [(b'1', pytest.approx(0.05, abs=0.001)), (b'2', pytest.approx(0.08, abs=0.001))]


def test_a_client_that_leaves_takes_nothing_of_the_bandwidth(simulate: type[Simulation]) -> None:
    rate = 20e6
    link = simulate(rate=rate)
    left = Transfer(link.connect(), 100_000_000, link.now)
    begin = Transfer(left.connection, 100_000, link.now)
    link.run(begin)
    left.connection.client.close()
    left.connection.server.close()
    while link.relay.turn(0):
        pass
    transfer = Transfer(link.connect(), 2_000_000, link.now)
    link.run(transfer)
    assert transfer.seconds == pytest.approx(0.1, rel=0.05)
