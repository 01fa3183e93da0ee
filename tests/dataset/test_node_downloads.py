"""Downloads of nodes: one of each shard on all nodes together, for any ranks, workers and earlier runs."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import CacheError
from headrace.storage import register_store
from headrace.storage.cache import lease_cache
from headrace.storage.stores.local import LocalStore
from headrace.testing.proxy import FaultProxy
from headrace.testing.stores import CountingStore, put_bytes
from tests.support.programs.processes import end_well
from tests.support.programs.waiting import until

pytestmark = pytest.mark.once

FORK = multiprocessing.get_context('fork')
SAMPLES = 224
CANONICAL = 4  # 56 samples each
ORDERS: dict[str, dict[str, Any]] = {
    'native': {'shuffle': True},
    'stored': {'shuffle': False},
    'py1s': {'shuffle': True, 'shuffle_algo': 'py1s', 'shuffle_block_size': 40},
    'py1e': {'shuffle': True, 'shuffle_algo': 'py1e', 'shuffle_block_size': 40},
}


def fork_all(works: list[Callable[[], None]], *, seconds: float = 120, user: list[int] | None = None) -> None:
    """Run functions in a process each, as the users given; all must end well, in time."""

    def run(work: Callable[[], None], uid: int | None) -> None:
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            # This process' folder for the sockets of its queues, if it has made one, is not theirs.
            multiprocessing.current_process()._config.pop('tempdir', None)  # pyright: ignore[reportAttributeAccessIssue]
        work()

    users = user or [None] * len(works)
    processes = [FORK.Process(target=run, args=pair) for pair in zip(works, users, strict=True)]
    for process in processes:
        process.start()
    end_well(processes, seconds)


def count_into(log: Path) -> None:
    """Have this process' reads of ``counted://`` written down."""
    register_store(
        'counted',
        lambda url, _: CountingStore(LocalStore(url.removeprefix('counted://')), log=log, delay=0.002),
    )


def read_on_nodes(
    folder: Path, remote: str, *, nodes: int, ranks: int, workers: int, **order: Any
) -> list[list[dict[str, Any]]]:
    """Read two epochs on all ranks at the same time, and a third with another dataset.

    Returns:
        By rank, what each epoch read: ids, and the loader's statistics, those of the last from its own begin.
    """
    together = FORK.Barrier(nodes * ranks)

    def rank(number: int) -> None:
        node = number // ranks
        count_into(folder / f'log{node}')
        read: list[dict[str, Any]] = []
        topology = Topology(rank=number, world_size=nodes * ranks, num_nodes=nodes)

        def loader() -> StreamingDataLoader:
            dataset = StreamingDataset(
                remote=remote, local=str(folder / f'node{node}'), batch_size=4, topology=topology, **order
            )
            return StreamingDataLoader(dataset, num_workers=workers)

        def epoch(loader: StreamingDataLoader) -> None:
            together.wait(60)
            ids = []
            # From then on each worker is asked for one more batch: two are under way to each.
            last_wait = len(loader) - 3 * workers
            assert last_wait > 0
            for number, batch in enumerate(loader, 1):
                ids += batch['id'].tolist()
                if number == last_wait:
                    wait_for_fetches(loader, folder / f'node{node}')
            read.append({'ids': ids, 'stats': loader.stats().as_dict()})

        first = loader()
        epoch(first)
        epoch(first)
        del first
        epoch(loader())
        (folder / f'read{number}').write_text(json.dumps(read))

    fork_all([lambda number=number: rank(number) for number in range(nodes * ranks)])
    return [json.loads((folder / f'read{number}').read_text()) for number in range(nodes * ranks)]


def wait_for_fetches(loader: StreamingDataLoader, cache: Path) -> None:
    """Wait until this rank's shards are there and counted: what a worker fetches after its last batch nobody hears."""
    plan, dataset = loader.plan(), loader.dataset
    shards, _ = dataset.locate(np.concatenate([plan.ids(number) for number in range(plan.num_batches)]))
    paths = [cache / dataset.shards[shard].files[0].raw.basename for shard in set(shards.tolist())]
    until(lambda: all(path.exists() for path in paths) and not (cache / '.headrace').exists())


