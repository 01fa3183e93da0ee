"""Random clusters with `peers` and tight caches: the longest step, bytes, wrong ids, and what nodes say of each other.

    python benchmarks/peer_clusters.py [--cases 200] [--minutes 40] [--most-minutes 90] [--seed 0] [--faults plain,kill]

Case n of a seed is always the same cluster: 2 to 5 nodes with 0 to 8 workers each (at most 16 processes that read), and
room for 2 to 6 shards. Each node reads its part of an epoch, and its ids are compared with
those of the same rank that reads alone. It goes on until both `--cases` and `--minutes` are reached, or
`--most-minutes`. "starved" are the seconds of the longest step in which its node had no processor. The faults, in turn:

- "plain": none. A step of more than 15 s is a failure, also the first of a node, which starts its workers.
- "kill": servers, and the processes between them and their ranks, are killed at random moments.
- "stop": servers are stopped for 0.5 to 6 s.
- "full": the disk of node 0 holds less than its limit. It may end with `DiskFullError`, which names that disk.
- "lie": one more host of the list sends nonsense of many kinds.

It wants Linux, and root for "full": it mounts a small tmpfs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.storage.cache import peer_server
from tests.support.servers.peers import servers_of

SHARDS, SHARD, LONGEST, MOST_PROCESSES = 20, 8000, 15.0, 16
FAULTS = 'plain', 'kill', 'stop', 'full', 'lie'
NO_STEP = 120.0
"""Seconds without a batch of any node after which a cluster counts as hanging."""


def head(size: int, status: str = '200 OK') -> bytes:
    return f'HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n'.encode()


def trickle(connection: socket.socket, begin: bytes, again: bytes) -> None:
    connection.sendall(begin)
    while True:
        connection.sendall(again)
        time.sleep(0.2)


LIES: list[Callable[[socket.socket], object]] = [
    lambda one: one.close(),
    lambda one: one.sendall(head(SHARD) + b'x' * SHARD),
    lambda one: one.sendall(head(1 << 40) + b'x' * SHARD),
    lambda one: one.sendall(b'\x1b[2J\x9b\r\n'),
    lambda one: one.sendall(head(0, '507 Full')),
    lambda one: one.sendall(head(0, '403 No')),
    lambda one: one.recv(1),
    lambda one: trickle(one, head(1 << 30, '500 \x1b[31m'), b'x'),
    lambda one: trickle(one, head(SHARD), b'x'),
    lambda one: trickle(one, b'HTTP/1.1 200 OK\r\n', b'X: y\r\n'),
    lambda one: trickle(one, b'', b'HTTP/1.1 100 Continue\r\n\r\n'),
]


def lie(address: tuple[str, int], chance: random.Random) -> None:
    """A host that answers each request with a lie; each cluster has three kinds of them."""
    kinds = chance.sample(LIES, 3)
    listening = socket.create_server(address)

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            kinds[hash(connection.getpeername()) % 3](connection)

    while True:
        threading.Thread(target=talk, args=(listening.accept()[0],), daemon=True).start()


def disturb(fault: str, chance: random.Random) -> None:
    """Kill or stop this node's server, and what is between, at random moments. Runs in a thread of the rank."""
    while True:
        time.sleep(chance.uniform(0.3, 3))
        for between in [one.pid for one in peer_server._state.serving.values() if one.pid]:  # else it is being forked
            pids = servers_of(between)
            with contextlib.suppress(ProcessLookupError):
                if fault == 'kill':
                    os.kill(chance.choice([between, *pids]), signal.SIGKILL)
                for pid in pids if fault == 'stop' else ():
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(chance.uniform(0.5, 6))
                    os.kill(pid, signal.SIGCONT)


def loader_of(number: int, nodes: int, workers: int, **where: Any) -> StreamingDataLoader:
    dataset = StreamingDataset(batch_size=8, shuffle=True, num_canonical_nodes=nodes, **where)
    topology = Topology(rank=number, world_size=nodes, num_nodes=nodes)
    return StreamingDataLoader(dataset, topology=topology, num_workers=workers)


