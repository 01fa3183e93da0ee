"""A server that says to every request whatever a test has it say."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

__all__ = ['Say', 'hostile_server']

Say = Callable[[Callable[[bytes], None], threading.Event], None]
"""Takes what sends bytes, which raises when the client has left, and an event that is set when the test is over."""


@contextlib.contextmanager
def hostile_server(say: Say) -> Iterator[str]:
    """Its URL. Each request gets `say`, and then the end of its connection."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile('rb') as lines:
            length = 0
            if b' /.well-known/' in lines.readline():  # what databricks-sdk asks by itself
                connection.sendall(b'HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n')
                return
            for line in lines:
                name, _, value = line.partition(b':')
                length = int(value) if name.lower() == b'content-length' else length
                if line == b'\r\n':
                    lines.read(length)
                    say(connection.sendall, over)
                    return

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

    with socket.create_server(('127.0.0.1', 0)) as server:
        accepting = threading.Thread(target=accept, args=(server,), daemon=True)
        accepting.start()
        try:
            yield f'http://127.0.0.1:{server.getsockname()[1]}'
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            for thread in [accepting, *threads]:
                thread.join()
