"""The warning of a cache limit under which an epoch would download its shards again and again."""

from __future__ import annotations

import contextlib
import re
import warnings

import numpy as np
import pytest
from torch.utils.data import DataLoader

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.dataset.prefetch.limits import PrefetchLimits, bytes_side_by_side, prefetch_limits
from headrace.errors import ConfigError

pytestmark = pytest.mark.once

SAMPLES, ROW = 4000, 4 * 100 + 20


@pytest.fixture(scope='module')
def remote(tmp_path_factory):
    folder = tmp_path_factory.mktemp('remote')
    with MDSWriter(out=str(folder), columns={'x': 'ndarray:int32:100'}, size_limit=20 * ROW) as writer:
        for number in range(SAMPLES):
            writer.write({'x': np.full(100, number, np.int32)})
    return folder


def most_in_turn(dataset, nodes):
    """Bytes of the shards of which samples came before a moment and come after it on node 0, at the worst moment."""
    ids = []
    for rank in range(nodes):
        plan = dataset.plan(topology=Topology(rank=rank, world_size=nodes, num_nodes=nodes))
        if rank == 0:
            ids = np.concatenate([plan.ids(k) for k in range(plan.num_batches)])
    shards, _ = dataset.locate(ids)
    first, last = {}, {}
    for at, shard in enumerate(shards.tolist()):
        first.setdefault(shard, at)
        last[shard] = at
    change = np.zeros(len(ids) + 1, np.int64)
    for shard, at in first.items():
        size = dataset.shards[shard].files[0].raw.bytes
        change[at] += size
        change[last[shard]] -= size
    return int(change.cumsum().max())


@pytest.mark.parametrize('nodes', [1, 2])
@pytest.mark.parametrize('canonical', [2, 4])
@pytest.mark.parametrize('block', [100, 400, 5000])
@pytest.mark.parametrize('algorithm', [None, 'py1e', 'py1br'])
def test_the_estimate_is_about_what_is_read_in_turn(remote, tmp_path, algorithm, block, canonical, nodes):
    dataset = StreamingDataset(
        remote=str(remote),
        local=str(tmp_path),
        batch_size=4,
        shuffle=True,
        shuffle_algo=algorithm,
        shuffle_block_size=block,
        num_canonical_nodes=canonical,
    )
    said = bytes_side_by_side(dataset.streams, dataset.mixture, dataset.order_config, nodes)
    true = most_in_turn(dataset, nodes)
    # A node's share of a small data set is all that it reads; and a shard at a block's edge belongs to two.
    assert 0.45 * true <= min(said, SAMPLES * ROW / nodes) <= 1.3 * true


def test_local_streams_take_no_room(remote, tmp_path):
    streams = [Stream(local=str(remote)), Stream(remote=str(remote), local=str(tmp_path / 'l'))]
    both = StreamingDataset(streams=streams, shuffle=True, num_canonical_nodes=1, batch_size=4)
    one = StreamingDataset(remote=str(remote), local=str(tmp_path / 'l'), shuffle=True, batch_size=4)
    assert bytes_side_by_side(both.streams, both.mixture, both.order_config, 1) == pytest.approx(
        bytes_side_by_side(one.streams, one.mixture, one.order_config, 1), rel=0.01
    )
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        local = StreamingDataset(local=str(remote), shuffle=True, batch_size=4, cache_limit=10_000)
        next(iter(StreamingDataLoader(local)))


def test_streams_of_one_folder_count_its_index_once(remote, tmp_path):
    size = (remote / 'index.json').stat().st_size + len(f'{remote}\n')
    size += max(path.stat().st_size for path in remote.glob('*.mds'))
    for limit in (size, size - 1):
        streams = [Stream(remote=str(remote), local=str(tmp_path / str(limit))) for _ in range(2)]
        with contextlib.nullcontext() if limit == size else pytest.raises(ConfigError, match=f'at least {size} bytes'):
            next(iter(StreamingDataset(streams=streams, batch_size=4, cache_limit=limit)))


def loaded(remote, tmp_path, limit, **how):
    how = {'shuffle': True, 'shuffle_block_size': 1000, 'num_canonical_nodes': 2, **how}
    streams = [Stream(remote=str(remote), local=str(tmp_path / 'l'))]
    dataset = StreamingDataset(streams=streams, batch_size=4, cache_limit=limit, **how)
    return StreamingDataLoader(dataset)