def count_starved(starved: list[float]) -> None:
    """Add up the seconds for which this process had no processor, as the oversleep of a thread shows. Runs for ever."""
    while True:
        begin = time.monotonic()
        time.sleep(0.1)
        starved[0] += max(0.0, time.monotonic() - begin - 0.11)


def run_node(folder: Path, number: int, case: dict[str, Any]) -> None:
    """The epoch of one node; what it found is put into files."""
    logging.basicConfig(filename=folder / f'log{number}', level=logging.WARNING)
    result: dict[str, Any] = {'ids': [], 'longest': 0.0, 'starved': 0.0, 'first': 0.0, 'error': ''}
    starved, starved_before = [0.0], 0.0
    threading.Thread(target=count_starved, args=(starved,), daemon=True).start()
    begin = last = time.monotonic()
    try:
        peers = {'hosts': case['hosts'], 'interface': f'127.0.0.{number + 2}'}
        where = {'remote': str(case['data']), 'local': str(folder / f'node{number}' / 'cache'), 'peers': peers}
        loader = loader_of(number, case['nodes'], case['workers'], cache_limit=case['limit'], **where)
        if case['fault'] in {'kill', 'stop'}:
            args = case['fault'], random.Random(case['number'] * 100 + number)
            threading.Thread(target=disturb, args=args, daemon=True).start()
        for batch in loader:
            step = time.monotonic() - last
            if not result['ids']:
                result['first'] = step
            elif step > result['longest']:
                result |= {'longest': step, 'starved': starved[0] - starved_before}
            last, starved_before = time.monotonic(), starved[0]
            result['ids'] += batch['id'].tolist()
            (folder / f'beat{number}').touch()
        stats = loader.stats()
        result |= {'store': stats.bytes_downloaded, 'peers': stats.bytes_from_peers}
    except BaseException as error:
        result['error'] = f'{type(error).__name__}: {error}'
        (folder / f'trace{number}').write_text(traceback.format_exc())
    step = 'longest' if result['ids'] else 'first'
    result |= {step: max(result[step], time.monotonic() - last), 'seconds': time.monotonic() - begin}
    (folder / f'result{number}').write_text(json.dumps(result))


