"""The program behind `link.Link`: forwards connections over a link of given latency and bandwidth.

It needs only the standard library and is run by its path, so it starts at once.

    relay.py HOST PORT LATENCY RATE COUNTERS

HOST and PORT are the server's. LATENCY is a round trip in seconds. RATE is bytes per second towards the client (0: no
limit). It writes `COUNTERS` int64 numbers, in the machine's byte order, to the file COUNTERS.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import mmap
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Final

COUNTERS: Final = 5
PORT, TO_CLIENT, TO_SERVER, CONNECTIONS, OPEN = range(COUNTERS)
"""The numbers of the file: its port, bytes each way, accepted connections."""

_SLACK: Final = 0.001  # seconds that a chunk may be early: the grain of epoll's clock
_CATCH_UP: Final = 0.1  # seconds of waiting for a processor that it makes up for
_UNLIMITED_WINDOW: Final = 64 << 20
_CHUNK: Final = 1 << 18


class _Pipe:
    """One direction of a connection: bytes that were read, are under way, or have arrived."""

    def __init__(self, source: socket.socket, sink: socket.socket, *, to_client: bool) -> None:
        self.source = source
        self.sink = sink
        self.to_client = to_client
        self.peer: _Pipe
        self.opens = 0.0
        """Time of the handshake's end; no byte leaves earlier."""
        self.flying: deque[bytes] = deque()
        """Chunks in order of arrival; an empty one is the end."""
        self.arrived: deque[memoryview] = deque()
        self.held = 0
        """Bytes of both."""
        self.is_waiting = False
        """Whether it is in the queue for the link."""
        self.has_ended = False
        """Whether the source has ended."""
        self.is_done = False
        """Whether the sink was told of the end."""
        self.is_blocked = False
        """Whether the sink is full."""


