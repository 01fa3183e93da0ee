"""Clients of SFTP: headrace's own, beside paramiko's and asyncssh's.

    pip install asyncssh; apt-get install openssh-server openssh-client
    python benchmarks/sftp_clients.py [ROUNDS] [--latency SECONDS] [--clients CLIENT ...]

Each run is a fresh process. It logs in, then reads 8 objects of 8 MiB, one after the other, from OpenSSH's sshd behind
a `tests.support.servers.link.Link`. Rounds are interleaved. asyncssh is optional: name the other clients.

- headrace: `SftpStore.get`
- paramiko, window: `SFTPFile.prefetch` without a bound, at most 8 MiB
- paramiko, bound: `SFTPFile.prefetch` with at most 64 requests
- asyncssh: `SFTPClientFile.read_parallel`, in a thread with an event loop

All connections have TCP_NODELAY, as headrace's have. CPU is processor time of all threads of the client's process.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from headrace.storage import StoreOptions, open_store
from tests.support.servers.link import Link
from tests.support.servers.sftp import sftp_server

SIZE, OBJECTS, WINDOW, BLOCK = 8 << 20, 8, 16 << 20, 1 << 15
CIPHER = 'aes128-gcm@openssh.com'  # which headrace prefers, too


class Sink:
    """Takes blocks in order, as a file does."""

    def __init__(self) -> None:
        self.received = 0

    def write(self, block: bytes) -> int:
        self.received += len(block)
        return len(block)


Fetch = Callable[[str, Sink], Any]
"""Reads the object of a name."""


def headrace(port: int, user: str, folder: str, key: str, known_hosts: str) -> Fetch:
    options = StoreOptions(extra={'key_file': key, 'known_hosts': known_hosts})
    store: Any = open_store(f'sftp://{user}@127.0.0.1:{port}{folder}', options)
    return lambda name, out: store.get(name, out, size=SIZE)


def paramiko(port: int, user: str, folder: str, key: str, bound: int | None) -> Fetch:
    from paramiko import Ed25519Key, SFTPClient, Transport

    connection = socket.create_connection(('127.0.0.1', port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = Transport(connection)
    transport.get_security_options().ciphers = (CIPHER,)
    transport.connect(username=user, pkey=Ed25519Key.from_private_key_file(key))
    channel = transport.open_session(window_size=WINDOW)
    channel.invoke_subsystem('sftp')
    client = SFTPClient(channel)

    def fetch(name: str, out: Sink) -> None:
        with client.open(f'{folder}/{name}', 'rb', bufsize=0) as source:
            source.stat()
            source.prefetch(SIZE, bound)
            for _ in range(SIZE // BLOCK):
                out.write(source.read(BLOCK))

    return fetch


def asyncssh(port: int, user: str, folder: str, key: str) -> Fetch:
    module: Any = importlib.import_module('asyncssh')
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def connect() -> Any:
        how = {'known_hosts': None, 'encryption_algs': CIPHER, 'config': []}
        connection = await module.connect('127.0.0.1', port, username=user, client_keys=[key], **how)
        return connection, await connection.start_sftp_client()

    connection, client = asyncio.run_coroutine_threadsafe(connect(), loop).result()

    async def read(name: str, out: Sink) -> None:
        early: dict[int, bytes] = {}
        at = 0
        async with await client.open(f'{folder}/{name}', 'rb') as source:
            await source.stat()
            async for offset, block in await source.read_parallel(SIZE, 0):
                early[offset] = block
                while at in early:
                    out.write(early[at])
                    at += len(early.pop(at))

    def fetch(name: str, out: Sink, _: Any = connection) -> None:
        asyncio.run_coroutine_threadsafe(read(name, out), loop).result()

    return fetch


CLIENTS: dict[str, Callable[[int, str, str, str, str], Fetch]] = {
    'headrace': headrace,
    'paramiko, window': lambda port, user, folder, key, _: paramiko(port, user, folder, key, None),
    'paramiko, bound': lambda port, user, folder, key, _: paramiko(port, user, folder, key, 64),
    'asyncssh': lambda port, user, folder, key, _: asyncssh(port, user, folder, key),
}


def run_here(client: str, port: str, *account: str) -> None:
    """Read all objects once; prints seconds, and seconds of processor time."""
    fetch = CLIENTS[client](int(port), *account)
    fetch('0', Sink())
    sink = Sink()
    begin, before = time.perf_counter(), time.process_time()
    for number in range(OBJECTS):
        fetch(str(number), sink)
    print(json.dumps([time.perf_counter() - begin, time.process_time() - before]), flush=True)
    if sink.received != OBJECTS * SIZE:
        raise RuntimeError(f'{client} read {sink.received} bytes of {OBJECTS * SIZE}.')
    os._exit(0)  # without waiting for a prefetch thread that lost its answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('rounds', type=int, nargs='?', default=5)
    parser.add_argument('--latency', type=float, default=0.02, help='seconds of a round trip; %(default)s')
    parser.add_argument('--clients', nargs='+', choices=CLIENTS, default=list(CLIENTS), help='default: all')
    parser.add_argument('--one', nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_here(*options.one)
    clients = options.clients
    runs: dict[str, list[list[float]]] = {client: [] for client in clients}
    with sftp_server() as server, Link(f'tcp://127.0.0.1:{server.port}', latency=options.latency) as link:
        folder = server.new_folder()
        for number in range(OBJECTS):
            (folder / str(number)).write_bytes(os.urandom(SIZE))
        port = int(link.endpoint_url.rpartition(':')[2])
        server.known_at(port)
        account = [str(port), server.user, str(folder), str(server.key_file), str(server.known_hosts)]
        for number in range(options.rounds):
            first = number % len(clients)
            for client in clients[first:] + clients[:first]:
                command = [sys.executable, __file__, '--one', client, *account]
                runs[client].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    print('| client | MB/s | slowest run | fastest run | CPU s per GB |\n|---|---|---|---|---|')
    moved = OBJECTS * SIZE
    for client, found in runs.items():
        seconds, cpu = zip(*found, strict=True)
        rates = ' | '.join(f'{moved / of(seconds) / 1e6:.1f}' for of in (statistics.median, max, min))
        print(f'| {client} | {rates} | {statistics.median(cpu) / moved * 1e9:.1f} |')


if __name__ == '__main__':
    main()
