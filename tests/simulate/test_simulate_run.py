"""Simulated runs: bounds that arithmetic gives, and the true plan's shards."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.cli import main
from headrace.dataset.prefetch.schedule import Concurrency
from headrace.errors import ConfigError, TopologyError
from headrace.mixing import load_config
from headrace.order import Topology
from headrace.simulate import Conditions, simulate
from headrace.simulate.page import page
from tests.support.datasets.simulated import SAMPLES, SHARDS


def test_nothing_is_waited_for_where_the_network_is_quick(simulated_run):
    simulated = simulated_run(step_seconds=0.5, bandwidth=1e12)
    assert simulated.is_whole
    assert simulated.epoch_batches == len(simulated.steps) == SAMPLES / 8
    assert simulated.stalls == 0
    assert simulated.samples_per_second == pytest.approx(16)
    assert simulated.epoch_seconds == pytest.approx(20)


def test_batches_within_a_budget_have_their_mean_number_of_rows(simulated_run):
    cost = {'cost': 'x', 'batch_cost': {'budget': 6000, 'multiple': 2}}
    simulated = simulated_run(step_seconds=0.5, bandwidth=1e12, loader={**cost, 'shuffle': True})
    assert simulated.epoch_batches == len(simulated.steps)
    assert simulated.global_batch_size == 6
    assert simulated.samples_per_second == pytest.approx(12)


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('shuffle', [False, True])
def test_the_network_bounds_the_epoch(simulated_run, workers, shuffle):
    simulated = simulated_run(bandwidth=1e4, workers=workers, loader={'shuffle': shuffle})
    assert simulated.fetched_shards == SHARDS
    assert simulated.fetched_bytes == simulated.dataset_bytes == simulated.epoch_fetched_bytes
    assert simulated.epoch_seconds == pytest.approx(simulated.dataset_bytes / 1e4, rel=1e-6)


def test_the_first_batch_takes_a_round_trip_and_its_shard(simulated_run):
    size = simulated_run().dataset_bytes / SHARDS
    first = simulated_run(bandwidth=1e5, latency=0.25, loader={'predownload': 0}).first_batch_seconds
    assert first == pytest.approx(0.25 + size / 1e5, rel=0.02)
    slow = simulated_run(bandwidth=1e5, connection_bandwidth=5e4, loader={'predownload': 0}).first_batch_seconds
    assert slow == pytest.approx(size / 5e4, rel=0.02)


def test_each_node_fetches_the_shards_of_its_plan(simulated_run, simulated_remote, tmp_path):
    simulated = simulated_run(ranks=4, nodes=2, loader={'shuffle': True})
    dataset = StreamingDataset(remote=str(simulated_remote), local=str(tmp_path / 'cache'), batch_size=2, shuffle=True)
    needed = []
    for node in range(2):
        plan = dataset.plan(global_batch_size=8, topology=Topology(rank=2 * node, world_size=4, num_nodes=2))
        ids = plan.order.at(np.concatenate([plan.node_positions(k) for k in range(plan.num_batches)]))
        needed.append(len(np.unique(dataset.locate(ids)[0])))
    assert simulated.fetched_shards == sum(needed) // 2


def test_nodes_that_download_the_same_shards_are_noted(simulated_run, simulated_remote):
    shuffled = {'shuffle': True, 'num_canonical_nodes': 1}
    shared = simulated_run(loader=shuffled, nodes=2, ranks=2)
    (note,) = shared.notes()
    assert note.startswith('2 of 2 nodes download each shard, because num_canonical_nodes is 1: set')
    assert f'  note: {note}' in str(shared).splitlines()
    assert shared.to_json()['notes'] == [note]
    assert 'Note: 2 of 2 nodes download each shard' in page(shared, {}, title='x')
    assert simulated_run(loader={**shuffled, 'num_canonical_nodes': 2}, nodes=2, ranks=2).notes() == []
    assert (
        simulated_run(loader={**shuffled, 'remote': None, 'local': str(simulated_remote)}, nodes=2, ranks=2).notes()
        == []
    )


SHARED = {'shuffle': True, 'num_canonical_nodes': 1, 'peers': {}}


def test_nodes_that_share_their_caches_fetch_each_shard_once(simulated_run):
    simulated = simulated_run(loader=SHARED, nodes=4, ranks=4)
    alone = simulated.alone
    assert alone.shared is alone.alone is None
    assert alone.epoch_store_bytes == 4 * simulated.dataset_bytes
    assert simulated.epoch_store_bytes == simulated.shared.used_bytes == simulated.dataset_bytes
    assert simulated.epoch_fetched_bytes <= simulated.dataset_bytes  # some owned ones came for others before
    assert 0.5 < simulated.shared.peer_share <= 1
    rows = dict(simulated.rows())
    assert rows['from the store'].endswith(' by all nodes: each shard 1.00 times in an epoch, without `peers` 4.00')
    assert rows['from peers'].endswith(f', {100 * simulated.shared.peer_share:.0f} % of their bytes')
    (note,) = simulated.notes()
    assert note.startswith('the time in which nodes send shards, and fetch them for others, is not simulated')
    found = json.loads(json.dumps(simulated.to_json(), allow_nan=False))
    assert found['shared']['store_bytes'] == found['epoch_store_bytes'] == simulated.dataset_bytes
    assert found['alone']['epoch_store_bytes'] == alone.epoch_store_bytes
    assert simulated_run(loader=SHARED, nodes=2, ranks=2, epochs=2).epoch_store_bytes == 0


@pytest.mark.parametrize('shuffle', [False, True])
def test_all_shards_of_a_long_epoch_are_counted(simulated_run, tmp_path, shuffle):
    with MDSWriter(out=str(tmp_path / 'long'), columns={'x': 'int'}, size_limit=1600) as writer:
        writer.write_batch({'x': np.arange(20_000)})
    loader = {**SHARED, 'shuffle': shuffle, 'shuffle_block_size': 200, 'remote': str(tmp_path / 'long')}
    simulated = simulated_run(loader=loader, nodes=2, ranks=2, batches=5)
    assert simulated.epoch_batches > 10 * simulated.dataset_shards > 1000
    assert simulated.epoch_store_bytes == simulated.planned_bytes == simulated.dataset_bytes


def test_shards_that_a_later_epoch_reads_first_leave_the_store_then(simulated_run):
    loader = {**SHARED, 'epoch_size': SAMPLES // 4, 'shuffle_block_size': SAMPLES // SHARDS}
    firsts = [simulated_run(loader=loader, nodes=2, ranks=2, epochs=epochs).epoch_store_bytes for epochs in (1, 2, 9)]
    assert firsts[0] > 0 < firsts[1]
    assert firsts[2] == 0


def test_shards_that_no_owner_can_keep_leave_the_store_again(simulated_run):
    size = simulated_run().dataset_bytes
    loader = {**SHARED, 'shuffle_block_size': 40}
    small = simulated_run(loader={**loader, 'cache_limit': size // 2}, nodes=2, ranks=2, epochs=2)
    assert 0 < small.shared.gone_share < 1
    assert 0 < small.epoch_store_bytes < small.alone.epoch_store_bytes
    assert small.cache_bytes <= size // 2
    (note,) = (note for note in small.notes() if 'owners cannot keep' in note)
    assert f'{100 * small.shared.gone_share:.0f} % of the shards' in note
    large = simulated_run(loader={**loader, 'cache_limit': small.shared.limit_for_all}, nodes=2, ranks=2, epochs=2)
    assert large.shared.gone_share == large.epoch_store_bytes == 0
    assert len(large.notes()) == 1


def test_a_shard_of_a_peer_comes_unpacked(simulated_run, tmp_path):
    with MDSWriter(
        out=str(tmp_path / 'zip'), columns={'x': 'ndarray:uint8:1000'}, compression='zstd', size_limit=41_000
    ) as writer:
        writer.write_batch({'x': np.zeros((SAMPLES, 1000), np.uint8)})
    shared = {**SHARED, 'remote': str(tmp_path / 'zip')}
    simulated = simulated_run(loader=shared, nodes=2, ranks=2)
    assert simulated.epoch_store_bytes == simulated.dataset_bytes
    assert simulated.fetched_bytes > 5 * simulated.dataset_bytes


def test_a_shard_of_a_peer_comes_once_its_owner_has_it(simulated_run):
    late = simulated_run(loader={**SHARED, 'predownload': 0}, nodes=4, ranks=4, latency=0.25)
    assert late.alone.first_batch_seconds == pytest.approx(0.25 * round(late.alone.first_batch_seconds / 0.25))
    assert late.first_batch_seconds > late.alone.first_batch_seconds


def test_egress_is_that_of_the_store(simulated_remote, tmp_path, capsys):
    path, prices = tmp_path / 'train.yaml', tmp_path / 'prices.yaml'
    train = {**SHARED, 'remote': str(simulated_remote), 'local': str(tmp_path / 'cache')}
    path.write_text(json.dumps({'global_batch_size': 8, 'train': train}))
    prices.write_text('ours: 1000000')
    run = ['simulate', str(path), '--nodes', '8', '--ranks', '8', '--json', '--prices', str(prices)]
    assert main(run) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['egress_cost'] == {'ours': round(found['dataset_bytes'] / 1000, 2)}


def test_padding_and_unequal_work_are_figures_where_a_cost_is_named(simulated_run, tmp_path):
    lengths = np.random.default_rng(0).integers(1, 100, 512)
    with MDSWriter(out=str(tmp_path / 'texts'), columns={'tokens': 'ndarray:uint8'}) as writer:
        for length in lengths.tolist():
            writer.write({'tokens': np.zeros(length, np.uint8)})
    loader = {'remote': str(tmp_path / 'texts'), 'shuffle': True}
    assert 'padding' not in dict(simulated_run(loader=loader, ranks=4).rows())
    simulated = simulated_run(loader={**loader, 'cost': 'tokens'}, ranks=4)
    padding, slowest = simulated.notes()
    assert padding.startswith('batches that are padded to their longest row are ')
    assert '`bucket: 64` would make it' in padding
    assert '`balance: 1` would make it' in slowest
    rows = dict(simulated.rows())
    assert rows['padding'].endswith(' % of the places, if ranks pad to their longest row')
    assert rows['most work'] == f'{simulated.lengths.slowest:.2f} times that of the mean rank'
    assert simulated.to_json()['lengths']['padding'] == simulated.lengths.padding > 0.1
    json.dumps(simulated.to_json(), allow_nan=False)
    assert simulated_run(loader={**loader, 'cost': 'tokens', 'bucket': 64, 'balance': 1}, ranks=4).notes() == []


def test_data_that_are_local_need_no_network(simulated_run, simulated_remote):
    simulated = simulated_run(
        bandwidth=1.0, latency=9.0, step_seconds=0.5, loader={'remote': None, 'local': str(simulated_remote)}
    )
    assert simulated.waiting_seconds == simulated.fetched_bytes == simulated.cache_bytes == 0
    assert simulated.epoch_fetched_bytes == 0


def test_an_epoch_without_batches_is_refused(simulated_run):
    with pytest.raises(ConfigError, match='fill no global batch of 8'):
        simulated_run(loader={'fraction': [0, 0.01], 'remainder': 'drop'})


def test_what_is_not_simulated_is_estimated(simulated_run):
    whole, part = simulated_run(bandwidth=1e4), simulated_run(bandwidth=1e4, batches=20)
    assert not part.is_whole
    assert part.epoch_seconds == pytest.approx(whole.epoch_seconds, rel=0.2)
    assert part.epoch_fetched_bytes == pytest.approx(whole.epoch_fetched_bytes, rel=0.2)


def test_it_is_the_same_each_time(simulated_run):
    conditions = {'bandwidth': 3e4, 'latency': 0.01, 'step_seconds': 0.02, 'ranks': 2, 'workers': 2}
    assert simulated_run(**conditions).steps == simulated_run(**conditions).steps


def test_packing_is_refused(simulated_remote):
    packing = {'sequence_length': 8, 'token_dtype': 'uint8', 'column': 'x'}
    config = load_config({'global_batch_size': 8, 'train': {'remote': str(simulated_remote), 'packing': packing}})
    with pytest.raises(ConfigError, match='without `packing`'):
        simulate(config.train, Conditions())


def test_the_first_batch_takes_the_time_of_the_processor_too(simulated_run):
    given = {'bandwidth': 1e12, 'latency': 0.25, 'request_seconds': 0.5, 'publish_seconds': 0.125, 'read_seconds': 1.0}
    alone = simulated_run(**given, loader={'predownload': 0})
    assert alone.first_batch_seconds == pytest.approx(0.25 + 0.5 + 0.125 + 1.0)
    # The samples of a batch lie in several of the shards, which are requested one after the other.
    several = simulated_run(**given, loader={'shuffle': True, 'shuffle_block_size': 2 * SAMPLES, 'predownload': 0})
    assert several.first_batch_seconds > 0.25 + 3 * 0.5 + 1.0


def test_the_first_batch_is_no_stall_that_begins_a_trial(simulated_run, monkeypatch):
    starved = []
    monkeypatch.setattr(Concurrency, 'arrived', lambda self, size, seconds: starved.append(seconds))
    simulated = simulated_run(bandwidth=1e4, step_seconds=1.0)  # a shard takes 4.1 s, and its five batches 5 s
    assert simulated.first_batch_seconds > 4
    assert starved == [0.0] * SHARDS
    starved.clear()
    simulated_run(bandwidth=1e4, step_seconds=0.5)
    assert starved[-1] > 1


def test_replicas_share_their_batches_and_shards(simulated_run):
    simulated = simulated_run(ranks=4, replication=2, bandwidth=1e5)
    assert simulated.epoch_batches == SAMPLES / 8
    assert simulated.fetched_shards == SHARDS
    of_yaml = simulated_run(ranks=4, bandwidth=1e5, loader={'replication': 2})
    assert (
        of_yaml.steps
        == simulated.steps
        == simulated_run(ranks=4, replication=2, bandwidth=1e5, loader={'replication': 2}).steps
    )
    assert simulated.steps != simulated_run(ranks=4, bandwidth=1e5, loader={'shuffle': True}).steps
    with pytest.raises(ConfigError, match='replication=4'):
        simulated_run(ranks=4, replication=4, loader={'replication': 2})
    with pytest.raises(TopologyError, match='replication'):
        simulated_run(ranks=4, replication=3)


def test_the_command(simulated_remote, tmp_path, capsys):
    path = tmp_path / 'train.yaml'
    path.write_text(f'global_batch_size: 8\ntrain: {{remote: {simulated_remote}, local: {tmp_path}/cache}}\n')
    arguments = ['simulate', str(path), '--bandwidth', '1kb', '--html', str(tmp_path / 'page.html')]
    assert main(arguments) == 0
    assert 'throughput' in capsys.readouterr().out
    assert main([*arguments, '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['epoch_batches'] == len(found['steps']) == 40
    assert (tmp_path / 'page.html').read_text().count('<polyline') == 3
