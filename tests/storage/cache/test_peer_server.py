"""A node serves its shards to those who know the run's token, and nobody else, within bounds."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from headrace.errors import ConfigError
from headrace.storage.cache import peer_server
from headrace.storage.cache import peers as peers_module
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peer_server import PeerServer, serve
from headrace.storage.cache.peers import Peers, proof
from headrace.testing.stores import CountingStore
from tests.support.programs.waiting import until
from tests.support.servers.peers import STREAM, TOKEN, listen, servers_of, serving
from tests.support.stores.shards import SIZE, cache_of, fetch_index, make_remote, names


@pytest.fixture
def served(plain, tmp_path):
    """The address of a server of one cache, and the cache."""
    cache = cache_of(plain, tmp_path / 'cache')
    with serving(listen(0), {STREAM: cache}) as server:
        yield server.server_address, cache


def ask(address, request: bytes) -> bytes:
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(request)
        found = b''
        while data := connection.recv(1 << 16):
            found += data
    return found


def get(path: str, *, token: str = TOKEN, proven: str | None = None) -> bytes:
    sign = proof(token.encode(), proven or path)
    return f'GET {path} HTTP/1.1\r\nAuthorization: HMAC {sign}\r\n\r\n'.encode()


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


def test_a_shard_is_fetched_and_sent(served, plain):
    address, cache = served
    entry = plain.entries[0]
    for _ in range(2):
        head, _, body = ask(address, get(f'/{STREAM}/{entry.key}')).partition(b'\r\n\r\n')
        assert status_of(head) == 200
        assert body == plain.data[entry.key]
    assert cache.stats.counts.requests == 1
    assert status_of(ask(address, get('/'))) == 204


def test_a_copy_is_given_at_once_or_not(served, plain):
    address, cache = served
    entry = plain.entries[0]
    request = get(f'/{STREAM}/{entry.key}').replace(b'\r\n\r\n', b'\r\nCache-Control: only-if-cached\r\n\r\n')
    assert status_of(ask(address, request)) == 504
    assert cache.stats.counts.requests == 0
    cache.fetch(entry)
    assert ask(address, request).endswith(plain.data[entry.key])


def test_what_the_store_lacks_is_refused(served, plain):
    address, _ = served
    entry = plain.entries[0]
    (plain.folder / entry.key).unlink()
    assert status_of(ask(address, get(f'/{STREAM}/{entry.key}'))) == 503


SHARD = f'/{STREAM}/shard.00000.mds'
OUTSIDERS = {
    'no token': (f'GET {SHARD} HTTP/1.1\r\n\r\n'.encode(), 403),
    'another token': (get(SHARD, token='the token of another run'), 403),
    'a proof for another path': (get(SHARD, proven='/'), 403),
    'a token in plain text': (f'GET {SHARD} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n'.encode(), 403),
    'bytes that are no text': (f'GET {SHARD} HTTP/1.1\r\nAuthorization: HMAC \xff\xfe\r\n\r\n'.encode('latin-1'), 403),
    'another verb': (f'PUT {SHARD} HTTP/1.1\r\n\r\n'.encode(), 501),
    'no HTTP': (b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n', 400),
    'a long path': (b'GET /' + b'x' * 70_000 + b' HTTP/1.1\r\n\r\n', 414),
    'many headers': (b'GET / HTTP/1.1\r\n' + b'X: y\r\n' * 200 + b'\r\n', 431),
}


@pytest.mark.parametrize('outsider', OUTSIDERS)
def test_an_outsider_is_refused(served, tmp_path, caplog, outsider):
    (address, _), (request, status) = served, OUTSIDERS[outsider]
    for _ in range(3):
        answer = ask(address, request)
        assert status_of(answer if answer.startswith(b'HTTP/') else b'HTTP/1.1 400') == status
        assert len(answer) < 1000
    assert names(tmp_path / 'cache') == []
    assert TOKEN not in caplog.text
    if status == 403:
        assert caplog.text.count('Refused a request of 127.0.0.1: it does not prove') == 1


@pytest.mark.parametrize(
    'name',
    [
        '../remote/shard.00000.mds',
        '..%2Fremote%2Fshard.00000.mds',
        '%2Fetc%2Fpasswd',
        'x',
        'index.json',
        '.headrace',
        '%00',
    ],
)
def test_only_names_of_the_index_are_known(served, name):
    address, _ = served
    for path in (f'/{STREAM}/{name}', f'/{name}/{STREAM}', f'/{name}'):
        assert status_of(ask(address, get(path))) == 404


def test_a_flood_of_headers_and_a_slow_request_are_given_up(served, monkeypatch):
    address, _ = served
    monkeypatch.setattr(peer_server, 'HEAD_SECONDS', 0.2)
    with socket.create_connection(address, timeout=10) as connection, pytest.raises(ConnectionError):
        connection.sendall(b'GET / HTTP/1.1\r\n')
        for _ in range(3000):  # a minute: far fewer bytes than a head may have
            connection.sendall(b'X')
            time.sleep(0.02)
    with socket.create_connection(address, timeout=10) as connection, pytest.raises(ConnectionError):
        connection.sendall(b'GET / HTTP/1.1\r\n')
        for _ in range(10_000):
            connection.sendall(b'X: ' + b'y' * 60_000 + b'\r\n')


def test_slow_connections_of_one_address_leave_places_for_peers(plain, tmp_path, caplog):
    entry = plain.entries[0]
    with serving(listen(0), {STREAM: cache_of(plain, tmp_path / 'cache')}) as server, contextlib.ExitStack() as stack:
        others = stack.enter_context(socket.create_connection(server.server_address, source_address=('127.0.0.9', 0)))
        for _ in range(3 * peer_server.UNPROVEN):
            slow = stack.enter_context(socket.create_connection(server.server_address))
            slow.sendall(b'GET / HTTP/1.1\r\n')
        assert ask(server.server_address, get(f'/{STREAM}/{entry.key}')).endswith(plain.data[entry.key])
        others.sendall(get('/'))
        assert others.recv(100).startswith(b'HTTP/1.1 204')
    assert caplog.text.count('Refused a request of 127.0.0.1') == 1


def test_connections_of_peers_are_bounded(plain, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(peer_server, 'CONNECTIONS', 1)
    monkeypatch.setattr(peer_server, 'ALIVE', 0.01)
    entry, begun, goes_on = plain.entries[0], threading.Event(), threading.Event()

    class Waiting(CountingStore):
        def get(self, *args, **options):
            begun.set()
            goes_on.wait(60)
            return super().get(*args, **options)

    cache = cache_of(plain, tmp_path / 'cache', store=Waiting(plain.store))
    with serving(listen(0), {STREAM: cache}) as server:
        with socket.create_connection(server.server_address, timeout=60) as first:
            first.sendall(get(f'/{STREAM}/{entry.key}'))
            assert begun.wait(60)
            assert status_of(ask(server.server_address, get('/'))) == 503
            goes_on.set()
            while first.recv(1 << 16):
                pass
        until(lambda: status_of(ask(server.server_address, get('/'))) == 204)
    assert 'there are 1 connections of peers' in caplog.text


def test_a_peer_that_does_not_read_is_left(tmp_path, monkeypatch):
    remote = make_remote(tmp_path / 'remote', count=1, size=30_000_000)
    monkeypatch.setattr(peer_server, 'SILENCE', 0.1)
    cache = cache_of(remote, tmp_path / 'cache', limit=40_000_000)
    entry = remote.entries[0]
    with (
        serving(listen(0), {STREAM: cache}) as server,
        socket.create_connection(server.server_address, timeout=10) as connection,
    ):
        connection.sendall(get(f'/{STREAM}/{entry.key}'))
        connection.recv(1)
        until(lambda: cache.evict(entry))  # while it is sent, it is in use


def test_files_of_another_index_are_not_sent(plain, tmp_path):
    (plain.folder / 'index.json').write_text('{}')
    entry, cached = plain.entries[0], tmp_path / 'cache'
    cache = cache_of(plain, cached, index=fetch_index(cached, plain.store))
    cache.fetch(entry)
    with serving(listen(0), {STREAM: cache}) as server:
        assert status_of(ask(server.server_address, get(f'/{STREAM}/{entry.key}'))) == 200
        (cached / 'index.json').write_text('{"of": "other data"}')  # as a run of these does, in the same folder
        (cached / entry.key).write_bytes(bytes(SIZE))
        assert status_of(ask(server.server_address, get(f'/{STREAM}/{entry.key}'))) == 503


def test_a_connection_that_another_server_has_accepted_is_not_waited_for(plain, tmp_path):
    server = PeerServer(listen(0), TOKEN.encode(), {STREAM: cache_of(plain, tmp_path / 'cache')})
    accepting = threading.Thread(target=server._handle_request_noblock, daemon=True)
    accepting.start()
    accepting.join(10)
    assert not accepting.is_alive()
    server.server_close()


def test_a_server_that_is_starting_is_waited_for(monkeypatch):
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', TOKEN)
    monkeypatch.setattr(peers_module, 'SILENCE', 0.01)
    server = PeerServer(listen(0), TOKEN.encode(), {})
    host, port = server.server_address
    starting = threading.Timer(0.1, server.serve_forever, (0.01,))
    starting.start()
    serve(Peers(PeerOptions(hosts=(f'{host}:{port}', '127.0.0.3'), interface=host)), [])
    server.shutdown()
    server.server_close()


MANY = """
import os, signal, sys
from pathlib import Path
from headrace.storage.cache.peer_server import _state, serve
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peers import Peers, StreamPeers
from tests.support.stores.shards import cache_of, make_remote

