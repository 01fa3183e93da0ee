"""Open shards of a process while the cache has a limit."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace import (
    BAD_SAMPLE,
    CSVWriter,
    JSONWriter,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.dataset.reading import dataset_shards
from headrace.errors import ShardError
from headrace.storage.cache import lease_cache
from headrace.storage.stores.local import LocalStore
from tests.support.datasets.bad_data import (
    ABSENT,
    BAD,
    CORRUPT,
    SINGLE,
    TRUNCATED,
    Own,
    checked,
    damage,
    make,
    shard_of,
    write_texts,
)
from tests.support.programs.descriptors import open_descriptors
from tests.support.programs.leases import release_without_a_pause
from tests.support.programs.waiting import until
from tests.support.sources.tars import pack

SAMPLES, IN_SHARD = 400, 20


@pytest.fixture
def opened(monkeypatch):
    """How often each shard was opened."""
    counts = Counter[str]()
    real = dataset_shards.open_shard

    def count(info, buffers, *, source, **how):
        counts[source] += 1
        return real(info, buffers, source=source, **how)

    monkeypatch.setattr(dataset_shards, 'open_shard', count)
    monkeypatch.setattr(lease_cache, 'PERIOD', 1e9)
    release_without_a_pause()
    yield counts
    release_without_a_pause()


@pytest.fixture(scope='module')
def remote(tmp_path_factory):
    folder = tmp_path_factory.mktemp('remote')
    row = 4 + 8 + 400 * 4
    with MDSWriter(
        out=str(folder), columns={'x': 'ndarray:int32:400', 'id': 'int'}, size_limit=IN_SHARD * row + 300
    ) as w:
        for number in range(SAMPLES):
            w.write({'x': np.full(400, number, np.int32), 'id': number})
    assert len(list(folder.glob('*.mds'))) == SAMPLES // IN_SHARD
    return folder


@pytest.mark.parametrize('columns', ['batches', 'samples'])
def test_a_shard_is_opened_once_while_batches_in_sight_need_it(remote, tmp_path, opened, columns):
    dataset = StreamingDataset(
        remote=str(remote),
        local=str(tmp_path / 'l'),
        cache_limit='10mb',
        batch_size=8,
        shuffle=True,
        shuffle_block_size=100,
        num_canonical_nodes=1,
    )
    loader = StreamingDataLoader(dataset, batch_size=8, collate_fn=list if columns == 'samples' else None)
    most = 0
    for _ in loader:
        # Not the locks and unfinished files of what is fetched meanwhile.
        most = max(most, sum(name.endswith('.mds') for name in open_descriptors(tmp_path)))
    assert max(opened.values()) == 1
    assert len(opened) == SAMPLES // IN_SHARD
    assert most < SAMPLES // IN_SHARD  # shards that no batch in sight needs are released
    dataset.pool.shards.close()
    assert not open_descriptors(tmp_path)


def test_random_reads_keep_what_they_read_for_a_moment(remote, tmp_path, opened, monkeypatch):
    dataset = StreamingDataset(remote=str(remote), local=str(tmp_path / 'l'), cache_limit='10mb', batch_size=8)
    monkeypatch.setattr(lease_cache, 'PERIOD', 2.0)
    begin = time.monotonic() // lease_cache.PERIOD * lease_cache.PERIOD  # nothing is kept across the end of a period
    with monkeypatch.context() as patch:
        patch.setattr(lease_cache, 'time', SimpleNamespace(monotonic=lambda: begin))
        assert [dataset[number]['id'] for number in range(IN_SHARD)] == list(range(IN_SHARD))
        assert list(opened.values()) == [1]
    until(lambda: not open_descriptors(tmp_path))


def test_a_cache_that_holds_two_shards_is_read_at_random_without_a_pause(remote, tmp_path, opened):
    """Leases of other shards are released for a needed shard. Without that, each sample here would wait for ever."""
    size = max(path.stat().st_size for path in remote.glob('*.mds'))
    limit = 2 * size + (remote / 'index.json').stat().st_size + 1000
    dataset = StreamingDataset(remote=str(remote), local=str(tmp_path / 'l'), cache_limit=limit, batch_size=8)
    for number in np.random.default_rng(7).integers(0, SAMPLES, 60).tolist():
        assert dataset[number]['id'] == number
        assert sum(path.stat().st_size for path in tmp_path.rglob('*') if path.is_file()) <= limit


NO_TEXT, NO_NUMBER = b'no \xff\xfe text', b'no number'
WRITERS = {'mds': MDSWriter, 'json': JSONWriter, 'csv': CSVWriter}


def write_bad(folder: Path, kind: str) -> None:
    """A dataset whose sample 3 cannot be read."""
    if kind == 'webdataset':
        folder.mkdir()
        texts = [b'text', b'text', b'text', NO_TEXT]
        (folder / 'a.tar').write_bytes(pack([(f'k{i}.txt', text) for i, text in enumerate(texts)]))
        return
    with WRITERS[kind](out=str(folder), columns={'id': 'int', 'text': 'str'}) as w:
        for i in range(4):
            w.write({'id': i, 'text': 'x' * 20 if i < 3 else 'y' * 20})
    (path,) = folder.glob(f'shard.00000.{kind}')
    path.write_bytes(path.read_bytes().replace(b'y' * 20, NO_TEXT.ljust(20)))


@pytest.mark.parametrize('place', ['local', 'remote'])
@pytest.mark.parametrize('kind', [*WRITERS, 'webdataset'])
def test_a_value_that_cannot_be_read_is_named_with_a_fix_that_helps(tmp_path: Path, kind: str, place: str) -> None:
    write_bad(tmp_path / 'data', kind)
    where = {'local': tmp_path / 'data'} if place == 'local' else {'remote': tmp_path / 'data', 'local': tmp_path / 'l'}
    stream = Stream(**{name: str(path) for name, path in where.items()})
    dataset = StreamingDataset(streams=[stream], batch_size=4)
    rows = StreamingDataLoader(dataset, batch_size=4)
    for read in (lambda: dataset[3], lambda: list(rows)):
        with pytest.raises(ShardError) as caught:
            read()
        message = str(caught.value)
        assert 'cannot be read: sample 3' in message
        assert 'stream_0 (' in message
        assert 'is not UTF-8 text' in message
        if kind in ('mds', 'webdataset'):
            assert f"column '{'text' if kind == 'mds' else 'txt'}'" in message
        if kind == 'webdataset':
            assert 'a.tar.0.mds cannot be read' in message
            assert "(key 'k3')" in message
            assert 'Correct the webdataset data' in message
        else:
            assert f'shard.00000.{kind}' in message
            has_delete = f'Delete {tmp_path / "l"}/shard.00000.{kind}: it is fetched again' in message
            assert has_delete == (place == 'remote')
        assert ('fetched again' in message or 'Delete' in message) == (place == 'remote' and kind != 'webdataset')
    assert len([dataset[i] for i in range(3)]) == 3


@pytest.fixture
def requests(monkeypatch) -> list[str]:
    """Shards that were asked of the store by this process."""
    found: list[str] = []
    get = LocalStore.get

    def counting(self, key, *args, **kwargs):
        found.append(key)
        return get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, 'get', counting)
    return found


@pytest.mark.parametrize('cls', [StreamingDataset, Own])
@pytest.mark.parametrize('limit', [None, 3000])
def test_a_bad_shard_is_fetched_once_a_pass(damaged_remote, tmp_path, requests, cls, limit):
    loader = make(damaged_remote, tmp_path, cls=cls, global_batch_size=2, cache_limit=limit, download_retry=0)
    for number in (1, 2):
        list(checked(loader))
        asked = {shard: requests.count(f'shard.{shard:05}.mds') for shard in (CORRUPT, ABSENT, TRUNCATED)}
        # Damaged bytes of the right size stay in the cache; the second time they are all there is to fetch anew.
        # Within a limit they may be evicted at any moment before they are read, and be fetched once more.
        if limit is None:
            assert asked[CORRUPT] == 1 + number
        # Once more after a pause: its owner may be replacing it.
        assert asked[ABSENT] == 2 * number
        assert asked[TRUNCATED] == 2 * number


def test_what_is_repaired_is_read_in_the_next_pass(tmp_path):
    damaged_remote = damage(write_texts(tmp_path / 'remote'))
    for loader in ({}, {'persistent_workers': True}):
        workers = 1 if loader else 0
        damage(write_texts(damaged_remote))
        found = make(damaged_remote, tmp_path / f'local{workers}', workers=workers, loader={'fixed_epoch': 0, **loader})
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(found)) == len(BAD)
        write_texts(damaged_remote)
        # The shard with one bad sample is in the cache, and no shard by itself.
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(found, {SINGLE})) == 1


def test_a_damaged_copy_in_the_cache_is_fetched_anew(tmp_path):
    damaged_remote, local = write_texts(tmp_path / 'remote'), tmp_path / 'local'
    list(checked(make(damaged_remote, local), set()))
    shard_of(local, 2).write_bytes(b'\xff' * shard_of(local, 2).stat().st_size)
    assert len(list(checked(make(damaged_remote, local), set()))) == 5
    assert shard_of(local, 2).read_bytes() == shard_of(damaged_remote, 2).read_bytes()


def test_a_pass_with_other_nodes_prefetches_into_the_room_that_they_leave(tmp_path, monkeypatch):
    monkeypatch.setenv('HEADRACE_PEERS_TOKEN', 'a token of this run')
    with MDSWriter(out=str(tmp_path / 'remote'), columns={'id': 'int'}, size_limit=1000, hashes=['xxh64']) as writer:
        writer.write_batch({'id': np.arange(4000)})
    nodes = [(f'127.0.0.{number + 2}', 7207) for number in range(8)]
    dataset = StreamingDataset(
        remote=str(tmp_path / 'remote'),
        local=str(tmp_path / 'local'),
        batch_size=4,
        cache_limit=80_000,
        peers={'hosts': [host for host, _ in nodes[:2]], 'interface': nodes[0][0]},
    )
    cache, peers, shards = dataset.pool.streams[0].cache, dataset.peers, dataset.pool.shards
    room, ahead = cache.room, []
    peers.join(shards=cache.peers.shards, room=room)
    for count in (2, 8):
        peers.know(nodes[0], peers.token, dict.fromkeys(nodes[:count], room))
        shards.follow(iter(()), first=0, limits=prefetch_limits(None, 4))
        ahead.append(shards._prefetcher._horizon.limits.cache_bytes)
        assert ahead[-1] == 0.75 * (room - peers.kept_bytes)
    shards.close()
    assert ahead[0] < ahead[1]
