"""Ranks that come and go inside a run: each global batch is that of one rank, whichever ranks share it."""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MDSWriter, PositionTracker, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.dataset.reading.batch_reader import BatchKey
from headrace.dataset.workers.worker_pool import _PassKey
from headrace.errors import ResumeError, StreamError, TopologyError
from tests.support.orders.mixtures import LOADER_KINDS
from tests.support.packings.packed_streams import packed, write_streams
from tests.support.suite.example_counts import scaled

SIZE = 8
WORLDS = [(1, 1, 1), (2, 1, 1), (2, 2, 1), (4, 1, 1), (4, 2, 1), (8, 4, 1), (8, 2, 2), (2, 1, 2)]
"""Ranks, nodes and replication."""
UNEVEN = [*WORLDS, (3, 1, 1), (5, 1, 1), (6, 2, 1), (7, 1, 1)]

KINDS: dict[str, dict[str, Any]] = {
    **LOADER_KINDS,
    'py1s': {'shuffle_algo': 'py1s'},
    'pad': {'uneven': 'pad'},
    'ragged': {'uneven': 'ragged'},
    'packed': {},
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory, make_dataset_in):
    root = tmp_path_factory.mktemp('rescaled')
    make_dataset_in(root, 'a', 60, first=1)
    make_dataset_in(root, 'b', 42, first=1000)
    return write_streams(root)


def topology_of(world: tuple[int, int, int], rank: int) -> Topology:
    ranks, nodes, replication = world
    return Topology(rank=rank, world_size=ranks, num_nodes=nodes, replication=replication)


def loader_of(folders, kind: str, topology: Topology, *, workers: int = 0, **options: Any) -> StreamingDataLoader:
    if kind == 'packed':
        loader = packed(folders, batch=SIZE, lanes=8, sequences_per_epoch=24, num_workers=workers)
        loader.rescale(topology)
        return loader
    streams = [Stream(local=str(folders / 'a'), repeat=1.5), Stream(local=str(folders / 'b'))]
    size = {'global_batch_size': SIZE} if 'uneven' in KINDS[kind] else {'batch_size': SIZE // topology.replicas}
    dataset = StreamingDataset(streams=streams, shuffle=True, num_canonical_nodes=8, **size, **KINDS[kind])
    return StreamingDataLoader(dataset, num_workers=workers, topology=topology, **options)


def rows_of(loader: StreamingDataLoader, batch: Any) -> list[Any]:
    """Samples of a batch without padding; of a packed one, its tokens."""
    rows = batch['id'] if 'id' in batch else batch['input_ids']
    return rows[: loader.own_samples].tolist()


class OneRank:
    """Two epochs of one rank."""

    def __init__(self, make) -> None:
        loader = make(Topology())
        self.places, self.batches = [(0, 0)], []
        self.states, self.ends = [loader.state_dict()], []
        for _ in range(2):
            for batch in loader:
                self.batches.append(sorted(rows_of(loader, batch)))
                self.states.append(loader.state_dict())
                self.places.append(place_of(loader))
            self.ends.append(len(self.batches))


def place_of(loader: StreamingDataLoader) -> tuple[Any, Any]:
    state = loader.state_dict()
    return state['epoch'], state['sample_in_epoch']


class Ranks:
    """All ranks of a run, in this process, each in its pass."""

    def __init__(self, make, expected: OneRank, world: tuple[int, int, int]) -> None:
        self.make, self.expected = make, expected
        self.loaders = [make(topology_of(world, rank)) for rank in range(world[0])]
        self.passes: list[Any] = [iter(loader) for loader in self.loaders]
        self.at = 0  # global batches that were handed out

    def step(self) -> None:
        rows: list[Any] = []
        for rank, loader in enumerate(self.loaders):
            batch = next(self.passes[rank], None)
            if batch is None:
                assert self.at in (0, *self.expected.ends)
                self.passes[rank] = iter(loader)
                batch = next(self.passes[rank])
            if not rank % loader.dataset.topology.replication:
                rows += rows_of(loader, batch)
        assert sorted(rows) == self.expected.batches[self.at]
        self.at += 1
        assert {place_of(loader) for loader in self.loaders} == {self.expected.places[self.at]}

    def rescale(self, world: tuple[int, int, int], stay: list[int], position: Any, at: int) -> None:
        """Rescale to `world`, whose first ranks are those of `stay`, and go on with batch `at`."""
        self.loaders = [self.loaders[rank] for rank in stay]
        self.passes = [self.passes[rank] for rank in stay]
        for rank, loader in enumerate(self.loaders):
            loader.rescale(topology_of(world, rank), position)
        state = self.loaders[0].state_dict()
        for rank in range(len(stay), world[0]):
            joined = self.make(topology_of(world, rank))
            joined.load_state_dict(state)
            self.loaders.append(joined)
            self.passes.append(iter(joined))
        self.at = at


@functools.cache
def expected_of(folders, kind: str) -> OneRank:
    return OneRank(functools.partial(loader_of, folders, kind))


@settings(max_examples=scaled(16))
@given(st.sampled_from(list(KINDS)), st.data())
def test_each_batch_is_that_of_one_rank_in_any_sequence_of_worlds(folders, kind, data):
    expected = expected_of(folders, kind)
    worlds = st.sampled_from(UNEVEN if 'uneven' in KINDS[kind] else WORLDS)
    world = data.draw(worlds)
    ranks = Ranks(functools.partial(loader_of, folders, kind), expected, world)
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(0, 6))):
            if ranks.at < len(expected.batches):
                ranks.step()
        at, world = ranks.at, data.draw(worlds)
        stay = data.draw(st.permutations(range(len(ranks.loaders))))[: data.draw(st.integers(1, world[0]))]
        back = data.draw(st.integers(max(0, at - 3), at))  # before steps that failed
        in_epoch = [k for k in range(back, at) if expected.places[k][0] == expected.places[at][0]]
        how = data.draw(st.sampled_from(['here', 'state', 'samples']))
        if how == 'samples' and in_epoch:
            ranks.rescale(world, stay, expected.places[in_epoch[0]][1], in_epoch[0])
        elif how == 'state':
            ranks.rescale(world, stay, expected.states[back], back)
        else:
            ranks.rescale(world, stay, None, at)
    while ranks.at < len(expected.batches):
        ranks.step()


