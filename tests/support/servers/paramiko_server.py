"""An SSH server in this process, for what sshd cannot do."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def paramiko_server(folder: Path, interface: Callable[[], Any], **subsystems: Any) -> Iterator[tuple[int, Path]]:
    """Yields its port, and a file of known hosts with its key."""
    paramiko = pytest.importorskip('paramiko')
    key = paramiko.ECDSAKey.generate()
    transports = []
    with socket.create_server(('127.0.0.1', 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the end of the test
                while True:
                    transport = paramiko.Transport(listener.accept()[0])
                    transports.append(transport)
                    transport.add_server_key(key)
                    for name, handler in subsystems.items():
                        transport.set_subsystem_handler(name, *handler)
                    # Without an event it waits for the handshake, and fails for a client that is gone soon after that.
                    transport.start_server(event=threading.Event(), server=interface())

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        known = folder / 'known'
        known.write_text(f'[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n')
        try:
            yield port, known
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            thread.join()
            for transport in transports:
                transport.close()