folder, port = Path(sys.argv[1]), sys.argv[2]
peers = Peers(PeerOptions(hosts=(f'127.0.0.2:{port}', '127.0.0.3'), interface='127.0.0.2'))
remote = make_remote(folder / 'remote')
for number in range(3):
    cache = cache_of(remote, folder / f'cache {number}', peers=StreamPeers(peers, 'digest'))
    if number:
        os.kill(_state.serving[peers.own].pid, signal.SIGSTOP)  # it ends after the next one is there
    serve(peers, [cache])
    serving = _state.serving[peers.own]
    for pid in serving.replaced:
        os.kill(pid, signal.SIGCONT)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not yet reaped
    print(serving.caches['digest'].name, len(serving.replaced))
    del cache
"""


def test_data_in_another_folder_are_served_from_there(tmp_path, monkeypatch):
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', TOKEN)
    with socket.create_server(('127.0.0.2', 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, '-c', MANY, str(tmp_path), port]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    assert printed.splitlines() == ['cache 0 0', 'cache 1 1', 'cache 2 1']


PROGRAM = """
import signal, sys, time
from pathlib import Path
from headrace.storage.cache import peers as peers_module
from headrace.storage.cache.peer_server import _state, serve
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peers import Peers, StreamPeers
from tests.support.stores.shards import cache_of, make_remote

