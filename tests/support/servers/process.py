"""Server programs, which die with the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

__all__ = ['START_TIMEOUT', 'free_port', 'quietly', 'running', 'wait_for_http', 'wait_for_port', 'wait_until']

START_TIMEOUT = 180.0
"""Seconds that a server may take to answer."""


def quietly(*command: str) -> None:
    """Run a program to its end, or raise."""
    subprocess.run(command, check=True, capture_output=True, timeout=START_TIMEOUT)


_claims: list[socket.socket] = []
"""Sockets that keep the given ports until this process ends."""


def free_port() -> int:
    """A free port of 127.0.0.1, outside the range from which the kernel assigns ports.

    No process gets the same port from this function until this process ends. A server takes seconds until it listens.
    """
    draw = random.SystemRandom()  # other programs choose ports, too
    while True:
        port = draw.randrange(20000, 29000)
        claim = socket.socket(type=socket.SOCK_DGRAM)  # a UDP port: a TCP server can still bind it
        with socket.socket() as probe, contextlib.suppress(OSError):
            claim.bind(('127.0.0.1', port))
            probe.bind(('127.0.0.1', port))
            _claims.append(claim)
            return port
        claim.close()


def _die_with_parent() -> None:
    """Linux: be killed when the parent is, so that a killed test run leaves no servers."""
    with contextlib.suppress(OSError, AttributeError):
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


@contextlib.contextmanager
def running(command: list[str], *, environment: Mapping[str, str] | None = None) -> Generator[subprocess.Popen[bytes]]:
    """Run a program in a separate process, which is killed at the end of the context.

    Args:
        command: The program and its arguments.
        environment: Variables in addition to those of this process.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        preexec_fn=_die_with_parent if sys.platform == 'linux' else None,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(done: Callable[[], bool]) -> None:
    """Retry until it succeeds; raise the last failure after `START_TIMEOUT`."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            if done():
                return
        except (subprocess.SubprocessError, OSError):
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError(f'A server did not start within {START_TIMEOUT:g} s. Start it by hand to see why.')
        time.sleep(0.05)


def wait_for_http(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers HTTP requests, with any status."""

    def answers() -> bool:
        _require_alive(process)
        with contextlib.suppress(HTTPError):
            urlopen(f'http://127.0.0.1:{port}/', timeout=5).close()
        return True

    wait_until(answers)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server accepts connections."""

    def accepts() -> bool:
        _require_alive(process)
        socket.create_connection(('127.0.0.1', port), timeout=5).close()
        return True

    wait_until(accepts)


def _require_alive(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise RuntimeError(f'{process.args!r} ended with status {process.returncode}. Start it by hand to see why.')
