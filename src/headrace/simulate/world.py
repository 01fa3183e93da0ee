"""Simulated time, and the link of a node that its transfers share.

A process is a generator. It yields seconds to sleep, or an `Event` to wait for.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator

__all__ = ['Event', 'Link', 'Process', 'World']

_QUICKEST = 1e15  # bytes per second
_INSTANT = 1e-9  # seconds; what is due so soon is due now

Process = Generator['float | Event', None, None]


class Event:
    """Something that processes wait for; it happens once."""

    def __init__(self) -> None:
        self.has_happened = False
        self.waiting: list[Process] = []


class World:
    """The clock, and the processes that wait for a time.

    Args:
        check: called often while time passes; what it raises ends that.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self._check = check
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # calls of the same time run in the order in which they were made

    def clock(self) -> float:
        """Seconds since the begin."""
        return self.now

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Make a call after some time."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), call))

    def start(self, process: Process) -> None:
        """Begin a process now."""
        self.after(0, lambda: self._resume(process))

    def happens(self, event: Event) -> None:
        """Have the processes go on that wait for an event."""
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


class _Transfer:
    """Bytes on their way."""

    def __init__(self, left: float, weight: int, warn_at: float, almost: Callable[[], None], done: Callable[[], None]):
        self.left, self.weight = left, weight
        self.warn_at = warn_at  # seconds before the end, at the rate of then
        self.almost: Callable[[], None] | None = almost
        self.done = done


class Link:
    """A node's connection: concurrent transfers share its bandwidth, each connection alike.

    A transfer beyond the open connections opens another one, which takes a round trip more.

    Args:
        world: the clock.
        bandwidth: bytes per second of all transfers together.
        connection_bandwidth: bytes per second of one connection.
        latency: seconds from a request to the first byte.
    """

    def __init__(self, world: World, *, bandwidth: float, connection_bandwidth: float, latency: float) -> None:
        self._world, self._latency = world, latency
        self._bandwidth = min(bandwidth, _QUICKEST)  # an infinite rate times no time is no number
        self._connection_bandwidth = connection_bandwidth
        self._active: list[_Transfer] = []
        self._asked, self._open = 0, 1  # connections in use, and open ones: the index was read with one
        self._since = 0.0
        self._version = 0
        self.bytes = 0
        """Bytes that were requested so far."""

    def fetch(self, size: int, connections: int, almost: Callable[[], None], done: Callable[[], None]) -> None:
        """Transfer an object.

        Args:
            size: its bytes.
            connections: connections that it uses at the same time.
            almost: called when the rest takes less than one round trip.
            done: called when all bytes are there.
        """
        self.bytes += size
        transfer = _Transfer(size, connections, self._latency, almost, done)
        self._asked += connections
        is_open, self._open = self._asked <= self._open, max(self._asked, self._open)
        self._world.after(self._latency * (1 if is_open else 2), lambda: self._begin(transfer))

    def _begin(self, transfer: _Transfer) -> None:
        self._pass_time()
        self._active.append(transfer)
        self._plan()

    def _rate(self, transfer: _Transfer, connections: int) -> float:
        return transfer.weight * min(self._connection_bandwidth, self._bandwidth / connections)

    def _pass_time(self) -> None:
        """Take the bytes that have come since the last look."""
        seconds, self._since = self._world.now - self._since, self._world.now
        connections = sum(transfer.weight for transfer in self._active)
        for transfer in self._active:
            transfer.left -= seconds * self._rate(transfer, connections)

    def _plan(self) -> None:
        """Look again when the next transfer ends or nearly does."""
        self._version += 1
        version = self._version
        connections = sum(transfer.weight for transfer in self._active)
        wait = math.inf
        for transfer in self._active:
            seconds = max(0.0, transfer.left / self._rate(transfer, connections))
            if transfer.almost is not None:
                seconds = max(0.0, seconds - transfer.warn_at)
            wait = min(wait, seconds)
        if wait < math.inf:
            self._world.after(wait, lambda: self._look(version))

    def _look(self, version: int) -> None:
        if version != self._version:
            return
        self._pass_time()
        connections = sum(transfer.weight for transfer in self._active)
        # A late clock has coarse ticks: less than a few of them must not be waited for, since no time would pass.
        instant = max(_INSTANT, 8 * math.ulp(self._world.now))
        calls: list[Callable[[], None]] = []
        for transfer in [*self._active]:
            seconds = transfer.left / self._rate(transfer, connections)
            if transfer.almost is not None and seconds <= transfer.warn_at + instant:
                calls.append(transfer.almost)
                transfer.almost = None
            if seconds <= instant:
                self._active.remove(transfer)
                self._asked -= transfer.weight
                calls.append(transfer.done)
        for call in calls:
            call()
        self._plan()
