"""Nothing piles up in a long run: memory, descriptors, threads and maps stay what they are after the first epoch."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.skipif(not Path('/proc/self/smaps_rollup').exists(), reason='needs /proc of Linux')

SHARDS, WORKERS, EPOCHS = 1500, 2, 5
SLACK = 6 << 20  # bytes; a page that a fork shares with its parent becomes its own when it is first written to
EACH = 140 * SHARDS  # bytes; what piles up does so in every epoch


@pytest.fixture(scope='module')
def remote(tmp_path_factory) -> Path:
    """Thousands of shards, all of them the same file."""
    folder = tmp_path_factory.mktemp('remote')
    with MDSWriter(out=str(folder / 'one'), columns={'id': 'int'}, hashes=['sha1']) as writer:
        writer.write({'id': 7})
        writer.write({'id': 8})
    index = json.loads((folder / 'one' / 'index.json').read_text())
    (entry,) = index['shards']
    entries = []
    for number in range(SHARDS):
        name = f'shard.{number:05}.mds'
        os.link(folder / 'one' / entry['raw_data']['basename'], folder / name)
        entries.append({**entry, 'raw_data': {**entry['raw_data'], 'basename': name}})
    (folder / 'index.json').write_text(json.dumps({**index, 'shards': entries}))
    return folder


def uses(pid: int) -> dict[str, int]:
    """What a process takes of its own; pages of files excepted, which the system takes back."""
    root = Path('/proc', str(pid))
    fields = dict(line.split()[:2] for line in (root / 'smaps_rollup').read_text().splitlines()[1:])
    return {
        'bytes': int(fields['Private_Dirty:']) * 1024,
        'descriptors': sum(1 for _ in (root / 'fd').iterdir()),
        'threads': sum(1 for _ in (root / 'task').iterdir()),
        'maps': len((root / 'maps').read_text().splitlines()),
    }


@pytest.mark.parametrize(
    ('limit', 'persistent'), [(None, True), (None, False), (0.3, True)], ids=['persistent', 'anew', 'limit']
)
def test_nothing_grows_after_the_first_epoch(remote, tmp_path, limit, persistent):
    size = (remote / 'shard.00000.mds').stat().st_size
    dataset = StreamingDataset(
        remote=str(remote),
        local=str(tmp_path / 'cache'),
        shuffle=True,
        num_canonical_nodes=1,
        batch_size=32,
        cache_limit=None if limit is None else int(limit * SHARDS * size) + (remote / 'index.json').stat().st_size,
        validate_hash='sha1',
    )
    loader = StreamingDataLoader(dataset, num_workers=WORKERS, persistent_workers=persistent)
    parent, workers = [], []
    for _ in range(EPOCHS):
        for number, _batch in enumerate(loader, 1):
            if number == len(loader):
                gc.collect()
                parent.append(uses(os.getpid()))
                workers.append([uses(child.pid) for child in multiprocessing.active_children() if child.pid])
    assert loader.stats().shards_fetched >= SHARDS
    assert (loader.stats().evictions > 0) == (limit is not None)
    assert all(len(found) == WORKERS for found in workers)
    totals = [{name: sum(worker[name] for worker in found) / WORKERS for name in found[0]} for found in workers]
    for series in (parent, totals):
        first, later = series[0], series[1:]
        assert max(each['bytes'] for each in later) - first['bytes'] < SLACK, series
        assert min(b['bytes'] - a['bytes'] for a, b in pairwise(series)) < EACH, series
        for name, slack in (('descriptors', 4), ('threads', 2), ('maps', 16)):
            assert max(each[name] for each in later) - first[name] <= slack, (name, series)
    assert max(each['descriptors'] for each in totals) < 100  # of which a shard that is mapped has none


def test_more_shards_are_mapped_than_a_process_may_have_files_open(remote, tmp_path):
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from headrace import StreamingDataset
dataset = StreamingDataset(local={str(remote)!r}, batch_size=8)
assert sum(sample['id'] for sample in dataset[:400]) == 200 * 15
with open('/proc/self/maps') as maps:
    assert sum('shard.' in line for line in maps) >= 200
"""
    subprocess.run([sys.executable, '-c', program], check=True, cwd=tmp_path)


def test_what_was_read_from_a_shard_outlives_its_lease(make_dataset):
    from headrace.storage import CacheEntry, CachePart, ShardCache

    folder = make_dataset('data', 10)
    path = folder / 'shard.00000.mds'
    cache = ShardCache(folder)
    lease = cache.acquire(CacheEntry((CachePart(path.name, path.stat().st_size),)))
    view, array = lease.buffers[0][8:16], np.frombuffer(lease.buffers[0], np.uint8)
    assert not array.flags.writeable
    lease.release()
    lease.release()
    assert bytes(array) == path.read_bytes()
    assert bytes(view) == path.read_bytes()[8:16]
    maps = Path('/proc/self/maps')
    assert str(path) in maps.read_text()
    del array, view, lease
    assert str(path) not in maps.read_text()
