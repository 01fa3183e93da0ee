"""Serves the shards of this node's caches to its peers, by HTTP, from a process of its own.

The process is forked by the first rank of the node that gets the port. It ends with that rank: at the end of a pipe, of
which the rank holds the other end. So it neither takes the interpreter's lock of a training process, nor is there a
thread in that when it forks its workers. A process between them forks it again if it is killed or stopped; if that one
is killed, the server goes on alone. Neither has any descriptor of the rank except its output, its logs, and the socket
that it serves on.

A server waits neither for room in a cache nor for another server, so no wait is a circle: without room it says so at
once.

Nothing of a request touches the file system. A path names a stream by its digest, and a file by its name in the index;
both are looked up in memory. Requests without a proof of the run's token are refused and logged. Connections, bytes of
a head, and the seconds of each step are bounded.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import io
import logging
import math
import os
import select
import signal
import socket
import socketserver
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from headrace.errors import CacheError, ConfigError, DiskFullError, HeadraceError
from headrace.errors.redaction import logger_of
from headrace.storage.cache.entry import CacheEntry, CachePart, FetchStatus
from headrace.storage.cache.locks import held, lock_file, open_to_lock
from headrace.storage.cache.ownership import SharedShards, text_of
from headrace.storage.cache.peer_options import family_of
from headrace.storage.cache.peers import (
    AT_ONCE,
    FULL,
    ONLY_COPIES,
    SILENCE,
    SLOWEST,
    WAIT,
    Peers,
    ask_for_copies_only,
    proof,
)
from headrace.storage.cache.shard_cache import ShardCache
from headrace.storage.transfer.answer_bounds import Incoming
from headrace.storage.transfer.download import Transfer

CONNECTIONS: Final = 128
"""The most connections of peers at one time; a further one is answered at once that it gets nothing now."""
UNPROVEN: Final = 64
"""The most connections that have not yet proved to be a peer's; a further one takes the place of the oldest one of the
address that has most of them."""
HEAD_SECONDS: Final = 5.0
"""Seconds for a request to arrive."""
ALIVE: Final = 1.0
"""Seconds between two signs of life while a shard is fetched."""

_log = logger_of(__name__)


class PeerServer(socketserver.ThreadingTCPServer):
    """Serves caches on a socket that listens."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, token: bytes, caches: Mapping[str, ShardCache]) -> None:
        """Take the socket, the run's token, and the caches by the digest of their data."""
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        listening.setblocking(False)  # the server before this one may accept a connection that both have seen
        self.token, self._caches = token, caches
        self._places = threading.Semaphore(CONNECTIONS)
        self._unproven, self._proven = dict[socket.socket, str](), set[socket.socket]()  # the former by age
        # None waits for a thread of another one: that could be a circle. Requests to the store are bounded there.
        self._fetches = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix='headrace-peers')
        self._lock = threading.Lock()
        self._fetching: dict[tuple[str, str, bool], Future[int]] = {}
        self._told = set[str]()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection."""
        with self._lock:
            if len(self._unproven) >= UNPROVEN:
                ((most, _),) = Counter(self._unproven.values()).most_common(1)
                oldest = next(one for one, address in self._unproven.items() if address == most)
                del self._unproven[oldest]
                with contextlib.suppress(OSError):  # it has just been closed
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
                self.refuse((most,), 'too many connections from there have sent no proof of the token')
            self._unproven[request] = client_address[0]
        try:
            super().process_request(request, client_address)
        except BaseException:  # the limit of threads
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._unproven.pop(request, None)
            if request in self._proven:
                self._proven.remove(request)
                self._places.release()

    def prove(self, request: socket.socket) -> bool:
        """Count a connection as one of a peer; False if there are too many of them."""
        with self._lock:
            self._unproven.pop(request, None)
            if not self._places.acquire(blocking=False):
                return False
            self._proven.add(request)
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - of socketserver
        """Log why a request failed; no caller could catch an exception."""
        _log.debug('A request of %s was given up.', client_address[0], exc_info=True)

    def drain(self) -> None:
        """Wait until what is being sent has been sent, or would take too long."""
        deadline = time.monotonic() + WAIT
        for _ in range(CONNECTIONS):
            self._places.acquire(timeout=max(0.0, deadline - time.monotonic()))

    def refuse(self, client_address: Any, why: str) -> None:
        """Log a refusal, once for each address and at most for a thousand."""
        if client_address[0] not in self._told and len(self._told) < 1000:
            self._told.add(client_address[0])
            _log.warning('Refused a request of %s: %s. Others from there are not named.', client_address[0], why)

    def find(self, stream: str, name: str) -> tuple[ShardCache, CacheEntry, CachePart] | None:
        """The cache, shard and part of a file; None: this node has no such data."""
        cache = self._caches.get(stream)
        entry = None if cache is None else cache.entry_of_file(name)
        part = None if entry is None else next((part for part in entry.parts if part.name == name), None)
        return None if cache is None or entry is None or part is None else (cache, entry, part)

    def fetch(self, stream: str, cache: ShardCache, entry: CacheEntry, *, waits: bool = True) -> Future[int]:
        """Make a shard present, in one thread for all that ask for it; the result is the status to answer with.

        `waits`: whether to wait for another process of this node that fetches it, and may be asking a peer.
        """
        key = stream, entry.key, waits
        with self._lock:
            future = self._fetching.get(key)
            if future is None:
                future = self._fetching[key] = self._fetches.submit(self._fetch, key, cache, entry)
        return future

    def _fetch(self, key: tuple[str, str, bool], cache: ShardCache, entry: CacheEntry) -> int:
        try:
            result = cache.fetch(entry, wait=key[2], wait_for_room=False, how=Transfer(urgent=True))
        except HeadraceError as error:
            _log.warning('Could not fetch %s for a peer, which asks the bucket itself: %s', entry.key, error)
            return FULL if isinstance(error, DiskFullError) else 503
        else:
            return 200 if result else 503 if result.status is FetchStatus.ELSEWHERE else FULL
        finally:
            with self._lock:
                del self._fetching[key]


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection, with one request."""

    server: PeerServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = 'HTTP/1.1'
    server_version, sys_version = 'headrace', ''
    timeout = SILENCE

    def setup(self) -> None:
        super().setup()
        raw = self.rfile.detach()  # pyright: ignore[reportAttributeAccessIssue]
        self.rfile = io.BufferedReader(Incoming(raw, HEAD_SECONDS))

    def handle(self) -> None:
        self.handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of http.server
        _log.debug(f'%s: {format}', self.client_address[0], *args)

    def do_GET(self) -> None:
        """Send a file of a shard, which is fetched if it is absent; or 204 for '/', to those who know the token."""
        given = self.headers.get('Authorization', '').encode('latin-1', 'replace')
        if not hmac.compare_digest(given, f'HMAC {proof(self.server.token, self.path)}'.encode()):
            self.server.refuse(self.client_address, 'it does not prove to know the token of this run')
            self._answer(403)
            return
        if not self.server.prove(self.connection):
            self.server.refuse(self.client_address, f'there are {CONNECTIONS} connections of peers')
            self._answer(503)
            return
        _, _, rest = self.path.partition('/')
        stream, _, name = rest.partition('/')
        if not rest:
            self._answer(204)
            return
        found = self.server.find(stream, unquote(name))
        if found is None:
            self._answer(404)
            return
        cache, entry, part = found
        if self._has(ONLY_COPIES) and not cache.is_present(entry):
            self._answer(504)
            return
        if not cache.is_present(entry) or cache.verify_present:
            future = self.server.fetch(stream, cache, entry, waits=not self._has(AT_ONCE))
            while not wait([future], ALIVE).done:
                self.wfile.write(b'HTTP/1.1 100 Continue\r\n\r\n')
            if (status := future.result()) != 200:
                self._answer(status)
                return
        self._send(cache, part)

    def _has(self, header: Mapping[str, str]) -> bool:
        return header.items() <= dict(self.headers).items()

    def _answer(self, status: int, size: int = 0) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header('Connection', 'close')
        if status != 204:
            self.send_header('Content-Length', str(size))
        self.end_headers()

    def _send(self, cache: ShardCache, part: CachePart) -> None:
        try:
            handle = open_to_lock(cache.folder / part.name)
        except FileNotFoundError:  # evicted a moment ago
            self._answer(503)
            return
        with held(handle):
            lock_file(handle, part.name, shared=True)  # its bytes count until it is closed
            info = os.fstat(handle)
            size = info.st_size
            try:
                cache.index.require_same(info.st_mtime)
            except CacheError as error:
                self.server.refuse(self.client_address, str(error))
                self._answer(503)
                return
            if not part.has_size(size, lambda at, count: os.pread(handle, count, at)):
                self._answer(503)
                return
            self._answer(200, size)
            poll, sent, deadline = select.poll(), 0, time.monotonic() + SILENCE + size / SLOWEST
            poll.register(self.connection, select.POLLOUT)
            while sent < size:
                if not poll.poll(SILENCE * 1000) or time.monotonic() > deadline:
                    raise TimeoutError(f'the peer reads too slowly: {size - sent} bytes of {part.name} are left')
                sent += os.sendfile(self.connection.fileno(), handle, sent, size - sent)


