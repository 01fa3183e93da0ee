"""A `PositionTracker` resumes after the trained batches, whatever a loader has handed out."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from torch.distributed.checkpoint.stateful import Stateful

from headrace import MDSWriter, PositionTracker, StreamingDataLoader, StreamingDataset, Topology
from headrace.dataset.tracker import GlobalBatches
from headrace.errors import ConfigError, ResumeError, TopologyError

SAMPLES, BATCH = 40, 8  # 5 batches in an epoch


@pytest.fixture(scope='module')
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('shards')
    write(folder, SAMPLES)
    return folder


def write(folder: Path, samples: int) -> None:
    with MDSWriter(out=str(folder), columns={'id': 'int'}) as writer:
        for number in range(samples):
            writer.write({'id': number})


def loader_of(
    shards: Path, *, ranks: int = 1, rank: int = 0, batch: int = BATCH, **options: object
) -> StreamingDataLoader:
    topology = Topology(rank=rank, world_size=ranks)
    dataset = StreamingDataset(local=str(shards), shuffle=True, topology=topology, **options)  # type: ignore[arg-type]
    return StreamingDataLoader(dataset, batch // ranks)


def planned(loader: StreamingDataLoader, epochs: int) -> list[list[int]]:
    plans = [loader.plan(epoch) for epoch in range(epochs)]
    return [plan.ids(number).tolist() for plan in plans for number in range(plan.num_batches)]


def rest(shards: Path, state: dict[str, object], batches: int, **options: object) -> list[list[int]]:
    """The batches that a new run trains from a state on."""
    loader = loader_of(shards, **options)  # type: ignore[arg-type]
    tracker, found = PositionTracker(loader), list[list[int]]()
    tracker.load_state_dict(json.loads(json.dumps(state)))
    while len(found) < batches:
        for batch in islice(tracker.follow(loader), batches - len(found)):
            found.append(batch['id'].tolist())
            tracker.trained()
    return found


def test_it_is_stateful(shards: Path) -> None:
    assert isinstance(PositionTracker(loader_of(shards)), Stateful)


def test_every_state_of_a_run_continues_it(shards: Path) -> None:
    loader = loader_of(shards)
    tracker, whole = PositionTracker(loader), planned(loader, 3)
    states = [tracker.state_dict()]
    for _ in range(2):
        for _batch in tracker.follow(loader):
            tracker.trained()
            states.append(tracker.state_dict())
    assert [rest(shards, state, 3) for state in states] == [whole[k : k + 3] for k in range(11)]
    assert {state['position']['epoch'] for state in states} == {0, 1, 2}


def test_batches_without_a_step_come_again(shards: Path) -> None:
    """As with accumulated gradients: every second batch ends a step."""
    loader = loader_of(shards)
    tracker, whole = PositionTracker(loader), planned(loader, 1)
    for number, _ in enumerate(tracker.follow(loader), 1):
        assert rest(shards, tracker.state_dict(), 1)[0] == whole[(number - 1) // 2 * 2]
        if number % 2 == 0:
            tracker.trained()


def test_a_count_says_which_batches_are_trained(shards: Path) -> None:
    loader = loader_of(shards)
    tracker = PositionTracker(loader)
    for _ in islice(tracker.follow(loader), 4):
        pass
    tracker.trained(3)
    assert rest(shards, tracker.state_dict(), 2) == planned(loader, 1)[3:]


def test_a_pass_comes_again_if_nothing_of_it_was_trained(shards: Path) -> None:
    loader = loader_of(shards)
    tracker = PositionTracker(loader)
    for _ in islice(tracker.follow(loader), 2):
        pass
    again = [batch['id'].tolist() for batch in islice(tracker.follow(loader), 5)]
    tracker.trained()
    assert again == planned(loader, 1)
    after = [batch['id'].tolist() for batch in tracker.follow(loader)]
    assert after == planned(loader, 2)[5:]


def test_a_pass_that_the_trainer_ends_is_over(shards: Path) -> None:
    loader = loader_of(shards)
    tracker = PositionTracker(loader)
    for _ in islice(tracker.follow(loader), 2):
        pass
    tracker.trained(is_last=True)
    assert rest(shards, tracker.state_dict(), 5) == planned(loader, 2)[5:]


def test_other_ranks_continue(shards: Path) -> None:
    loaders = [loader_of(shards, ranks=4, rank=rank) for rank in range(4)]
    trackers = [PositionTracker(loader) for loader in loaders]
    for tracker, loader in zip(trackers, loaders, strict=True):
        for _ in islice(tracker.follow(loader), 3):
            tracker.trained()
    states = [tracker.state_dict() for tracker in trackers]
    assert all(state == states[0] for state in states)
    halves = [rest(shards, states[0], 2, ranks=2, rank=rank) for rank in range(2)]
    both = [sorted(sum(batch, [])) for batch in zip(*halves, strict=True)]
    assert both == [sorted(batch) for batch in planned(loader_of(shards), 1)[3:]]


def test_another_batch_size_continues_with_a_warning(shards: Path) -> None:
    loader = loader_of(shards)
    tracker = PositionTracker(loader)
    for _ in islice(tracker.follow(loader), 3):
        tracker.trained()
    with pytest.warns(UserWarning, match='global batch size was 8 .* is 4 now'):
        found = rest(shards, tracker.state_dict(), 4, batch=4)
    assert sum(found, []) == sum(planned(loader, 1)[3:], [])


def test_a_state_of_the_loader_loads(shards: Path) -> None:
    loader = loader_of(shards)
    for _ in islice(loader, 2):
        pass
    assert rest(shards, loader.state_dict(), 3) == planned(loader, 1)[2:]


def test_an_epoch_that_is_skipped_gives_one_empty_pass(shards: Path) -> None:
    loader = loader_of(shards, skip=[[0, SAMPLES]])
    tracker = PositionTracker(loader)
    passes = [[batch['id'].tolist() for batch in tracker.follow(loader)] for _ in range(2)]
    assert passes == [[], planned(loader_of(shards), 2)[5:]]


@pytest.mark.parametrize('mode', ['min_size', 'max_size', 'max_size_cycle'])
def test_several_loaders_make_one_pass(shards: Path, tmp_path: Path, mode: str) -> None:
    """Of 5 and 3 batches: the shorter ends the pass, stops or begins anew."""
    write(tmp_path / 'short', 24)

    def two() -> PositionTracker:
        loaders = {'long': loader_of(shards), 'short': loader_of(tmp_path / 'short')}
        return PositionTracker(loaders, mode)  # type: ignore[arg-type]

    tracker, found = two(), list[list[tuple[int, int]]]()
    tracker.begin()
    for _ in range(3 if mode == 'min_size' else 5):
        tracker.handed_out()
        tracker.trained()
        resumed = two()
        resumed.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
        found.append(resumed.next())
    middle = [[(0, 8), (0, 8)], [(0, 16), (0, 16)]]
    after = {
        'min_size': [[(1, 0), (1, 0)]],
        'max_size': [[(0, 24), (0, 24)], [(0, 32), (0, 24)], [(1, 0), (1, 0)]],
        'max_size_cycle': [[(0, 24), (0, 24)], [(0, 32), (1, 8)], [(1, 0), (2, 0)]],
    }
    assert found == middle + after[mode]


def test_it_refuses_counts_without_a_pass(shards: Path) -> None:
    tracker = PositionTracker(loader_of(shards))
    with pytest.raises(ConfigError, match='none has begun'):
        tracker.trained()
    with pytest.raises(ConfigError, match='none has begun'):
        tracker.handed_out()
    tracker.begin()
    tracker.handed_out()
    with pytest.raises(ConfigError, match='0 to 1, got 2'):
        tracker.trained(2)


def test_it_refuses_other_loaders(shards: Path) -> None:
    one, loaders = loader_of(shards), {'a': loader_of(shards), 'b': loader_of(shards)}
    with pytest.raises(ResumeError, match='taken with one training loader, but .* a, b'):
        PositionTracker(loaders).load_state_dict(PositionTracker(one).state_dict())


def test_it_refuses_loaders_that_share_a_position(shards: Path) -> None:
    first = loader_of(shards)
    with pytest.raises(ConfigError, match='some of a, b have the same StreamingDataset'):
        PositionTracker({'a': first, 'b': StreamingDataLoader(first.dataset, BATCH)})


def test_a_step_that_failed_comes_again_in_another_world(shards: Path) -> None:
    loader, found, handed_out = loader_of(shards), list[tuple[int, set[int]]](), 0
    tracker, expected = PositionTracker(loader), [set(batch) for batch in planned(loader, 4)]
    worlds = [Topology(rank=1, world_size=2), Topology(), Topology(rank=2, world_size=4)]
    while len(found) < len(expected):
        for batch in tracker.follow(loader):
            handed_out += 1
            if handed_out % 3:
                tracker.trained()
                found.append((loader.dataset.topology.replicas, set(batch['id'].tolist())))
            else:
                tracker.rescale(worlds[handed_out // 3 % 3])
    assert all(ids <= batch for (_, ids), batch in zip(found, expected, strict=True))
    assert [len(ids) * replicas for replicas, ids in found] == [BATCH] * len(expected)


def test_several_loaders_are_rescaled_together(shards: Path, tmp_path: Path) -> None:
    write(tmp_path / 'short', 24)
    loaders = {'long': loader_of(shards), 'short': loader_of(tmp_path / 'short')}
    expected = [planned(loader, 1) for loader in loaders.values()]
    tracker, passes = PositionTracker(loaders), [iter(loader) for loader in loaders.values()]
    tracker.begin()
    for step in range(3):
        found = [next(each)['id'].tolist() for each in passes]
        tracker.handed_out()
        assert found == [ids[min(step, 1)] for ids in expected]
        if step != 1:
            tracker.trained()
        else:
            with pytest.raises(TopologyError, match='3 ranks must divide'):
                tracker.rescale(Topology(world_size=3))
            tracker.rescale(Topology())
    other = StreamingDataLoader(StreamingDataset(local=str(tmp_path / 'short'), batch_size=6))
    loaders = {'long': loader_of(shards), 'short': other}
    with pytest.raises(TopologyError, match='4 ranks must divide the global batch size, but it is 6'):
        PositionTracker(loaders).rescale(Topology(world_size=4))
    assert (loaders['long'].batch_size, loaders['long'].dataset.topology) == (BATCH, Topology())
    with pytest.raises(ConfigError, match='makes the loaders of this tracker for its own ranks'):
        PositionTracker(GlobalBatches(loader_of(shards).dataset, BATCH, 'repeat')).rescale(Topology())
