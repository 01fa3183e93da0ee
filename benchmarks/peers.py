"""Nodes that share their caches: requests to the store, waits, and processor time.

    python benchmarks/peers.py [--nodes 8] [--shards 256] [--epochs 3] [--cache 0.25] [--delay 0.02] [--pace 0.05]

Each node is a process with an address from 127.0.0.2 on, its own cache, and a rank that reads all shards in part. The
nodes meet after every batch, as trainers do, and then wait for `pace` seconds. Each request to the store takes `delay`
seconds. A node's cache is a part of the data. A shard that all nodes and epochs request once is 1.00 x. "killed" and
"stopped" send a signal to the server of one node after the other, at every 40th batch. "moved" is the processor time of
a server and of a client for 1 GB, in shards of 64 MB without a hash.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import resource
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.storage import CacheEntry, CachePart, ShardCache, register_store
from headrace.storage.cache import peer_server
from headrace.storage.cache.peers import PeerOptions, Peers, StreamPeers
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import CountingStore

BATCH, LENGTH, SHARD = 8, 512, 1 << 15
FORK = multiprocessing.get_context('fork')


def write(folder: Path, shards: int) -> int:
    """The data set, of 31 samples a shard; returns its bytes."""
    columns = {'tokens': f'ndarray:uint16:{LENGTH}', 'id': 'int'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=SHARD, hashes=['xxh64']) as writer:
        for number in range(shards * 31):
            writer.write({'tokens': np.full(LENGTH, number % 60_000, np.uint16), 'id': number})
    return sum(path.stat().st_size for path in folder.glob('*.mds'))


def free_port() -> int:
    with socket.create_server(('127.0.0.2', 0)) as free:
        return free.getsockname()[1]


def run_node(number: int, options: dict[str, Any], together: Any, results: Any) -> None:
    """All epochs of one node; puts its ids, bytes from store and peers, the longest wait, and that for the first."""
    nodes = options['nodes']
    remote, log = LocalStore(options['remote']), options['folder'] / 'log'
    register_store('slow', lambda _url, _options: CountingStore(remote, log=log, delay=options['delay']))
    hosts = [f'127.0.0.{node + 2}:{options["port"]}' for node in range(nodes)]
    dataset = StreamingDataset(
        remote='slow://data',
        local=str(options['folder'] / f'node {number}'),
        batch_size=BATCH,
        shuffle=True,
        shuffle_block_size=200,
        num_canonical_nodes=1,
        validate_hash='xxh64',
        cache_limit=options['limit'],
        peers={'hosts': hosts, 'interface': f'127.0.0.{number + 2}'} if options['peers'] else None,
        topology=Topology(rank=number, world_size=nodes, num_nodes=nodes),
    )
    loader = StreamingDataLoader(dataset)
    ids, longest, done = list[int](), 0.0, 0
    for _ in range(options['epochs']):
        asked = time.monotonic()
        for batch in loader:
            longest = max(longest, time.monotonic() - asked)
            ids += batch['id'].tolist()
            done += 1
            if options['signal'] and done % 40 == 0 and done // 40 % nodes == number:
                for serving in peer_server._state.serving.values():
                    os.kill(serving.pid, options['signal'])
            together.wait()
            time.sleep(options['pace'])
            asked = time.monotonic()
    stats = loader.stats()
    results.put((ids, stats.bytes_downloaded, stats.bytes_from_peers, longest, stats.seconds_to_first_batch))
    together.wait()  # serves the others until all are done
    for serving in peer_server._state.serving.values():
        os.kill(serving.pid, signal.SIGCONT)


def measure(**options: Any) -> tuple[list[int], float, float, float, float]:
    """All ids, requests of shards, the share of bytes from peers, the longest wait, and that for the first batch."""
    nodes = options['nodes']
    together, results = FORK.Barrier(nodes), FORK.Queue()
    with tempfile.TemporaryDirectory() as folder:
        options |= {'folder': Path(folder), 'port': free_port()}
        processes = [FORK.Process(target=run_node, args=(n, options, together, results)) for n in range(nodes)]
        for process in processes:
            process.start()
        ids, from_store, from_peers, longest, first = zip(*(results.get() for _ in processes), strict=True)
        for process in processes:
            process.join()
        requests = sum('.mds' in line for line in (Path(folder) / 'log').read_text().splitlines())
    share = sum(from_peers) / max(1, sum(from_peers) + sum(from_store))
    return [number for some in ids for number in some], requests, share, max(longest), max(first)


def move(folder: Path, count: int = 16, size: int = 1 << 26) -> tuple[float, float]:
    """Processor seconds of a server and of a client for 1 GB."""
    sizes = {f'{number}.mds': size for number in range(count)}
    for name in sizes:
        (folder / 'node 0').mkdir(exist_ok=True)
        (folder / 'node 0' / name).write_bytes(bytes(size))
    entries = [CacheEntry((CachePart(name, size),)) for name in sizes]
    options, port = [], free_port()
    for number in range(2):
        hosts = tuple(f'127.0.0.{node + 2}:{port}' for node in range(2))
        options.append(Peers(PeerOptions(hosts=hosts, interface=f'127.0.0.{number + 2}')))
        options[-1].join()
    store = LocalStore(folder / 'none')
    serving, asking = (
        ShardCache(folder / f'node {n}', store=store, peers=StreamPeers(options[n], 'x'), entry_of=_find(entries))
        for n in range(2)
    )
    peer_server.serve(options[0], [serving])
    moved, begun = 0, time.process_time()
    for entry in entries:
        if not options[1].owned(f'x/{entry.key}'):
            asking.fetch(entry)
            moved += size
            (folder / 'node 1' / entry.key).unlink()
    client = time.process_time() - begun
    for one in peer_server._state.serving.values():
        os.close(one.alive)
        os.waitpid(one.pid, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / moved * 1e9, client / moved * 1e9


def _find(entries: list[CacheEntry]) -> Any:
    return {entry.key: entry for entry in entries}.get


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--nodes', type=int, default=8)
    parser.add_argument('--shards', type=int, default=256)
    parser.add_argument('--epochs', type=int, default=3)
    parser.add_argument('--cache', type=float, default=0.25, help='share of the data that a node caches')
    parser.add_argument('--delay', type=float, default=0.02)
    parser.add_argument('--pace', type=float, default=0.05)
    parser.add_argument('--cases', nargs='*', default=['moved', 'alone', 'peers', 'killed', 'stopped'])
    options = vars(parser.parse_args())
    os.environ['HEADRACE_PEERS_TOKEN'] = os.urandom(16).hex()
    logging.getLogger('headrace').setLevel(logging.ERROR)
    cases = options.pop('cases')
    with tempfile.TemporaryDirectory() as folder:
        if 'moved' in cases:
            server, client = move(Path(folder))
            print(f'moved: {server:.2f} s of processor time for a GB served, {client:.2f} s for one received')
        remote = Path(folder) / 'remote'
        shards = options.pop('shards')
        size = write(remote, shards)
        limit = int(size * options.pop('cache'))
        print('case     requests  from peers  longest wait  first batch')
        for case in ('alone', 'peers', 'killed', 'stopped'):
            if case in cases:
                number = {'killed': signal.SIGKILL, 'stopped': signal.SIGSTOP}.get(case, 0)
                ids, requests, share, longest, first = measure(
                    **options, remote=remote, limit=limit, peers=case != 'alone', signal=number
                )
                assert set(ids) == set(range(shards * 31)), 'a sample is missing'
                x = requests / len(list(remote.glob('*.mds')))
                print(f'{case:8} {x:6.2f} x  {share:8.1%}  {longest:10.2f} s  {first:9.2f} s', flush=True)


if __name__ == '__main__':
    main()