class Relay:
    """The link between any number of connections.

    Args:
        latency: seconds of a round trip.
        rate: bytes per second towards the clients, 0: no limit.
        counts: `COUNTERS` numbers to update.
        clock: seconds since any moment.
    """

    def __init__(
        self, latency: float, rate: float, counts: memoryview, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._one_way = latency / 2
        self._round_trip = latency
        self._rate = rate
        self._counts = counts
        self._selector = selectors.DefaultSelector()
        self._interest: dict[socket.socket, int] = {}
        self._reads: dict[socket.socket, _Pipe] = {}
        self._writes: dict[socket.socket, _Pipe] = {}
        self._waiting: deque[_Pipe] = deque()
        self._free_at = 0.0  # time at which the last sent bit is on the link
        self._flights: list[tuple[float, int, _Pipe]] = []
        self._numbers = itertools.count()
        # The bytes of four round trips, like TCP's window; the kernel buffers more.
        self._window = int(4 * rate * latency) + (1 << 20) if rate else _UNLIMITED_WINDOW
        # About 2 ms of the link, so connections often take turns.
        self._quantum = min(max(int(rate * 0.002), 1 << 14), _CHUNK) if rate else _CHUNK

    def serve(self, server: tuple[str, int]) -> None:
        """Listen on a free port, and connect all clients to the server, for ever."""
        listener = socket.create_server(('127.0.0.1', 0), backlog=512)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._counts[PORT] = listener.getsockname()[1]
        while True:
            if listener in self.turn(self.patience()):
                self._accept(listener, server)

    def turn(self, patience: float | None) -> set[socket.socket]:
        """Wait for a ready socket, at most this long, and do all possible work.

        Returns:
            The sockets that were ready.
        """
        ready = set[socket.socket]()
        for key, events in self._selector.select(patience):
            found = key.fileobj
            assert isinstance(found, socket.socket)
            ready.add(found)
            if events & selectors.EVENT_WRITE and found in self._writes:
                self._write(self._writes[found])
            if events & selectors.EVENT_READ and found in self._reads:
                self._readable(self._reads[found])
        self._send()
        self._deliver()
        return ready

    def patience(self) -> float | None:
        """Seconds until the next event that is due; None if only sockets can cause one."""
        due = self._flights[0][0] if self._flights else None
        if self._waiting:
            turn = self._free_at - _SLACK
            due = turn if due is None else min(due, turn)
        return None if due is None else max(0.0, due - self._clock())

    # -- connections ----------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, address: tuple[str, int]) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            client, _ = listener.accept()
            try:
                server = socket.create_connection(address)
            except OSError:
                client.close()
                return
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.join(client, server)

    def join(self, client: socket.socket, server: socket.socket) -> None:
        """Link two sockets, and close them at the end."""
        self._counts[CONNECTIONS] += 1
        down = _Pipe(server, client, to_client=True)
        up = _Pipe(client, server, to_client=False)
        down.peer, up.peer = up, down
        # The kernel has done the handshake; over the link it takes a round trip, after which the client sends.
        up.opens = self._clock() + self._round_trip
        for pipe in (down, up):
            pipe.source.setblocking(False)
            self._reads[pipe.source] = pipe
            self._writes[pipe.sink] = pipe
            self._watch(pipe.source)
        self._counts[OPEN] = len(self._reads) // 2

    def _watch(self, end: socket.socket) -> None:
        """Register the events of a socket that are possible now."""
        read, write = self._reads.get(end), self._writes.get(end)
        events = 0
        if read is not None and not (read.has_ended or read.is_waiting or read.held > self._window):
            events |= selectors.EVENT_READ
        if write is not None and write.is_blocked:
            events |= selectors.EVENT_WRITE
        before = self._interest.get(end, 0)
        if events == before:
            return
        if not before:
            self._selector.register(end, events)
        elif not events:
            self._selector.unregister(end)
        else:
            self._selector.modify(end, events)
        self._interest[end] = events

    def _drop(self, pipe: _Pipe) -> None:
        """Close both ends of a connection at once."""
        for one in (pipe, pipe.peer):
            one.has_ended = one.is_done = True
            one.is_blocked = False
            one.flying.clear()
            one.arrived.clear()
            self._reads.pop(one.source, None)
            self._writes.pop(one.sink, None)
        for one in (pipe, pipe.peer):
            self._watch(one.source)
            self._interest.pop(one.source, None)
            one.source.close()
        self._counts[OPEN] = len(self._reads) // 2

    # -- the link -------------------------------------------------------------------------------------------------

    def _readable(self, pipe: _Pipe) -> None:
        if pipe.to_client and self._rate:
            if not self._waiting:  # the link was idle until now
                self._free_at = max(self._free_at, self._clock())
            pipe.is_waiting = True
            self._waiting.append(pipe)
            self._watch(pipe.source)
        else:
            self._take(pipe, _CHUNK)
            self._watch(pipe.source)

    def _send(self) -> None:
        """Send waiting chunks over the link while it is free, one of each connection in turn."""
        now = self._clock()
        while self._waiting and self._free_at <= now + _SLACK:
            pipe = self._waiting.popleft()
            pipe.is_waiting = False
            if pipe.has_ended:
                continue
            self._free_at = max(self._free_at, now - _CATCH_UP)
            if self._take(pipe, self._quantum) == self._quantum and pipe.held <= self._window:
                pipe.is_waiting = True
                self._waiting.append(pipe)
            else:
                self._watch(pipe.source)

    def _take(self, pipe: _Pipe, most: int) -> int:
        """Read at most this many bytes and send them; return their number."""
        try:
            chunk = pipe.source.recv(most)
        except BlockingIOError:
            return 0
        except OSError:
            chunk = b''
        size = len(chunk)
        now = self._clock()
        if pipe.to_client:
            self._counts[TO_CLIENT] += size
            if self._rate:
                self._free_at += size / self._rate
                now = self._free_at
        else:
            self._counts[TO_SERVER] += size
            now = max(now, pipe.opens)
        pipe.has_ended = not size
        pipe.held += size
        pipe.flying.append(chunk)
        heapq.heappush(self._flights, (now + self._one_way, next(self._numbers), pipe))
        return size

    def _deliver(self) -> None:
        now = self._clock()
        while self._flights and self._flights[0][0] <= now:
            pipe = heapq.heappop(self._flights)[2]
            if not pipe.is_done:
                pipe.arrived.append(memoryview(pipe.flying.popleft()))
                if not pipe.is_blocked:
                    self._write(pipe)

    def _write(self, pipe: _Pipe) -> None:
        """Write arrived bytes until the sink is full."""
        pipe.is_blocked = False
        try:
            while pipe.arrived:
                chunk = pipe.arrived[0]
                if not chunk:
                    pipe.is_done = True
                    if pipe.peer.is_done:
                        self._drop(pipe)
                        return
                    pipe.sink.shutdown(socket.SHUT_WR)
                    break
                sent = pipe.sink.send(chunk)
                pipe.held -= sent
                if sent == len(chunk):
                    pipe.arrived.popleft()
                else:
                    pipe.arrived[0] = chunk[sent:]
        except BlockingIOError:
            pipe.is_blocked = True
        except OSError:
            self._drop(pipe)
            return
        self._watch(pipe.sink)
        self._watch(pipe.source)


def _main() -> None:
    host, port, latency, rate, counters = sys.argv[1:]
    with open(counters, 'r+b') as file:
        counts = memoryview(mmap.mmap(file.fileno(), 8 * COUNTERS)).cast('q')
    Relay(float(latency), float(rate), counts).serve((host, int(port)))


if __name__ == '__main__':
    _main()
