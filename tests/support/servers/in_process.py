"""Small HTTP servers in a thread of the process that uses them."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ['Handler', 'serving']

GENERATED = frozenset({'connection', 'content-length', 'date', 'server', 'transfer-encoding'})


class Handler(BaseHTTPRequestHandler):
    """One request: a subclass answers all methods in ``handle_any``."""

    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True

    def handle_any(self, body: bytes) -> None:
        """Answer a request with this body."""
        raise NotImplementedError

    def _handle(self) -> None:
        size = int(self.headers.get('Content-Length') or 0)
        body = self.rfile.read(size)
        if len(body) < size:  # the client has ended in the middle
            self.close_connection = True
        else:
            self.handle_any(body)

    do_HEAD = do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Log nothing."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer; HTTP's own headers are replaced. A client may end in the middle."""
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in GENERATED:
                self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def answer_json(self, status: int, content: object, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer in JSON."""
        self.answer(status, {'Content-Type': 'application/json', **(headers or {})}, json.dumps(content).encode())


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection: tests do so on purpose."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serving(handler: type[Handler]) -> Generator[_Server]:
    """Run a server on a free port of 127.0.0.1 as long as the context lasts."""
    server = _Server(('127.0.0.1', 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name=handler.__qualname__, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