@pytest.mark.parametrize(
    ('context', 'persistent', 'kind'),
    [
        ('fork', False, 'native'),
        ('fork', True, 'lengths'),
        ('fork', False, 'packed'),
        pytest.param('spawn', False, 'native', marks=pytest.mark.slow),
        pytest.param('spawn', True, 'native', marks=pytest.mark.slow),
    ],
)
def test_workers_stay_and_what_they_have_read_for_another_world_is_dropped(folders, context, persistent, kind):
    def make(topology: Topology) -> StreamingDataLoader:
        options = {'multiprocessing_context': context, 'persistent_workers': persistent, 'prefetch_factor': 8}
        return loader_of(folders, kind, topology, workers=2, **({} if kind == 'packed' else options))

    def workers_of_now() -> set[multiprocessing.process.BaseProcess]:
        return set(multiprocessing.active_children()) - others

    expected = expected_of(folders, kind)
    others = set(multiprocessing.active_children())  # of a test before
    ranks = Ranks(make, expected, (2, 1, 1))
    ranks.step()
    ranks.step()
    workers = workers_of_now()
    ranks.rescale((2, 1, 1), [1, 0], None, 2)
    ranks.step()
    ranks.rescale((2, 2, 1), [0, 1], expected.states[1], 1)
    ranks.step()
    assert workers_of_now() == workers
    ranks.rescale((1, 1, 1), [1], None, 2)
    while ranks.at < len(expected.batches):
        ranks.step()
        assert persistent or workers_of_now() <= workers or ranks.at > expected.ends[0]
    if persistent:
        assert workers_of_now() <= workers


def test_workers_read_no_key_of_a_pass_that_is_over(folders):
    loader = loader_of(folders, 'native', Topology(), workers=1)
    batches = iter(loader)
    next(batches)
    pool = loader._worker_pool
    assert pool is not None
    key = BatchKey(0, 0, 1)
    assert len(pool._reader[_PassKey(1, key, None)].batch['id']) == SIZE
    loader.rescale(Topology(rank=1, world_size=4))
    assert next(batches)['id'].shape == (2,)
    assert pool._reader[_PassKey(1, key, None)] is None


