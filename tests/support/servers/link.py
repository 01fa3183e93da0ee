"""A link of given latency and bandwidth in front of a loopback server."""

from __future__ import annotations

import contextlib
import mmap
import sys
import tempfile
import time
from pathlib import Path

from tests.support.servers import relay
from tests.support.servers.process import running, wait_until

__all__ = ['Link']


class Link:
    """Makes a loopback server look distant. A separate process forwards its TCP connections.

    Bytes arrive half a round trip after they are sent. All connections share the rate of bytes from the server, in
    turns of about 2 ms. The handshake adds one round trip before a connection's first bytes. There is no slow start, no
    loss, and no limit to the bytes from the client.

    The average rate is exact to well below a percent: if the process could not run while data waited, it makes up for
    100 ms at most. If a client does not read, the link stops reading after some MB.

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
        """The URL at which it listens."""
        return f'{self._scheme or "http"}://127.0.0.1:{self._counts[relay.PORT]}'

    @property
    def bytes_received(self) -> int:
        """Bytes from the server so far, with the heads of answers."""
        return self._counts[relay.TO_CLIENT]

    @property
    def bytes_sent(self) -> int:
        """Bytes to the server so far."""
        return self._counts[relay.TO_SERVER]

    @property
    def connections(self) -> int:
        """Connections so far."""
        return self._counts[relay.CONNECTIONS]

    @property
    def open_connections(self) -> int:
        """Connections that neither side has closed, as far as the link knows."""
        return self._counts[relay.OPEN]

    def processor_time(self) -> float:
        """Seconds of processor time that the link's process has used; on Linux only."""
        fields = Path(f'/proc/{self._pid}/schedstat').read_text().split()
        return int(fields[0]) / 1e9

    def wait_idle(self, seconds: float = 0.2) -> None:
        """Wait until the link was silent for this time, for example after a client died in a transfer."""
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
            file.close()  # nothing stays behind if this process is killed
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
