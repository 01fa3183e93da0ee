"""Nodes that share their caches: requests to the store, waits, and processor time.

    python benchmarks/peers.py [--nodes 8] [--shards 256] [--shard 32768] [--epochs 3] [--cache 0.25] [--delay 0.02]
        [--pace 0.05] [--kills 50] [--stops 20] [--s3] [--link 3] [--cases ...]

Each node is a process with an address from 127.0.0.2 on, its own cache, and a rank that reads all shards in part. The
nodes meet after every batch, as trainers do, and then wait for `pace` seconds. Each request to the store takes `delay`
seconds. A node's cache is a part of the data. A shard that all nodes and epochs request once is 1.00 x; "most" is the
shard with the most requests. "late" counts the batches, but the first, for which a node waits over 10 ms. Each node's
ids are compared with those of the same rank that reads alone.

- "failing": servers are killed and stopped at random batches of random nodes. A killed one comes back, and a stopped
  one goes on 0.5 to 6 s later.
- "one-way": from the 10th batch on, no node reaches the next one, which reaches it. "apart": none reaches another.
  Packets are dropped (a listening socket with a full queue), or connections are refused ("-refused").
- "moved": processor time of a server and of a client for 1 GB, in shards of 64 MB, without and with xxh64.
- "cold": a node with an empty cache joins seven that have all shards, of 8 MB.

With `--s3` the store is Ceph's RADOS gateway. `--link` says how many MB a second each node may get from that, in round
trips of 20 ms, and how many it may send to its peers. It wants root and a loopback interface of its own: `unshare -n`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.format import FileInfo, hash_file, verify_file
from headrace.storage import CacheEntry, CachePart, ShardCache, register_store
from headrace.storage.cache import peer_server
from headrace.storage.cache.peer_options import PeerOptions
from headrace.storage.cache.peers import Peers, StreamPeers
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import CountingStore
from tests.support.servers.link import Link
from tests.support.servers.peers import servers_of
from tests.support.servers.s3 import rgw_server

BATCH, LENGTH = 8, 512
FORK = multiprocessing.get_context('fork')
CUTS = 'one-way', 'one-way-refused', 'apart', 'apart-refused'


def write(folder: Path, shards: int, size: int) -> int:
    """The data set, with shards of so many bytes, 31 samples in 32 KiB; returns its bytes."""
    columns = {'tokens': f'ndarray:uint16:{LENGTH}', 'id': 'int'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=size, hashes=['xxh64']) as writer:
        for number in range(shards * (size * 31 >> 15)):
            writer.write({'tokens': np.full(LENGTH, number % 60_000, np.uint16), 'id': number})
    return sum(path.stat().st_size for path in folder.glob('*.mds'))


def free_port() -> int:
    with socket.create_server(('127.0.0.2', 0)) as free:
        return free.getsockname()[1]


def dataset_of(number: int, nodes: int, **where: Any) -> StreamingDataset:
    return StreamingDataset(
        batch_size=BATCH,
        shuffle=True,
        shuffle_block_size=200,
        num_canonical_nodes=1,
        validate_hash='xxh64',
        topology=Topology(rank=number, world_size=nodes, num_nodes=nodes),
        **where,
    )


def promised(options: dict[str, Any]) -> list[list[int]]:
    """The ids of each rank, from the order alone: read from the data's own folder."""
    found = []
    for number in range(options['nodes']):
        loader = StreamingDataLoader(dataset_of(number, options['nodes'], local=str(options['remote'])))
        found.append([one for _ in range(options['epochs']) for batch in loader for one in batch['id'].tolist()])
    return found


def plan_faults(options: dict[str, Any], number: int, batches: int) -> dict[int, list[tuple[int, float]]]:
    """The signals that a node sends to its server, by the number of the batch, and for how many seconds they hold.

    All nodes have the same plan.
    """
    chance, epochs, nodes = random.Random(7), options['epochs'], options['nodes']
    faults = dict[int, list[tuple[int, float]]]()
    for sent in [signal.SIGKILL] * options['kills'] + [signal.SIGSTOP] * options['stops']:
        node, epoch, batch = chance.randrange(nodes), chance.randrange(epochs), chance.randrange(batches)
        at = epoch * batches + batch
        seconds = chance.uniform(0.5, 6)
        if node == number:
            faults.setdefault(at, []).append((sent, seconds))
    return faults


