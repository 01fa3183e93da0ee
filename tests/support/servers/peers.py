"""Nodes of a cluster in one process, each with a cache and a server; and peers that misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.storage import ShardCache
from headrace.storage.cache import ownership
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peer_server import PeerServer
from headrace.storage.cache.peers import Peers, StreamPeers
from tests.support.stores.shards import Remote, cache_of

TOKEN = 'a token of this run'
STREAM = 'digest'


@dataclass
class Node:
    peers: Peers
    cache: ShardCache
    server: PeerServer | None


def listen(number: int) -> socket.socket:
    """A socket on an address of its own, as another machine has."""
    return socket.create_server((f'127.0.0.{number + 2}', 0))


def peers_of(addresses: list[tuple[str, int]], own: int) -> Peers:
    hosts = tuple(f'{host}:{port}' for host, port in addresses)
    peers = Peers(PeerOptions(hosts=hosts, interface=addresses[own][0]))
    peers.join()
    return peers


def fix_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the run's token, and have the owners of shards depend on hosts alone: ports differ in each run of a test."""
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', TOKEN)
    seed_of = ownership.seed_of
    monkeypatch.setattr(ownership, 'seed_of', lambda address: seed_of((address[0], 7207)))


def servers_of(pid: int) -> list[int]:
    """The processes that serve, of the one that forks them for a rank."""
    try:
        return [int(child) for child in Path(f'/proc/{pid}/task/{pid}/children').read_text().split()]
    except OSError:  # it has ended
        return []


@contextlib.contextmanager
def serving(listening: socket.socket, caches: Mapping[str, ShardCache]) -> Generator[PeerServer]:
    server = PeerServer(listening, TOKEN.encode(), caches)
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def cluster(remote: Remote, folder: Path, count: int, **how: object) -> Generator[list[Node]]:
    """Nodes that serve each other. A server's cache asks no peer, as in a process of its own."""
    sockets = [listen(number) for number in range(count)]
    addresses = [one.getsockname() for one in sockets]
    nodes: list[Node] = []
    with contextlib.ExitStack() as stack:
        for number, one in enumerate(sockets):
            place, peers = folder / f'node {number}', peers_of(addresses, number)
            server = stack.enter_context(serving(one, {STREAM: cache_of(remote, place, **how)}))
            cache = cache_of(remote, place, peers=StreamPeers(peers, STREAM), **how)
            nodes.append(Node(peers, cache, server))
        yield nodes


@contextlib.contextmanager
def misbehaving(number: int, answer: Callable[[socket.socket], None]) -> Generator[tuple[str, int]]:
    """A peer that takes each request and has `answer` send something; its address."""
    listening, is_over, threads = listen(number), threading.Event(), list[threading.Thread]()

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            connection.recv(1 << 16)
            answer(connection)

    def accept() -> None:
        while not is_over.is_set():
            connection, _ = listening.accept()
            threads.append(threading.Thread(target=talk, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listening.getsockname()
    finally:
        is_over.set()
        socket.create_connection(listening.getsockname()).close()
        accepting.join()
        listening.close()
        for thread in threads:
            thread.join()
