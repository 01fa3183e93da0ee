"""A network link of some latency and bandwidth in front of a loopback server."""

from __future__ import annotations

import contextlib
import mmap
import sys
import tempfile
import time
from pathlib import Path

from headrace.testing.servers import relay
from headrace.testing.servers.process import running, wait_until

__all__ = ['Link']


class Link:
    """Forwards TCP connections to a loopback server as a distant one's; a process of its own does it.

    What a link does, and no more: bytes arrive half a round trip after they are sent, and all connections together get
    so many bytes per second from the server, in turns of about 2 ms. A connection's first bytes leave after one round
    trip more, the handshake's. It has no slow start and loses nothing. What the client sends is not limited.

    Bandwidth is kept on the average, to well below a percent: where other processes keep this one from running while
    data wait, it makes up for up to 100 ms. Data that a client does not read are held back after some MB.

    Usage: ``with Link(server.endpoint_url, latency=0.02, rate=25e6) as link: ... link.endpoint_url``.

    Args:
        upstream: URL of the server, as 'http://127.0.0.1:9000'.
        latency: seconds of a round trip.
        rate: bytes per second from the server, over all connections; None: no limit.
    """

    def __init__(self, upstream: str, *, latency: float = 0.0, rate: float | None = None) -> None:
        self._scheme, _, address = upstream.rstrip('/').rpartition('://')
        self._host, _, self._upstream_port = address.rpartition(':')
        if latency < 0 or (rate is not None and rate <= 0):
            raise ValueError(f'latency must not be negative and rate must be positive, got {latency} and {rate}.')
        self.latency = latency
        self.rate = rate
        self._stack = contextlib.ExitStack()
        self._counts = memoryview(bytearray(8 * relay.COUNTERS)).cast('q')
        self._pid = 0

    @property
    def endpoint_url(self) -> str:
        """Where it listens."""
        return f'{self._scheme or "http"}://127.0.0.1:{self._counts[relay.PORT]}'

    @property
    def bytes_received(self) -> int:
        """Bytes that the server sent over the link until now, heads of answers included."""
        return self._counts[relay.TO_CLIENT]

    @property
    def bytes_sent(self) -> int:
        """Bytes that went to the server."""
        return self._counts[relay.TO_SERVER]

    @property
    def connections(self) -> int:
        """Connections that were made."""
        return self._counts[relay.CONNECTIONS]

    @property
    def open_connections(self) -> int:
        """Those of them that neither side has left, as far as the link knows."""
        return self._counts[relay.OPEN]

    def processor_time(self) -> float:
        """Seconds of processor time that the link's process has used; on Linux only."""
        fields = Path(f'/proc/{self._pid}/schedstat').read_text().split()
        return int(fields[0]) / 1e9

    def wait_idle(self, seconds: float = 0.2) -> None:
        """Wait until nothing has come over the link for so long, as after a client that ended in a transfer."""
        seen, since = self.bytes_received, time.monotonic()
        while time.monotonic() - since < seconds:
            time.sleep(seconds / 10)
            if self.bytes_received != seen:
                seen, since = self.bytes_received, time.monotonic()

    def __enter__(self) -> Link:
        with contextlib.ExitStack() as stack:
            file = tempfile.NamedTemporaryFile(prefix='headrace-link-')
            stack.callback(file.close)
            file.truncate(8 * relay.COUNTERS)
            self._counts = memoryview(mmap.mmap(file.fileno(), 8 * relay.COUNTERS)).cast('q')
            assert relay.__file__ is not None
            program = [sys.executable, '-I', '-S', relay.__file__]
            settings = [self._host, self._upstream_port, str(self.latency), str(self.rate or 0), file.name]
            process = stack.enter_context(running([*program, *settings]))
            self._pid = process.pid

            def listens() -> bool:
                if process.poll() is not None:
                    raise RuntimeError(f'The link ended with status {process.returncode}: {process.args!r}')
                return self._counts[relay.PORT] != 0

            wait_until(listens)
            file.close()  # so that nothing is left behind if this process is killed
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
