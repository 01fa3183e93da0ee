"""A shard comes from the cache of the node that owns it, or in bounded time from the bucket; never wrong."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import pickle
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.storage import CacheEntry, ShardCache
from headrace.storage.cache import peers as peers_module
from headrace.storage.cache.ownership import Duty, hash_of
from headrace.storage.cache.peer_options import PeerOptions, is_of_this_machine
from headrace.storage.cache.peers import PeerRequest, Peers, StreamPeers
from headrace.testing.stores import CountingStore
from tests.support.servers.peers import STREAM, TOKEN, Node, cluster, fix_owners, listen, misbehaving, peers_of, serving
from tests.support.stores.shards import SIZE, cache_of, make_remote


@pytest.fixture(autouse=True)
def owners(monkeypatch):
    fix_owners(monkeypatch)


@pytest.fixture
def patient(monkeypatch):
    """Waits for peers that answer, on a busy machine, and hardly for those that are not there."""
    monkeypatch.setattr(peers_module, 'SILENCE', 30.0)
    monkeypatch.setattr(peers_module, 'LOST', 300.0)
    monkeypatch.setattr(peers_module, 'START', 0.2)


@pytest.fixture
def many(tmp_path):
    """Enough shards for each node to own some."""
    return make_remote(tmp_path / 'remote', count=20)


def of_others(peers: Peers, remote) -> CacheEntry:
    return next(entry for entry in remote.entries if not peers.duty(hash_of(STREAM, entry.key)))


def owner_of(nodes: list[Node], entry: CacheEntry) -> Node:
    (owner,) = (node for node in nodes if node.peers.duty(hash_of(STREAM, entry.key)))
    return owner


def read(cache: ShardCache, remote, entry: CacheEntry) -> None:
    with cache.acquire(entry) as lease:
        remote.check(lease)


@pytest.mark.usefixtures('patient')
def test_each_object_leaves_the_store_once(remote, tmp_path):
    store = CountingStore(remote.store)
    with cluster(remote, tmp_path, 3, store=store) as nodes:
        for node in nodes:
            for entry in remote.entries:
                read(node.cache, remote, entry)
    objects = sum(len(entry.parts) for entry in remote.entries)
    assert sum(store.calls.values()) == objects
    from_peers = sum(node.cache.stats.counts.bytes_from_peers for node in nodes)
    assert from_peers == 2 * objects * SIZE


@pytest.mark.usefixtures('patient')
def test_nodes_that_ask_at_the_same_time_share_one_request(plain, tmp_path):
    store = CountingStore(plain.store, delay=0.05)
    entry = plain.entries[0]
    with cluster(plain, tmp_path, 4, store=store) as nodes:
        threads = [threading.Thread(target=read, args=(node.cache, plain, entry)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(node.cache.is_present(entry) for node in nodes)
    assert store.calls == {('get', entry.key): 1}


def test_a_compressed_file_that_is_there_is_unpacked(packed, tmp_path):
    entry = packed.entries[0]
    name = entry.parts[0].packed_name
    with cluster(packed, tmp_path, 2) as nodes:
        node = next(node for node in nodes if node is not owner_of(nodes, entry))
        node.cache.folder.mkdir(exist_ok=True)
        (node.cache.folder / name).write_bytes((packed.folder / name).read_bytes())
        read(node.cache, packed, entry)
        assert node.cache.stats.counts.bytes_from_peers == 0


def head(size: int, status: str = '200 OK') -> bytes:
    return f'HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n'.encode()


def trickle(connection: socket.socket) -> None:
    connection.sendall(head(SIZE))
    for _ in range(1000):
        connection.sendall(b'x')
        time.sleep(0.01)


def signs_of_life(connection: socket.socket) -> None:
    for _ in range(1000):
        connection.sendall(b'HTTP/1.1 100 Continue\r\n\r\n')
        time.sleep(0.01)


def endless_head(connection: socket.socket) -> None:
    connection.sendall(b'HTTP/1.1 200 OK\r\n')
    for _ in range(100_000):
        connection.sendall(b'X-Header: ' + b'x' * 1000 + b'\r\n')


FAULTS: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    'closes': (lambda _: None, 'does not answer'),
    'is silent': (lambda connection: connection.recv(1) and None, 'does not answer'),
    'sends control characters': (lambda connection: connection.sendall(b'\x1b[2JH\x9b\r\n'), r'e: \x1b[2JH\x9b'),
    'is no HTTP': (lambda connection: connection.sendall(b'SSH-2.0-OpenSSH\r\n'), 'does not answer'),
    'fails': (lambda connection: connection.sendall(head(0, '500 Oh')), 'status 500'),
    'breaks off': (lambda connection: connection.sendall(head(SIZE) + b'x' * 100), 'broke off'),
    'trickles': (trickle, 'too slow'),
    'is always about to answer': (signs_of_life, 'does not answer'),
    'sends endless headers': (endless_head, 'does not answer'),
    'sends wrong bytes': (lambda connection: connection.sendall(head(SIZE) + b'x' * SIZE), 'wrong file'),
    'sends another range': (lambda connection: connection.sendall(head(SIZE - 1) + b'x' * (SIZE - 1)), 'wrong file'),
    'says no length': (lambda connection: connection.sendall(b'HTTP/1.1 200 OK\r\n\r\nxx'), 'wrong file'),
    'has other data': (lambda connection: connection.sendall(head(0, '404 No')), 'other data'),
    'is full': (lambda connection: connection.sendall(head(0, '503 Full')), 'cannot fetch it now'),
    'has another token': (lambda connection: connection.sendall(head(0, '403 No')), 'its token is another'),
}


SLOW = {'is silent', 'trickles', 'is always about to answer', 'sends endless headers'}


@pytest.mark.parametrize('fault', FAULTS)
@pytest.mark.usefixtures('patient')
def test_a_bad_peer_costs_a_bounded_wait_and_is_named(many, tmp_path, caplog, monkeypatch, fault):
    if fault in SLOW:
        monkeypatch.setattr(peers_module, 'SILENCE', 0.2)
        monkeypatch.setattr(peers_module, 'WAIT', 0.4)
    if fault == 'trickles':  # also on a busy machine
        monkeypatch.setattr(Peers, '_connect', lambda _, __, connection: connection.connect())
        monkeypatch.setattr(peers_module, 'CONNECT', 30.0)
        monkeypatch.setattr(peers_module, 'WAIT', 30.0)
    caplog.set_level('INFO', 'headrace.storage.cache.peers')
    answer, told = FAULTS[fault]
    with misbehaving(1, answer) as bad, listen(0) as own:
        peers = peers_of([own.getsockname(), bad], 0)
        cache = cache_of(many, tmp_path / 'cache', peers=StreamPeers(peers, STREAM))
        read(cache, many, of_others(peers, many))
    assert cache.stats.counts.bytes_from_peers == 0
    assert cache.stats.counts.bytes_downloaded == SIZE
    assert f'{told}' in caplog.text
    assert f'{bad[0]}:{bad[1]}' in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize('fault', ['closes', 'is full', 'has other data'])
@pytest.mark.usefixtures('patient')
def test_a_bad_owners_shards_fall_to_the_next_peer(many, tmp_path, caplog, fault):
    store = CountingStore(many.store)
    with misbehaving(9, FAULTS[fault][0]) as bad, cluster(many, tmp_path, 3, store=store) as nodes:
        addresses = [bad, *(node.peers.own for node in nodes)]
        for number, node in enumerate(nodes, 1):
            node.cache._fetcher.peers = StreamPeers(peers_of(addresses, number), STREAM)
            for entry in many.entries:
                read(node.cache, many, entry)
    assert set(store.calls.values()) == {1}
    if fault == 'closes':
        assert caplog.text.count(f'Peer {bad[0]}:{bad[1]} does not answer') == 3  # once for each process


@pytest.fixture(params=['dropped', 'refused'])
def hole(request):
    """An address that lets no connection come about."""
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(socket.socket())
        found.bind(('127.0.0.1', 0))
        if request.param == 'dropped':
            found.listen(0)
            for _ in range(4):  # its queue is full
                one = stack.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(found.getsockname())
        yield found.getsockname()


@pytest.mark.parametrize('is_apart', [False, True])
@pytest.mark.usefixtures('patient')
def test_nodes_that_do_not_reach_each_other_try_once_and_ask_the_store(many, tmp_path, monkeypatch, hole, is_apart):
    monkeypatch.setattr(peers_module, 'CONNECT', 0.1)
    store, tried = CountingStore(many.store), list[tuple[object, object]]()
    with cluster(many, tmp_path, 4, store=store) as nodes:
        for number, node in enumerate(nodes):
            # One way: none reaches the next one.
            lost = {nodes[number - way].peers.own for way in ((1, 2, 3) if is_apart else (1,))}

            def connect(peer, connection, *, lost=lost, real=node.peers._connect, own=node.peers.own):
                if peer.address in lost:
                    tried.append((own, peer.address))
                    connection.host, connection.port = hole
                real(peer, connection)

            monkeypatch.setattr(node.peers, '_connect', connect)

        def run(number):
            for entry in many.entries[number * 5 :] + many.entries[: number * 5]:
                read(nodes[number].cache, many, entry)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(node.cache.is_present(entry) for node in nodes for entry in many.entries)
    assert len(set(tried)) == len(tried) > 0  # no link costs a second wait
    assert max(store.calls.values()) <= (4 if is_apart else 2)  # else only the owner and one other ask


@pytest.mark.parametrize('is_told', [False, True])
def test_a_peer_that_had_another_token_is_asked_again(many, tmp_path, monkeypatch, is_told):
    """After a change of nodes one node may know the new token before the server of another one does."""
    monkeypatch.setattr(peers_module, 'SILENCE', 30.0)
    monkeypatch.setattr(peers_module, 'START', 30.0)
    entries, answers = list[CacheEntry](), [head(0, '403 No'), head(SIZE)]

    def answer(connection):
        if answers:  # else the server is to end
            begin = answers.pop(0)
            connection.sendall(begin + (b'' if b'403' in begin else many.data[entries[0].key]))

    with misbehaving(1, answer) as other, listen(0) as own:
        peers = peers_of([own.getsockname(), other], 0)
        if is_told:  # as by the trainer's store
            peers._options = PeerOptions()
        entries += [entry for entry in many.entries if not peers.duty(hash_of(STREAM, entry.key))]
        cache = cache_of(many, tmp_path / 'cache', peers=StreamPeers(peers, STREAM))
        read(cache, many, entries[0])
        if not is_told:
            assert cache.stats.counts.bytes_from_peers == 0
            del entries[0]
            peers._peers[other]._cell[0] -= peers_module.PAUSE
            read(cache, many, entries[0])
    assert cache.stats.counts.bytes_from_peers == SIZE


def test_a_peer_that_goes_on_failing_is_asked_less_and_less(many, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(peers_module, 'LONGEST_PAUSE', 100.0)
    entries, broken = list[CacheEntry](), [True, True, True, False, True]

    def answer(connection):
        if broken:  # else the server is to end
            is_broken = broken.pop(0)
            connection.sendall(head(0, '500 No') if is_broken else head(SIZE) + many.data[entries[0].key])

    with misbehaving(1, answer) as other, listen(0) as own:
        peers = peers_of([own.getsockname(), other], 0)
        entries.append(of_others(peers, many))
        cache = cache_of(many, tmp_path / 'cache', peers=StreamPeers(peers, STREAM))
        while broken:
            read(cache, many, entries[0])
            peers._peers[other]._cell[0] = 0.0
            (tmp_path / 'cache' / entries[0].key).unlink()
    pauses = [int(seconds) for seconds in re.findall(r'is not asked for (\d+) s', caplog.text)]
    assert pauses == [30, 60, 100, 30]


def test_one_outage_counts_once_for_all_threads(many, tmp_path, caplog):
    both = threading.Barrier(2)

    def answer(connection):
        connection.sendall(head(0, '500 No'))

    with misbehaving(1, answer) as other, listen(0) as own:
        peers = peers_of([own.getsockname(), other], 0)
        cache = cache_of(many, tmp_path / 'cache', peers=StreamPeers(peers, STREAM))
        peer, ask = peers._peers[other], peers._ask

        def ask_at_once(*args, **how):
            both.wait(60)
            return ask(*args, **how)

        peers._ask = ask_at_once
        entries = [entry for entry in many.entries if not peers.duty(hash_of(STREAM, entry.key))][:2]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda entry: read(cache, many, entry), entries))
    assert caplog.text.count('is not asked for 30 s') == 1
    assert peer.pause == 2 * peers_module.PAUSE


def test_many_stopped_peers_cost_about_as_much_as_two(many, tmp_path, monkeypatch, caplog):
    """All processes of a node together: those that are forked know what one has waited for."""
    monkeypatch.setattr(peers_module, 'SILENCE', 0.6)
    monkeypatch.setattr(peers_module, 'LOST', 1.2)
    monkeypatch.setattr(peers_module, 'SHORTEST', 0.1)
    waits = list[float]()
    real = peers_module.http.client.HTTPConnection

    class Connection(real):
        def connect(self):
            super().connect()
            waits.append(self.timeout)

    monkeypatch.setattr(peers_module.http.client, 'HTTPConnection', Connection)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(listen(number)) for number in range(9)]  # none accepts a connection
        peers = peers_of([one.getsockname() for one in sockets], 0)
        cache = cache_of(many, tmp_path / 'cache', peers=StreamPeers(peers, STREAM))
        for entry in many.entries:
            read(cache, many, entry)
        asked = len(waits)
        pid = os.fork()
        if not pid:
            for entry in many.entries:
                cache.evict(entry)
                read(cache, many, entry)
            os._exit(len(waits) - asked)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert 2 <= asked <= 3
    assert caplog.text.count('does not answer') == asked
    assert cache.stats.counts.bytes_downloaded == SIZE * len(many.entries)


def test_peers_that_were_never_there_are_waited_for_at_the_same_time(many, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(peers_module.time, 'monotonic', lambda: now[0])
    monkeypatch.setattr(peers_module.time, 'sleep', lambda seconds: now.append(now.pop() + seconds))
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(listen(number)) for number in range(6)]
        peers = peers_of([one.getsockname() for one in sockets], 0)
    cache = cache_of(many, tmp_path / 'a', peers=StreamPeers(peers, STREAM))
    for entry in many.entries:
        read(cache, many, entry)
    assert 0 < now[0] < peers_module.START + 0.1


def test_a_peer_that_starts_late_is_waited_for(many, tmp_path, monkeypatch):
    monkeypatch.setattr(peers_module, 'START', 30.0)
    with listen(0) as own, listen(1) as later:
        address = later.getsockname()
        peers = peers_of([own.getsockname(), address], 0)
    entry = of_others(peers, many)
    cache = cache_of(many, tmp_path / 'cache', peers=StreamPeers(peers, STREAM))
    reading = threading.Thread(target=read, args=(cache, many, entry))
    reading.start()
    reading.join(0.2)
    data = many.data[entry.key]
    with socket.create_server(address) as late:
        connection, _ = late.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(head(len(data)) + data)
        reading.join()
    assert cache.stats.counts.bytes_from_peers == len(data)


@settings(max_examples=25)
@given(st.integers(2, 9), st.lists(st.integers(0, 2**64 - 1), max_size=9))
def test_all_nodes_agree_and_ask_only_those_before_them(monkeypatch_token, count, shards):
    addresses = [(f'127.0.0.{number + 2}', 7000) for number in range(count)]
    nodes = [peers_of(addresses, number) for number in range(count)]
    for shard in shards:
        before = {node.own: node.before(shard) for node in nodes}
        ranking = sorted(before, key=lambda own: len(before[own]))
        assert [before[own] for own in ranking] == [ranking[:place] for place in range(count)]
        assert [node.duty(shard) is Duty.KEEP for node in nodes] == [not before[node.own] for node in nodes]


@pytest.mark.usefixtures('patient')
def test_nodes_that_take_each_other_for_the_owner_do_not_wait_for_each_other(many, tmp_path):
    """As while one knows of another limit already: each asks the other one for the same shard, at the same time."""
    both = threading.Barrier(2)
    with cluster(many, tmp_path, 2) as nodes:
        entry = many.entries[0]
        for node, other in zip(nodes, reversed(nodes), strict=True):
            order = [other.peers.own, node.peers.own]
            node.peers.ownership.order = lambda _, order=order: order
            node.peers.duty = lambda _: Duty.NONE

            def ask(*given, real=node.peers._ask, **how):
                both.wait(60)  # both have the locks of their caches
                return real(*given, **how)

            node.peers._ask = ask
        threads = [threading.Thread(target=read, args=(node.cache, many, entry)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert all(node.cache.is_present(entry) for node in nodes)


@pytest.fixture(scope='module')
def monkeypatch_token():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('HEADRACE_PEERS_TOKEN', TOKEN)
        yield


@pytest.mark.parametrize(
    'raw',
    [
        True,
        ['a'],
        {'hosts': None},
        {'hosts': 'a'},
        {'hosts': []},
        {'hosts': [1]},
        {'hosts': 7},
        {'hosts': {'a': 7207}},
        {'hosts': ['a'], 'host': 'a'},
        {'hosts': ['a'], 'port': 0},
        {'hosts': ['a'], 'port': True},
        {'hosts': ['a'], 'interface': 7},
        {'hosts': ['a'], 'token_env': None},
    ],
)
def test_wrong_options_are_refused(raw):
    with pytest.raises(ConfigError, match='`peers` must be a mapping: {} finds the nodes .*; or `hosts`, a list'):
        PeerOptions.of(raw)


def test_without_hosts_nodes_are_told_of_each_other(monkeypatch, caplog):
    caplog.set_level('INFO')
    nodes = {'127.0.0.2': 'the first secret', '127.0.0.3': ''}

    def meet(own, secret):
        return [own, *nodes], nodes['127.0.0.2']

    options = PeerOptions.of({'interface': '127.0.0.3', 'port': 7001})
    peers = Peers(options, meet)
    for _ in range(2):
        peers.join(2)
    assert caplog.text.count('Nodes that share their caches: 2; this one is 127.0.0.3:7001') == 1
    rooms = {('127.0.0.2', 7001): math.inf, ('127.0.0.3', 7001): math.inf}
    assert peers.nodes == (('127.0.0.3', 7001), b'the first secret', rooms)
    del nodes['127.0.0.3']
    nodes['127.0.0.4'] = ''
    copy = pickle.loads(pickle.dumps(Peers(options)))
    peers.join(2)
    copy.know(*peers.nodes)
    shards = [hash_of(STREAM, str(number)) for number in range(99)]
    assert [copy.before(shard) for shard in shards] == [peers.before(shard) for shard in shards]
    assert {address for shard in shards for address in peers.before(shard)} == {
        ('127.0.0.2', 7001),
        ('127.0.0.4', 7001),
    }
    copy.join(2)  # as one whose group has ended
    assert copy.nodes == peers.nodes
    peers._meet = Mock(side_effect=RuntimeError('the store is gone'))
    peers.join(2)
    assert copy.nodes == peers.nodes
    assert 'goes on with those of before: the store is gone' in caplog.text
    with pytest.raises(RuntimeError):
        Peers(options, peers._meet).join(2)
    nodes['192.0.2.1'] = ''
    peers._meet = meet
    with pytest.raises(ConfigError, match='of which no other machine reaches a loopback address'):
        peers.join(2)
    monkeypatch.setenv('RUN', 'a token of this run')
    with_token = Peers(PeerOptions(interface='127.0.0.3', token_env='RUN'), meet)
    del nodes['192.0.2.1']
    told = []
    with_token._meet = lambda own, secret: told.append(secret) or meet(own, secret)
    for _ in range(2):
        with_token.join(2)
        assert with_token.token == b'a token of this run'
    assert b'a token of this run' not in [secret.encode() for secret in told]


def test_nodes_with_one_address_are_told(caplog):
    peers = Peers(PeerOptions(), lambda own, secret: ([own, own], secret))
    for _ in range(2):
        peers.join(2, nodes=2)
    assert caplog.text.count('has found 1 addresses of 2 nodes') == 1


def test_without_hosts_several_ranks_need_a_group(caplog):
    peers = Peers(PeerOptions(), lambda _own, _secret: None)
    with pytest.raises(ConfigError, match='needs the process group of torch.distributed, by which the 2 ranks'):
        peers.join(2)
    peers.join(1)
    assert len(peers) == 1
    on_one_node = Peers(PeerOptions(), lambda own, secret: ([own, own], secret))
    on_one_node.join(2)
    assert not caplog.records
    on_one_node._meet = lambda _own, _secret: None  # the group has ended
    on_one_node.join(2)
    assert len(on_one_node) == 1
    with pytest.raises(ConfigError, match='must be an address of this machine, got .192.0.2.7.'):
        Peers(PeerOptions(interface='192.0.2.7')).join(1)


def test_a_node_without_others_is_told(caplog):
    Peers(PeerOptions(hosts=('127.0.0.2',))).join()
    assert 'no node but this one, 127.0.0.2:7207: all shards come from the bucket' in caplog.text


def test_it_pickles():
    peers = peers_of([('127.0.0.2', 7000), ('127.0.0.3', 7000)], 1)
    copy = pickle.loads(pickle.dumps(peers))
    assert (copy.own, copy.before(7)) == (peers.own, peers.before(7))
    assert TOKEN not in repr(peers)


@pytest.mark.skipif(not is_of_this_machine('::1'), reason='needs IPv6')
def test_ipv6(many, tmp_path):
    listening = socket.create_server(('::1', 0), family=socket.AF_INET6)
    peers = peers_of([('127.0.0.2', 7000), ('[::1]', listening.getsockname()[1])], 0)
    cache = cache_of(many, tmp_path / 'a', peers=StreamPeers(peers, STREAM))
    with serving(listening, {STREAM: cache_of(many, tmp_path / 'b')}):
        read(cache, many, of_others(peers, many))
    assert cache.stats.counts.bytes_from_peers == SIZE


class _ShortFile(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return 100


def _failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    'failure',
    [
        {'create': _failing(errno.ENOSPC)},
        {'create': lambda: contextlib.nullcontext(Mock(write=_failing(errno.ENOSPC)))},
        {'create': _ShortFile},
        {'check': _failing(errno.EMFILE)},
    ],
    ids=['file', 'disk', 'short', 'check'],
)
@pytest.mark.usefixtures('patient')
def test_a_failure_of_the_own_disk_is_not_held_against_a_peer(many, tmp_path, caplog, failure):
    with misbehaving(1, lambda connection: connection.sendall(head(SIZE) + b'x' * SIZE)) as other, listen(0) as own:
        peers = peers_of([own.getsockname(), other], 0)
        entry = of_others(peers, many)
        request = PeerRequest(
            stream=STREAM, shard=entry.key, part=entry.parts[0], **{'create': io.BytesIO, 'check': Mock(), **failure}
        )
        with pytest.raises(OSError, match='space left|descriptors|Too many|part of'):
            peers.fetch(request)
        assert 'Peer' not in caplog.text
        assert peers.fetch(replace(request, create=io.BytesIO, check=Mock())) == SIZE


@pytest.mark.parametrize('number', [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EADDRNOTAVAIL])
@pytest.mark.usefixtures('patient')
def test_a_node_without_descriptors_blames_no_peer(many, caplog, monkeypatch, number):
    with misbehaving(1, lambda connection: connection.sendall(head(SIZE) + b'x' * SIZE)) as other, listen(0) as own:
        peers = peers_of([own.getsockname(), other], 0)
        entry = of_others(peers, many)
        request = PeerRequest(stream=STREAM, shard=entry.key, part=entry.parts[0], create=io.BytesIO, check=Mock())
        with monkeypatch.context() as patched:
            patched.setattr(socket, 'create_connection', _failing(number))
            assert peers.fetch(request) == 0
        assert not [one for one in caplog.records if one.levelname == 'WARNING']
        assert peers.fetch(request) == SIZE
