"""Random access, sizes, streams' folders, the cache from the dataset's side."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from headrace import (
    CSVWriter,
    JSONWriter,
    LocalDataset,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    Topology,
    TSVWriter,
)
from headrace.errors import ConfigError, TopologyError
from tests.support.stores.shards import disk_use


def test_sizes_and_streams(make_dataset):
    one, two = make_dataset('one', 40), make_dataset('two', 60, first=100)
    streams = [Stream(local=str(one), proportion=1), Stream(local=str(two), proportion=3)]
    dataset = StreamingDataset(streams=streams, epoch_size='1k', batch_size=5)
    assert (dataset.num_samples, dataset.epoch_size, len(dataset)) == (100, 1000, 1000)
    assert [stream.choose for stream in dataset.streams] == [250, 750]
    assert [stream.proportion for stream in dataset.streams] == [0.25, 0.75]
    assert [stream.repeat for stream in dataset.streams] == [6.25, 12.5]
    assert dataset.num_shards == len(dataset.shards)
    assert dataset.shards[0].compression is None
    assert dataset[40]['id'] == 100


def test_replication_needs_no_ranks_before_there_are_any(make_dataset):
    # Lightning's own launcher tells the ranks after the dataset was made.
    dataset = StreamingDataset(local=str(make_dataset()), batch_size=4, replication=2)
    dataset.bind(Topology(rank=3, world_size=4, num_nodes=2, replication=2))
    assert len(dataset) == 50
    state = dataset.state_dict(0, True)
    assert state['initial_physical_nodes'] == 1  # of the parallel world: two replicas fill one node
    again = StreamingDataset(local=str(make_dataset('again')), batch_size=4)
    again.load_state_dict(state)
    assert again.state_dict(0, True)['initial_physical_nodes'] == 1


def test_replication_holds_for_a_topology_that_is_given(make_dataset):
    folder = str(make_dataset())
    given = [Topology(rank=rank, world_size=4) for rank in range(4)]
    bound = [StreamingDataset(local=folder, batch_size=5, replication=2) for _ in given]
    for dataset, topology in zip(bound, given, strict=True):
        dataset.bind(topology)
    datasets = [StreamingDataset(local=folder, batch_size=5, replication=2, topology=topology) for topology in given]
    for four in (datasets, bound):
        ids = [[sample['id'] for sample in dataset] for dataset in four]
        assert ids[0] == ids[1] != ids[2] == ids[3]
        assert len(ids[0]) == len(four[0]) == 50
    twice = Topology(rank=0, world_size=8, replication=4)
    with pytest.raises(TopologyError, match='has replication=4, but the argument says replication=2'):
        StreamingDataset(local=folder, replication=2, topology=twice)
    assert StreamingDataset(local=folder, replication=4, topology=twice).topology == twice


def test_remote_equal_to_local_is_local_only(make_dataset):
    folder = make_dataset('data', 12)
    before = sorted(os.listdir(folder))
    dataset = StreamingDataset(remote=str(folder), local=str(folder), cache_limit='1kb')
    assert [sample['id'] for sample in dataset[:]] == list(range(12))
    dataset.evict_shard(0)
    assert sorted(os.listdir(folder)) == before


class _Doubled(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        assert type(sample_id) is int
        return {'id': 2 * super().get_item(sample_id, retry)['id']}


@pytest.mark.parametrize('kind', [StreamingDataset, _Doubled])
def test_ids_may_be_tensors_and_arrays(make_dataset, kind):
    dataset = kind(local=make_dataset('data', 12))
    factor = 2 if kind is _Doubled else 1

    def ids(at):
        return [sample['id'] // factor for sample in dataset[at]]

    for one in (torch.tensor(3), np.array(3), np.int8(3), np.uint64(3), torch.tensor(-9), np.array(-9), np.int64(-9)):
        assert dataset[one]['id'] == 3 * factor
    for made in (torch.tensor, np.array, list, tuple):
        assert ids(made([3, -1])) == [3, 11]
        assert ids(made([4])) == [4]
        assert ids(made([])) == []
    assert ids([torch.tensor(3), np.array(-1), np.int32(0), 1]) == [3, 11, 0, 1]
    assert ids(slice(torch.tensor(1), np.int64(-1), np.array(5))) == [1, 6]
    assert [[sample['id'] for sample in row] for row in dataset[np.array([[1], [2]])]] == [[factor], [2 * factor]]
    part = torch.utils.data.Subset(dataset, torch.arange(10)[7:])
    assert [part[n]['id'] for n in range(3)] == [7 * factor, 8 * factor, 9 * factor]
    for outside in (torch.tensor(12), np.array(-13), torch.tensor([0, 12])):
        with pytest.raises(IndexError, match='at least -12 and below 12, but is'):
            dataset[outside]


@pytest.mark.parametrize(
    'mask', [True, np.bool_(0), np.array(True), torch.tensor(False), [True] * 12, np.ones(12, bool), torch.ones(12) > 0]
)
def test_a_mask_is_not_ids(make_dataset, mask):
    dataset = StreamingDataset(local=make_dataset('data', 12))
    with pytest.raises(TypeError, match=r'Turn a mask into ids with `np.flatnonzero\(mask\)`'):
        dataset[mask]


@pytest.mark.parametrize('at', [1.0, np.float32(1), torch.tensor(1.5), torch.ones(2), None, '1', np.str_('1'), b'1'])
def test_other_values_are_not_ids(make_dataset, at):
    dataset = StreamingDataset(local=make_dataset('data', 12))
    with pytest.raises(TypeError, match='A sample id is an int, a slice, or a list or array of ints, but is'):
        dataset[at]


def test_a_shard_deleted_during_iteration_is_fetched_again(make_dataset, tmp_path):
    remote, local = make_dataset('remote', 60), tmp_path / 'local'
    dataset = StreamingDataset(remote=str(remote), local=str(local), batch_size=4)
    ids = []
    for number, batch in enumerate(StreamingDataLoader(dataset)):
        ids += batch['id'].tolist()
        if number == 3:
            for shard in local.glob('*.mds'):
                shard.unlink()
    assert ids == list(range(60))
    dataset.prepare_shard(0)
    assert (local / 'shard.00000.mds').exists()
    dataset.evict_shard(0)
    assert not (local / 'shard.00000.mds').exists()
    assert dataset[0]['id'] == 0


@pytest.mark.parametrize('compression', [None, 'zstd'], ids=['raw', 'zstd'])
@pytest.mark.parametrize('workers', [0, 2])
def test_a_cache_limit_that_holds_a_few_shards_loses_nothing(make_dataset, tmp_path, compression, workers):
    remote, local = make_dataset('remote', 400, per_shard=10, compression=compression), tmp_path / 'local'
    size = sum(shard.files[0].raw.bytes for shard in StreamingDataset(local=str(remote)).shards)
    limit = (remote / 'index.json').stat().st_size + size // 4 + 2000
    order = {'shuffle': True, 'shuffle_block_size': 50, 'batch_size': 8}
    dataset = StreamingDataset(remote=str(remote), local=str(local), cache_limit=limit, **order)
    loader = StreamingDataLoader(dataset, num_workers=workers)
    for _ in range(2):
        ids = [sample for batch in loader for sample in batch['id'].tolist()]
        assert sorted(ids) == list(range(400))
        assert disk_use(local) <= limit
    assert loader.stats().evictions > 0


def test_a_cache_limit_below_one_shard_says_so(make_dataset, tmp_path):
    remote = make_dataset('remote', 60)
    with pytest.raises(ValueError, match='[Cc]ache limit'):
        StreamingDataset(remote=str(remote), local=str(tmp_path / 'l'), cache_limit=100, batch_size=4)[0]


@pytest.mark.parametrize('writer', [JSONWriter, CSVWriter, TSVWriter])
def test_line_formats_make_batches(tmp_path, writer):
    columns = {'id': 'int', 'text': 'str', 'x': 'float'}
    with writer(out=str(tmp_path / 'd'), columns=columns, size_limit=200) as out:
        for i in range(30):
            out.write({'id': i, 'text': f'line {i}', 'x': i / 2})
    loader = StreamingDataLoader(StreamingDataset(local=str(tmp_path / 'd'), batch_size=7))
    batches = list(loader)
    assert [sample for batch in batches for sample in batch['id'].tolist()] == list(range(30))
    assert batches[0]['text'] == [f'line {i}' for i in range(7)]
    assert batches[0]['x'].tolist() == [i / 2 for i in range(7)]


def test_warnings(make_dataset):
    folder = str(make_dataset('data', 40))
    with pytest.warns(UserWarning, match='Shuffle block size was smaller than shard size'):
        StreamingDataset(local=folder, shuffle=True, shuffle_block_size=2)
    with pytest.warns(UserWarning, match='predownload < batch_size.*This may result in slower batch time'):
        StreamingDataset(local=folder, batch_size=8, predownload=4)


def test_a_plain_torch_loader_reads_each_epoch_once(make_dataset):
    folder = make_dataset('d', 48)
    ours = StreamingDataLoader(StreamingDataset(local=str(folder), batch_size=4, shuffle=True))
    expected = [[batch['id'].tolist() for batch in ours] for _ in range(3)]
    for workers, persistent in [(0, False), (2, False), (2, True)]:
        dataset = StreamingDataset(local=str(folder), batch_size=4, shuffle=True)
        plain = DataLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=persistent)
        assert [[batch['id'].tolist() for batch in plain] for _ in range(3)] == expected
        state = dataset.state_dict(8, True)
        assert (state['epoch'], state['sample_in_epoch']) == (2, 8)
        dataset.load_state_dict(state)
        assert [batch['id'].tolist() for batch in plain] == expected[2][2:]


@pytest.mark.parametrize('workers', [0, 1])
def test_plain_loaders_of_one_dataset_in_turns_are_refused(make_dataset, workers: int):
    dataset = StreamingDataset(local=str(make_dataset('d', 96)), batch_size=4)
    first, second = (DataLoader(dataset, batch_size=4, num_workers=workers) for _ in range(2))
    with pytest.raises(ConfigError, match='two loaders read the same one in turns'):
        list(zip(first, second, strict=True))


def test_local_dataset(make_dataset):
    dataset = LocalDataset(str(make_dataset('data', 12)))
    assert len(dataset) == 12
    assert dataset[-2]['id'] == 10