@dataclass(slots=True)
class _Serving:
    """The server of this process for one address."""

    listening: socket.socket
    caches: dict[str, Path] = field(default_factory=dict[str, Path])
    """The folders of the data that it serves."""
    nodes: object = None
    """Those that it serves."""
    pid: int = 0
    replaced: list[int] = field(default_factory=list[int])
    """Processes before it, until they have ended."""
    alive: int = -1
    """The end of a pipe that keeps the server alive."""


@dataclass(slots=True)
class _OfProcess:
    caches: dict[tuple[str, int], weakref.WeakValueDictionary[str, ShardCache]] = field(default_factory=dict)
    """Those of all datasets, by the address to serve on."""
    serving: dict[tuple[str, int], _Serving] = field(default_factory=dict)
    starting: _Serving | None = None
    """The server that is being forked."""


_state = _OfProcess()


def _leave_to_parent() -> None:
    """In a forked child: keep no server alive, and no socket but that of the server which the child becomes."""
    for one in _state.serving.values():
        os.close(one.alive)
        if one is not _state.starting:
            one.listening.close()
    _state.serving.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def serve(peers: Peers, caches: Iterable[ShardCache], ranks: int = 1, nodes: int = 1) -> None:
    """Join the peers, and serve caches to them unless another process of this node does.

    A server that this process has for other caches or nodes is replaced by one for all of them.

    Args:
        peers: The nodes.
        caches: Those with peers are served.
        ranks: As of `Peers.join`.
        nodes: The same.

    Raises:
        ConfigError: another program has the port, or a run with another token; or the address does not exist.
    """
    shared = {cache.peers.stream: cache for cache in caches if cache.peers is not None}
    shards = [cache.peers.shards for cache in shared.values() if cache.peers is not None and cache.peers.shards]
    room = min((cache.room for cache in shared.values()), default=math.inf)
    peers.join(ranks, nodes, SharedShards.joined(shards), room=room)
    if len(peers) == 1:
        return
    known = _state.caches.setdefault(peers.own, weakref.WeakValueDictionary())
    for stream, cache in shared.items():
        known.setdefault(stream, cache)
    found = _state.serving.get(peers.own)
    folders = {stream: cache.folder for stream, cache in known.items()}
    if found is not None and (found.caches, found.nodes) == (folders, peers.nodes) and _lives(found.pid):
        return
    if found is None:
        try:
            listening = socket.create_server(peers.own, family=family_of(peers.own[0]), backlog=CONNECTIONS)
        except OSError as error:
            _require_server(peers, error)
            return
        found = _state.serving[peers.own] = _Serving(listening)
    else:
        _end(found)
        found.replaced = [pid for pid in (*found.replaced, found.pid) if _lives(pid)]
    found.caches, found.nodes = folders, peers.nodes
    _fork(peers, found, dict(known))
    _log.info('This process serves shards to %d peers on %s.', len(peers) - 1, text_of(peers.own))


