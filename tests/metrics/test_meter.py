"""Rates and shares, by a clock of the test's own."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from headrace import BAD_SAMPLE, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.metrics import DataMeter, count_tokens
from headrace.metrics.cache_fill import CacheFill


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_loader(make_dataset):
    folders = {name: make_dataset(name, 50, first=first) for name, first in (('a', 0), ('b', 1000))}

    def make(topology: Topology | None = None, **options) -> StreamingDataLoader:
        topology = topology or Topology()
        streams = [
            Stream(local=str(folder), name=name, proportion=weight)
            for (name, folder), weight in zip(folders.items(), (0.4, 0.6), strict=True)
        ]
        data = StreamingDataset(streams=streams, shuffle=True, batch_size=10 // topology.replicas)
        return StreamingDataLoader(data, topology=topology, **options)

    return make


def test_figures_are_of_the_time_since_the_last_reading(make_loader, clock):
    loader, meter = make_loader(), DataMeter(clock=clock)
    meter.follow({'': loader})
    meter.begin()
    batches = iter(loader)
    for _ in range(4):
        next(batches)
        meter.batch_done(7)
    clock.now += 2
    figures = meter.read()
    assert figures['data/samples'] == 40
    assert figures['data/samples_per_second'] == 20
    assert figures['data/tokens_per_second'] == 14
    assert figures['mix/a/samples'] + figures['mix/b/samples'] == 40
    assert figures['mix/a/promised'] == pytest.approx(0.4)
    assert figures['mix/a/share'] + figures['mix/b/share'] == 1

    next(batches)
    meter.batch_done(torch.tensor(9))
    clock.now += 1
    figures = meter.read(replicas=3)
    assert figures['data/samples'] == 50
    assert figures['data/samples_per_second'] == 10
    assert figures['data/tokens_per_second'] == 27
    assert meter.read()['data/samples_per_second'] == 0


def test_an_evaluation_takes_no_time(make_loader, clock):
    loader, meter = make_loader(), DataMeter(clock=clock)
    meter.follow({'': loader})
    meter.begin()
    next(iter(loader))
    meter.batch_done()
    clock.now += 1
    meter.pause()
    clock.now += 50
    meter.resume()
    clock.now += 1
    assert meter.read()['data/samples_per_second'] == 5


def test_waits_are_a_share_of_all_time(make_loader, clock):
    loader, meter = make_loader(), DataMeter(clock=clock)
    meter.follow({'': loader})
    meter.begin()
    list(loader)
    clock.now += 4 * loader.stats().seconds_waiting
    assert meter.read()['data/wait_share'] == pytest.approx(0.25)
    assert 'data/tokens_per_second' not in meter.read()


def test_batches_between_two_steps_count_with_the_next_step(make_loader):
    loader, meter = make_loader(), DataMeter()
    meter.follow({'': loader})
    totals = []
    for number, _ in enumerate(loader):
        meter.batch_done(is_step=number % 3 == 2)
        totals.append(meter.read()['data/samples'])
    assert totals == [0, 0, 30, 30, 30, 60, 60, 60, 90, 90]


def test_a_rank_knows_the_samples_of_all(make_loader):
    loader, meter = make_loader(Topology(rank=1, world_size=2)), DataMeter()
    meter.follow({'': loader})
    for _ in itertools.islice(loader, 4):
        meter.batch_done()
    assert meter.read()['data/samples'] == 40
    assert loader.stats().samples == 20


def test_what_is_added_up_over_ranks(make_loader, clock):
    loader, meter = make_loader(), DataMeter(clock=clock)
    meter.follow({'': loader})
    meter.begin()
    for _ in itertools.islice(loader, 4):
        meter.batch_done(5)
    clock.now += 10

    def three_alike(numbers):
        return [3 * number for number in numbers]

    figures = meter.read(ranks=3, replicas=1, sum_over_ranks=three_alike)
    assert figures['data/tokens_per_second'] == pytest.approx(2)  # three ranks have the same samples
    assert figures['data/cache_hits'] == 3 * loader.stats().cache_hits
    assert figures['data/wait_share'] == pytest.approx(loader.stats().seconds_waiting / 10)
    assert figures['data/samples'] == 40


def test_bad_samples_are_counted_where_they_are_skipped(make_loader, make_dataset):
    folder = make_dataset('bad', 40)
    shard = folder / 'shard.00001.mds'
    shard.write_bytes(shard.read_bytes()[:-1])
    loader = StreamingDataLoader(StreamingDataset(local=str(folder), batch_size=8, on_bad_sample='skip'))
    meter = DataMeter()
    meter.follow({'': loader})
    for _ in loader:
        meter.batch_done()
    assert meter.read()['data/bad_samples'] == loader.stats().bad_samples == loader.dataset.shards[1].samples
    meter.follow({'': make_loader()})
    assert 'data/bad_samples' not in meter.read()


@pytest.fixture
def remote_loader(make_dataset, tmp_path):
    folders = {name: make_dataset(f'far-{name}', 50) for name in 'ab'}

    def make(cache: str, *, local: bool = False) -> StreamingDataLoader:
        streams = [
            Stream(remote=str(folder), local=str(tmp_path / cache / name), name=name)
            for name, folder in folders.items()
        ]
        if local:
            streams.append(Stream(local=str(folders['a']), name='here'))
        return StreamingDataLoader(StreamingDataset(streams=streams, batch_size=10))

    return make


def test_downloads_are_told_apart_by_stream(remote_loader, tmp_path):
    list(remote_loader('cache'))
    for shard in tmp_path.glob('cache/*/shard.00002.mds'):
        shard.unlink()
    meter, loader = DataMeter(), remote_loader('cache', local=True)
    meter.follow({'': loader})
    list(loader)
    figures = meter.read()
    parts = [loader.stats().streams[name] for name in 'ab']
    for name, part in zip('ab', parts, strict=True):
        assert figures[f'data/{name}/bytes_downloaded'] == part.bytes_downloaded > 0
        assert figures[f'data/{name}/requests'] == part.requests > 0
        assert figures[f'data/{name}/cache_hits'] == part.cache_hits > 0
        assert figures[f'data/{name}/shards_waited_for'] == part.shards_waited_for
        assert figures[f'data/{name}/seconds_waited'] == pytest.approx(part.seconds_waited)
    assert figures['data/bytes_downloaded'] == sum(part.bytes_downloaded for part in parts)
    assert not any(name.startswith('data/here/') for name in figures)  # nothing of it has to be downloaded
    assert figures.keys() - meter.read(per_stream_reads=False).keys() == {
        n for n in figures if n.count('/') == 2 and n[0] == 'd'
    }
    assert not any(name.count('/') > 1 for name in meter.read(per_stream=False))

    summed = meter.read(ranks=2, sum_over_ranks=lambda numbers: [2 * number for number in numbers])
    assert summed['data/b/requests'] == 2 * figures['data/b/requests']
    assert summed['data/requests'] == 2 * figures['data/requests']

    other = remote_loader('other', local=True)  # in the place of the first
    meter.follow({'': other})
    list(other)
    assert meter.read()['data/a/requests'] == parts[0].requests + other.stats().streams['a'].requests
    assert other.stats().streams['a'].requests > parts[0].requests


def test_many_streams_are_told_apart_only_when_that_is_asked_for(remote_loader, monkeypatch):
    monkeypatch.setattr('headrace.metrics.meter._LOGGED_STREAMS', 3)
    meter, loaders = DataMeter(), {name: remote_loader(name) for name in 'xy'}
    meter.follow(loaders)
    for loader in loaders.values():
        list(loader)
    assert not any(name.startswith('data/x/') for name in meter.read())
    assert meter.read(per_stream_reads=True)['data/x/a/requests'] == loaders['x'].stats().streams['a'].requests


def test_a_single_stream_is_all_there_is(make_dataset, tmp_path):
    data = StreamingDataset(remote=str(make_dataset('far', 20)), local=str(tmp_path / 'cache'), batch_size=10)
    meter = DataMeter()
    meter.follow({'': StreamingDataLoader(data)})
    assert not any(name.count('/') > 1 for name in meter.read(per_stream_reads=True))


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


def test_counts_continue_from_a_state(make_loader):
    first, second = DataMeter(), DataMeter()
    loader = make_loader()
    first.follow({'': loader})
    for _ in itertools.islice(loader, 4):
        first.batch_done()
    resumed = make_loader()
    resumed.load_state_dict(loader.state_dict())
    second.load_state_dict(first.state_dict())
    second.follow({'': resumed})
    for _ in resumed:
        second.batch_done()
    whole, meter = make_loader(), DataMeter()
    meter.follow({'': whole})
    for _ in whole:
        meter.batch_done()
    for name, count in second.counts().items():
        assert count.samples == meter.counts()[name].samples
        assert count.promised == pytest.approx(meter.counts()[name].promised)
    assert all(type(n) in (int, float) for pair in second.state_dict()['streams'].values() for n in pair)


def test_texts_fit_into_a_progress_bar(make_dataset, make_loader, tmp_path, clock):
    meter, loader = DataMeter(clock=clock), make_loader()
    meter.follow({'': loader})
    meter.begin()
    list(loader)
    for _ in range(1):
        meter.batch_done()
    clock.now += 1000 * loader.stats().seconds_waiting
    texts = meter.texts()
    assert 'data' not in texts  # nothing has to be downloaded
    assert texts['stall'] == '0.1%'
    a, b = map(float, texts['mix'].split('/'))
    assert a + b == pytest.approx(1)

    remote = StreamingDataset(
        remote=str(make_dataset('far', 100)), local=str(tmp_path / 'cache'), batch_size=10, shuffle=True
    )
    loader = StreamingDataLoader(remote)
    meter = DataMeter(clock=clock)
    meter.follow({'': loader})
    list(loader)
    texts = meter.texts()
    assert texts['data'] == f'{loader.stats().bytes_downloaded / 1000:.1f} kB'
    assert 'mix' not in texts


def test_of_many_streams_the_largest_difference_is_shown(make_dataset):
    folders = [make_dataset(f's{i}', 10) for i in range(6)]
    data = StreamingDataset(streams=[Stream(local=str(folder)) for folder in folders], batch_size=60)
    meter, loader = DataMeter(), StreamingDataLoader(data)
    meter.follow({'': loader})
    for _ in loader:
        meter.batch_done()
    assert meter.texts()['mix'] == '±0.000'


@pytest.mark.parametrize(
    ('batch', 'own', 'tokens'),
    [
        ({'input_ids': torch.zeros(3, 5)}, None, 15),
        ({'input_ids': torch.zeros(3, 5)}, 2, 10),
        ({'tokens': torch.zeros(2, 4, 8)}, None, 8),
        ({'tokens': [[1, 2], [3]]}, None, 3),
        ({'tokens': [[1, 2], [3]]}, 1, 2),
        ({'tokens': torch.zeros(3)}, None, None),
        ({'input_ids': torch.zeros(2, 3), 'attention_mask': torch.tensor([[1, 1, 0], [1, 0, 0]])}, None, 3),
        ({'input_ids': torch.zeros(2, 3), 'attention_mask': torch.tensor([[1, 1, 0], [1, 0, 0]])}, 1, 2),
        ({'input_ids': torch.zeros(3, 5), BAD_SAMPLE: torch.tensor([True, False, True])}, None, 5),
        ({'input_ids': torch.zeros(3, 5), BAD_SAMPLE: torch.tensor([True, False, True])}, 2, 5),
        ({'tokens': [[1, 2], [3]], BAD_SAMPLE: torch.tensor([True, False])}, None, 1),
        ({'tokens': torch.zeros(2, 3), 'attention_mask': torch.ones(2, 3), BAD_SAMPLE: torch.arange(2) > 0}, None, 3),
        ({'image': torch.zeros(3, 5)}, None, None),
        ((torch.zeros(3, 5),), None, None),
    ],
)
def test_tokens_of_a_batch(batch, own, tokens):
    assert count_tokens(batch, own) == tokens


def test_torchmetrics_is_imported_only_for_metrics_of_it():
    program = (
        'import sys, headrace.metrics\nassert "torchmetrics" not in sys.modules\n'
        'assert set(headrace.metrics.__all__) <= {*dir(headrace.metrics), *headrace.metrics._OF_TORCHMETRICS}\n'
    )
    subprocess.run([sys.executable, '-c', program], check=True)


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
