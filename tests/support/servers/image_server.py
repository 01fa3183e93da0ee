"""A Web server on loopback with good images, and with every kind of bad answer."""

from __future__ import annotations

import contextlib
import io
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

__all__ = ['ImageServer', 'image_server', 'jpeg']


def jpeg(number: int, width: int = 12, height: int = 9) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(file, 'JPEG')
    return file.getvalue()


class ImageServer(ThreadingHTTPServer):
    """``/image/7`` is image 7; other paths fail in their own way."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.asked: Counter[str] = Counter()
        self.agents: set[str | None] = set()
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.together = threading.Barrier(2)

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server_port}'


class Handler(BaseHTTPRequestHandler):
    server: ImageServer

    def do_GET(self) -> None:
        server = self.server
        with server.lock:
            server.asked[self.path] += 1
            server.agents.add(self.headers['User-Agent'])
            server.now += 1
            server.most = max(server.most, server.now)
        self.counts = True
        try:
            # A client that has given up is none of the server's business.
            with contextlib.suppress(ConnectionError, TimeoutError):
                self.answer(*self.path.strip('/').split('/'))
        finally:
            self.count_no_more()

    def count_no_more(self) -> None:
        """Count a request no longer. A client with its answer may send the next one before this thread continues."""
        with self.server.lock:
            self.server.now -= self.counts
            self.counts = False

    def answer(self, kind: str, rest: str = '') -> None:
        if kind == 'image':
            self.send(200, jpeg(int(rest)))
        elif kind == 'together':  # answers only while another request waits here, too
            self.server.together.wait(60)
            self.send(200, jpeg(int(rest)))
        elif kind == 'status':
            self.send(int(rest), b'no')
        elif kind == 'once':  # fails the first time
            self.send(200 if self.server.asked[self.path] > 1 else 503, jpeg(int(rest)), {'Retry-After': '0'})
        elif kind == 'redirect':
            self.send(302, b'', {'Location': f'/image/{rest}'})
        elif kind == 'circle':
            self.send(301, b'', {'Location': '/circle/1'})
        elif kind == 'nowhere':
            self.send(302, b'', {'Location': 'http://[x'})
        elif kind == 'nonsense':
            self.wfile.write(b'no HTTP\r\n\r\n')
        elif kind == 'file':
            self.send(302, b'', {'Location': 'file:///etc/passwd'})
        elif kind == 'refused':
            self.send(200, jpeg(1), {'X-Robots-Tag': rest.replace('%20', ' ')})
        elif kind == 'page':
            self.send(200, b'<html>Not found</html>')
        elif kind == 'packed':
            self.send(200, b'\x1f\x8b', {'Content-Encoding': 'gzip'})
        elif kind == 'large':
            self.send(200, bytes(int(rest)))
        elif kind == 'silent':
            self.server.ended.wait(60)
        elif kind == 'endless':
            self.send_response(200)
            self.end_headers()
            while not self.server.ended.wait(0.01):
                self.wfile.write(bytes(1 << 14 if rest == 'large' else 1))
        elif kind == 'cut':
            self.send_response(200)
            self.send_header('Content-Length', '1000')
            self.end_headers()
            self.wfile.write(b'\xff\xd8\xff')
            self.close_connection = True

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.count_no_more()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as there
        pass


@contextlib.contextmanager
def image_server() -> Iterator[ImageServer]:
    server = ImageServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
