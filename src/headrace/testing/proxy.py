"""A proxy in front of a loopback server that breaks connections on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from dataclasses import dataclass, replace

__all__ = ['Fault', 'FaultProxy', 'ProxiedRequest']


@dataclass(slots=True, kw_only=True)
class Fault:
    """A fault of the matching requests. Bytes are counted in the answer's body."""

    match: str = ''
    """A regular expression found in "GET /bucket/key"."""
    times: int | None = None
    """Number of requests that it applies to."""
    skip: int = 0
    """Number of requests to let pass first."""
    for_each_path: bool = False
    """Count ``times`` and ``skip`` separately for each path."""
    seconds: float | None = None
    """Seconds that it applies, from its first request on."""
    status: int | None = None
    """Answer with this status, without asking the server."""
    retry_after: int | None = None
    """Seconds, sent with ``status``."""
    drop: bool = False
    """Close the connection without an answer."""
    reset_after: int | None = None
    """Reset the connection after this number of bytes."""
    close_after: int | None = None
    """Close the connection normally after this number of bytes."""
    stall_after: int | None = None
    """Send nothing after this number of bytes; keep the connection open."""
    flip_at: int | None = None
    """Flip a bit of this byte."""
    latency: float = 0.0
    """Seconds before the answer begins."""
    rate: float | None = None
    """Bytes per second of each connection."""


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """One line of the proxy's log."""

    method: str
    path: str
    headers: dict[str, str]
    """Header names are in lower case."""


class FaultProxy:
    """An HTTP proxy in a separate thread; one request per connection. Change ``faults`` at any time.

    Usage: ``with FaultProxy(server.endpoint_url, [Fault(match='GET', reset_after=1000, times=1)]) as proxy``.
    """

    def __init__(self, upstream: str, faults: list[Fault] | None = None) -> None:
        host, _, port = upstream.rpartition('://')[2].rstrip('/').rpartition(':')
        self._upstream = host, int(port)
        self.faults = faults or []
        self.requests: list[ProxiedRequest] = []
        self._loop = asyncio.new_event_loop()
        self._serving = set[asyncio.Task[None]]()
        self._thread = threading.Thread(target=self._run, name='fault-proxy', daemon=True)
        self._ready = threading.Event()
        self._port = 0
        self._of_path: dict[tuple[int, str], Fault] = {}
        self._since: dict[int, float] = {}  # by fault: the time of its first request

    @property
    def endpoint_url(self) -> str:
        """Where the proxy listens."""
        return f'http://127.0.0.1:{self._port}'

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, '127.0.0.1', 0, limit=1 << 20))
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        # A closed server must not get connections that it has accepted. So accept none from here on, and let these
        # arrive first.
        self._loop.remove_reader(server.sockets[0].fileno())
        self._run_turns()
        server.close()
        while tasks := asyncio.all_tasks(self._loop):  # some wait for others, which they cancel
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._run_turns()  # each socket is closed a turn after its writer
        self._loop.close()

    def _run_turns(self) -> None:
        for _ in range(3):
            self._loop.run_until_complete(asyncio.sleep(0))

    def _choose(self, request: ProxiedRequest) -> Fault:
        for fault in self.faults:
            if not re.search(fault.match, f'{request.method} {request.path}'):
                continue
            counter = fault
            if fault.for_each_path:
                counter = self._of_path.setdefault((id(fault), request.path), replace(fault))
            if counter.times == 0:
                continue
            if counter.skip:
                counter.skip -= 1
                continue
            if counter.times is not None:
                counter.times -= 1
            now = self._loop.time()
            if fault.seconds is not None and now - self._since.setdefault(id(fault), now) >= fault.seconds:
                continue
            return fault
        return Fault()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio takes a coroutine here as well, but logs an error if that is cancelled before it begins.
        task = self._loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An end closed, or the proxy ends.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b'\r\n\r\n')).decode('latin-1')
        first, *lines = head.rstrip('\r\n').split('\r\n')
        method, path, _ = first.split(' ', 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(':') for line in lines)}
        request = ProxiedRequest(method, path, headers)
        self.requests.append(request)
        fault = self._choose(request)
        if fault.latency:
            await asyncio.sleep(fault.latency)
        if fault.drop:
            return
        if fault.status is not None:
            after = '' if fault.retry_after is None else f'Retry-After: {fault.retry_after}\r\n'
            writer.write(
                f'HTTP/1.1 {fault.status} Fault\r\n{after}Content-Length: 0\r\nConnection: close\r\n\r\n'.encode()
            )
            await writer.drain()
            return
        up_reader, up_writer = await asyncio.open_connection(*self._upstream, limit=1 << 20)
        kept = [line for line in lines if not line.lower().startswith('connection:')]
        up_writer.write('\r\n'.join([first, *kept, 'Connection: close', '', '']).encode('latin-1'))
        sending = asyncio.ensure_future(_pump(reader, up_writer))
        try:
            await self._relay(up_reader, writer, fault)
        finally:
            sending.cancel()
            up_writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault) -> None:
        head = await reader.readuntil(b'\r\n\r\n')
        while head.startswith((b'HTTP/1.1 100', b'HTTP/1.0 100')):
            writer.write(head)
            head = await reader.readuntil(b'\r\n\r\n')
        writer.write(_closing(head))
        sent = 0
        ends = [end for end in (fault.reset_after, fault.close_after, fault.stall_after) if end is not None]
        while chunk := await reader.read(1 << 16):
            part = bytearray(chunk[: ends[0] - sent] if ends else chunk)
            if fault.flip_at is not None and sent <= fault.flip_at < sent + len(part):
                part[fault.flip_at - sent] ^= 1
            writer.write(part)
            await writer.drain()
            sent += len(part)
            if fault.rate:
                await asyncio.sleep(len(part) / fault.rate)
            if ends and sent >= ends[0]:
                if fault.stall_after is not None:
                    await asyncio.sleep(3600)
                if fault.reset_after is not None:
                    await asyncio.sleep(0.05)  # let sent bytes arrive: a reset discards the rest
                    linger = struct.pack('ii', 1, 0)
                    writer.get_extra_info('socket').setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return


def _closing(head: bytes) -> bytes:
    """The head of an answer, with ``Connection: close`` in place of the server's header."""
    first, *lines = head.removesuffix(b'\r\n\r\n').split(b'\r\n')
    kept = [line for line in lines if not line.lower().startswith((b'connection:', b'keep-alive:'))]
    return b'\r\n'.join([first, *kept, b'Connection: close', b'', b''])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