def send(number: int) -> int:
    """Send a signal to this node's server; returns 1 if that lived."""
    lives = [pid for one in peer_server._state.serving.values() for pid in servers_of(one.pid)]
    for pid in lives:
        os.kill(pid, number)
    return len(lives)


def cut(is_cut: Any, unreachable: set[str], *, refused: bool) -> Callable[[], None]:
    """Make connections to some addresses fail while ``is_cut`` is set, here and in processes forked later."""
    real = socket.create_connection
    hole = socket.create_server(('127.0.0.1', 0), backlog=0)
    filling = [socket.socket() for _ in range(4)]
    for one in filling:  # the kernel drops what comes after these
        one.setblocking(False)
        one.connect_ex(hole.getsockname())

    def connect(address: Any, *args: Any, **how: Any) -> socket.socket:
        if is_cut.value and address[0] in unreachable:
            if refused:
                raise ConnectionRefusedError(errno.ECONNREFUSED, 'played')
            address = hole.getsockname()
        return real(address, *args, **how)

    socket.create_connection = connect
    return hole.close


def run_node(number: int, options: dict[str, Any], together: Any, is_cut: Any, results: Any) -> None:
    """All epochs of one node; puts its ids, bytes from store and peers, the longest wait, and that for the first."""
    nodes, folder = options['nodes'], options['folder']
    stack, store, delay = contextlib.ExitStack(), options['store'], options['delay']
    if options['link']:
        link = Link(os.environ['S3_ENDPOINT_URL'], latency=0.02, rate=options['link'] * 1e6)
        store, delay = partial(store, endpoint_url=stack.enter_context(link).endpoint_url), 0.0
    register_store('slow', lambda *_: CountingStore(store(), log=folder / 'log', delay=delay))
    hosts = [f'127.0.0.{node + 2}:{options["port"]}' for node in range(nodes)]
    others = [f'127.0.0.{node + 2}' for node in range(nodes) if node != number]
    cut_off = {'one-way': {f'127.0.0.{(number + 1) % nodes + 2}'}, 'apart': set(others)}
    stack.callback(
        cut(is_cut, cut_off.get(options['case'].removesuffix('-refused'), set()), refused='ref' in options['case'])
    )
    dataset = dataset_of(
        number,
        nodes,
        remote='slow://data',
        local=str(folder / f'node {number}'),
        cache_limit=options['limit'],
        peers={'hosts': hosts, 'interface': f'127.0.0.{number + 2}'} if options['case'] != 'alone' else None,
    )
    loader = StreamingDataLoader(dataset)
    faults = plan_faults(options, number, len(loader)) if options['case'] == 'failing' else {}
    ids, waits, done, sent = list[int](), list[float](), 0, Counter[int]()
    for _ in range(options['epochs']):
        asked = time.monotonic()
        for batch in loader:
            waits.append(time.monotonic() - asked)
            ids += batch['id'].tolist()
            for fault, seconds in faults.get(done, ()):
                sent[fault] += send(fault)
                if fault == signal.SIGSTOP:
                    threading.Timer(seconds, send, [signal.SIGCONT]).start()
            done += 1
            is_cut.value = done >= 10
            together.wait()
            time.sleep(options['pace'])
            asked = time.monotonic()
    stats = loader.stats()
    late = sum(wait > 0.01 for wait in waits[1:])
    results.put(
        (
            number,
            ids,
            stats.bytes_downloaded,
            stats.bytes_from_peers,
            max(waits),
            stats.seconds_to_first_batch,
            late,
            sent,
        )
    )
    together.wait()  # serves the others until all are done
    send(signal.SIGCONT)
    stack.close()


