"""Rates and shares, by a clock of the test's own."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.metrics import DataMeter, counts, meter


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


def test_torchmetrics_is_imported_only_for_metrics_of_it():
    program = (
        'import sys, headrace.metrics\nassert "torchmetrics" not in sys.modules\n'
        'assert set(headrace.metrics.__all__) <= {*dir(headrace.metrics), *headrace.metrics._OF_TORCHMETRICS}\n'
    )
    subprocess.run([sys.executable, '-c', program], check=True)


def test_the_share_of_peers_is_shown():
    read = counts.Read(bytes_downloaded=3e6, bytes_from_peers=97e6)
    assert meter._read_text(read) == '100.0 MB, 97 % from peers'
    assert meter._read_text(read._replace(bytes_from_peers=0)) == '3.0 MB'
