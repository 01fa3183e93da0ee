"""An override of `get_item`, which all of MosaicML Streaming's dataset classes have, changes samples on every path."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from headrace import BAD_SAMPLE, PADDING, LocalDataset, MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.dataset.reading.batch_reader import PassRequest
from headrace.packing import PackedDataset, Packing
from tests.support.datasets.bad_data import BAD, damage, write_texts


class Doubled(StreamingDataset):
    def get_item(self, idx):
        return {'double': 2 * super().get_item(idx)['id']}


class Retrying(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        return {'double': 2 * super().get_item(sample_id, retry)['id']}


class Mixin:
    def get_item(self, idx):
        return {'double': 2 * super().get_item(idx)['id']}


class Mixed(Mixin, StreamingDataset):
    pass


class Both(Doubled):
    """`__getitem__` of one class, `get_item` of the class above it."""

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        return {'double': sample['double']} if isinstance(sample, dict) else sample


@pytest.mark.parametrize('cls', [Doubled, Retrying, Mixed, Both])
@pytest.mark.parametrize('workers', [0, 1])
def test_batches_are_of_its_samples(make_dataset, cls, workers):
    dataset = cls(local=str(make_dataset(samples=20)), batch_size=5, shuffle=True)
    plan = dataset.plan(epoch=0)
    batches = list(StreamingDataLoader(dataset, num_workers=workers))
    assert [list(batch) for batch in batches] == [['double']] * 4
    expected = [(2 * plan.ids(number)).tolist() for number in range(4)]
    assert [batch['double'].tolist() for batch in batches] == expected


@pytest.mark.parametrize('cls', [Doubled, Retrying, Mixed, Both])
def test_single_samples_slices_and_lists(make_dataset, cls):
    dataset = cls(local=str(make_dataset(samples=20)))
    assert dataset[3] == {'double': 6}
    assert dataset[-1] == dataset[np.int64(19)] == {'double': 38}
    assert [sample['double'] for sample in dataset[17:]] == [34, 36, 38]
    assert [sample['double'] for sample in dataset[[1, -2]]] == [2, 36]
    assert [sample['double'] for sample in dataset[np.array([4, 0])]] == [8, 0]
    for wrong in (20, -21):
        with pytest.raises(IndexError, match=f'at least -20 and below 20, but is {wrong}'):
            dataset[wrong]


def test_iterating_it_and_a_plain_loader(make_dataset):
    folder = str(make_dataset(samples=20))
    assert [sample['double'] for sample in Doubled(local=folder, batch_size=5)] == [2 * i for i in range(20)]
    plain = DataLoader(Doubled(local=folder, batch_size=5), batch_size=5)
    assert torch.cat([batch['double'] for batch in plain]).tolist() == [2 * i for i in range(20)]


def test_it_may_be_an_attribute_of_the_dataset(make_dataset):
    folder = str(make_dataset(samples=8))
    dataset = StreamingDataset(local=folder, batch_size=8)
    dataset.get_item = partial(Doubled.get_item, Doubled(local=folder))
    assert [sample['double'] for sample in dataset] == list(range(0, 16, 2))
    assert [list(batch) for batch in StreamingDataLoader(dataset)] == [['double']]


def unnamed(read):
    """A decorator whose function has not the name that it is found by."""
    return lambda dataset, at: read(dataset, at)


class Decorated(Doubled):
    __getitem__ = unnamed(Doubled.__getitem__)


def test_workers_get_copies_of_a_decorated_one(make_dataset):
    dataset = Decorated(local=str(make_dataset(samples=8)), batch_size=4)
    place, spec = (0, 0), dataset.batch_spec()
    asked = PassRequest(batches=spec, place=place, collate_fn=None, mark_streams=False, continues=False)
    begun = dataset.begin_batches(asked)
    copy = pickle.loads(pickle.dumps(begun.reader))
    assert [copy[key].batch['double'].tolist() for key in begun.keys] == [[0, 2, 4, 6], [8, 10, 12, 14]]


class WithSource(Doubled):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.source, self.read, self.samples = 'web', 'r', 100


def test_a_subclass_has_attributes_of_its_own(make_dataset):
    dataset = WithSource(local=str(make_dataset(samples=8)), batch_size=8)
    assert [batch['double'].tolist() for batch in StreamingDataLoader(dataset)] == [list(range(0, 16, 2))]
    assert dataset.source == 'web'


def test_padding_is_of_its_samples(make_dataset):
    folder = str(make_dataset(samples=9))
    for rank in range(2):
        topology = Topology(rank=rank, world_size=2)
        dataset = Doubled(local=folder, batch_size=4, remainder='exact', topology=topology)
        batches = list(StreamingDataLoader(dataset))
        assert [list(batch) for batch in batches] == [['double', PADDING]] * 2
        assert batches[-1][PADDING].tolist() == [rank == 1]


def test_a_sample_that_it_refuses_is_a_bad_one(tmp_path):
    class Odd(StreamingDataset):
        def get_item(self, idx):
            sample = super().get_item(idx)
            if sample['id'] % 7 == 0:
                raise LookupError('no sevens')
            return {'id': sample['id']}

    remote = damage(write_texts(tmp_path / 'remote'))
    dataset = Odd(remote=str(remote), local=str(tmp_path / 'local'), batch_size=12, on_bad_sample='skip')
    loader = StreamingDataLoader(dataset)
    bad = BAD | set(range(0, 60, 7))
    for batch in loader:
        plan, number = loader.handed_out
        assert list(batch) == ['id', BAD_SAMPLE]
        assert batch[BAD_SAMPLE].tolist() == [i in bad for i in plan.ids(number).tolist()]


@pytest.mark.parametrize('workers', [0, 1])
def test_its_documents_are_packed(tmp_path, workers):
    class Tokenized(PackedDataset):
        def get_item(self, idx):
            return {'tokens': np.full(4, super().get_item(idx)['id'] + 1)}

    with MDSWriter(out=str(tmp_path), columns={'id': 'int'}) as writer:
        for number in range(8):
            writer.write({'id': number})
    packing = Packing(sequence_length=8, method='concatenate', sequences_per_epoch=4, lanes=1)
    dataset = Tokenized(local=str(tmp_path), packing=packing, batch_size=4, num_canonical_nodes=1)
    (batch,) = StreamingDataLoader(dataset, num_workers=workers)
    assert batch['input_ids'].tolist() == [[2 * i + 1] * 4 + [2 * i + 2] * 4 for i in range(4)]


def test_of_a_local_dataset(make_dataset):
    class Double(LocalDataset):
        def get_item(self, sample_id):
            return 2 * super().get_item(sample_id)['id']

    dataset = Double(str(make_dataset(samples=20)))
    assert (dataset[-1], dataset[:3], dataset.size) == (38, [0, 2, 4], 20)
    assert torch.cat(list(DataLoader(dataset, batch_size=5))).tolist() == [2 * i for i in range(20)]
