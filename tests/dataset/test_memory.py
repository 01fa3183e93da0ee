"""Nothing piles up in a long run: memory, descriptors, threads and maps stay what they are after the first epoch."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from tests.support import support_file
from tests.support.programs.processes import run_well
from tests.support.programs.waiting import until

pytestmark = pytest.mark.skipif(not Path('/proc/self/smaps_rollup').exists(), reason='needs /proc of Linux')

SHARDS, WORKERS, EPOCHS = 1000, 2, 4
SLACK = 6 << 20  # bytes; a page that a fork shares with its parent becomes its own when it is first written to
EACH = 500 * SHARDS  # bytes; what piles up does so in every epoch


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


@pytest.mark.parametrize(
    ('limit', 'persistent'),
    [(0, True), *(pytest.param(*row, marks=pytest.mark.slow) for row in [(0, False), (0.3, True)])],
    ids=['persistent', 'anew', 'limit'],
)
def test_nothing_grows_after_the_first_epoch(remote, tmp_path, limit, persistent):
    program = support_file('programs/long_run.py')  # a process in which nothing else happens
    arguments = map(str, [program, remote, tmp_path / 'cache', WORKERS, EPOCHS, limit, int(persistent)])
    found = json.loads(run_well([sys.executable, *arguments]).stdout)
    assert found['fetched'] >= SHARDS
    assert (found['evicted'] > 0) == (limit > 0)
    assert all(len(workers) == WORKERS for workers in found['workers'])
    totals = [
        {name: sum(worker[name] for worker in workers) / WORKERS for name in workers[0]} for workers in found['workers']
    ]
    for series in (found['parent'], totals):
        first, later = series[0], series[1:]
        assert max(each['bytes'] for each in later) - first['bytes'] < SLACK, series
        assert min(b['bytes'] - a['bytes'] for a, b in pairwise(series)) < EACH, series
        for name, slack in (('descriptors', 4), ('threads', 2), ('maps', 16)):
            assert max(each[name] for each in later) - first[name] <= slack, (name, series)
    assert max(each['descriptors'] for each in totals) < 100  # of which a shard that is mapped has none


def test_threads_end_with_the_dataset_that_needed_them(make_dataset, tmp_path):
    # Those of earlier tests may end meanwhile.
    before, during = set(threading.enumerate()), set[threading.Thread]()

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == 'headrace-fetch'} - before

    folder = make_dataset('data', 100)
    for number in range(3):
        dataset = StreamingDataset(remote=str(folder), local=str(tmp_path / str(number)), batch_size=10)
        loader = StreamingDataLoader(dataset)
        batches = iter(loader)
        kept = next(batches)
        during |= threads()
        del dataset, loader, batches
        assert kept['id'].tolist() == list(range(10))
    assert during
    gc.collect()
    until(lambda: not threads())


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
