"""Marks of padding, of bad samples and of streams in batches, and rows of a batch of any structure."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from headrace import (
    BAD_SAMPLE,
    PADDING,
    STREAM,
    MDSWriter,
    StreamingDataLoader,
    StreamingDataset,
    Topology,
    without_padding,
)
from headrace.dataset.batch_keys import is_bad_sample, marked
from headrace.errors import (
    AccessDeniedError,
    CacheError,
    ChecksumError,
    ConfigError,
    DiskFullError,
    ObjectNotFoundError,
    ShardError,
    StorageError,
    TransferError,
)
from headrace.mixing import build_loader, load_config
from headrace.storage.stores.local import LocalStore
from headrace.testing.oracle import World, check_resume, walk
from tests.support.datasets.bad_data import (
    BAD,
    SINGLE,
    Own,
    checked,
    damage,
    make,
    write_texts,
)
from tests.support.orders.counted_streams import counted_dataset, stream_of
from tests.support.suite.example_counts import scaled

pytestmark = pytest.mark.usefixtures('no_pauses')


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
    with pytest.raises(ConfigError, match=f"mark padding .* '{PADDING}', but the data has a column"):
        StreamingDataset(local=str(tmp_path), batch_size=1, remainder='exact')
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1)
    with pytest.raises(ConfigError, match='Rename the column'):
        StreamingDataLoader(dataset, remainder='exact')
    loader = loader_of(folder, Topology(), samples=2, batch=2, collate_fn=lambda rows: {PADDING: 1})
    with pytest.raises(ConfigError, match='Rename the column'):
        next(iter(loader))


def test_contradictions_are_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match='`remainder: exact` and `drop_last: true` exclude each other'):
        loader_of(folder, Topology(), samples=9, batch=2, drop_last=True)
    with pytest.raises(ConfigError, match="Remainder 'exact' needs shuffle_algo 'native', got 'py1e'"):
        StreamingDataset(local=folder, batch_size=2, shuffle=True, shuffle_algo='py1e', remainder='exact')


def test_the_loaders_remainder_goes_before_the_datasets(folder: str) -> None:
    dataset = StreamingDataset(local=folder, epoch_size=9, batch_size=2, remainder='drop')
    assert len(StreamingDataLoader(dataset)) == 4
    assert len(StreamingDataLoader(dataset, remainder='exact')) == 5
    assert PADDING not in next(iter(StreamingDataLoader(dataset)))


def test_by_default_the_error_is_raised_and_nothing_is_marked(damaged_remote, tmp_path):
    with pytest.raises((ChecksumError, ShardError, ObjectNotFoundError)):
        list(make(damaged_remote, tmp_path / 'bad', on_bad_sample='raise'))
    good = make(write_texts(tmp_path / 'good'), tmp_path / 'local', on_bad_sample='raise')
    assert all(list(batch) == ['id', 'text'] for batch in good)
    assert (good.stats().bad_samples, good.own_bad_rows.tolist()) == (0, [False] * 12)


def test_a_sample_that_is_asked_for_by_itself_raises(damaged_remote, tmp_path):
    loader = make(damaged_remote, tmp_path)
    list(loader)
    for sample_id, error in ((10, ShardError), (30, ObjectNotFoundError), (40, ChecksumError), (SINGLE, ShardError)):
        with pytest.raises(error):
            loader.dataset[sample_id]


def test_a_sample_that_is_asked_for_by_itself_is_tried_anew(tmp_path):
    damaged_remote = damage(write_texts(tmp_path / 'remote'))
    loader = make(damaged_remote, tmp_path / 'local')
    list(loader)
    write_texts(damaged_remote)
    assert loader.dataset[30]['id'] == 30


OUTAGES = [TransferError, AccessDeniedError, DiskFullError, CacheError, MemoryError]


@pytest.mark.parametrize('error', [*OUTAGES, RuntimeError, OSError])  # the last as a store's client may raise them
@pytest.mark.parametrize('workers', [0, 1])
def test_an_outage_raises(damaged_remote, tmp_path, monkeypatch, error, workers):
    get = LocalStore.get

    def failing(self, key, *args, **kwargs):
        if key.endswith('00002.mds'):
            raise error('out of order')
        return get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, 'get', failing)
    monkeypatch.setattr('headrace.storage.transfer.retry.time.sleep', lambda seconds: None)
    for cls in (StreamingDataset, Own):
        loader = make(damaged_remote, tmp_path / cls.__name__, workers=workers, cls=cls, download_retry=0)
        with pytest.raises(StorageError if error is RuntimeError else error, match='out of order'):
            list(loader)


def test_an_error_of_a_users_that_hides_an_outage_is_one():
    def raised(cause: Exception, *, explicitly: bool) -> Exception:
        try:
            try:
                raise cause
            except Exception as error:
                raise RuntimeError('no sample') from (error if explicitly else None)
        except RuntimeError as error:
            return error

    for outage in OUTAGES:
        assert not is_bad_sample(raised(outage('down'), explicitly=True), from_user=True)
        assert is_bad_sample(raised(outage('down'), explicitly=False), from_user=True)  # it says so
    assert is_bad_sample(raised(ShardError('bad'), explicitly=True), from_user=True)
    assert not is_bad_sample(raised(ShardError('bad'), explicitly=True))
    assert not is_bad_sample(ConfigError('sample_rng'), from_user=True)


def test_where_nothing_can_be_read_the_error_is_raised(tmp_path):
    damaged_remote = write_texts(tmp_path / 'remote')
    for path in damaged_remote.glob('*.mds'):
        path.unlink()
    for cls in (StreamingDataset, Own):
        with pytest.raises(ObjectNotFoundError, match=r'shard\.0000'):
            next(iter(make(damaged_remote, tmp_path / cls.__name__, cls=cls)))
        with pytest.raises(ObjectNotFoundError, match=r'shard\.0000'):
            next(iter(make(damaged_remote, tmp_path / cls.__name__, cls=cls).dataset))


def test_other_values_and_a_column_of_that_name_are_refused(tmp_path):
    folder = write_texts(tmp_path / 'a')
    for value in ('ignore', None, True):
        with pytest.raises(ConfigError, match=rf"`on_bad_sample` must be 'raise' or 'skip', but is {value!r}"):
            StreamingDataset(local=str(folder), on_bad_sample=value)
    with MDSWriter(out=str(tmp_path / 'b'), columns={BAD_SAMPLE: 'int'}) as writer:
        writer.write({BAD_SAMPLE: 1})
    with pytest.raises(ConfigError, match=f"under '{BAD_SAMPLE}', but the data has a column of that name. Rename"):
        StreamingDataset(local=str(tmp_path / 'b'), on_bad_sample='skip')
    assert StreamingDataset(local=str(tmp_path / 'b'))[0][BAD_SAMPLE] == 1


def test_a_file_says_it_too(damaged_remote, tmp_path):
    data = {'remote': str(damaged_remote), 'local': str(tmp_path), 'device_batch_size': 12, 'on_bad_sample': 'skip'}
    loader = build_loader(load_config({'train': data}).train, topology=Topology())
    assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(loader)) == len(BAD)
    with pytest.raises(ConfigError, match="train.on_bad_sample: got 'skp'; must be one of raise, skip; did you mean"):
        load_config({'train': {**data, 'on_bad_sample': 'skp'}})


class Pair(NamedTuple):
    inputs: torch.Tensor
    labels: Any


def test_padding_is_taken_out_of_any_batch() -> None:
    batch = {'x': torch.arange(3), 'text': ['a', 'b', 'c'], 'deep': {'y': np.arange(6).reshape(3, 2)}, 'n': 5}
    cut = without_padding(marked(batch, rows=3, own_samples=2))
    assert PADDING not in batch
    assert list(cut) == ['x', 'text', 'deep', 'n']
    assert cut['x'].tolist() == [0, 1]
    assert (cut['text'], cut['deep']['y'].shape, cut['n']) == (['a', 'b'], (2, 2), 5)
    pair = without_padding(Pair(torch.arange(2), [torch.arange(2), {'z': torch.arange(2)}]), 1)
    assert type(pair) is Pair
    assert pair.inputs.tolist() == [0]
    assert pair.labels[1]['z'].tolist() == [0]
    assert without_padding(torch.arange(4), 4).tolist() == [0, 1, 2, 3]
    assert without_padding({'x': torch.arange(1), PADDING: torch.tensor([True])})['x'].tolist() == []


def test_a_batch_whose_rows_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match='holds no mark'):
        without_padding({'x': torch.arange(3)})
    with pytest.raises(ConfigError, match=r'a row for each of its samples, 2 of which count, but it is \{packed'):
        without_padding({'packed': torch.zeros(2, 9), PADDING: torch.tensor([False, False, True])})
    with pytest.raises(ConfigError, match='a row for each of its samples'):
        without_padding((torch.arange(9), torch.arange(9)), 3)


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('remainder', ['repeat', 'exact'])
def test_a_batch_says_the_stream_of_each_row(counted_remote, workers, remainder):
    data = counted_dataset(counted_remote[0], batch_size=4, remainder=remainder)
    loader = StreamingDataLoader(data, num_workers=workers, mark_streams=True, topology=Topology(rank=1, world_size=4))
    for batch in loader:
        assert batch[STREAM].dtype == torch.int64
        assert batch[STREAM].tolist() == loader.own_streams.tolist()
        assert [data.streams[s].name for s in batch[STREAM].tolist()] == [stream_of(i) for i in batch['id'].tolist()]
        assert (PADDING in batch) == (remainder == 'exact')


def test_a_single_stream_is_number_0(make_dataset):
    loader = StreamingDataLoader(StreamingDataset(local=str(make_dataset()), batch_size=30), mark_streams=True)
    batches = list(loader)
    assert [batch[STREAM].tolist() for batch in batches] == [[0] * 30] * 3 + [[0] * 10]
    assert loader.stats().stream_samples == {'stream_0': 100}
    assert loader.mix() == {'stream_0': (100, 100.0)}


def test_a_column_with_the_name_of_the_mark_is_refused(tmp_path):
    from headrace import MDSWriter

    with MDSWriter(out=str(tmp_path), columns={STREAM: 'int'}) as writer:
        writer.write({STREAM: 1})
    data = StreamingDataset(local=str(tmp_path), batch_size=1)
    with pytest.raises(ConfigError, match='own_streams'):
        StreamingDataLoader(data, mark_streams=True)
    assert next(iter(StreamingDataLoader(data)))[STREAM].tolist() == [1]
