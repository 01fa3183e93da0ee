"""Datasets of several nodes that share their caches: each shard leaves the store once, and every batch is right."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Generator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import StreamError
from headrace.storage import register_store
from headrace.storage.cache import peer_server
from headrace.storage.cache import peers as peers_module
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import CountingStore
from tests.support.programs.together import run_together
from tests.support.servers.peers import fix_owners, servers_of

NODES = 3
SHARDS = 24
SAMPLES = 20 * SHARDS


@pytest.fixture(autouse=True)
def _servers(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Ends the servers that a test has started."""
    fix_owners(monkeypatch)
    for name in 'SILENCE', 'START', 'LOST':
        monkeypatch.setattr(peers_module, name, 60.0)  # on a busy machine
    yield
    for serving in peer_server._state.serving.values():
        os.close(serving.alive)
        serving.listening.close()
        os.kill(serving.pid, signal.SIGCONT)
        os.waitpid(serving.pid, 0)
    peer_server._state.serving.clear()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A log of the requests to the store `counted://`, of compressed shards of 20 samples."""
    remote, log = tmp_path / 'remote', tmp_path / 'log'
    columns, random = {'id': 'int', 'data': 'bytes'}, Random(0)  # owners follow from the data, too
    with MDSWriter(out=str(remote), columns=columns, size_limit=10_500, hashes=['xxh64'], compression='zstd') as writer:
        for number in range(SAMPLES):
            writer.write({'id': number, 'data': random.randbytes(500)})
    register_store('counted', lambda _url, _options: CountingStore(LocalStore(remote), log=log))
    return log


def dataset_of(folder: Path, number: int, rank: int, peers: dict[str, Any], **how: Any) -> StreamingDataset:
    return StreamingDataset(
        remote='counted://data',
        local=str(folder / f'node {number}'),
        global_batch_size=4 * NODES,
        shuffle=True,
        shuffle_block_size=60,
        num_canonical_nodes=1,  # each node reads all shards
        peers={'interface': f'127.0.0.{number + 2}', **peers},
        topology=Topology(rank=rank, world_size=NODES, num_nodes=NODES),
        **how,
    )


def nodes_of(folder: Path, **how: Any) -> list[StreamingDataLoader]:
    ports = []
    for number in range(NODES):
        with socket.create_server((f'127.0.0.{number + 2}', 0)) as free:
            ports.append(free.getsockname()[1])
    hosts = [f'127.0.0.{number + 2}:{port}' for number, port in enumerate(ports)]
    loaders = []
    for number in range(NODES):
        dataset = dataset_of(folder, number, number, {'hosts': hosts}, **how)
        loaders.append(StreamingDataLoader(dataset))
    for loader in loaders:  # as other processes do at the same time
        assert loader.dataset.peers is not None
        peer_server.serve(loader.dataset.peers, [stream.cache for stream in loader.dataset.pool.streams])
    return loaders


def read(loaders: list[StreamingDataLoader]) -> list[int]:
    """Ids of a pass, which all nodes make together."""
    return [number for batches in zip(*loaders, strict=True) for batch in batches for number in batch['id'].tolist()]


def requests_of(log: Path) -> Counter[str]:
    return Counter(line for line in log.read_text().splitlines() if 'shard' in line)


@pytest.mark.filterwarnings('ignore:`cache_limit` is')
@pytest.mark.parametrize('limit', [None, '200kb'])
def test_each_shard_leaves_the_store_once_in_three_epochs(stored: Path, tmp_path: Path, limit: str | None) -> None:
    loaders = nodes_of(tmp_path, cache_limit=limit)
    for _ in range(3):
        assert sorted(read(loaders)) == list(range(SAMPLES))
    counts = requests_of(stored)
    if limit is None:
        assert set(counts.values()) == {1}
    else:  # without peers it is 9 times
        assert counts.total() <= 2 * len(counts)
        assert sum(loader.stats().evictions for loader in loaders) > 0
    assert all(loader.stats().bytes_from_peers > 0 for loader in loaders)


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSTOP])
def test_batches_are_right_while_a_node_does_not_answer(
    stored: Path,
    tmp_path: Path,
    number: signal.Signals,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers_module, 'SILENCE', 1.0)
    loaders = nodes_of(tmp_path, predownload=12)  # so that most shards are wanted later
    iterators = [iter(loader) for loader in loaders]
    ids = [number for one in iterators for number in next(one)['id'].tolist()]
    pid = next(iter(peer_server._state.serving.values())).pid
    for process in [pid, *servers_of(pid)]:
        os.kill(process, number)
    ids += [number for batches in zip(*iterators, strict=True) for batch in batches for number in batch['id'].tolist()]
    assert sorted(ids) == list(range(SAMPLES))
    assert requests_of(stored).total() <= 4 * SHARDS
    assert 'is not asked for 30 s' in caplog.text


def test_a_new_cache_is_filled_by_the_peers(stored: Path, tmp_path: Path) -> None:
    loaders = nodes_of(tmp_path)
    read(loaders)
    before = requests_of(stored)
    for path in (tmp_path / 'node 0').glob('*.mds'):
        path.unlink()
    assert sorted(read(loaders)) == list(range(SAMPLES))
    assert requests_of(stored) == before


def test_damaged_copies_are_refused_without_validate_hash(
    stored: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaders = nodes_of(tmp_path)
    read(loaders)
    right = {path.name: path.read_bytes() for path in tmp_path.glob('node */*.mds')}
    for name, data in right.items():
        (tmp_path / 'node 0' / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (tmp_path / 'node 1' / name).unlink(missing_ok=True)
    read(loaders)
    found = {path.name: path.read_bytes() for path in (tmp_path / 'node 1').glob('*.mds')}
    assert found
    assert found.items() <= right.items()
    assert 'sent a wrong file' in caplog.text
    assert requests_of(stored).total() > SHARDS


def test_a_server_that_ended_is_started_again(stored: Path, tmp_path: Path) -> None:
    loaders = nodes_of(tmp_path)
    read(loaders)
    served = next(iter(peer_server._state.serving.values()))
    before = served.pid
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    read(loaders)
    assert served.pid != before
    assert stored.exists()


def train_node(number: int, folder: Path, port: int, store_port: int) -> None:
    """An epoch of nodes 0 to 2. Node 2 then ends as if it was killed. Node 3 has its place, and leaves in mid-epoch."""
    logging.getLogger('headrace').addHandler(logging.FileHandler(folder / f'{number}.log'))
    store = TCPStore('127.0.0.1', store_port, is_master=number == 0, wait_for_workers=False)
    rank = min(number, 2)
    dataset = dataset_of(folder, number, rank, {'port': port})
    workers: dict[str, Any] = {'num_workers': 1, 'persistent_workers': True, 'multiprocessing_context': 'fork'}
    loader = StreamingDataLoader(dataset, **(workers if number == 1 else {}))

    def form(world: str, ranks: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group('gloo', store=PrefixStore(world, store), rank=rank, world_size=ranks)

    def meet(what: str, *numbers: int) -> None:
        store.set(f'{number} {what}', '')
        for each in numbers:
            store.wait([f'{each} {what}'])

    def train(epoch: str) -> None:
        ids = list[int]()
        for done, batch in enumerate(loader):
            ids += batch['id'].tolist()
            if (epoch, done) == ('second', 4):
                meet('is there', 0, 1, 3)
                if number == 3:
                    break
                form('a world of two', 2)
                loader.rescale(Topology(rank=rank, world_size=2, num_nodes=2))
        (folder / f'{epoch}.{number}').write_text(json.dumps(ids))
        meet(f'has the {epoch} epoch', 0, 1, 2 if epoch == 'first' else 3)
        assert loader.stats().bytes_from_peers > 0

    if number != 3:
        form('a world', NODES)
        train('first')
        if number == 2:
            os._exit(0)
    else:
        store.wait(['state'])
        loader.load_state_dict(json.loads(store.get('state')))
    if number == 0:
        store.set('state', json.dumps(loader.state_dict()))
    if number == 1:  # has its worker ask the nodes of now
        for path in (folder / 'node 1').glob('*.mds'):
            path.unlink()
    form('a new world', NODES)
    train('second')
    assert dataset.peers is not None
    known = {address for address, _ in dataset.peers.nodes[2]}
    assert known == {'127.0.0.2', '127.0.0.3', *(['127.0.0.5'] if number == 3 else [])}
    assert number != 3 or loader.stats().bytes_downloaded == 0
    meet('is over', *([1, 3] if number == 0 else []))  # node 0 has the store


def test_ranks_find_each_other_and_nodes_come_and_go(stored: Path, tmp_path: Path) -> None:
    with socket.create_server(('127.0.0.1', 0)) as store, socket.create_server(('127.0.0.2', 0)) as server:
        ports = {'port': server.getsockname()[1], 'store_port': store.getsockname()[1]}
    run_together(partial(train_node, folder=tmp_path, **ports), NODES + 1)
    for epoch in ('first', 'second'):
        ids = [number for path in tmp_path.glob(f'{epoch}.*') for number in json.loads(path.read_text())]
        assert sorted(ids) == list(range(SAMPLES))
    assert set(requests_of(stored).values()) == {1}
    assert 'not asked' not in ''.join(path.read_text() for path in tmp_path.glob('*.log'))


def test_keep_zip_is_refused(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(StreamError, match='has `keep_zip`. Remove it, or `peers`'):
        nodes_of(tmp_path, keep_zip=True)
    assert not stored.exists()  # refused before the store is asked