peers_module.START = 0.0
folder, port = Path(sys.argv[1]), sys.argv[2]
for number in signal.SIGUSR1, signal.SIGCHLD:
    signal.signal(number, lambda *_: sys.exit('a handler of the rank'))
peers = Peers(PeerOptions(hosts=(f'127.0.0.2:{port}', '127.0.0.3'), interface='127.0.0.2'))
serve(peers, [cache_of(make_remote(folder / 'remote'), folder / 'cache', peers=StreamPeers(peers, 'digest'))])
print(_state.serving[peers.own].pid, flush=True)
time.sleep(600)
"""


def test_one_process_of_a_node_serves_and_ends_with_its_rank(tmp_path, monkeypatch):
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', TOKEN)
    with socket.create_server(('127.0.0.2', 0)) as free:
        address = free.getsockname()
    peers = Peers(PeerOptions(hosts=(f'127.0.0.2:{address[1]}', '127.0.0.3'), interface='127.0.0.2'))
    command = [sys.executable, '-c', PROGRAM, str(tmp_path), str(address[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rank:
        try:
            assert rank.stdout is not None
            server = int(rank.stdout.readline())
            serve(peers, [])  # as another rank of the node
            request = get('/digest/shard.00001.mds')
            (own,) = servers_of(server)
            for number in signal.SIGTERM, signal.SIGINT, signal.SIGUSR1:
                os.kill(server, number)
                os.kill(own, number)
            os.kill(rank.pid, signal.SIGSTOP)  # the server goes on
            assert len(ask(address, request)) > SIZE
            os.kill(own, signal.SIGKILL)
            until(lambda: own not in servers_of(server))
            assert len(ask(address, request)) > SIZE
            (own,) = servers_of(server)
            os.kill(own, signal.SIGSTOP)  # it may hold a lock that the rank waits for
            until(lambda: servers_of(server) not in ([own], []))
            assert len(ask(address, request)) > SIZE
            os.kill(servers_of(server)[0], signal.SIGSTOP)
        finally:
            rank.kill()
    with pytest.raises(ConnectionError):
        while True:  # the kernel closes the port a moment later
            ask(address, request)
            time.sleep(0.01)


def test_a_server_that_is_about_to_have_the_token_of_now_is_waited_for(monkeypatch):
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', TOKEN)
    monkeypatch.setattr(peer_server, 'SILENCE', 30.0)
    with serving(listen(0), {}) as other:
        host, port = other.server_address
        other.token = b'the token of before'
        monkeypatch.setattr(other, 'refuse', lambda *_: setattr(other, 'token', TOKEN.encode()))
        serve(Peers(PeerOptions(hosts=(f'{host}:{port}', '127.0.0.3'), interface=host)), [])


def test_a_port_of_another_run_is_refused(monkeypatch):
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', TOKEN)
    monkeypatch.setattr(peer_server, 'SILENCE', 0.2)
    with serving(listen(0), {}) as other:
        other.token = b'the token of another run'
        host, port = other.server_address
        with pytest.raises(ConfigError, match=f'serves on {host}:{port}, but .* answers with status 403'):
            serve(Peers(PeerOptions(hosts=(f'{host}:{port}', '127.0.0.3'), interface=host)), [])


def test_a_server_without_room_says_so_at_once(plain, tmp_path):
    first, second = plain.entries[:2]
    cache = cache_of(plain, tmp_path / 'cache', limit=3 * SIZE // 2)
    with serving(listen(0), {STREAM: cache}) as server, cache.acquire(first):
        begin = time.monotonic()
        assert status_of(ask(server.server_address, get(f'/{STREAM}/{second.key}'))) == 507
        assert time.monotonic() - begin < peer_server.WAIT / 2
    assert not cache.is_present(second)


FORKS = """
import os, socket, sys
from headrace.storage import ShardCache
from headrace.storage.cache.peer_server import _state, serve
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peers import Peers, StreamPeers