def test_a_rescale_that_is_refused_changes_nothing(folders):
    expected = expected_of(folders, 'native')
    loader = loader_of(folders, 'native', Topology())
    batches = iter(loader)
    next(batches)
    before, foreign = loader.state_dict(), StreamingDataset(local=str(folders / 'a'), batch_size=SIZE)
    not_one: Any = 2
    for refused, error, message in [
        ((not_one,), TopologyError, 'StreamingDataset: the topology must be a Topology, got 2'),
        ((Topology(world_size=3),), TopologyError, '3 ranks must divide the global batch size'),
        ((Topology(), 10_000), ResumeError, 'must not exceed the epoch size'),
        ((Topology(), -1), ResumeError, 'sample_in_epoch must be at least 0'),
        ((Topology(), foreign.resume_state(0, 8, SIZE).to_dict()), ResumeError, 'epoch_size: 60 in the checkpoint'),
        ((Topology(), {}), ResumeError, 'epoch is missing'),
    ]:
        with pytest.raises(error, match=message):
            loader.rescale(*refused)
        assert (loader.state_dict(), loader.batch_size) == (before, SIZE)
    assert sorted(next(batches)['id'].tolist()) == expected.batches[1]


@pytest.mark.parametrize(('batch_size', 'streams'), [(1, 'of a row'), (2, 'of several devices')])
def test_streams_of_different_columns_do_not_come_to_share_a_batch(tmp_path, batch_size, streams):
    for name, columns in {'a': {'id': 'int'}, 'b': {'id': 'int', 'more': 'int'}}.items():
        with MDSWriter(out=str(tmp_path / name), columns=columns) as writer:
            for number in range(64):
                writer.write(dict.fromkeys(columns, number))
    dataset = StreamingDataset(
        streams=[Stream(local=str(tmp_path / name)) for name in 'ab'], shuffle=True, batch_size=batch_size,
        batching_method='random' if streams == 'of a row' else 'device_per_stream',
    )  # fmt: skip
    loader = StreamingDataLoader(dataset, topology=Topology(world_size=4))
    batches = iter(loader)
    next(batches)
    before, expected = (loader.state_dict(), dataset.topology, loader.batch_size), loader.plan().ids(1).tolist()
    with pytest.raises(StreamError, match='more'):
        loader.rescale(Topology(world_size=2))
    assert (loader.state_dict(), dataset.topology, loader.batch_size) == before
    assert len(expected) == len(next(batches)['id'])


def test_a_state_from_before_the_first_pass_moves_nothing(folders):
    loader = loader_of(folders, 'native', Topology())
    next(iter(loader))
    before = loader.state_dict()
    loader.rescale(Topology(world_size=2), {**before, 'epoch': -1})
    assert loader.state_dict() == before


@pytest.mark.parametrize('workers', [0, 1])
def test_a_pass_that_fails_between_two_worlds_is_over(folders, monkeypatch, workers):
    expected, loader = expected_of(folders, 'native'), loader_of(folders, 'native', Topology(), workers=workers)
    batches = iter(loader)
    next(batches)
    loader.rescale(Topology())
    with monkeypatch.context() as failing:
        failing.setattr(loader.dataset, 'take_growth', Mock(side_effect=RuntimeError('a rank is gone')))
        with pytest.raises(RuntimeError, match='a rank is gone'):
            next(batches)
    assert sorted(loader.peek()['id'].tolist()) == expected.batches[1]
    assert [sorted(batch['id'].tolist()) for batch in loader] == expected.batches[1 : expected.ends[0]]


def test_batches_of_mosaicmls_orders_that_depend_on_the_ranks_keep_their_ranks_in_an_epoch(folders):
    streams = [Stream(local=str(folders / name)) for name in 'ab']
    dataset = StreamingDataset(
        streams=streams, shuffle=True, shuffle_algo='py1s', batching_method='device_per_stream', batch_size=4
    )
    loader = StreamingDataLoader(dataset, topology=Topology(world_size=2))
    loader.rescale(Topology(rank=1, world_size=2))
    next(iter(loader))
    with pytest.raises(ResumeError, match='in the middle of an epoch'):
        loader.rescale(Topology())