def measure(right: list[list[int]], **options: Any) -> str:
    """A line: requests of shards, the share of bytes from peers, waits, late batches, faults."""
    nodes = options['nodes']
    together, results, is_cut = FORK.Barrier(nodes), FORK.Queue(), FORK.Value('b', lock=False)
    with tempfile.TemporaryDirectory() as folder:
        options |= {'folder': Path(folder), 'port': free_port()}
        processes = [FORK.Process(target=run_node, args=(n, options, together, is_cut, results)) for n in range(nodes)]
        for process in processes:
            process.start()
        found = sorted(results.get() for _ in processes)
        for process in processes:
            process.join()
        log = (Path(folder) / 'log').read_text().splitlines()
    assert [one[1] for one in found] == right, 'a batch is wrong'
    from_store, from_peers, late = (sum(one[place] for one in found) for place in (2, 3, 6))
    longest, first = (max(one[place] for one in found) for place in (4, 5))
    requests = Counter(line for line in log if '.mds' in line)
    sent = sum((one[7] for one in found), Counter[int]())
    return (
        f'{requests.total() / len(requests):6.2f} x {max(requests.values()):5}  '
        f'{from_peers / max(1, from_peers + from_store):8.1%}  {longest:10.2f} s  {first:9.2f} s {late:6}  '
        f'{sent[signal.SIGKILL]} killed, {sent[signal.SIGSTOP]} stopped'
    )


def nodes_of(folder: Path, count: int, entries: list[CacheEntry]) -> list[tuple[Peers, ShardCache]]:
    """Nodes in one process, with caches below a folder and a store without objects."""
    port, store = free_port(), CountingStore(LocalStore(folder / 'none'))
    hosts = tuple(f'127.0.0.{node + 2}:{port}' for node in range(count))
    find, nodes = {entry.key: entry for entry in entries}.get, []
    for number in range(count):
        peers = Peers(PeerOptions(hosts=hosts, interface=f'127.0.0.{number + 2}'))
        peers.join()
        place = folder / f'node {number}'
        nodes.append((peers, ShardCache(place, store=store, peers=StreamPeers(peers, 'x'), entry_of=find)))
    return nodes


def end_servers() -> float:
    """End this process' servers; returns the processor seconds of all of them since it began."""
    for one in peer_server._state.serving.values():
        os.close(one.alive)
        one.listening.close()
        os.waitpid(one.pid, 0)
    peer_server._state.serving.clear()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def move(folder: Path, algorithm: str | None, count: int = 16, size: int = 1 << 26) -> tuple[float, float]:
    """Processor seconds of a server and of a client for 1 GB."""
    entries, data = [], os.urandom(size)
    (folder / 'node 0').mkdir(parents=True)
    for number in range(count):
        path = folder / 'node 0' / f'{number}.mds'
        path.write_bytes(data)
        with path.open('rb') as file:
            info = FileInfo(path.name, size, hash_file(file, ['xxh64']))
        check = partial(verify_file, info=info, algorithm=algorithm)
        entries.append(CacheEntry((CachePart(path.name, size, verify_copy=check),)))
    (served, serving), (_, asking) = nodes_of(folder, 2, entries)
    before = end_servers()
    peer_server.serve(served, [serving])
    moved, begun = 0, time.process_time()
    for entry in entries:
        if not asking.peers or not asking.peers.duty(entry.key):
            asking.fetch(entry)
            moved += size
            (folder / 'node 1' / entry.key).unlink()
    client = time.process_time() - begun
    return (end_servers() - before) / moved * 1e9, client / moved * 1e9


