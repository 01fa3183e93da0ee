"""A local page that shows a run while it trains: one HTML file, and its numbers as JSON."""

from __future__ import annotations

import http.server
import json
import sys
from pathlib import Path
from typing import Any

from typing_extensions import override

from headrace.errors import ConfigError, HeadraceError
from headrace.redaction import redact
from headrace.watching.live import read_live

__all__ = ['WatchServer']

_PAGE = Path(__file__).with_name('page.html')
_NAMES = ('127.0.0.1', 'localhost')  # with any port: ssh may forward another one


class WatchServer(http.server.ThreadingHTTPServer):
    """Serves the page of a run to this machine alone.

    Args:
        folder: the run's folder.
        port: of 127.0.0.1; 0: any free one.

    Raises:
        ConfigError: the folder is not that of a run with a record, or the port is in use.
    """

    daemon_threads = True

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        self.folder = Path(folder)
        """The run's folder."""
        read_live(folder)
        try:
            super().__init__(('127.0.0.1', port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f'`port` must be a free port of 127.0.0.1, or 0 for any, got {port}: {error}.') from error

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing for a browser that went away; the terminal is the user's."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The page's address."""
        return f'http://127.0.0.1:{self.server_address[1]}/'


class _Handler(http.server.BaseHTTPRequestHandler):
    server: WatchServer  # pyright: ignore[reportIncompatibleVariableOverride] - no other makes it

    def do_GET(self) -> None:
        # A page of another site that resolves its own name to this machine must not read the run.
        if self.headers.get('Host', '').partition(':')[0] not in _NAMES:
            self._answer(403, 'text/plain', b'This page is for this machine alone.')
        elif self.path == '/':
            self._answer(200, 'text/html', _PAGE.read_bytes())
        elif self.path == '/status.json':
            self._answer(200, 'application/json', json.dumps(self._live()).encode())
        else:
            self._answer(404, 'text/plain', b'There are / and /status.json.')

    def _live(self) -> dict[str, Any]:
        try:
            return read_live(self.server.folder)
        except HeadraceError as error:  # the folder was removed
            return {'error': redact(str(error))}

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header('Content-Type', f'{kind}; charset=utf-8')
        self.send_header('Content-Length', str(len(content)))
        self.send_header('Cache-Control', 'no-store')
        self.send_header('X-Content-Type-Options', 'nosniff')
        self.end_headers()
        self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the user's."""