def total(read: list[list[dict[str, Any]]], epoch: int, what: str) -> int:
    """The sum over ranks of one of the statistics."""
    return sum(of_rank[epoch]['stats'][what] for of_rank in read)


def check_read(read: list[list[dict[str, Any]]]) -> None:
    for epoch in range(3):
        assert sorted(i for of_rank in read for i in of_rank[epoch]['ids']) == list(range(SAMPLES))


def nothing_is_being_fetched(cache: Path) -> bool:
    """A count that took long, as on a busy machine, may be remembered under a limit."""
    return {path.name for path in cache.glob('.headrace/*')} <= {'ledger'}


def topologies():
    """Each topology in the native order, and each order on the largest one."""
    for order, nodes, ranks, workers in itertools.product(ORDERS, [1, 2, 4], [1, 2], [0, 2]):
        is_usual = (nodes, ranks, workers) == (4, 2, 0) or (
            order == 'native' and (not workers or (nodes, ranks) == (2, 2))
        )
        yield pytest.param(order, nodes, ranks, workers, marks=[] if is_usual else pytest.mark.slow)


@pytest.mark.parametrize(('order', 'nodes', 'ranks', 'workers'), list(topologies()))
@pytest.mark.filterwarnings('ignore:Shuffle block size')
def test_nodes_fetch_each_shard_once(make_dataset, tmp_path, order, nodes, ranks, workers):
    remote = make_dataset('remote', SAMPLES, per_shard=3)
    size = {path.name: path.stat().st_size for path in remote.glob('*.mds')}
    begins = np.cumsum([shard['samples'] for shard in json.loads((remote / 'index.json').read_text())['shards']])
    # No boundary between two canonical nodes is one of shards.
    assert len(size) > 4 * CANONICAL
    assert not set(begins[:-1].tolist()) & {SAMPLES * node // CANONICAL for node in range(CANONICAL)}
    read = read_on_nodes(
        tmp_path,
        f'counted://{remote}',
        nodes=nodes,
        ranks=ranks,
        workers=workers,
        num_canonical_nodes=CANONICAL,
        **ORDERS[order],
    )
    check_read(read)
    fetched: Counter[str] = Counter()
    for node in range(nodes):
        calls = Counter((tmp_path / f'log{node}').read_text().splitlines())
        del calls['head index.json']  # each dataset asks whether it has changed
        assert set(calls.values()) == {1}  # also the index
        shards = {call.removeprefix('get ') for call in calls} - {'index.json'}
        assert {path.name for path in (tmp_path / f'node{node}').iterdir()} == shards | {
            '.headrace-remote',
            'index.json',
        }
        fetched.update(shards)
    assert fetched.keys() == size.keys()
    # A shard is fetched twice only where a canonical node ends and another begins; nodes take these in turn.
    boundaries = CANONICAL - 1 if nodes > 1 else 0
    assert max(fetched.values()) <= 2
    assert fetched.total() - len(size) <= boundaries
    assert order != 'stored' or fetched.total() - len(size) == boundaries
    for epoch in (0, 1):
        assert total(read, epoch, 'shards_fetched') == total(read, epoch, 'requests') == fetched.total()
        assert total(read, epoch, 'bytes_downloaded') == sum(size[name] * fetched[name] for name in fetched)
        assert total(read, epoch, 'retries') == total(read, epoch, 'evictions') == 0
    assert total(read, 2, 'requests') == total(read, 2, 'bytes_downloaded') == total(read, 2, 'shards_fetched') == 0
    assert total(read, 2, 'cache_hits') > 0


@pytest.mark.parametrize(
    'kind', [StreamingDataLoader, pytest.param(torch.utils.data.DataLoader, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(('ranks', 'workers'), [(4, 0), pytest.param(3, 1, marks=pytest.mark.slow)])
def test_ranks_that_share_a_small_cache_do_not_take_the_room_of_what_the_node_needs_sooner(
    make_dataset, tmp_path, ranks, workers, kind, monkeypatch
):
    """Twice the shards are fetched else."""
    monkeypatch.setattr(lease_cache, 'GAP', lease_cache.PERIOD)  # this epoch would take as long as a lease is kept
    samples = 1800
    remote = make_dataset('remote', samples, per_shard=6)
    sizes = [path.stat().st_size for path in remote.glob('*.mds')]
    limit = sum(sizes) // 3 + (remote / 'index.json').stat().st_size
    together = FORK.Barrier(ranks)

    def rank(number: int) -> None:
        count_into(tmp_path / 'log')
        dataset = StreamingDataset(
            remote=f'counted://{remote}',
            local=str(tmp_path / 'cache'),
            batch_size=2,
            topology=Topology(rank=number, world_size=ranks),
            cache_limit=limit,
            shuffle=True,
            shuffle_block_size=60,
            num_canonical_nodes=4,
        )
        loader = kind(dataset, batch_size=2, num_workers=workers)
        ids = []
        for batch in loader:
            ids += batch['id'].tolist()
            together.wait(60)  # as trainers do
        (tmp_path / f'read{number}').write_text(json.dumps(ids))

    fork_all([lambda number=number: rank(number) for number in range(ranks)])
    read = [json.loads((tmp_path / f'read{number}').read_text()) for number in range(ranks)]
    assert {sample for ids in read for sample in ids} == set(range(samples))
    fetched = [line for line in (tmp_path / 'log').read_text().splitlines() if line.endswith('.mds')]
    assert len(sizes) <= len(fetched) <= 1.2 * len(sizes)


@pytest.mark.s3
def test_statistics_agree_with_what_a_proxy_saw(make_dataset, tmp_path, moto, monkeypatch):
    folder = make_dataset('remote', SAMPLES, per_shard=3, compression='zstd')
    size = {path.name: path.stat().st_size for path in folder.iterdir()}
    with FaultProxy(moto.endpoint_url) as proxy:
        for name, value in {**moto.environment(), 'S3_ENDPOINT_URL': proxy.endpoint_url}.items():
            monkeypatch.setenv(name, value)
        bucket = moto.new_bucket()
        for path in folder.iterdir():
            put_bytes(moto.store(bucket), path.name, path.read_bytes())
        read = read_on_nodes(
            tmp_path, f's3://{bucket}', nodes=2, ranks=2, workers=2, num_canonical_nodes=CANONICAL, shuffle=True
        )
        asked = Counter(one.path.rpartition('/')[2] for one in proxy.requests if one.method == 'GET')
    check_read(read)
    assert asked.pop('index.json') == 2
    assert len(asked) == len(size) - 1
    assert asked.total() <= len(asked) + CANONICAL - 1
    assert total(read, 1, 'requests') == total(read, 1, 'shards_fetched') == asked.total()
    assert total(read, 1, 'bytes_downloaded') == sum(size[name] * times for name, times in asked.items())
    assert total(read, 2, 'requests') == 0


# -- folders that somebody else has filled -----------------------------------------------------------------------------


@pytest.mark.parametrize('compression', [None, 'zstd'])
@pytest.mark.parametrize('keep_zip', [False, True])
def test_a_cache_of_mosaicml_streaming_is_used_as_it_is(
    make_dataset, tmp_path, mosaicml_streaming, compression, keep_zip
):
    remote, cache, log = make_dataset('remote', 100, compression=compression), tmp_path / 'cache', tmp_path / 'log'
    theirs = mosaicml_streaming.StreamingDataset(remote=str(remote), local=str(cache), batch_size=1, keep_zip=keep_zip)
    assert sorted(theirs[i]['id'] for i in range(100)) == list(range(100))
    there = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert any(name.endswith('.zstd') for name in there) == (keep_zip and compression is not None)
    count_into(log)
    for ours in (not keep_zip, keep_zip):
        dataset = StreamingDataset(
            remote=f'counted://{remote}', local=str(cache), batch_size=10, shuffle=True, keep_zip=ours
        )
        loader = StreamingDataLoader(dataset, num_workers=2, topology=Topology())
        assert sorted(i for batch in loader for i in batch['id'].tolist()) == list(range(100))
        assert loader.stats().requests == loader.stats().bytes_unpacked == 0
        assert loader.stats().cache_hits > 0
    # The first asks which version the index is, and compares the bytes; the second asks only.
    assert sorted(log.read_text().split('\n')[:-1]) == ['get index.json', 'head index.json', 'head index.json']
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == there


@pytest.fixture
def open_folder(make_dataset: Callable[..., Path]) -> Iterator[Path]:
    """A folder that every user may enter, which pytest's are not."""
    if os.geteuid():
        pytest.skip('only root can become another user')
    folder = Path(tempfile.mkdtemp(prefix='headrace-test-'))
    folder.chmod(0o755)
    # Another user may not read this interpreter's own files: all that it imports is imported here.
    read_all(make_dataset('imports', 100), folder / 'imports', limit=1 << 20, workers=1)
    yield folder
    shutil.rmtree(folder)


NOBODY, OTHER = 65534, 65533


def read_all(remote: Path | str, local: Path, *, limit: int | None = None, workers: int = 0, seed: int = 0) -> None:
    dataset = StreamingDataset(
        remote=str(remote), local=str(local), batch_size=10, cache_limit=limit, shuffle=True, shuffle_seed=seed
    )
    loader = StreamingDataLoader(dataset, num_workers=workers, topology=Topology())
    assert sorted(i for batch in loader for i in batch['id'].tolist()) == list(range(100))


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('limit', [None, 1 << 20])
def test_another_user_reads_a_complete_cache_that_it_may_not_write_to(make_dataset, open_folder, limit, workers):
    remote, cache = make_dataset('remote', 100), open_folder / 'cache'
    read_all(remote, cache)
    there = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    shutil.rmtree(remote)  # nothing is asked of it
    fork_all([lambda: read_all(remote, cache, limit=limit, workers=workers)], user=[NOBODY])
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == there


@pytest.mark.parametrize('limit', [None, pytest.param(4000, marks=pytest.mark.slow)])
def test_two_users_share_a_folder_that_both_may_write_to(make_dataset_in, open_folder, limit):
    remote, cache = make_dataset_in(open_folder, 'remote', 100), open_folder / 'cache'
    cache.mkdir()
    cache.chmod(0o777)

    def work(number: int) -> None:
        for turn in range(4):
            read_all(remote, cache, limit=limit, workers=number % 2, seed=10 * number + turn)

    users = [NOBODY, OTHER, NOBODY, OTHER]
    fork_all([lambda number=number: work(number) for number in range(4)], user=users)
    assert nothing_is_being_fetched(cache)
    owners = {path.stat().st_uid for path in cache.iterdir()}
    assert owners <= {NOBODY, OTHER}


@pytest.mark.parametrize('left', ['folder', 'lock', 'fetch'])
@pytest.mark.parametrize('limit', [None, 4000])
def test_what_another_users_killed_process_left_is_in_nobodys_way(make_dataset_in, open_folder, left, limit):
    """Between two calls, that is: before what it had made was opened to all."""
    remote, cache = make_dataset_in(open_folder, 'remote', 100), open_folder / 'cache'
    cache.mkdir()
    cache.chmod(0o777)
    dice = random.Random(left)

    def leave() -> None:
        state = cache / '.headrace'
        state.mkdir(mode=0o755)
        if left == 'folder':
            return
        state.chmod(0o777)
        for number in range(3):
            (state / f'{number:032x}.lock').touch(mode=0o644)
            if left == 'fetch':
                (state / f'{number:032x}.0.0123abcd.raw').write_bytes(dice.randbytes(500))

    fork_all([leave], user=[OTHER])
    fork_all([lambda: read_all(remote, cache, limit=limit)], user=[NOBODY])
    assert nothing_is_being_fetched(cache)


def test_a_temporary_folder_that_somebody_else_has_made_is_refused(make_dataset_in, open_folder, monkeypatch):
    remote, temporary = make_dataset_in(open_folder, 'remote', 100), open_folder / 'tmp'
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(tempfile, 'tempdir', str(temporary))
    default = Path(Stream(remote=str(remote)).local)

    def work() -> None:
        with pytest.raises(CacheError, match=f'belongs to the user with uid {OTHER}; .*Set `local`'):
            StreamingDataset(remote=str(remote), batch_size=10)
        assert os.listdir(default) == []
        StreamingDataset(remote=str(remote), local=str(default), batch_size=10)  # is trusted, then

    def plant() -> None:
        default.mkdir()
        default.chmod(0o777)

    fork_all([plant], user=[OTHER])
    fork_all([work], user=[NOBODY])