taken = socket.create_server(('127.0.0.1', 0))
ends, alive = os.pipe()
peers = Peers(PeerOptions(hosts=(f'127.0.0.2:{sys.argv[1]}', f'127.0.0.3:{sys.argv[1]}'), interface='127.0.0.2'))
serve(peers, [ShardCache(sys.argv[2], peers=StreamPeers(peers, 'digest'))])
print(_state.serving[peers.own].pid, taken.getsockname()[1], flush=True)
taken.close()
os.close(alive)
assert os.read(ends, 1) == b''  # no other process has the other end
socket.create_server(taken_at := ('127.0.0.1', int(sys.stdin.readline()))).close()
print('free', flush=True)
sys.stdin.read()
"""


def open_files(pid: int) -> list[str]:
    files = []
    for descriptor in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(FileNotFoundError):
            files.append(os.readlink(f'/proc/{pid}/fd/{descriptor}'))
    return files


def test_a_server_has_no_descriptor_of_its_rank_and_outlives_the_process_between(tmp_path, monkeypatch):
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', TOKEN)
    with listen(0) as free:
        port = free.getsockname()[1]
    pipe = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
    command = [sys.executable, '-c', FORKS, str(port), str(tmp_path)]
    with subprocess.Popen(command, **pipe) as rank:
        between, taken = map(int, rank.stdout.readline().split())
        rank.stdin.write(f'{taken}\n')
        rank.stdin.flush()
        assert rank.stdout.readline() == 'free\n'
        until(lambda: servers_of(between))
        (server,) = servers_of(between)
        assert status_of(ask(('127.0.0.2', port), get('/'))) == 204
        # The connection of that question may still be one of its sockets, and a file may be closed while this looks.
        until(lambda: sum('socket' in file for file in open_files(server)) == 1)
        os.kill(between, signal.SIGKILL)
        assert status_of(ask(('127.0.0.2', port), get('/'))) == 204
        rank.kill()
        until(lambda: not os.path.exists(f'/proc/{server}'))


def test_no_node_of_a_cluster_with_tight_caches_waits_for_one_that_waits():
    command = [sys.executable, '-m', 'benchmarks.peer_clusters', '--cases', '1', '--minutes', '0', '--faults', 'plain']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '# the end: 1 cases, 0 failed' in done.stdout, done.stdout
