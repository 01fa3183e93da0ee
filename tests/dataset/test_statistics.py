"""Counters of a loader: batches, reads and waits, with any number of workers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from headrace import PADDING, LoaderStats, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.dataset.statistics import ReadCounts, WorkerBatch
from headrace.storage.cache import limit
from headrace.storage.stores.local import LocalStore
from tests.support.orders.counted_streams import SIZES, counted_dataset, stream_of
from tests.support.programs.waiting import until

WORKERS: dict[str, dict[str, Any]] = {
    'none': {},
    'one': {'num_workers': 1},
    'fork': {'num_workers': 2, 'multiprocessing_context': 'fork'},
    'fork-persistent': {'num_workers': 2, 'multiprocessing_context': 'fork', 'persistent_workers': True},
    'spawn': {'num_workers': 2, 'multiprocessing_context': 'spawn'},
    'spawn-persistent': {'num_workers': 1, 'multiprocessing_context': 'spawn', 'persistent_workers': True},
}


# Each pass imports torch anew in workers that are spawned.
QUICK = [
    pytest.param(options, id=name, marks=pytest.mark.slow if name == 'spawn' else ())
    for name, options in WORKERS.items()
]


FORKED = [
    pytest.param(options, id=name, marks=pytest.mark.slow if name.startswith('spawn') else ())
    for name, options in WORKERS.items()
]


def batches_of(loader: StreamingDataLoader, cache: Path) -> Iterator[Any]:
    """A pass that waits in its middle until all shards are there and counted.

    What a worker fetches after its last batch is told to nobody: here each of them has one to read after that.
    """

    def has_all(stream: Stream) -> bool:
        folder = cache / str(stream.name)
        return len(list(folder.glob('*.mds'))) == len(stream.shards) and not (folder / '.headrace').exists()

    for number, batch in enumerate(loader, 1):
        yield batch
        if number == 12:
            until(lambda: all(has_all(stream) for stream in loader.dataset.streams))


@pytest.mark.parametrize('workers', QUICK)
def test_counts_are_those_of_the_batches_and_bytes_those_of_the_shards(counted_remote, tmp_path, workers):
    folders, size = counted_remote
    data = counted_dataset(folders, tmp_path / 'cache', batch_size=8)
    loader = StreamingDataLoader(data, **workers)
    assert loader.stats().batches == loader.stats().bytes_downloaded == 0  # the indexes were there before it

    ids: list[int] = []
    for epoch in range(2):
        for number, batch in enumerate(batches_of(loader, tmp_path / 'cache'), 1):
            ids += batch['id'].tolist()
            stats = loader.stats()
            assert stats.batches == number + epoch * 22
            assert stats.samples == len(ids)
            assert [data.streams[s].name for s in loader.own_streams] == [stream_of(i) for i in batch['id'].tolist()]
            assert dict(stats.stream_samples) == {name: sum(stream_of(i) == name for i in ids) for name in SIZES}
    stats = loader.stats()
    assert stats.samples == 340
    assert stats.bytes_downloaded == size
    assert stats.bytes_unpacked == 0
    assert stats.requests == stats.shards_fetched == data.num_shards
    assert stats.retries == stats.evictions == 0
    assert 0 < stats.seconds_to_first_batch <= stats.seconds_waiting
    assert {name: count.samples for name, count in loader.mix().items()} == dict(stats.stream_samples)


READ = ('bytes_downloaded', 'bytes_unpacked', 'requests', 'shards_fetched', 'cache_hits', 'evictions', 'retries')


def sums_of_streams(stats: LoaderStats) -> dict[str, int]:
    return {name: sum(getattr(stream, name) for stream in stats.streams.values()) for name in ('samples', *READ)}


@pytest.mark.parametrize('workers', FORKED)
@pytest.mark.parametrize(
    'left_at', [pytest.param(None, id='whole', marks=pytest.mark.slow), pytest.param(5, id='left')]
)
def test_each_stream_has_its_own_counts(counted_remote, tmp_path, workers, left_at):
    folders, size = counted_remote
    data = counted_dataset(folders, tmp_path / 'cache', batch_size=8)
    loader = StreamingDataLoader(data, **workers)
    assert {name: sum(counts) for name, counts in loader.stats().streams.items()} == dict.fromkeys(SIZES, 0)
    for _ in range(3):  # what is lost of a pass that was left comes with the next one
        for _ in itertools.islice(batches_of(loader, tmp_path / 'cache'), left_at):
            stats = loader.stats()
            assert sums_of_streams(stats) == {name: getattr(stats, name) for name in ('samples', *READ)}
            assert {n: s.samples for n, s in stats.streams.items()} == stats.stream_samples
    for epoch in range(2):
        list(batches_of(loader, tmp_path / 'cache'))
        if workers.get('persistent_workers') or left_at is None or not workers:
            assert loader.stats().bytes_downloaded == size, epoch
    for name, folder in folders.items():
        sizes = [path.stat().st_size for path in folder.glob('*.mds')]
        found = loader.stats().streams[name]
        if workers.get('persistent_workers') or left_at is None or not workers:
            assert (found.bytes_downloaded, found.requests, found.shards_fetched) == (
                sum(sizes),
                len(sizes),
                len(sizes),
            )
        assert found.evictions == found.retries == found.bad_samples == 0


@pytest.mark.parametrize('workers', FORKED)
def test_hits_are_shards_that_were_present(counted_remote, tmp_path, workers):
    folders, _ = counted_remote
    list(StreamingDataLoader(counted_dataset(folders, tmp_path / 'cache', batch_size=8)))
    loader = StreamingDataLoader(counted_dataset(folders, tmp_path / 'cache', batch_size=8), **workers)
    list(loader)
    stats = loader.stats()
    assert stats.requests == stats.shards_fetched == stats.bytes_downloaded == 0
    assert stats.cache_hits == sum(stream.cache_hits for stream in stats.streams.values())
    for name, folder in folders.items():  # each worker opens the shards that it needs
        assert stats.streams[name].cache_hits >= len(list(folder.glob('*.mds')))


def test_streams_are_a_value_too(counted_remote):
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8))
    before = loader.stats().streams
    assert list(before) == list(SIZES)
    for _ in itertools.islice(loader, 3):
        pass
    after = loader.stats().streams
    assert {stream.samples for stream in before.values()} == {0}
    assert sum(stream.samples for stream in after.values()) == 24
    assert pickle.loads(pickle.dumps(after)) == after == loader.stats().streams != before
    assert 'cache_hits=' in repr(after)
    with pytest.raises(KeyError, match='d'):
        after['d']


@pytest.mark.parametrize('workers', [0, 2])
def test_evictions_are_the_evicted_streams(make_dataset, tmp_path, monkeypatch, workers):
    log, delete = tmp_path / 'evicted', limit.delete_entry

    def delete_and_log(folder, entry):
        outcome = delete(folder, entry)
        if isinstance(outcome, int) and outcome:
            with log.open('a') as file:
                file.write(f'{folder.name}\n')
        return outcome

    monkeypatch.setattr(limit, 'delete_entry', delete_and_log)
    folders = {'a': make_dataset('a', 100), 'b': make_dataset('b', 100)}
    sizes = {
        kind: sum(path.stat().st_size for folder in folders.values() for path in folder.glob(kind))
        for kind in ('index.json', '*.mds')
    }
    size = sizes['index.json'] + sizes['*.mds'] // 2
    data = counted_dataset(folders, tmp_path / 'cache', batch_size=5, cache_limit=size)
    loader = StreamingDataLoader(data, num_workers=workers)
    for _ in range(3):
        list(loader)
    streams = loader.stats().streams
    assert all(stream.evictions > 0 for stream in streams.values())
    assert sum(stream.evictions for stream in streams.values()) == loader.stats().evictions
    evicted = Counter(log.read_text().split())
    for name, stream in streams.items():
        assert stream.evictions <= evicted[name]
        if workers:  # nobody learns of their work after their last batches
            assert stream.evictions > 0.8 * evicted[name]
        else:
            there = sum(1 for _ in (tmp_path / 'cache' / name).glob('*.mds'))
            assert stream.shards_fetched - stream.evictions <= there  # the last fetch may still be running


def test_who_waits_for_a_shard_says_of_which_stream(make_dataset, tmp_path, monkeypatch):
    folders = {'fast': make_dataset('fast', 50), 'slow': make_dataset('slow', 50, first=1000)}
    streams = [
        Stream(remote=str(folder), local=str(tmp_path / 'cache' / name), name=name) for name, folder in folders.items()
    ]
    data = StreamingDataset(streams=streams, batch_size=100)
    first = data.streams[1].first_shard
    asked_for = {f'shard.{shard - first:05}.mds': threading.Event() for shard in range(first, data.num_shards)}
    get, wait = LocalStore.get, Prefetcher.wait
    clock = SimpleNamespace(seconds=0.0)

    def slow_get(self, key, out, **options):
        if 'slow' in self.url and key in asked_for:
            assert asked_for[key].wait(60)
            clock.seconds += 0.05  # while the reader waits for this shard, and for no other
        return get(self, key, out, **options)

    def wait_and_say(self, shard):
        if shard >= first:
            asked_for[f'shard.{shard - first:05}.mds'].set()
        wait(self, shard)

    monkeypatch.setattr(LocalStore, 'get', slow_get)
    monkeypatch.setattr(Prefetcher, 'wait', wait_and_say)
    turned = SimpleNamespace(perf_counter=lambda: clock.seconds, perf_counter_ns=lambda: round(clock.seconds * 1e9))
    monkeypatch.setattr('headrace.dataset.reading.dataset_shards.time', turned)
    monkeypatch.setattr('headrace.dataset.statistics.time', turned)
    loader = StreamingDataLoader(data)
    list(loader)
    fast, slow = loader.stats().streams.values()
    assert slow.shards_waited_for == len(asked_for)
    assert slow.seconds_waited == pytest.approx(0.05 * len(asked_for)) == loader.stats().seconds_waiting
    assert (fast.shards_waited_for, fast.seconds_waited) == (0, 0)


@pytest.mark.parametrize('workers', [WORKERS['none'], WORKERS['fork']], ids=['none', 'fork'])
def test_a_second_loader_counts_from_its_own_begin(counted_remote, tmp_path, workers):
    folders, size = counted_remote
    data = counted_dataset(folders, tmp_path / 'cache', batch_size=8)
    first = StreamingDataLoader(data, **workers)
    list(first)
    second = StreamingDataLoader(data, **workers)
    list(second)
    assert (first.stats().batches, second.stats().batches) == (22, 22)
    assert second.stats().bytes_downloaded == 0
    if workers:  # without workers, who reads cannot be told apart
        assert first.stats().bytes_downloaded == size


def test_compressed_shards_count_as_what_came_and_as_what_they_are(make_dataset, tmp_path):
    folder = make_dataset('z', 100, compression='zstd')
    index = json.loads((folder / 'index.json').read_text())['shards']
    data = StreamingDataset(remote=str(folder), local=str(tmp_path / 'cache'), batch_size=10)
    loader = StreamingDataLoader(data)
    list(loader)
    assert loader.stats().bytes_downloaded == sum(shard['zip_data']['bytes'] for shard in index)
    assert loader.stats().bytes_unpacked == sum(shard['raw_data']['bytes'] for shard in index)


def test_an_abandoned_pass_counts_what_was_handed_out(counted_remote):
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8), num_workers=2)
    for _ in range(2):
        for _ in itertools.islice(loader, 3):
            pass
    assert (loader.stats().batches, loader.stats().samples) == (6, 48)


def test_what_was_loaded_is_not_counted_again(counted_remote):
    first = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8))
    for _ in itertools.islice(first, 5):
        pass
    second = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8))
    second.load_state_dict(first.state_dict())
    list(second)
    assert second.stats().samples == sum(SIZES.values()) - 40
    both = Counter(first.stats().stream_samples) + Counter(second.stats().stream_samples)
    assert both == SIZES
    assert {n: first.mix()[n].samples + second.mix()[n].samples for n in SIZES} == SIZES


class _SlowRead(StreamingDataset):
    """Takes long over sample 100, by a clock that only it and its trainer turn."""

    seconds = 0.0

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        self.seconds += 0.2 if sample['id'] == 100 else 0.0001
        return sample


def test_a_wait_that_sticks_out_is_a_stall(make_dataset, monkeypatch):
    data = _SlowRead(local=str(make_dataset('data', 200)), batch_size=10)
    monkeypatch.setattr('headrace.dataset.statistics.time', SimpleNamespace(perf_counter=lambda: data.seconds))
    loader = StreamingDataLoader(data)
    stalled = []
    for _ in loader:
        stalled.append(loader.stats().stalls)
        data.seconds += 0.1  # a step
    assert stalled == [0] * 10 + [1] * 10
    assert loader.stats().seconds_waiting == pytest.approx(0.2 + 199 * 0.0001)


def test_the_first_batch_of_a_pass_is_no_stall(make_dataset, monkeypatch):
    seconds = 0.0

    class SlowStart(StreamingDataset):
        def __getitem__(self, at):
            nonlocal seconds
            seconds += 0.05
            return super().__getitem__(at)

    monkeypatch.setattr('headrace.dataset.statistics.time', SimpleNamespace(perf_counter=lambda: seconds))
    loader = StreamingDataLoader(SlowStart(local=str(make_dataset('data', 4)), batch_size=4))
    assert loader.stats().seconds_to_first_batch is None
    list(loader)
    assert loader.stats().stalls == 0
    assert loader.stats().seconds_to_first_batch >= 0.2


def collate_tuple(samples):
    return torch.tensor([sample['id'] for sample in samples]), np.array([len(samples)])


@pytest.mark.parametrize('workers', [0, 2])
def test_batches_are_what_they_were_whatever_counts_them(counted_remote, workers):
    loader = StreamingDataLoader(
        counted_dataset(counted_remote[0], batch_size=8), num_workers=workers, collate_fn=collate_tuple
    )
    for batch in loader:
        assert type(batch) is tuple
        assert type(batch[1]) is np.ndarray
        assert [loader.dataset.streams[s].name for s in loader.own_streams] == [stream_of(i) for i in batch[0].tolist()]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
@pytest.mark.parametrize('workers', [0, 1])
def test_page_locked_batches_come_through(counted_remote, workers):
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8), num_workers=workers, pin_memory=True)
    batches = list(loader)
    assert sum(len(batch['id']) for batch in batches) == loader.stats().samples == 170
    assert all(batch['id'].is_pinned() == torch.cuda.is_available() for batch in batches)


def test_stats_are_a_value(counted_remote):
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8))
    before = loader.stats()
    next(iter(loader))
    assert (before.batches, loader.stats().batches) == (0, 1)
    assert pickle.loads(pickle.dumps(loader.stats())) == loader.stats()
    assert isinstance(before, LoaderStats)


def test_stats_are_json_too(counted_remote):
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8))
    for _ in itertools.islice(loader, 3):
        pass
    stats = loader.stats()
    found = json.loads(json.dumps(stats.as_dict()))
    assert found.keys() == {field.name for field in dataclasses.fields(stats)}
    assert found['samples'] == 24
    assert {name: stream['samples'] for name, stream in found['streams'].items()} == found['stream_samples']


def test_pytorch_page_locks_what_is_in_a_delivery():
    class Batch:
        is_locked = False

        def pin_memory(self):
            self.is_locked = True
            return self

    streams = np.array([0, 1], np.uint8)
    sent = WorkerBatch({'x': Batch()}, 2, streams, ReadCounts(5, np.array([1]), np.ones((1, 9), np.int64)))
    got = pin_memory(sent)
    assert got.batch['x'].is_locked
    assert got[1:] == sent[1:]


def test_counters_print_as_a_table(make_dataset):
    loader = StreamingDataLoader(StreamingDataset(local=str(make_dataset('d', 48))), 8)
    list(loader)
    lines = str(loader.stats()).splitlines()
    assert lines[0] == 'LoaderStats'
    assert [line.split() for line in lines[1:3]] == [['batches', '6'], ['samples', '48']]
    assert ['bytes', 'downloaded', '0', 'B'] in [line.split() for line in lines]


@pytest.mark.parametrize('ranks', [1, 2, 4])
@pytest.mark.parametrize('remainder', ['repeat', 'exact', 'drop'])
def test_ranks_add_up_to_the_mix_that_each_of_them_knows(counted_remote, ranks, remainder):
    total, mixes, unpadded = Counter(), [], Counter()
    for rank in range(ranks):
        loader = StreamingDataLoader(
            counted_dataset(counted_remote[0], batch_size=16 // ranks, remainder=remainder),
            topology=Topology(rank=rank, world_size=ranks),
        )
        for batch in loader:
            own = loader.own_samples
            if remainder == 'exact':
                assert int(batch[PADDING].sum()) == len(batch['id']) - own
            unpadded.update(stream_of(i) for i in batch['id'].tolist()[:own])
        total.update(loader.stats().stream_samples)
        mixes.append(loader.mix())
    assert total == unpadded
    assert all(mix == mixes[0] for mix in mixes)
    assert {name: count.samples for name, count in mixes[0].items()} == dict(total)
    assert sum(count.promised for count in mixes[0].values()) == pytest.approx(total.total())


def test_the_promise_follows_a_schedule(counted_remote):
    schedule = [
        {'at': 0, 'proportions': {'a': 1}},
        {'at': 80, 'proportions': {'a': 1, 'b': 3}},
    ]
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=8, epoch_size=120, schedule=schedule))
    promised = []
    for _ in range(2):
        for _batch in loader:
            promised.append({name: count.promised for name, count in loader.mix().items()})
    assert promised[9] == pytest.approx({'a': 80, 'b': 0, 'c': 0})
    assert promised[14] == pytest.approx({'a': 90, 'b': 30, 'c': 0})
    assert promised[29] == pytest.approx({'a': 120, 'b': 120, 'c': 0})
    for name, count in loader.mix().items():
        assert abs(count.samples - promised[29][name]) <= 1


def test_skipped_samples_are_neither_counted_nor_promised(counted_remote):
    loader = StreamingDataLoader(counted_dataset(counted_remote[0], batch_size=10, skip=[[20, 55]]))
    ids = [i for batch in loader for i in batch['id'].tolist()]
    assert loader.stats().samples == len(ids) == 135
    assert {n: c.samples for n, c in loader.mix().items()} == Counter(map(stream_of, ids))
    assert sum(c.promised for c in loader.mix().values()) == pytest.approx(135)


@pytest.mark.parametrize('batching', ['random', 'stratified', 'per_stream'])
def test_mosaicml_orders_are_counted_as_well(counted_remote, batching):
    data = counted_dataset(counted_remote[0], batch_size=5, shuffle_algo='py1e', batching_method=batching)
    loader = StreamingDataLoader(data, topology=Topology(rank=0, world_size=2))
    other = StreamingDataLoader(
        counted_dataset(counted_remote[0], batch_size=5, shuffle_algo='py1e', batching_method=batching),
        topology=Topology(rank=1, world_size=2),
    )
    both = Counter(stream_of(i) for each in (loader, other) for batch in each for i in batch['id'].tolist())
    assert {name: count.samples for name, count in loader.mix().items()} == both
