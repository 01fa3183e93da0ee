"""Pages for the user of this machine, by the standard library's server, without a password."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from headrace.errors import ConfigError

_NAMES = ('127.0.0.1', 'localhost')  # with any port: ssh may forward another one


class PageServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1. `url` is the address of the page; `serve_forever` serves it."""

    daemon_threads = True

    def __init__(self, port: int, handler: type[PageHandler]) -> None:
        try:
            super().__init__(('127.0.0.1', port), handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f'--port must be a free port of 127.0.0.1, or 0 for any, got {port}: {str(error).rstrip(".")}.'
            ) from error

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server_port}/'

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnects of browsers: the terminal is the user's."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class PageHandler(BaseHTTPRequestHandler):
    """Answers no page of another site, which may resolve its own name to this machine. Links to `/` may be followed."""

    def do_GET(self) -> None:
        host = self.headers.get('Host', '').partition(':')[0]
        is_foreign = self.headers.get('Sec-Fetch-Site') == 'cross-site' and (
            self.path != '/' or self.headers.get('Sec-Fetch-Dest') != 'document'
        )
        if host not in _NAMES or is_foreign:
            self.answer(403, 'text/plain', 'This page is for this machine only.')
        else:
            self.answer_path()

    @abstractmethod
    def answer_path(self) -> None:
        """Call `answer` for `path`."""

    def answer(self, status: int, kind: str, text: str, headers: Mapping[str, str] = {}) -> None:
        body = text.encode()
        self.send_response(status)
        all_headers = {
            'Content-Type': f'{kind}; charset=utf-8',
            'Content-Length': str(len(body)),
            'Cache-Control': 'no-store',
        }
        for name, value in {**all_headers, 'X-Content-Type-Options': 'nosniff', **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Print no line for each request."""