def _lives(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _end(serving: _Serving) -> None:
    """Have a server end when it has sent what it is sending."""
    with contextlib.suppress(OSError):  # it has ended
        os.write(serving.alive, b'.')
    os.close(serving.alive)


def _require_server(peers: Peers, error: OSError) -> None:
    """Check that the one which has this node's port is a server of this run."""
    until = time.monotonic() + SILENCE
    while (status := peers.status_of_own()) == 403 and time.monotonic() < until:
        time.sleep(0.1)  # a rank of this node is replacing its server by one with the current token
    if status != 204:
        why = 'it does not answer' if status is None else f'it answers with status {status}'
        raise ConfigError(
            f'`peers` serves on {text_of(peers.own)}, but that failed ({error.strerror}), and what is there is no '
            f'server of this run: {why}. Choose another `port`, the same on all nodes, or end that program.'
        ) from error


def _fork(peers: Peers, serving: _Serving, caches: Mapping[str, ShardCache]) -> None:
    ends, serving.alive = os.pipe()
    _state.starting = serving
    try:
        serving.pid = os.fork()
    finally:
        _state.starting = None
    if serving.pid:
        os.close(ends)
        return
    try:
        _leave_descriptors({ends, serving.listening.fileno()})
        for number in signal.valid_signals():  # the rank may have work to finish after these, by handlers of its own
            if number in {signal.SIGTERM, signal.SIGINT} or callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else the kernel may reap the server
        ask_for_copies_only()
        killed_by = 0
        pause = select.poll()
        pause.register(ends, select.POLLIN)
        while killed_by := _serve_once(serving.listening, peers.token, caches, ends, killed_by):
            pause.poll(1000 * ALIVE)  # a rank that has ended is not waited for
    except BaseException:
        _log.exception('The process that serves shards to peers has failed: they ask the bucket.')
    finally:
        os._exit(0)  # never back into the rank's code


def _leave_descriptors(kept: set[int]) -> None:
    """Close what the rank had open, except its output and its logs.

    Such as the sockets of its process group, whose port is free only when all copies are closed. Each number goes on as
    one of the null device: an object of the rank that closes it later closes nothing of this process.
    """
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    streams = [getattr(one, 'stream', None) for logger in loggers for one in getattr(logger, 'handlers', ())]
    for stream in (sys.stdin, sys.stdout, sys.stderr, *streams):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it is not a file, or closed
            kept = kept | {stream.fileno()}  # pyright: ignore[reportOptionalMemberAccess]
    null = os.open(os.devnull, os.O_RDWR)
    for number in {int(name) for name in os.listdir('/dev/fd')} - kept - {0, 1, 2, null}:  # noqa: PTH208 - numbers
        os.dup2(null, number, inheritable=False)


def _serve_once(
    listening: socket.socket, token: bytes, caches: Mapping[str, ShardCache], ends: int, killed_by: int
) -> int:
    """Fork a server, and wait until it or the rank has ended, or another is started.

    A server that is stopped is killed: its locks would hold the readers of this node. `killed_by` is the signal that
    killed the server before, or 0. Returns the one that killed this server, or 0.
    """
    told, tell = os.pipe()
    dead, lives = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(tell)
        _run(PeerServer(listening, token, caches), (told, ends), killed_by)
        os._exit(0)
    os.close(told)
    os.close(lives)
    poll = select.poll()
    for one in ends, dead:
        poll.register(one, select.POLLIN)
    while not (ready := poll.poll(1000 * ALIVE)):
        with contextlib.suppress(ChildProcessError):
            # macOS has it from Python 3.13 on; without it, a stopped server is not replaced.
            if hasattr(os, 'waitid') and os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG):
                os.kill(pid, signal.SIGKILL)
    if any(one == ends for one, _ in ready):
        listening.close()  # the port is the next one's
        with contextlib.suppress(BrokenPipeError):  # it was killed, too
            if os.write(tell, os.read(ends, 1)) == 0:
                os.kill(pid, signal.SIGKILL)  # it may be stopped
        os.waitpid(pid, 0)
        return 0
    os.close(tell)
    os.close(dead)
    return max(0, -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _run(server: PeerServer, pipes: tuple[int, int], killed_by: int) -> None:
    """Serve until the rank ends, or has started another server.

    `pipes`: from the process between, which tells both, and from the rank, for when that process was killed.
    """
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if killed_by:
        _log.warning(
            'The process that served shards to peers was killed by signal %d. This one takes its place.', killed_by
        )
    if os.read(pipes[0], 1) or os.read(pipes[1], 1):
        server.shutdown()
        server.server_close()  # the port is the next one's
        server.drain()
