"""Simulated time, and the link of a node that its transfers share.

A process is a generator. It yields seconds to sleep, or an `Event` to wait for.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator

from headrace.storage.transfer.download import AlmostDone
from headrace.storage.transfer.http import CHUNK

_QUICKEST = 1e15  # bytes per second
_BURST = 1 << 14  # bytes that a connection sends at once, about TCP's first window of ten segments
_INSTANT = 1e-9  # seconds; what is due so soon is due now

Process = Generator['float | Event', None, None]


class Event:
    def __init__(self) -> None:
        self.has_happened = False
        self.waiting: list[Process] = []


class World:
    """The clock, and the processes that wait for a time; what `check` raises ends that."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self._check = check
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # calls of the same time run in the order in which they were made

    def clock(self) -> float:
        """Seconds since the begin."""
        return self.now

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), call))

    def start(self, process: Process) -> None:
        self.after(0, lambda: self._resume(process))

    def happens(self, event: Event) -> None:
        """Let the processes that wait for an event continue."""
        event.has_happened = True
        for process in event.waiting:
            self.start(process)
        event.waiting.clear()

    def run(self, is_over: Callable[[], bool]) -> None:
        """Pass time until a condition holds, or nothing is left to happen."""
        while self._due and not is_over():
            self._check()
            self.now, _, call = heapq.heappop(self._due)
            call()

    def _resume(self, process: Process) -> None:
        try:
            wanted = next(process)
        except StopIteration:
            return
        if isinstance(wanted, Event):
            if wanted.has_happened:
                self.start(process)
            else:
                wanted.waiting.append(process)
        else:
            self.after(wanted, lambda: self._resume(process))


class Processor:
    """The processor time of a process: Python does one thing after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free_at = 0.0

    def reserve(self, seconds: float) -> float:
        """Take time behind all that was reserved before; returns the seconds from now to its end."""
        self._free_at = max(self._world.now, self._free_at) + seconds
        return self._free_at - self._world.now


class _Transfer:
    """Bytes on their way, in a chunk for each connection. `almost` is called when the last are about to come."""

    def __init__(
        self, world: World, size: int, connections: int, almost: Callable[[], None], done: Callable[[], None]
    ) -> None:
        self._world, self._almost, self._size, self._chunk = world, almost, size, CHUNK * connections
        self.connections, self.done, self.left = connections, done, float(size)
        self._near = AlmostDone(size, self._call, world.clock)
        self._near.ask()
        self._asked = world.now
        self._begun: float | None = None  # when the first chunk was there
        self._counted = self._look = 0  # bytes that `AlmostDone` knows of, and at which it hears of more
        self._first = 0  # bytes of the first chunk
        self._called = False

    def plan_look(self, rate: float) -> float:
        """Seconds until `look` is due: at the next chunk with which `AlmostDone` could call, if the rate stays."""
        due = 0.0
        if self._called:
            due = self._size
        elif self._begun is not None:
            latency, elapsed = self._begun - self._asked, self._world.now - self._begun
            come = self._size - self.left
            pace = max(rate, (come - self._first) / elapsed) if elapsed else rate  # never more later
            due = max(come + max(0.0, latency - elapsed) * rate, self._size - latency * pace)
        chunks = math.ceil(min(due, self._size) / self._chunk)
        self._look = min(self._size, max(self._counted + self._chunk, chunks * self._chunk))
        return self.seconds_to_look(rate)

    def seconds_to_look(self, rate: float) -> float:
        """Seconds until the planned chunks are there."""
        return max(0.0, (self.left - (self._size - self._look)) / rate)

    @property
    def is_whole(self) -> bool:
        return self._look == self._size

    def look(self) -> None:
        """Count the chunks that are there, as planned."""
        if self._begun is None:
            self._begun, self._first = self._world.now, self._look
        size, self._counted = self._look - self._counted, self._look
        self._near.count(size)

    def _call(self) -> None:
        self._called = True
        self._almost()


class Link:
    """A node's connection: concurrent transfers share its bandwidth, each connection alike.

    A transfer beyond the open connections opens another one, which takes a round trip more. Its first bytes wait behind
    those that the others have just sent.
    """

    def __init__(self, world: World, *, bandwidth: float, connection_bandwidth: float, latency: float) -> None:
        self._world, self._latency = world, latency
        self._bandwidth = min(bandwidth, _QUICKEST)  # an infinite rate times no time is undefined
        self._connection_bandwidth = connection_bandwidth
        self._active: list[_Transfer] = []
        self._asked, self._open = 0, 1  # connections in use, and open ones: the index was read with one
        self._since = 0.0
        self._version = 0
        self.bytes = 0  # bytes that were requested so far

    def fetch(
        self,
        size: int,
        connections: int,
        almost: Callable[[], None],
        done: Callable[[], None],
        *,
        sent_after: float = 0.0,
    ) -> None:
        """Transfer an object; `almost` is set when the rest takes under a round trip by a download's estimate."""
        self.bytes += size
        transfer = _Transfer(self._world, size, connections, almost, done)
        self._asked += connections
        is_open, self._open = self._asked <= self._open, max(self._asked, self._open)
        round_trips = 1 if is_open else 2
        self._world.after(sent_after + round_trips * self._latency, lambda: self._begin(transfer))

    def _begin(self, transfer: _Transfer) -> None:
        """Have the first bytes of a transfer sent: they wait for a burst of each connection under way."""
        connections = sum(transfer.connections for transfer in self._active)
        self._world.after(connections * _BURST / self._bandwidth, lambda: self._join(transfer))

    def _join(self, transfer: _Transfer) -> None:
        self._pass_time()
        self._active.append(transfer)
        self._plan()

    def _rate_of_connection(self) -> float:
        connections = sum(transfer.connections for transfer in self._active)
        return min(self._connection_bandwidth, self._bandwidth / max(1, connections))

    def _pass_time(self) -> None:
        """Take the bytes that have come since the last look."""
        seconds, self._since = self._world.now - self._since, self._world.now
        rate = self._rate_of_connection()
        for transfer in self._active:
            transfer.left -= seconds * transfer.connections * rate

    def _plan(self) -> None:
        """Look again when chunks of a transfer are there that matter."""
        self._version += 1
        version = self._version
        rate = self._rate_of_connection()
        wait = min((transfer.plan_look(transfer.connections * rate) for transfer in self._active), default=math.inf)
        if wait < math.inf:
            self._world.after(wait, lambda: self._look(version))

    def _look(self, version: int) -> None:
        if version != self._version:
            return
        self._pass_time()
        rate = self._rate_of_connection()
        # A late clock has coarse ticks: less than a few of them must not be waited for, since no time would pass.
        instant = max(_INSTANT, 8 * math.ulp(self._world.now))
        calls: list[Callable[[], None]] = []
        for transfer in [*self._active]:
            if transfer.seconds_to_look(transfer.connections * rate) > instant:
                continue
            calls.append(transfer.look)
            if transfer.is_whole:
                self._active.remove(transfer)
                self._asked -= transfer.connections
                calls.append(transfer.done)
        for call in calls:
            call()
        self._plan()