def run_case(data: Path, right: dict[tuple[int, int], list[int]], number: int, seed: int, fault: str) -> dict[str, Any]:
    """One cluster; returns its figures and failures."""
    chance = random.Random(f'{seed} {number}')
    nodes = chance.randint(2, 5)
    workers = min(chance.randint(0, 8), MOST_PROCESSES // nodes)
    room = chance.randint(2, 6)
    fixed = sum(path.stat().st_size for path in data.iterdir() if path.suffix != '.mds') + 1000
    folder = Path(tempfile.mkdtemp(prefix='headrace-cluster'))
    with socket.create_server(('127.0.0.2', 0)) as free:
        port = free.getsockname()[1]
    hosts = [f'127.0.0.{node + 2}:{port}' for node in range(nodes + (fault == 'lie'))]
    limit = fixed + room * SHARD
    case = {'nodes': nodes, 'workers': workers, 'hosts': hosts, 'data': data, 'limit': limit, 'fault': fault}
    case['number'] = number
    for node in range(nodes):
        (folder / f'node{node}').mkdir()
    if fault == 'full':
        size = f'size={fixed // 1024 + 24 + 8 * chance.randint(1, room)}k'
        subprocess.run(['mount', '-t', 'tmpfs', '-o', size, 'none', folder / 'node0'], check=True)
    pids = dict[int, int]()
    for node in range(len(hosts)):
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            if node < nodes:
                run_node(folder, node, case)
            else:
                lie((f'127.0.0.{node + 2}', port), chance)
            os._exit(0)
        pids[pid] = node
    liars = {pid for pid, node in pids.items() if node >= nodes}
    begin, stood = time.time(), 0.0
    while set(pids) - liars and stood < NO_STEP:
        time.sleep(0.2)
        beats = [path.stat().st_mtime for path in folder.glob('beat*')]
        stood = time.time() - max(begin, *beats, begin)
        for pid in list(pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del pids[pid]
    failures = [f'node {node} hangs' for pid, node in pids.items() if pid not in liars]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    left = ''
    for _ in range(20):  # servers end with their ranks
        time.sleep(0.5)
        left = subprocess.run(['ss', '-Hltn', f'sport = :{port}'], capture_output=True, text=True, check=False).stdout
        if not left.strip():
            break
    failures += [f'a server is left: {left.strip()[:200]}'] if left.strip() else []
    found: dict[str, Any] = {
        'case': number,
        'fault': fault,
        'nodes': nodes,
        'workers': workers,
        'room': room,
        'longest': 0.0,
    }
    found |= {
        'starved': 0.0,
        'first': 0.0,
        'store': 0,
        'peers': 0,
        'blamed': 0,
        'blamed by full': 0,
        'seconds': round(time.time() - begin, 1),
    }
    for node in range(nodes):
        path = folder / f'result{node}'
        result: dict[str, Any] = {'error': 'no result', 'ids': [], 'longest': 0.0}
        result |= json.loads(path.read_text()) if path.exists() else {}
        if round(result['longest'], 1) > found['longest']:
            found |= {name: round(result.get(name, 0.0), 1) for name in ('longest', 'starved')}
        found['first'] = round(max(found['first'], result.get('first', 0.0)), 1)
        found['store'] += result.get('store', 0)
        found['peers'] += result.get('peers', 0)
        text = (folder / f'log{node}').read_text() if (folder / f'log{node}').exists() else ''
        found['blamed' if node or fault != 'full' else 'blamed by full'] += text.count('is not asked')
        ids = right[nodes, node]
        if result['ids'] != ids[: len(result['ids'])] or (not result['error'] and len(result['ids']) != len(ids)):
            failures.append(f'node {node}: WRONG IDS')
        is_told = fault == 'full' and node == 0 and 'DiskFullError' in result['error'] and '/node0' in result['error']
        if result['error'] and not is_told:
            failures.append(f'node {node}: {result["error"][:300]}')
        if '\x1b' in text:
            failures.append(f'node {node}: control characters in its log')
    if max(found['longest'], found['first']) > LONGEST:
        failures.append(f'a step of {max(found["longest"], found["first"])} s')
    if fault == 'full':
        subprocess.run(['umount', '-l', folder / 'node0'], check=True)
    if failures:
        found['kept'] = str(folder)
    else:
        shutil.rmtree(folder)
    return found | {'failures': failures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--cases', type=int, default=200)
    parser.add_argument('--minutes', type=float, default=40)
    parser.add_argument('--most-minutes', type=float, default=90)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--faults', default=','.join(FAULTS))
    options = parser.parse_args()
    os.environ['HEADRACE_PEERS_TOKEN'] = 'a token of these clusters'
    warnings.simplefilter('ignore')
    faults, begin, number = options.faults.split(','), time.monotonic(), 0
    sums, longest, failed = Counter[str](), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / 'data'
        columns = {'id': 'int', 'v': 'ndarray:int32:16'}
        with MDSWriter(out=str(data), columns=columns, size_limit=SHARD, hashes=['xxh64']) as writer:
            for sample in range(SHARDS * 100):
                writer.write({'id': sample, 'v': np.full(16, sample, np.int32)})
        right = {
            (nodes, node): [one for batch in loader_of(node, nodes, 0, local=str(data)) for one in batch['id'].tolist()]
            for nodes in range(2, 6)
            for node in range(nodes)
        }
        while (minutes := (time.monotonic() - begin) / 60) < options.most_minutes and (
            number < options.cases or minutes < options.minutes
        ):
            found = run_case(data, right, number, options.seed, faults[number % len(faults)])
            number += 1
            failed += bool(found['failures'])
            sums.update({'store': found['store'], 'peers': found['peers']})
            sums['wrong ids'] += sum('WRONG' in one for one in found['failures'])
            longest[found['fault']] = max(longest[found['fault']], found['longest'])
            print(json.dumps(found), flush=True)
            if not number % 10:
                print(f'# {number} cases, {failed} failed, longest steps {dict(longest)}, {dict(sums)}', flush=True)
    print(f'# the end: {number} cases, {failed} failed, longest steps {dict(longest)}, {dict(sums)}', flush=True)


if __name__ == '__main__':
    main()
