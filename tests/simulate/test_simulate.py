"""Simulated runs: bounds that arithmetic gives, and the true plan's shards."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.cli import main
from headrace.dataset.prefetch.concurrency import Concurrency
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.errors import ConfigError, TopologyError
from headrace.mixing import load_config
from headrace.order import Topology
from headrace.simulate import Conditions, simulate
from headrace.simulate.page import page
from headrace.simulate.prices import costs, read_prices
from headrace.simulate.world import Link, Processor, World
from headrace.storage.transfer.almost_done import AlmostDone
from headrace.storage.transfer.http_body import CHUNK

SHARDS, SAMPLES = 8, 320


@pytest.fixture
def remote(tmp_path):
    folder = tmp_path / 'remote'
    with MDSWriter(out=str(folder), columns={'x': 'ndarray:uint8:1000'}, size_limit=41_000) as writer:
        writer.write_batch({'x': np.zeros((SAMPLES, 1000), np.uint8)})
    assert len(list(folder.glob('shard*'))) == SHARDS
    return folder


@pytest.fixture
def run(remote, tmp_path):
    """A simulation of a loader over the shards, with conditions under which nothing takes time unless it is given."""

    def run_it(*, loader=None, **conditions):
        config = {'global_batch_size': 8, 'train': {'remote': str(remote), 'local': str(tmp_path / 'cache')}}
        config['train'] |= {'loader': {'num_workers': conditions.pop('workers', 0)}, **(loader or {})}
        given = {
            'bandwidth': math.inf,
            'latency': 0.0,
            'read_seconds': 0.0,
            'step_seconds': 0.0,
            'start_seconds': 0.0,
            'request_seconds': 0.0,
            'publish_seconds': 0.0,
            'receive_seconds': 0.0,
            **conditions,
        }
        return simulate(load_config(config).train, Conditions(**given))

    return run_it


def test_nothing_is_waited_for_where_the_network_is_quick(run):
    simulated = run(step_seconds=0.5, bandwidth=1e12)
    assert simulated.is_whole
    assert simulated.epoch_batches == len(simulated.steps) == SAMPLES / 8
    assert simulated.stalls == 0
    assert simulated.samples_per_second == pytest.approx(16)
    assert simulated.epoch_seconds == pytest.approx(20)


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('shuffle', [False, True])
def test_the_network_bounds_the_epoch(run, workers, shuffle):
    simulated = run(bandwidth=1e4, workers=workers, loader={'shuffle': shuffle})
    assert simulated.fetched_shards == SHARDS
    assert simulated.fetched_bytes == simulated.dataset_bytes == simulated.epoch_fetched_bytes
    assert simulated.epoch_seconds == pytest.approx(simulated.dataset_bytes / 1e4, rel=1e-6)


def test_the_first_batch_takes_a_round_trip_and_its_shard(run):
    size = run().dataset_bytes / SHARDS
    first = run(bandwidth=1e5, latency=0.25, loader={'predownload': 0}).first_batch_seconds
    assert first == pytest.approx(0.25 + size / 1e5, rel=0.02)
    slow = run(bandwidth=1e5, connection_bandwidth=5e4, loader={'predownload': 0}).first_batch_seconds
    assert slow == pytest.approx(size / 5e4, rel=0.02)


def test_each_node_fetches_the_shards_of_its_plan(run, remote, tmp_path):
    simulated = run(ranks=4, nodes=2, loader={'shuffle': True})
    dataset = StreamingDataset(remote=str(remote), local=str(tmp_path / 'cache'), batch_size=2, shuffle=True)
    needed = []
    for node in range(2):
        plan = dataset.plan(global_batch_size=8, topology=Topology(rank=2 * node, world_size=4, num_nodes=2))
        ids = plan.order.at(np.concatenate([plan.node_positions(k) for k in range(plan.num_batches)]))
        needed.append(len(np.unique(dataset.locate(ids)[0])))
    assert simulated.fetched_shards == sum(needed) // 2


def test_nodes_that_download_the_same_shards_are_noted(run, remote):
    shuffled = {'shuffle': True, 'num_canonical_nodes': 1}
    shared = run(loader=shuffled, nodes=2, ranks=2)
    (note,) = shared.notes()
    assert note.startswith('2 of 2 nodes download each shard, because num_canonical_nodes is 1: set')
    assert f'  note: {note}' in str(shared).splitlines()
    assert shared.to_json()['notes'] == [note]
    assert 'Note: 2 of 2 nodes download each shard' in page(shared, {}, title='x')
    assert run(loader={**shuffled, 'num_canonical_nodes': 2}, nodes=2, ranks=2).notes() == []
    assert run(loader={**shuffled, 'remote': None, 'local': str(remote)}, nodes=2, ranks=2).notes() == []


def test_a_second_epoch_finds_the_cache(run):
    simulated = run(epochs=2)
    assert len(simulated.steps) == 2 * SAMPLES / 8
    assert simulated.fetched_shards == SHARDS
    assert simulated.epoch_fetched_bytes == 0


def test_a_limit_costs_fetches_and_is_kept(run):
    whole = run(loader={'shuffle': True})
    limit = whole.dataset_bytes // 2
    simulated = run(epochs=2, loader={'shuffle': True, 'cache_limit': limit, 'shuffle_block_size': 40})
    assert simulated.fetched_shards > SHARDS
    assert simulated.cache_bytes <= limit


def test_data_that_are_local_need_no_network(run, remote):
    simulated = run(bandwidth=1.0, latency=9.0, step_seconds=0.5, loader={'remote': None, 'local': str(remote)})
    assert simulated.waiting_seconds == simulated.fetched_bytes == simulated.cache_bytes == 0
    assert simulated.epoch_fetched_bytes == 0


def test_a_limit_is_kept_where_a_batch_needs_more(run):
    size = run().dataset_bytes
    loader = {'shuffle': True, 'cache_limit': size // 3}
    simulated = run(epochs=2, loader=loader, ranks=2, workers=2, bandwidth=1e6, latency=0.01)
    assert simulated.cache_bytes <= size // 3
    assert len(simulated.steps) == 2 * SAMPLES / 8


def test_the_cache_holds_the_compressed_files_that_it_keeps(run, tmp_path):
    with MDSWriter(out=str(tmp_path / 'zip'), columns={'x': 'ndarray:uint8:1000'}, compression='zstd') as writer:
        writer.write_batch({'x': np.zeros((SAMPLES, 1000), np.uint8)})
    remote = {'remote': str(tmp_path / 'zip')}
    plain, kept = run(loader=remote), run(loader={**remote, 'keep_zip': True})
    assert plain.fetched_bytes == kept.fetched_bytes == kept.dataset_bytes
    assert kept.cache_bytes - plain.cache_bytes == kept.dataset_bytes


def test_steps_without_time_are_figures_of_json(run, remote):
    simulated = run(loader={'remote': None, 'local': str(remote)})
    assert 'inf samples/s' in str(simulated)
    assert json.loads(json.dumps(simulated.to_json(), allow_nan=False))['samples_per_second'] is None


def test_an_epoch_without_batches_is_refused(run):
    with pytest.raises(ConfigError, match='fill no global batch of 8'):
        run(loader={'fraction': [0, 0.01], 'remainder': 'drop'})


def test_transfers_end_at_a_late_time():
    world = World()
    world.now = 1e6  # its clock ticks more coarsely than a transfer's last bytes take
    link = Link(world, bandwidth=1.3e6, connection_bandwidth=math.inf, latency=0.001)
    ended, calls = [], iter(range(1000))
    for size in (3_001, 50_021, 99_991):
        link.fetch(size, 1, lambda: None, lambda size=size: ended.append(size))
    world.run(lambda: next(calls, None) is None)
    assert ended == [3_001, 50_021, 99_991]


def test_what_is_not_simulated_is_estimated(run):
    whole, part = run(bandwidth=1e4), run(bandwidth=1e4, batches=20)
    assert not part.is_whole
    assert part.epoch_seconds == pytest.approx(whole.epoch_seconds, rel=0.2)
    assert part.epoch_fetched_bytes == pytest.approx(whole.epoch_fetched_bytes, rel=0.2)


def test_it_is_the_same_each_time(run):
    conditions = {'bandwidth': 3e4, 'latency': 0.01, 'step_seconds': 0.02, 'ranks': 2, 'workers': 2}
    assert run(**conditions).steps == run(**conditions).steps


@pytest.mark.parametrize(
    'wrong', [{'ranks': 0}, {'bandwidth': math.nan}, {'latency': -1}, {'latency': math.inf}, {'ranks': 3, 'nodes': 2}]
)
def test_impossible_conditions_are_refused(wrong):
    with pytest.raises(ConfigError, match='must'):
        Conditions(**wrong)


def test_packing_is_refused(remote):
    packing = {'sequence_length': 8, 'token_dtype': 'uint8', 'column': 'x'}
    config = load_config({'global_batch_size': 8, 'train': {'remote': str(remote), 'packing': packing}})
    with pytest.raises(ConfigError, match='without `packing`'):
        simulate(config.train, Conditions())


def test_transfers_share_a_link():
    world = World()
    link = Link(world, bandwidth=1e8, connection_bandwidth=6e7, latency=0.5)
    ended, near = {}, {}
    for name, size in (('small', 50e6), ('large', 150e6)):
        link.fetch(
            size,
            1,
            lambda name=name: near.setdefault(name, world.now),
            lambda name=name: ended.setdefault(name, world.now),
        )
    world.run(lambda: False)
    # The second connection is opened first, until 1 s. Both then share 100 MB/s, until 1.4 s; one alone gets 60 MB/s.
    burst = 2**14 / 1e8  # for which the second one waits
    assert ended == {'small': pytest.approx(1.4 - burst / 5), 'large': pytest.approx(1.4 + 130 / 60, abs=burst)}
    assert near['small'] == pytest.approx(1.0, abs=0.01)  # a latency of 0.5 s after the first bytes
    # Its latency was 1 s, with the handshake. After u more seconds 154 - 60 u MB are left, and 60 u - 4 MB have come
    # since its first chunk. At that pace, the rest takes 1 s where (154 - 60 u) u = 60 u - 4.
    assert near['large'] == pytest.approx(1 + (94 + math.sqrt(94**2 + 4 * 60 * 4)) / 120, abs=0.01)


@pytest.mark.parametrize(('chunks', 'near'), [(10, 9), (7, 6), (6, 6), (4, 6), (1, 3)])
def test_the_end_of_a_transfer_is_near_as_far_as_a_download_can_know(chunks, near):
    """A chunk a second, from the second second on; so the first answer comes after 3 s.

    The pace counts after 3 s more, at 6 s. Then the end is near once no more than 3 chunks are left.
    """
    world = World()
    link = Link(world, bandwidth=CHUNK, connection_bandwidth=math.inf, latency=2)
    times = []
    link.fetch(chunks * CHUNK, 1, lambda: times.append(world.now), lambda: times.append(world.now))
    world.run(lambda: False)
    assert times == [pytest.approx(min(near, 2 + chunks)), pytest.approx(2 + chunks)]


@pytest.mark.parametrize('seed', range(4))
def test_transfers_are_those_of_a_link_that_counts_each_millisecond(seed):
    random = np.random.default_rng(seed)
    begins = np.sort(random.integers(0, 8_000, 6)).tolist()  # milliseconds
    sizes = random.integers(1, 8 * CHUNK, 6).tolist()
    world = World()
    link = Link(world, bandwidth=CHUNK, connection_bandwidth=CHUNK / 2, latency=1)
    fast = []

    def note(kind, number):
        return lambda: fast.append((kind, number, world.now))

    for number, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        world.after(
            begin / 1000,
            lambda number=number, size=size: link.fetch(size, 1, note('near', number), note('end', number)),
        )
    world.run(lambda: False)

    clock, slow, used, opened = [0.0], [], 0, 1
    near, asked, starts, left, counted = {}, {}, {}, dict(enumerate(map(float, sizes))), [0] * 6
    for tick in range(100_000):
        clock[0] = tick / 1000
        for number in (number for number in range(6) if begins[number] == tick):
            used += 1
            asked[number] = tick + (1_000 if used <= opened else 2_000)
            opened = max(opened, used)
            call = lambda number=number: slow.append(('near', number, clock[0]))  # noqa: E731
            near[number] = AlmostDone(sizes[number], call, lambda: clock[0])
            near[number].ask()
        for number in (number for number in range(6) if asked.get(number) == tick):
            starts[number] = tick + sum(start <= tick for start in starts.values()) * 2**14 / CHUNK * 1_000
        under_way = [number for number, start in starts.items() if start < tick]
        for number in under_way:
            left[number] = max(0.0, left[number] - min(CHUNK / 2, CHUNK / len(under_way)) / 1000)
            there = sizes[number] - left[number]
            whole = sizes[number] if not left[number] else int(there // CHUNK) * CHUNK
            if whole > counted[number]:
                near[number].count(whole - counted[number])
                counted[number] = whole
            if not left[number]:
                slow.append(('end', number, clock[0]))
                del starts[number]
                used -= 1
        if len(slow) == 12:
            break

    def by_transfer(events):
        return {(kind, number): moment for kind, number, moment in events}

    assert by_transfer(fast) == pytest.approx(by_transfer(slow), abs=0.02)


def test_a_process_makes_one_request_after_the_other():
    world = World()
    processor = Processor(world)
    assert (processor.reserve(1.0), processor.reserve(0.5)) == (1.0, 1.5)
    world.after(4.0, lambda: None)
    world.run(lambda: False)
    assert processor.reserve(1.0) == 1.0


def test_the_first_batch_takes_the_time_of_the_processor_too(run):
    given = {'bandwidth': 1e12, 'latency': 0.25, 'request_seconds': 0.5, 'publish_seconds': 0.125, 'read_seconds': 1.0}
    alone = run(**given, loader={'predownload': 0})
    assert alone.first_batch_seconds == pytest.approx(0.25 + 0.5 + 0.125 + 1.0)
    # The samples of a batch lie in several of the shards, which are requested one after the other.
    several = run(**given, loader={'shuffle': True, 'shuffle_block_size': 2 * SAMPLES, 'predownload': 0})
    assert several.first_batch_seconds > 0.25 + 3 * 0.5 + 1.0


def test_the_first_batch_is_no_stall_that_begins_a_trial(run, monkeypatch):
    starved = []
    monkeypatch.setattr(Concurrency, 'arrived', lambda self, size, seconds: starved.append(seconds))
    simulated = run(bandwidth=1e4, step_seconds=1.0)  # a shard takes 4.1 s, and its five batches 5 s
    assert simulated.first_batch_seconds > 4
    assert starved == [0.0] * SHARDS
    starved.clear()
    run(bandwidth=1e4, step_seconds=0.5)
    assert starved[-1] > 1


def test_a_prefetch_leaves_the_share_of_a_limit_that_a_real_one_leaves(run):
    size = run().dataset_bytes
    simulated = run(loader={'cache_limit': size + size // SHARDS}, step_seconds=1.0)
    assert simulated.steps[0].cached <= 0.75 * (size + size // SHARDS) < size
    assert simulated.fetched_shards == SHARDS


@pytest.mark.parametrize(('workers', 'persistent', 'made'), [(0, False, 1), (2, False, 4), (2, True, 2)])
def test_a_prefetch_lives_as_long_as_its_process(run, monkeypatch, workers, persistent, made):
    prefetchers = []

    class Counted(Prefetcher):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            prefetchers.append(self)

    monkeypatch.setattr('headrace.simulate.reader.Prefetcher', Counted)
    loader = {'loader': {'num_workers': workers, 'persistent_workers': persistent}}
    run(epochs=2, loader=loader)
    assert len(prefetchers) == made


def test_replicas_share_their_batches_and_shards(run):
    simulated = run(ranks=4, replication=2, bandwidth=1e5)
    assert simulated.epoch_batches == SAMPLES / 8
    assert simulated.fetched_shards == SHARDS
    of_yaml = run(ranks=4, bandwidth=1e5, loader={'replication': 2})
    assert (
        of_yaml.steps == simulated.steps == run(ranks=4, replication=2, bandwidth=1e5, loader={'replication': 2}).steps
    )
    assert simulated.steps != run(ranks=4, bandwidth=1e5, loader={'shuffle': True}).steps
    with pytest.raises(ConfigError, match='replication=4'):
        run(ranks=4, replication=4, loader={'replication': 2})
    with pytest.raises(TopologyError, match='replication'):
        run(ranks=4, replication=3)


def test_prices(tmp_path):
    assert read_prices()['Cloudflare R2'] == 0
    (tmp_path / 'prices.yaml').write_text('ours: 0.05\nother, region: 1\n')
    assert costs(3 * 10**9, read_prices(tmp_path / 'prices.yaml')) == {'ours': 0.15, 'other, region': 3.0}
    (tmp_path / 'prices.yaml').write_text('ours: much\n')
    with pytest.raises(ConfigError, match="'much' for ours"):
        read_prices(tmp_path / 'prices.yaml')


def test_the_command(remote, tmp_path, capsys):
    path = tmp_path / 'train.yaml'
    path.write_text(f'global_batch_size: 8\ntrain: {{remote: {remote}, local: {tmp_path}/cache}}\n')
    arguments = ['simulate', str(path), '--bandwidth', '1kb', '--html', str(tmp_path / 'page.html')]
    assert main(arguments) == 0
    assert 'throughput' in capsys.readouterr().out
    assert main([*arguments, '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['epoch_batches'] == len(found['steps']) == 40
    assert (tmp_path / 'page.html').read_text().count('<polyline') == 3


def test_a_page_escapes_its_title(run):
    assert '<script>' not in page(run(), {}, title='<script>')
