"""A call that raises has changed nothing: runs in which calls are refused have the batches and states of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MDSWriter, PositionTracker, Stream, StreamingDataLoader, StreamingDataset, Topology
from tests.support.datasets.growing import append
from tests.support.orders.mixtures import LOADER_KINDS
from tests.support.packings.packed_streams import packed, write_streams
from tests.support.suite.example_counts import scaled

SIZE = 12
KINDS: dict[str, dict[str, Any]] = {
    **LOADER_KINDS,
    'budget': {'cost': 'id', 'batch_cost': {'budget': 9000, 'multiple': 6}},
    'py1e': {'shuffle_algo': 'py1e'},
    'per_stream': {'batching_method': 'per_stream'},
    'uneven': {'uneven': 'pad'},
    'packed': {},
}
WORLDS = (1, 2, 3)


class Shared(NamedTuple):
    root: Path
    foreign: dict[str, Any]  # states of other runs


@pytest.fixture(scope='module')
def shared(tmp_path_factory: pytest.TempPathFactory, make_dataset_in: Any) -> Shared:
    root = tmp_path_factory.mktemp('refused')
    make_dataset_in(root, 'a', 60, first=1)
    make_dataset_in(root, 'b', 42, first=1000)
    write_streams(root)
    append(root / 'grown', 0, 40, append=False)
    smaller = loader_of(root / 'grown', seed=1).state_dict()  # before shards were appended
    append(root / 'grown', 40, 40)
    other = StreamingDataLoader(StreamingDataset(local=str(root / 'b'), batch_size=2, shuffle=True, shuffle_seed=99))
    return Shared(root, {'of other data': other.state_dict(), 'of fewer shards and another seed': smaller})


def loader_of(folder: Path, seed: int = 2) -> StreamingDataLoader:
    dataset = StreamingDataset(
        remote=str(folder), local=f'{folder}-cache', batch_size=4, shuffle=True, shuffle_seed=seed
    )
    return StreamingDataLoader(dataset)


def mixed(root: Path, kind: str, rank: int, world: int) -> StreamingDataLoader:
    topology = Topology(rank=rank, world_size=world)
    if kind == 'packed':
        return packed(root, rank=rank, ranks=world, batch=SIZE, lanes=SIZE, sequences_per_epoch=36)
    streams = [Stream(local=str(root / name), name=name, proportion=1) for name in 'ab']
    size = {'global_batch_size': SIZE} if 'uneven' in KINDS[kind] else {'batch_size': SIZE // world}
    dataset = StreamingDataset(
        streams=streams, epoch_size=144, shuffle=True, shuffle_seed=3, num_canonical_nodes=6, topology=topology,
        **size, **KINDS[kind],
    )  # fmt: skip
    return StreamingDataLoader(dataset)


class Rank:
    """A rank of a run, with the states that it had."""

    def __init__(self, loader: StreamingDataLoader, foreign: dict[str, Any]) -> None:
        self.loader, self.tracker, self.foreign = loader, PositionTracker(loader), foreign
        self.batches: Iterator[Any] = self.passes()
        self.states = [loader.state_dict()]

    def passes(self) -> Iterator[Any]:
        while True:
            yield from self.tracker.follow(self.loader)

    def step(self) -> Any:
        batch = next(self.batches)
        self.tracker.trained()
        self.states.append(self.loader.state_dict())
        rows = batch['id'] if 'id' in batch else batch['input_ids']
        return rows.tolist(), self.seen()

    def seen(self) -> Any:
        loader = self.loader
        return (
            loader.state_dict(),
            self.tracker.state_dict(),
            loader.dataset.topology,
            loader.batch_size,
            loader.dataset.num_samples,
            loader.dataset.run.decisions,
            loader.next_pass(),
        )


def changed(state: Any, **values: Any) -> Any:
    return {**state, **values}


CALLS: dict[str, Callable[[Rank], Any]] = {
    'rescale to ranks that do not divide': lambda rank: rank.loader.rescale(Topology(rank=4, world_size=101)),
    'rescale to no position': lambda rank: rank.loader.rescale(Topology(), 10**9),
    'rescale to a text': lambda rank: rank.loader.rescale(Topology(), {'epoch': 'x'}),
    'rescale to an early state': lambda rank: rank.loader.rescale(Topology(rank=1, world_size=101), rank.states[0]),
    'rescale to other data': lambda rank: rank.loader.rescale(Topology(), rank.foreign['of other data']),
    'load nothing': lambda rank: rank.loader.load_state_dict({}),
    'load other data': lambda rank: rank.loader.load_state_dict(rank.foreign['of other data']),
    'load a bad epoch': lambda rank: rank.loader.load_state_dict(changed(rank.states[-1], epoch=-2)),
    'load a bad position': lambda rank: rank.loader.load_state_dict(changed(rank.states[-1], sample_in_epoch=10**7)),
    'load another seed': lambda rank: rank.loader.load_state_dict(changed(rank.states[-1], shuffle_seed=77)),
    'dataset loads other data': lambda rank: rank.loader.dataset.load_state_dict(rank.foreign['of other data']),
    'dataset loads a list': lambda rank: rank.loader.dataset.load_state_dict([1]),
    'dataset state without samples': lambda rank: rank.loader.dataset.state_dict(),
    'proportions of some': lambda rank: rank.loader.set_proportions({'a': 1}, by='test'),
    'proportions below 0': lambda rank: rank.loader.set_proportions({'a': 1, 'b': -1}, by='test'),
    'proportions of 0': lambda rank: rank.loader.set_proportions({'a': 0, 'b': 0}, by='test'),
    'proportions by a number': lambda rank: rank.loader.set_proportions({'a': 1, 'b': 1}, by=3),  # type: ignore[arg-type]
    'peek in a pass': lambda rank: rank.loader.peek(),
    'plan of an epoch below 0': lambda rank: rank.loader.plan(-1),
    'plan of no position': lambda rank: rank.loader.dataset.plan(start=10**9),
    'no such sample': lambda rank: rank.loader.dataset[10**9],
    'weights of rows': lambda rank: rank.loader.own_loss_weights,
    'streams of another order': lambda rank: rank.loader.dataset.resample_streams(-1, 99),
    'another loader': lambda rank: StreamingDataLoader(
        rank.loader.dataset, batch_size=rank.loader.batch_size + 1, topology=Topology(rank=2, world_size=SIZE)
    ),
    'a loader with a sampler': lambda rank: StreamingDataLoader(
        rank.loader.dataset, sampler=[1], topology=Topology(rank=2, world_size=SIZE)
    ),
    'a loader that pads': lambda rank: StreamingDataLoader(
        rank.loader.dataset, pad={'none': 0}, topology=Topology(rank=2, world_size=SIZE)
    ),
    'a loader of bad workers': lambda rank: StreamingDataLoader(
        rank.loader.dataset, num_workers=-1, topology=Topology(rank=2, world_size=SIZE)
    ),
    'bind no topology': lambda rank: rank.loader.dataset.bind(None),  # type: ignore[arg-type]
    'tracker loads nothing': lambda rank: rank.tracker.load_state_dict({}),
    'tracker loads other data': lambda rank: rank.tracker.load_state_dict(rank.foreign['of other data']),
    'tracker loads other loaders': lambda rank: rank.tracker.load_state_dict(
        {'loaders': {'x': {'position': rank.states[0]}, 'y': {'position': rank.states[0]}}}
    ),
    'tracker rescales': lambda rank: rank.tracker.rescale(Topology(rank=7, world_size=101)),
    'tracker rescales to other data': lambda rank: rank.tracker.rescale(Topology(), rank.foreign['of other data']),
    'trained too many': lambda rank: rank.tracker.trained(10**6),
    'trained below 0': lambda rank: rank.tracker.trained(-1),
}

ANSWERED = {'py1e': {'load another seed', 'streams of another order'}, 'packed': {'another loader'}}
"""Calls that these kinds of runs do not refuse."""


@pytest.mark.timeout(7200)  # of 2,000 histories
@settings(max_examples=scaled(30, in_all=2000))
@given(st.sampled_from(list(KINDS)), st.sampled_from(WORLDS), st.data())
def test_a_refused_call_changes_neither_batches_nor_states(
    shared: Shared, kind: str, world: int, data: st.DataObject
) -> None:
    ranks = [Rank(mixed(shared.root, kind, rank, world), shared.foreign) for rank in range(world)]
    twins = [Rank(mixed(shared.root, kind, rank, world), shared.foreign) for rank in range(world)]
    calls = st.sampled_from(sorted({*CALLS} - ANSWERED.get(kind, set())))
    decides = kind in ('native', 'exact', 'stratified', 'uneven')
    for _ in range(data.draw(st.integers(2, 16))):
        assert [rank.step() for rank in ranks] == [twin.step() for twin in twins]
        if decides and data.draw(st.booleans()):
            shares = {'a': 1, 'b': data.draw(st.integers(0, 4))}
            for rank in (*ranks, *twins):
                rank.loader.set_proportions(shares, by='a test')
        for rank in ranks:
            for name in data.draw(st.lists(calls, max_size=4)):
                before = rank.seen()
                with pytest.raises(Exception):  # noqa: B017 - whichever
                    CALLS[name](rank)
                assert rank.seen() == before, name


def test_a_state_that_is_refused_does_not_change_the_generation_of_the_data(shared: Shared) -> None:
    loader = loader_of(shared.root / 'grown')
    assert loader.dataset.size == 80
    for load in (loader.load_state_dict, PositionTracker(loader).load_state_dict, loader.dataset.load_state_dict):
        with pytest.raises(ValueError, match='seed'):
            load(shared.foreign['of fewer shards and another seed'])
    assert loader.dataset.size == 80
    assert sorted(id_ for batch in loader for id_ in batch['id'].tolist()) == list(range(80))


def test_one_loader_of_several_that_refuses_leaves_all_where_they_were(tmp_path: Path) -> None:
    def made(batch: int) -> dict[str, StreamingDataLoader]:
        sizes = {'a': 12, 'b': batch}
        return {
            name: StreamingDataLoader(StreamingDataset(local=str(tmp_path / name), batch_size=size))
            for name, size in sizes.items()
        }

    for name in 'ab':
        with MDSWriter(out=str(tmp_path / name), columns={'id': 'int'}) as writer:
            for number in range(60):
                writer.write({'id': number})
    loaders = made(5)
    tracker = PositionTracker(loaders)
    list(zip(range(2), tracker.follow(zip(*loaders.values(), strict=False)), strict=False))
    tracker.trained(1)
    before = tracker.state_dict()
    bad = {**before, 'loaders': {**before['loaders']}}
    bad['loaders']['a'] = {**bad['loaders']['a'], 'position': tracker.loaders[0].dataset.resume_state(0, 48).to_dict()}
    bad['loaders']['b'] = {**bad['loaders']['b'], 'position': {**before['loaders']['b']['position'], 'epoch': -3}}
    for call in (lambda: tracker.load_state_dict(bad), lambda: tracker.rescale(Topology(world_size=4))):
        with pytest.raises(ValueError, match='epoch|divi'):
            call()
        assert tracker.state_dict() == before
        assert [loader.dataset.topology for loader in loaders.values()] == [Topology()] * 2