def test_a_limit_below_it_is_a_warning_that_says_what_would_do(remote, tmp_path):
    with pytest.warns(UserWarning, match='downloaded again and again') as found:
        next(iter(loaded(remote, tmp_path, 300_000)))
    text = next(text for warning in found if 'downloaded again and again' in (text := str(warning.message)))
    assert '300,000 bytes' in text
    enough, block = re.findall(r'Raise `cache_limit` to (\d+), or lower `shuffle_block_size` to (\d+) in', text)[0]
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        next(iter(loaded(remote, tmp_path, int(enough))))
        next(iter(loaded(remote, tmp_path, 300_000, shuffle_block_size=int(block))))


@pytest.mark.parametrize(
    'how',
    [
        {'shuffle': False},
        {'shuffle_block_size': 100},
        {'limit': None},
        {'topology': Topology(rank=1, world_size=2)},
        {'topology': Topology(rank=0, world_size=8, num_nodes=8), 'num_canonical_nodes': 8, 'shuffle_block_size': 500},
    ],
    ids=['in order', 'small blocks', 'no limit', 'another rank says it', 'a part on each node'],
)
def test_there_is_none_where_there_is_no_need(remote, tmp_path, how):
    limit = how.pop('limit', 300_000)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        next(iter(loaded(remote, tmp_path, limit, **how)))


def read_by_nodes(remote, tmp_path, nodes, **how):
    """How many times the nodes together read each shard, and the warnings of the first one."""
    counts = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for rank in range(nodes):
            topology = Topology(rank=rank, world_size=nodes, num_nodes=nodes)
            dataset = StreamingDataset(
                remote=str(remote), local=str(tmp_path / 'l'), batch_size=40, shuffle=True, topology=topology, **how
            )
            plan = dataset.begin_pass()
            positions = np.concatenate([plan.node_positions(k) for k in range(plan.num_batches)])
            counts += len(np.unique(dataset.locate(plan.order.at(positions))[0]))
    said = [text for warning in caught if 'nodes download each shard' in (text := str(warning.message))]
    return counts / len(dataset.shards), said


@pytest.mark.parametrize(
    ('nodes', 'how', 'copies', 'wanted'),
    [
        (4, {}, 2, 4),  # of 200 shards, 2 canonical nodes by default
        (3, {}, 3, 3),
        (4, {'num_canonical_nodes': 6}, 2, 4),
        (3, {'num_canonical_nodes': 8}, 3, 6),
        (4, {'num_canonical_nodes': 2, 'shuffle_algo': 'py1e'}, 2, 4),
        (2, {}, 1, None),
        (4, {'num_canonical_nodes': 8}, 1, None),
        (4, {'shuffle_algo': 'py1e'}, 1, None),
    ],
)
def test_shards_that_several_nodes_download_are_named_with_what_would_do(remote, tmp_path, nodes, how, copies, wanted):
    read, said = read_by_nodes(remote, tmp_path, nodes, **how)
    assert read == pytest.approx(copies, rel=0.1)
    assert len(said) == (wanted is not None)  # by rank 0 alone
    if wanted is not None:
        assert f'{copies} of {nodes} nodes' in said[0]
        assert f'`num_canonical_nodes: {wanted}`' in said[0]
        read, said = read_by_nodes(remote, tmp_path, nodes, **{**how, 'num_canonical_nodes': wanted})
        assert read == pytest.approx(1, rel=0.1)
        assert not said


def test_workers_of_a_plain_loader_warn_in_the_first_epoch_alone(remote, tmp_path):
    said = tmp_path / 'said'
    said.touch()

    def note(message, *_, **__):
        with said.open('a') as file:
            file.write(f'{message}\n')

    def watch(_):
        warnings.simplefilter('always')
        warnings.showwarning = note

    topology = Topology(world_size=4, num_nodes=4)
    dataset = StreamingDataset(remote=str(remote), local=str(tmp_path / 'l'), batch_size=500, topology=topology)
    loader = DataLoader(dataset, batch_size=500, num_workers=2, worker_init_fn=watch, multiprocessing_context='fork')
    for _ in range(2):
        assert len(list(loader)) == 2
    assert said.read_text().count('4 of 4 nodes download each shard') == 1


def test_a_worker_looks_as_far_as_all_workers_together():
    assert prefetch_limits(100, 8, workers=3).batches == 39
    assert prefetch_limits(None, 64) == PrefetchLimits(1024, 512 << 20, shards=1024)
    assert prefetch_limits(None, 1 << 20).batches == 8
