"""Counts of loaders for a meter."""

from __future__ import annotations

import itertools

import pytest

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.metrics import DataMeter
from headrace.metrics.counts import CacheFill


def test_a_loader_in_the_place_of_another_continues_with_its_counts(make_loader):
    meter = DataMeter()
    hits = 0
    for _ in range(3):
        loader = make_loader()
        meter.follow({'': loader})
        meter.follow({'': loader})
        for _ in itertools.islice(loader, 2):
            meter.batch_done()
        hits += loader.stats().cache_hits
        figures = meter.read()
    assert figures['data/samples'] == 60
    assert figures['data/cache_hits'] == hits


def test_several_loaders_are_added_up_and_their_streams_told_apart(make_loader):
    meter, loaders = DataMeter(), {'x': make_loader(), 'y': make_loader()}
    meter.follow(loaders)
    for _ in zip(loaders['x'], itertools.islice(loaders['y'], 3), strict=False):
        meter.batch_done()
    figures = meter.read()
    assert figures['data/samples'] == 60
    assert figures['mix/x/a/samples'] + figures['mix/x/b/samples'] == 30
    meter.follow({'x': loaders['x']})
    assert meter.read()['data/samples'] == 60


def test_quantiles_drift_and_the_line_of_a_run(make_loader, clock):
    loader, meter = make_loader(), DataMeter(clock=clock)
    meter.follow({'': loader})
    meter.begin()
    batches = iter(loader)
    for seconds in [1.0] * 5 + [3.0]:
        next(batches)
        clock.now += seconds
        meter.batch_done()
    before = meter.read()
    assert before['data/batch_seconds_p50'] == 1
    assert 2 < before['data/batch_seconds_p99'] <= 3
    assert 'data/wait_seconds_p50' not in before
    assert before['data/bytes_per_second'] == 0
    shares = {name: before[f'mix/{name}/share'] - before[f'mix/{name}/promised'] for name in 'ab'}
    assert before['mix/drift'] == pytest.approx(max(map(abs, shares.values())))
    meter.pause()  # an evaluation is no batch
    clock.now += 100
    meter.resume()
    for _ in range(2):
        clock.now += 2
        next(batches)
        meter.batch_done()
    detailed = meter.read(detailed=True)
    assert detailed['data/batch_seconds_p99'] == 2
    assert 0 <= detailed['data/wait_seconds_p50'] <= detailed['data/wait_seconds_p99']
    assert (detailed['data/retries'], detailed['data/evictions']) == (0, 0)
    assert 'data/cache_fill' not in detailed  # all data are local
    assert 'data/batch_seconds_p50' not in meter.read()  # no batch since then
    share = loader.seconds_waiting / 12
    line = f'waited {share:.1%} for data; 0 B; 0 retries; mix within {detailed["mix/drift"]:.1%}'
    assert meter.summary() == line.replace('%', ' %')


def test_the_cache_and_the_slowest_rank(make_dataset, tmp_path, clock):
    folder = make_dataset('data', 50)
    data = StreamingDataset(remote=str(folder), local=str(tmp_path / 'cache'), batch_size=10, cache_limit='1mb')
    loader, meter = StreamingDataLoader(data, topology=Topology(rank=1, world_size=3)), DataMeter(clock=clock)
    meter.follow({'': loader})
    meter.begin()
    for _ in loader:  # until nothing is fetched ahead any more
        meter.batch_done()
    next((tmp_path / 'cache').glob('*.mds')).unlink()
    clock.now += 10
    asked: list[list[float]] = []

    def sum_over_ranks(numbers):
        asked.append(list(numbers))
        waits = [7.0, numbers[1], 0.0]
        return [*waits, *(3 * number for number in numbers[3:])]

    figures = meter.read(ranks=3, replicas=3, sum_over_ranks=sum_over_ranks, detailed=True)
    assert asked[0][0] == asked[0][2] == 0 < asked[0][1] == pytest.approx(loader.seconds_waiting)
    assert figures['data/slowest_rank'] == 0
    assert figures['data/slowest_rank_wait_share'] == pytest.approx(0.7)
    cached = sum(path.stat().st_size for path in (tmp_path / 'cache').glob('*.mds'))
    size = sum(path.stat().st_size for path in folder.glob('*.mds'))
    assert figures['data/cache_bytes'] == cached < size
    assert figures['data/cache_fill'] == pytest.approx(cached / size)


def test_a_large_cache_is_counted_in_portions(make_dataset, tmp_path):
    folder = make_dataset('portions', 20)
    data = StreamingDataset(remote=str(folder), local=str(tmp_path / 'cache'), batch_size=10)
    place = data.streams[0].folder
    for number in range(250):
        (place / f'{number}.mds').write_bytes(bytes(number))
    size = sum(path.stat().st_size for path in place.glob('*.mds'))
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0  # a slow file system
        return now

    fill = CacheFill(clock=clock)
    found = []
    for _ in range(3):
        found.append(fill.read([data]))
        assert fill.read([data]) == found[-1]  # it rests for 100 times as long
        now += 1000.0
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert found[2].used == size
