"""Proportions that are set inside a run: resumes on other ranks and workers, and replays, have the same batches."""

from __future__ import annotations

import functools
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from headrace import PositionTracker, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, ResumeError
from tests.support.orders.mixtures import LOADER_KINDS
from tests.support.orders.order_cases import examples
from tests.support.packings.packed_streams import packed, write_streams

SIZE = 8
EPOCHS = 2
KINDS: dict[str, dict[str, Any]] = {
    **LOADER_KINDS,
    'budget': {'cost': 'id', 'batch_cost': {'budget': 9000, 'multiple': 4}},
    'per_stream': {'batching_method': 'per_stream'},
}
Decided = dict[int, dict[str, float]]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory, make_dataset_in: Any) -> Path:
    root = tmp_path_factory.mktemp('decided')
    make_dataset_in(root, 'a', 60, first=1)
    make_dataset_in(root, 'b', 42, first=1000)
    make_dataset_in(root, 'c', 30, first=2000)
    return root


def loader_of(
    folder: Path, kind: str, *, ranks: int = 1, rank: int = 0, workers: int = 0, **options: Any
) -> StreamingDataLoader:
    streams = [
        Stream(local=str(folder / name), name=name, proportion=weight)
        for name, weight in zip('abc', (2, 1, 1), strict=True)
    ]
    options = {'shuffle': True, 'num_canonical_nodes': 4, 'epoch_size': 101, **KINDS[kind], **options}
    dataset = StreamingDataset(streams=streams, batch_size=SIZE // ranks, **options)
    topology = Topology(rank=rank, world_size=ranks)
    return StreamingDataLoader(dataset, num_workers=workers, persistent_workers=workers > 0, topology=topology)


def play(loaders: list[StreamingDataLoader], decided: Decided, begin: int = 0, end: int = 10**9) -> list[list[int]]:
    """The global batches of ranks from a number on, up to an epoch's end, with decisions after so many batches."""
    found: list[list[int]] = []

    def decide() -> None:
        if begin + len(found) in decided:
            for loader in loaders:
                loader.set_proportions(decided[begin + len(found)], by='test')

    decide()
    while loaders[0].next_pass()[0] < EPOCHS and begin + len(found) < end:
        for batches in zip(*loaders, strict=True):
            rows = [loader.own_samples for loader in loaders]
            found.append(sorted(i for batch, n in zip(batches, rows, strict=True) for i in batch['id'][:n].tolist()))
            decide()
            if begin + len(found) == end:
                break
    return found


SHARES = st.fixed_dictionaries({name: st.sampled_from([0.0, 0.5, 1, 2.5]) for name in 'abc'}).filter(
    lambda shares: sum(shares.values()) > 0
)


@examples(0.2)
@given(st.sampled_from(list(KINDS)), st.dictionaries(st.integers(0, 30), SHARES, min_size=1, max_size=4), st.data())
def test_resumes_and_replays_on_other_ranks_have_the_batches_of_the_run(
    folder: Path, kind: str, decided: Decided, data: st.DataObject
) -> None:
    make = functools.partial(loader_of, folder, kind)
    whole, ranks = make(), data.draw(st.sampled_from([1, 2, 4]))
    expected = play([whole], decided)
    decisions = whole.dataset.run.decisions
    others = [make(ranks=ranks, rank=rank, decisions=whole.state_dict()) for rank in range(ranks)]
    assert play(others, {}) == expected
    assert others[0].dataset.run.decisions == decisions
    killed, at = make(), data.draw(st.integers(0, len(expected)))
    assert play([killed], decided, end=at) == expected[:at]
    state = killed.state_dict()
    resumed = [make(ranks=ranks, rank=rank) for rank in range(ranks)]
    for loader in resumed:
        loader.load_state_dict(state)
    rest = {number: shares for number, shares in decided.items() if number > at}
    assert play(resumed, rest, begin=at) == expected[at:]
    assert [one.at for one in resumed[0].dataset.run.decisions] == [one.at for one in decisions]


@pytest.mark.parametrize('kind', ['native', 'lengths'])
def test_workers_go_on_and_read_what_was_decided(folder: Path, kind: str) -> None:
    decided: Decided = {3: {'a': 0, 'b': 1, 'c': 1}, 5: {'a': 1, 'b': 0, 'c': 0}, 6: {'a': 1, 'b': 1, 'c': 1}}
    expected = play([loader_of(folder, kind)], decided)
    loader = loader_of(folder, kind, workers=2)
    processes: set[int] = set()
    found: list[list[int]] = []
    for _ in range(EPOCHS):
        for batch in loader:
            found.append(sorted(batch['id'].tolist()))
            pool = loader._worker_pool
            assert pool is not None
            processes |= {worker.pid for worker in getattr(pool._loader, '_iterator')._workers}  # noqa: B009
            if len(found) in decided:
                loader.set_proportions(decided[len(found)], by='test')
    assert found == expected
    assert len(processes) == 2


def test_a_run_that_is_set_back_decides_anew_in_the_same_workers(folder: Path) -> None:
    first: Decided = {3: {'a': 0, 'b': 1, 'c': 1}, 5: {'a': 1, 'b': 0, 'c': 0}}
    then: Decided = {3: first[3], 5: {'a': 0, 'b': 0, 'c': 1}, 7: {'a': 1, 'b': 1, 'c': 1}}
    expected = play([loader_of(folder, 'native')], then)
    loader = loader_of(folder, 'native', workers=2)
    assert play([loader], {}, end=2) == expected[:2]
    state = loader.state_dict()
    play([loader], first, begin=2, end=9)
    pool = loader._worker_pool
    loader.load_state_dict(state)
    assert play([loader], then, begin=2, end=8) == expected[2:8]
    assert loader._worker_pool is pool
    for rescale in (loader.rescale, PositionTracker(loader).rescale):
        rescale(Topology())
    assert play([loader], {}, begin=8) == expected[8:]
    assert loader._worker_pool is pool


def test_shares_are_those_that_were_decided(folder: Path) -> None:
    loader = loader_of(folder, 'native', epoch_size=400)
    passing = iter(loader)
    for _ in range(25):
        next(passing)
    before = loader.mix()
    decision = loader.set_proportions({'a': 1, 'b': 0, 'c': 3}, by='test')
    assert (decision.at, decision.by) == (200, 'test')
    for _ in range(25):
        next(passing)
    mix = loader.mix()
    assert {name: round(count.promised, 6) for name, count in mix.items()} == {'a': 150, 'b': 50, 'c': 200}
    assert {name: count.samples - before[name].samples for name, count in mix.items()} == {'a': 50, 'b': 0, 'c': 150}
    replayed = loader_of(folder, 'native', epoch_size=400, decisions=[decision])
    assert len(list(replayed)) == 50
    assert replayed.mix() == mix


def test_a_failed_step_before_a_decision_comes_again_with_the_proportions_of_then(folder: Path) -> None:
    loader = loader_of(folder, 'native')
    expected = play([loader_of(folder, 'native')], {4: {'a': 0, 'b': 0, 'c': 1}})
    tracker = PositionTracker(loader)
    found, passing = [], tracker.follow(loader)
    for _ in range(4):
        found.append(sorted(next(passing)['id'].tolist()))
        if len(found) == 2:
            tracker.trained()
    loader.set_proportions({'a': 0, 'b': 0, 'c': 1}, by='test')
    state = tracker.state_dict()
    assert state['position']['sample_in_epoch'] == 2 * SIZE
    resumed = loader_of(folder, 'native')
    resumed.load_state_dict(state['position'])
    assert play([resumed], {}, begin=2) == expected[2:]
    tracker.rescale(Topology(), state)
    again = [sorted(batch['id'].tolist()) for batch in passing]
    assert again == expected[2:13]


def test_a_batch_that_was_looked_at_is_read_anew(folder: Path) -> None:
    loader = loader_of(folder, 'native')
    loader.peek()
    loader.set_proportions({'a': 0, 'b': 0, 'c': 1}, by='test')
    assert next(iter(loader))['id'].min() >= 2000


def _decide(folder: Path, rank: int, asked: list[dict[str, float]], told: Any) -> None:
    dist.init_process_group('gloo', f'file://{folder}/rendezvous', rank=rank, world_size=2)
    loader = loader_of(folder, 'native', ranks=2, rank=rank)
    passing = iter(loader)
    next(passing)
    found: list[Any] = [rank]
    for shares in asked:
        try:
            found.append(loader.set_proportions(shares, by='test'))
        except ConfigError as error:
            found.append(str(error))
    found.append(next(passing)['id'].tolist())
    told.put(found)


def test_ranks_that_decide_differently_are_refused_on_each_and_go_on(folder: Path) -> None:
    agreed = {'a': 0.0, 'b': 0.0, 'c': 1.0}
    processes = multiprocessing.get_context('fork')
    told = processes.SimpleQueue()
    ranks = [
        processes.Process(target=_decide, args=(folder, rank, [{**agreed, 'a': float(rank)}, agreed], told))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    found = sorted(told.get() for _ in ranks)
    for process in ranks:
        process.join()
    for _, refusal, decision, batch in found:
        assert "but rank 0 decides {'a': 0.0, 'b': 0.0, 'c': 1.0} by 'test' at (0, 8), and rank 1 {'a': 1.0" in refusal
        assert decision == found[0][2]
        assert min(batch) >= 2000  # of stream c


def test_what_cannot_change_is_refused_and_nothing_has_changed(folder: Path, tmp_path: Path) -> None:
    loader = loader_of(folder, 'native')
    expected = play([loader_of(folder, 'native')], {})
    before = loader.state_dict()
    for shares in ({'a': 1, 'b': 1}, {'a': -1, 'b': 1, 'c': 1}, {'a': float('nan'), 'b': 1, 'c': 1}):
        with pytest.raises(ConfigError, match='proportions'):
            loader.set_proportions(shares, by='test')
    assert loader.state_dict() == before
    assert play([loader], {}) == expected
    alike = loader_of(folder, 'per_stream')
    with pytest.raises(ConfigError, match="takes only 2 samples of stream 'c'"):
        alike.set_proportions({'a': 1, 'b': 0, 'c': 0.02}, by='test')
    assert not alike.dataset.run.decisions
    lanes = packed(write_streams(tmp_path), batch=SIZE, lanes=8, sequences_per_epoch=24)
    with pytest.raises(ConfigError, match='with `packing`'):
        lanes.set_proportions({'a': 1}, by='test')
    evaluation = StreamingDataLoader(loader.dataset, fixed_epoch=0)
    with pytest.raises(ConfigError, match='evaluation'):
        evaluation.set_proportions({'a': 1, 'b': 1, 'c': 1}, by='test')
    with pytest.raises(ConfigError, match='decisions must be a list'):
        loader_of(folder, 'native', decisions='runs/a')
    other = loader_of(folder, 'native', shuffle_seed=5)
    other.set_proportions({'a': 1, 'b': 1, 'c': 1}, by='test')
    with pytest.raises(ResumeError, match='other streams, weights'):
        loader_of(folder, 'native').load_state_dict({**other.state_dict(), 'shuffle_seed': 9176})


def test_a_state_of_other_decisions_at_the_same_place_is_not_read_by_workers_of_before(folder: Path) -> None:
    loader = loader_of(folder, 'native', workers=2)
    shares: list[dict[str, float]] = [{'a': 1, 'b': 0, 'c': 0}, {'a': 0, 'b': 0, 'c': 1}]
    for decided in shares:
        killed = loader_of(folder, 'native')
        play([killed], {3: decided}, end=4)
        state = killed.state_dict()
        for one in (killed, loader):
            one.load_state_dict(state)
        assert play([loader], {}, begin=4, end=8) == play([killed], {}, begin=4, end=8)


@pytest.mark.parametrize('is_inside', [True, False])
def test_a_pass_that_is_left_ends_its_epoch_with_a_decision_as_without(folder: Path, is_inside: bool) -> None:
    loader = loader_of(folder, 'native')
    for number, _ in enumerate(loader):
        if number == 4:
            if is_inside:
                loader.set_proportions({'a': 1, 'b': 1, 'c': 1}, by='test')
            break
    state = loader.state_dict()
    assert (state['epoch'], state['sample_in_epoch']) == (0, 5 * SIZE)
    if not is_inside:
        assert loader.set_proportions({'a': 1, 'b': 1, 'c': 1}, by='test').at == 101
    assert loader.next_pass() == (1, 0)
    assert len(list(loader)) == 13


def test_a_decision_at_an_epochs_end_leaves_the_position_that_a_trainer_counts(folder: Path) -> None:
    loader = loader_of(folder, 'native')
    passing = iter(loader)
    for _ in range(13):
        next(passing)
    before = loader.dataset.state_dict(101)
    loader.set_proportions({'a': 1, 'b': 1, 'c': 1}, by='test')
    after = loader.dataset.state_dict(101)
    assert [before[key] for key in ('epoch', 'sample_in_epoch')] == [0, 101]
    assert [after[key] for key in ('epoch', 'sample_in_epoch')] == [0, 101]
    assert next(passing, None) is None
    assert loader.dataset.state_dict(0)['epoch'] == 1


@pytest.mark.parametrize('shares', [[1, 2, 3], None, {1: 1, 'b': 1}, {'a': 'x', 'b': 1, 'c': 1}, {'a': 10**400}])
def test_proportions_that_are_none_are_refused(folder: Path, shares: Any) -> None:
    with pytest.raises(ConfigError, match='proportions must map stream names to numbers, got'):
        loader_of(folder, 'native').set_proportions(shares, by='test')
