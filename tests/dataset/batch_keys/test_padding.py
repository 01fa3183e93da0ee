"""`remainder='exact'`: equal ranks, each sample counted once, and what only fills up is marked."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from headrace import PADDING, MDSWriter, StreamingDataLoader, StreamingDataset, Topology, without_padding
from headrace.errors import ConfigError
from headrace.testing.oracle import World, check_resume, walk
from tests.support.suite.example_counts import scaled


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp('padding') / 'data'
    with MDSWriter(out=str(path), columns={'id': 'int', 'row': 'ndarray:float32:4'}, size_limit=700) as writer:
        for number in range(120):
            writer.write({'id': number, 'row': np.full(4, number, np.float32)})
    return str(path)


class Tuples(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return sample['id'], {'row': sample['row']}


def loader_of(
    folder: str,
    topology: Topology,
    workers: int = 0,
    *,
    samples: int,
    batch: int,
    cls: Any = StreamingDataset,
    **options,
) -> StreamingDataLoader:
    dataset = cls(
        local=folder, epoch_size=samples, batch_size=batch, shuffle=True, num_canonical_nodes=2, remainder='exact'
    )
    return StreamingDataLoader(dataset, num_workers=workers, topology=topology, **options)


def world(ranks: int, nodes: int = 1, replication: int = 1) -> list[Topology]:
    return [Topology(rank=r, world_size=ranks, num_nodes=nodes, replication=replication) for r in range(ranks)]


def counted(loaders: list[StreamingDataLoader]) -> list[int]:
    """Ids of the rows that count, over one rank of each replica; checks the shape of every batch on the way."""
    ids: list[int] = []
    for batches in zip(*loaders, strict=True):
        assert len({len(batch['id']) for batch in batches}) == 1, 'ranks got unequal rows'
        for loader, batch in zip(loaders, batches, strict=True):
            padding = batch[PADDING]
            assert (padding.dtype, padding.shape) == (torch.bool, batch['id'].shape)
            assert len(padding) > 0
            assert padding.tolist() == sorted(padding.tolist()), 'padding comes last'
            assert loader.own_samples == len(padding) - int(padding.sum())
            if loader.dataset.topology.rank % loader.dataset.topology.replication == 0:
                ids += batch['id'][~padding].tolist()
    return ids


def test_two_samples_on_64_ranks_are_seen_once_each(folder: str) -> None:
    loaders = [loader_of(folder, t, samples=2, batch=4) for t in world(64, nodes=8)]
    assert [len(loader) for loader in loaders] == [1] * 64
    ids = counted(loaders)
    assert len(ids) == 2
    assert len(set(ids)) == 2
    assert set(ids) == {int(i) for i in loaders[0].dataset.order(0).at(np.arange(2))}


def test_the_oracle_sees_equal_ranks(folder: str) -> None:
    def make(topology: Topology, workers: int) -> StreamingDataLoader:
        return loader_of(folder, topology, workers, samples=2, batch=256 // topology.replicas)

    (step,) = walk(make, World(ranks=64, nodes=8, replication=2))
    assert (step.rows, len(step.ids), step.state['sample_in_epoch']) == (32, 2, 2)


@settings(max_examples=scaled(60))
@given(
    st.sampled_from([(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 2, 1), (6, 3, 2), (8, 2, 4), (16, 4, 1), (30, 5, 2)]),
    st.integers(1, 120),
    st.integers(1, 9),
    st.integers(0, 2),
)
def test_every_sample_counts_once_whatever_the_sizes(
    folder: str, shape: tuple[int, int, int], samples: int, batch: int, epoch: int
) -> None:
    loaders = [loader_of(folder, t, samples=samples, batch=batch, fixed_epoch=epoch) for t in world(*shape)]
    expected = loaders[0].dataset.order(epoch).at(np.arange(samples)).tolist()
    assert Counter(counted(loaders)) == Counter(expected)


@settings(max_examples=scaled(40))
@given(
    st.sampled_from([(1, 1, 1), (2, 1, 1), (4, 2, 1), (8, 2, 4)]),
    st.sampled_from([(1, 1, 1), (3, 3, 1), (6, 3, 2), (8, 2, 2)]),
    st.integers(1, 120),
    st.integers(0, 6),
)
def test_every_sample_counts_once_also_over_a_resume(
    folder: str, before: tuple[int, int, int], after: tuple[int, int, int], samples: int, done: int
) -> None:
    assume(done * 24 < samples)
    first = [loader_of(folder, t, samples=samples, batch=24 // t.replicas) for t in world(*before)]
    ids: list[int] = []
    for batches in itertools.islice(zip(*first, strict=True), done):
        for t, batch in zip(world(*before), batches, strict=True):
            ids += batch['id'][~batch[PADDING]].tolist() if t.rank % t.replication == 0 else []
    second = [loader_of(folder, t, samples=samples, batch=24 // t.replicas) for t in world(*after)]
    for loader in second:
        loader.load_state_dict(first[0].state_dict())
    ids += counted(second)
    assert Counter(ids) == Counter(first[0].dataset.order(0).at(np.arange(samples)).tolist())


@pytest.mark.parametrize('workers', [1, 3])
def test_workers_and_what_they_prefetch_make_no_difference(folder: str, workers: int) -> None:
    loaders = [loader_of(folder, t, workers, samples=50, batch=4, prefetch_factor=4) for t in world(3)]
    for _ in range(2):
        assert len(counted(loaders)) == 50


def test_every_state_resumes_exactly(folder: str) -> None:
    def make(topology: Topology, workers: int) -> StreamingDataLoader:
        return loader_of(folder, topology, workers, samples=50, batch=12 // topology.replicas)

    worlds = [World(ranks=1), World(ranks=4, nodes=2), World(ranks=6, replication=2), World(ranks=2, workers=1)]
    assert check_resume(make, worlds) == 10


def test_batches_that_are_no_dicts_are_not_changed(folder: str) -> None:
    loaders = [loader_of(folder, t, 2, samples=49, batch=3, cls=Tuples) for t in world(4)]
    ids: list[int] = []
    assert loaders[0].own_samples == 0
    for number, batches in enumerate(zip(*loaders, strict=True)):
        for loader, batch in zip(loaders, batches, strict=True):
            assert len(batch) == 2
            assert loader.own_samples == loader.plan(0).own_samples(number)
            own, inner = without_padding(batch, loader.own_samples)
            assert inner['row'][:, 0].tolist() == own.tolist()
            ids += own.tolist()
    assert len(ids) == len(set(ids)) == 49


def test_a_collate_function_may_return_a_dict(folder: str) -> None:
    loaders = [
        loader_of(folder, t, samples=7, batch=2, collate_fn=lambda rows: {'id': torch.tensor([r['id'] for r in rows])})
        for t in world(2)
    ]
    assert len(set(counted(loaders))) == 7


def test_the_mark_does_not_depend_on_sizes_or_ranks(folder: str) -> None:
    for topology, samples in ((Topology(), 8), (Topology(), 9), (Topology(world_size=2), 9)):
        for batch in loader_of(folder, topology, samples=samples, batch=4):
            assert list(batch) == ['id', 'row', PADDING]


def test_samples_of_a_plain_dataloader_are_marked(folder: str) -> None:
    ids: list[int] = []
    for topology in world(4):
        dataset = StreamingDataset(
            local=folder, epoch_size=13, batch_size=2, shuffle=True, remainder='exact', topology=topology
        )
        for batch in DataLoader(dataset, batch_size=2, num_workers=1):
            assert batch[PADDING].dtype is torch.bool
            ids += without_padding(batch)['id'].tolist()
    assert len(ids) == len(set(ids)) == 13


def test_a_mark_that_the_data_has_already_is_refused(tmp_path: Path, folder: str) -> None:
    with MDSWriter(out=str(tmp_path), columns={'id': 'int', PADDING: 'int'}) as writer:
        writer.write({'id': 0, PADDING: 1})
    with pytest.raises(ConfigError, match=f"marks padding .* '{PADDING}', but the data has a column"):
        StreamingDataset(local=str(tmp_path), batch_size=1, remainder='exact')
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1)
    with pytest.raises(ConfigError, match='Rename the column'):
        StreamingDataLoader(dataset, remainder='exact')
    loader = loader_of(folder, Topology(), samples=2, batch=2, collate_fn=lambda rows: {PADDING: 1})
    with pytest.raises(ConfigError, match='Rename the column'):
        next(iter(loader))


def test_contradictions_are_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"`drop_last=True` .* remainder 'exact'"):
        loader_of(folder, Topology(), samples=9, batch=2, drop_last=True)
    dataset = StreamingDataset(local=folder, batch_size=2, shuffle=True, shuffle_algo='py1e', remainder='exact')
    with pytest.raises(ConfigError, match="remainder 'exact' needs shuffle_algo 'native', got 'py1e'"):
        len(StreamingDataLoader(dataset))


def test_the_loaders_remainder_goes_before_the_datasets(folder: str) -> None:
    dataset = StreamingDataset(local=folder, epoch_size=9, batch_size=2, remainder='drop')
    assert len(StreamingDataLoader(dataset)) == 4
    assert len(StreamingDataLoader(dataset, remainder='exact')) == 5
    assert PADDING not in next(iter(StreamingDataLoader(dataset)))
