"""A server in a separate process. A line with a number asks for so many bytes; "echo" returns all that follows."""

from __future__ import annotations

import socketserver
import sys


class _Answers(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with self.request.makefile('rb') as lines:
            for line in lines:
                if line == b'echo\n':
                    self.request.sendall(lines.read())
                    return
                left = int(line)
                block = memoryview(bytes(1 << 18))
                while left:
                    left -= self.request.send(block[: min(left, len(block))])


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that leave are what is tested."""


if __name__ == '__main__':
    with _Server(('127.0.0.1', int(sys.argv[1])), _Answers) as server:
        server.serve_forever()