def join_cold(folder: Path, count: int = 64, size: int = 8 << 20, threads: int = 8) -> tuple[float, int]:
    """Bytes a second at which a new node fills its cache from seven, and the shards that it asked the store for."""
    entries = [CacheEntry((CachePart(f'{number}.mds', size),)) for number in range(count)]
    nodes = nodes_of(folder, 8, entries)
    for number, (peers, cache) in enumerate(nodes[:7]):
        (folder / f'node {number}').mkdir(parents=True)
        for entry in entries:
            with (folder / f'node {number}' / entry.key).open('wb') as file:
                file.truncate(size)  # sparse: it is read from memory
        peer_server.serve(peers, [cache])
    cold, begun = nodes[7][1], time.monotonic()

    def fetch(entry: CacheEntry) -> int:
        with contextlib.suppress(FileNotFoundError):  # the store has nothing
            cold.fetch(entry)
            return 0
        return 1

    with ThreadPoolExecutor(threads) as pool:
        missed = sum(pool.map(fetch, entries))
    taken = time.monotonic() - begun
    end_servers()
    return cold.stats.counts.bytes_from_peers / taken, missed


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--nodes', type=int, default=8)
    parser.add_argument('--shards', type=int, default=256)
    parser.add_argument('--shard', type=int, default=1 << 15, help='bytes of a shard')
    parser.add_argument('--epochs', type=int, default=3)
    parser.add_argument('--cache', type=float, default=0.25, help='share of the data that a node caches')
    parser.add_argument('--delay', type=float, default=0.02)
    parser.add_argument('--pace', type=float, default=0.05)
    parser.add_argument('--kills', type=int, default=50)
    parser.add_argument('--stops', type=int, default=20)
    parser.add_argument('--s3', action='store_true', help='an S3 server as the store: Ceph, which needs root')
    parser.add_argument('--link', type=float, help="MB a second of a node's link; only with --s3")
    parser.add_argument('--cases', nargs='*', default=['moved', 'cold', 'alone', 'peers', 'failing', *CUTS])
    options = vars(parser.parse_args())
    os.environ['HEADRACE_PEERS_TOKEN'] = os.urandom(16).hex()
    logging.getLogger('headrace').setLevel(logging.ERROR)
    cases = options.pop('cases')
    if options['link']:
        slow_down(options['nodes'], options['link'])
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for algorithm in (None, 'xxh64') if 'moved' in cases else ():
            server, client = move(folder / f'moved {algorithm}', algorithm)
            print(f'moved: {server:.2f} s of processor time for a GB served, {client:.2f} s received ({algorithm})')
        if 'cold' in cases:
            rate, missed = join_cold(folder / 'cold')
            print(f'cold: {rate / 1e6:.0f} MB/s, {missed} of 64 shards asked of the store')
        remote = folder / 'remote'
        options['limit'] = int(write(remote, options.pop('shards'), options.pop('shard')) * options.pop('cache'))
        options |= {'remote': remote, 'store': partial(LocalStore, remote)}
        if options.pop('s3'):
            options['store'] = put_in_s3(remote, stack)
        right = promised(options)
        print('case            requests  most  from peers  longest wait  first batch   late', flush=True)
        for case in cases:
            if case not in {'moved', 'cold'}:
                print(f'{case:15} {measure(right, **options, case=case)}', flush=True)


def slow_down(nodes: int, rate: float) -> None:
    """Bound what each node's address sends, in MB a second."""
    commands = ['ip link set lo up', 'tc qdisc add dev lo root handle 1: htb']
    for node in range(2, nodes + 2):
        commands += [
            f'tc class add dev lo parent 1: classid 1:{node} htb rate {rate * 8}mbit burst 128k quantum 65536',
            f'tc filter add dev lo parent 1: protocol ip u32 match ip src 127.0.0.{node} flowid 1:{node}',
        ]
    for command in commands:
        subprocess.run(command.split(), check=True)


def put_in_s3(remote: Path, stack: contextlib.ExitStack) -> Callable[[], Any]:
    """Copy the data to a server that runs until the stack ends; returns what makes a store of them."""
    server = stack.enter_context(rgw_server())
    os.environ |= server.environment()
    bucket = server.new_bucket()
    store = server.store(bucket)
    for path in remote.iterdir():
        with path.open('rb') as file:
            store.put(path.name, file, size=path.stat().st_size)
    return partial(server.store, bucket)


if __name__ == '__main__':
    main()
