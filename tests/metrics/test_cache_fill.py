"""Bytes in cache folders, counted seldom."""

from __future__ import annotations

import pytest

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.metrics import DataMeter
from headrace.metrics.cache_fill import CacheFill


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
