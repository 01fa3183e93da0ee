"""A proxy that breaks connections to a loopback server on purpose, for protocols other than HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass

__all__ = ['ProxiedConnection', 'TcpFault', 'TcpProxy']


@dataclass(slots=True, kw_only=True)
class TcpFault:
    """A fault of some connections. Bytes are counted in the direction from the server."""

    times: int | None = None
    """Number of connections that it applies to."""
    skip: int = 0
    """Number of connections to let pass first."""
    drop: bool = False
    """Close the connection without a byte."""
    reset_after: int | None = None
    """Reset the connection after this number of bytes."""
    close_after: int | None = None
    """Close the connection normally after this number of bytes."""
    stall_after: int | None = None
    """Send and read nothing after this number of bytes; keep the connection open."""
    latency: float = 0.0
    """Seconds before the server's first byte is sent."""
    rate: float | None = None
    """The server's bytes per second of each connection."""


@dataclass(slots=True)
class ProxiedConnection:
    """One line of the proxy's log."""

    received: int = 0
    """Bytes that the server sent so far."""
    sent: int = 0
    """Bytes that the client sent so far."""


class TcpProxy:
    """A proxy in a separate thread. Change ``faults`` at any time; a connection keeps its first fault.

    Usage: ``with TcpProxy(server.port, [TcpFault(reset_after=1000, times=1)]) as proxy``.
    """

    def __init__(self, upstream: int, faults: list[TcpFault] | None = None) -> None:
        self._upstream = upstream
        self.faults = faults or []
        self.requests: list[ProxiedConnection] = []
        """All connections so far, under the name of a `FaultProxy`'s requests."""
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name='tcp-proxy', daemon=True)
        self._ready = threading.Event()
        self.port = 0
        """Where the proxy listens, on 127.0.0.1."""

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def reset_all(self) -> None:
        """Reset all open connections."""
        done = threading.Event()

        def reset() -> None:
            for writer in list(self._open):
                _reset(writer)
            done.set()

        self._loop.call_soon_threadsafe(reset)
        done.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, '127.0.0.1', 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    def _choose(self) -> TcpFault:
        for fault in self.faults:
            if fault.times != 0:
                if fault.skip:
                    fault.skip -= 1
                    continue
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return TcpFault()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ProxiedConnection()
        self.requests.append(connection)
        fault = self._choose()
        self._open.add(writer)
        try:
            if not fault.drop:
                await self._relay(reader, writer, fault, connection)
        except (OSError, asyncio.CancelledError):  # the client closed, or the proxy ends
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        fault: TcpFault,
        connection: ProxiedConnection,
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection('127.0.0.1', self._upstream, limit=1 << 20)
        stalled = asyncio.Event()

        async def to_server() -> None:
            with contextlib.suppress(OSError):
                while chunk := await reader.read(1 << 16):
                    if stalled.is_set():
                        await asyncio.sleep(3600)
                    up_writer.write(chunk)
                    await up_writer.drain()
                    connection.sent += len(chunk)
                up_writer.close()

        sending = asyncio.ensure_future(to_server())
        try:
            await asyncio.sleep(fault.latency)
            await self._to_client(up_reader, writer, fault, connection, stalled)
        finally:
            sending.cancel()
            up_writer.close()

    async def _to_client(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        fault: TcpFault,
        connection: ProxiedConnection,
        stalled: asyncio.Event,
    ) -> None:
        ends = [end for end in (fault.reset_after, fault.close_after, fault.stall_after) if end is not None]
        end = min(ends, default=None)
        while end is None or connection.received < end:
            part = await reader.read(1 << 16)
            if not part:
                return
            if end is not None:
                part = part[: end - connection.received]
            writer.write(part)
            await writer.drain()
            connection.received += len(part)
            if fault.rate:
                await asyncio.sleep(len(part) / fault.rate)
        if fault.stall_after == end:
            stalled.set()
            await asyncio.sleep(3600)
        if fault.reset_after == end:
            await asyncio.sleep(0.05)  # let sent bytes arrive: a reset discards the rest
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info('socket').setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    writer.close()