def test_a_peek_is_of_the_new_world(folders):
    expected, loader = expected_of(folders, 'native'), loader_of(folders, 'native', Topology())
    assert sorted(loader.peek()['id'].tolist()) == expected.batches[0]
    loader.rescale(Topology(rank=1, world_size=2))
    peeked = loader.peek()
    assert peeked['id'].shape == (4,)
    assert next(iter(loader)) is peeked
    loader.rescale(Topology())
    assert sorted(loader.peek()['id'].tolist()) == expected.batches[1]
    loader.rescale(Topology())
    assert [sorted(batch['id'].tolist()) for batch in loader] == expected.batches[1 : expected.ends[0]]


@pytest.mark.parametrize('tracked', [False, True])
@pytest.mark.parametrize('saved', [False, True])
def test_a_new_process_group_that_is_detected_first_moves_nothing(folders, monkeypatch, tracked, saved):
    def detected(rank: int, ranks: int) -> None:
        for name, value in {'RANK': rank, 'WORLD_SIZE': ranks, 'LOCAL_RANK': rank, 'LOCAL_WORLD_SIZE': ranks}.items():
            monkeypatch.setenv(name, str(value))

    detected(2, 4)
    loader = StreamingDataLoader(StreamingDataset(local=str(folders / 'a'), batch_size=2))
    tracker = PositionTracker(loader)
    batches = tracker.follow(loader)
    for _ in range(3):
        next(batches)
        tracker.trained()

    def samples() -> set[Any]:
        return {loader.state_dict()['sample_in_epoch'], tracker.state_dict()['position']['sample_in_epoch']}

    detected(0, 2)
    assert not saved or samples() == {24}
    (tracker if tracked else loader).rescale(Topology(rank=0, world_size=2))
    assert samples() == {24}
    assert (loader.global_batch_size, next(batches)['id'].shape) == (8, (4,))


def test_a_pass_of_evaluation_that_was_left_begins_anew(folders):
    loader = loader_of(folders, 'exact', Topology(), fixed_epoch=1)
    whole = [batch['id'].tolist() for batch in loader]
    next(iter(loader))
    loader.rescale(Topology())
    assert [batch['id'].tolist() for batch in loader] == whole


def test_passes_of_evaluation_side_by_side_have_their_own_workers(folders):
    loader = loader_of(folders, 'native', Topology(), workers=1, fixed_epoch=0)
    first = iter(loader)
    found = [next(first)['id'].tolist()]
    whole = [batch['id'].tolist() for batch in loader]
    assert found + [batch['id'].tolist() for batch in first] == whole


def test_a_pass_of_evaluation_is_rescaled_and_ends(folders):
    whole = [batch['id'].tolist() for batch in loader_of(folders, 'exact', Topology(), fixed_epoch=1)]
    loader = loader_of(folders, 'exact', Topology(), fixed_epoch=1)
    for _ in range(2):
        found = []
        for batch in loader:
            found.append(batch['id'].tolist())
            loader.rescale(Topology())
        assert found == whole


def test_the_next_epoch_is_prefetched_for_the_new_world(folders):
    expected, loader = expected_of(folders, 'native'), loader_of(folders, 'native', Topology(), max_epochs=2)
    found, batches = [], iter(loader)
    while len(found) < expected.ends[0]:
        found.append(next(batches))
    loader.rescale(Topology(rank=0, world_size=2))
    assert next(batches, None) is None
    plan = loader.plan(1)
    assert [batch['id'].tolist() for batch in loader] == [
        [loader.dataset[one]['id'] for one in plan.ids(number).tolist()] for number in range(plan.num_batches)
    ]


def test_an_evaluation_stays_in_its_epoch(make_dataset):
    dataset = StreamingDataset(local=str(make_dataset()), batch_size=4, shuffle=True)
    loader = StreamingDataLoader(dataset, fixed_epoch=2)
    state, expected = loader.state_dict(), list(loader)
    batches = iter(loader)
    next(batches)
    loader.rescale(Topology(rank=0, world_size=1), position=state)
    assert all(torch.equal(a[key], b[key]) for a, b in zip(batches, expected, strict=True) for key in a)
