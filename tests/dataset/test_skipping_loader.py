"""Ranges that a loader skips: over epochs, workers and resumptions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import yaml
from torch.utils.data import DataLoader

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, ResumeError
from headrace.mixing import build_loader, load_config, to_yaml
from headrace.testing.oracle import World, check_resume, walk

GLOBAL_BATCH, SIZE = 8, 50
# Epoch 0: batches 1 and 2, and a few samples; epoch 1: all; epoch 2: its first samples and its end.
SKIP = [['1ba', '3ba'], [30, 35], [50, 104], [140, 150]]
WORLDS = [World(), World(ranks=2, nodes=2), World(ranks=4, replication=2)]


def kept(skip: list[tuple[int, int]], epochs: int, start: int = 0) -> list[list[list[int]]]:
    """Slots of the run in batches of each epoch."""
    out: list[list[list[int]]] = []
    for epoch in range(epochs):
        slots = [s for s in range(SIZE * epoch, SIZE * (epoch + 1)) if not any(a <= s < b for a, b in skip)]
        slots = [s for s in slots if s >= start]
        out.append([slots[k : k + GLOBAL_BATCH] for k in range(0, len(slots), GLOBAL_BATCH)])
    return out


RANGES = [(8, 24), (30, 35), (50, 104), (140, 150)]


@pytest.fixture
def make(make_dataset):
    folder = str(make_dataset('data', SIZE))

    def make(topology: Topology, workers: int, **options: Any) -> StreamingDataLoader:
        defaults = {'shuffle': True, 'skip': SKIP, 'batch_size': GLOBAL_BATCH // topology.replicas}
        dataset = StreamingDataset(local=folder, **{**defaults, **options})
        return StreamingDataLoader(dataset, num_workers=workers, topology=topology)

    return make


def ids_of(make, skip: list[tuple[int, int]], epochs: int, start: int = 0) -> list[set[int]]:
    dataset = make(Topology(), 0, skip=()).dataset
    sequence = [int(i) for epoch in range(epochs) for i in dataset.order(epoch).at(np.arange(SIZE))]
    return [{sequence[slot] for slot in batch} for epoch in kept(skip, epochs, start) for batch in epoch]


@pytest.mark.parametrize('world', [*WORLDS, World(workers=2), World(ranks=2, workers=1)], ids=str)
def test_the_kept_batches_are_handed_out(make, world) -> None:
    # Four passes, of which the second is empty.
    steps = list(walk(make, world, epochs=4))
    assert [step.ids for step in steps] == ids_of(make, RANGES, 4)
    assert {step.epoch for step in steps} == {0, 2, 3}


def test_the_position_counts_skipped_samples(make) -> None:
    positions = [(step.state['epoch'], step.state['sample_in_epoch']) for step in walk(make, World(), epochs=3)]
    # Batch 0 ends where the first range begins, and stands behind it.
    assert positions == [(0, 24), (0, 37), (0, 45), (0, 50), (2, 12), (2, 20), (2, 28), (2, 36), (2, 50)]


def test_the_length_is_that_of_the_pass(make) -> None:
    loader = make(Topology(), 1)
    lengths: list[tuple[int, int]] = []
    for _ in range(4):
        before = len(loader)
        lengths.append((before, sum(1 for _ in loader)))
    assert lengths == [(4, 4), (0, 0), (5, 5), (7, 7)]
    batches = iter(loader)
    next(batches)
    assert len(loader) == 7
    del batches
    for state, length in (((0, 24), 4), ((2, 12), 5)):
        loader.load_state_dict(loader.dataset.resume_state(*state).to_dict())
        assert len(loader) == length


def test_every_state_resumes_exactly_on_other_worlds(make) -> None:
    def without_the_empty_epoch(topology: Topology, workers: int) -> StreamingDataLoader:
        return make(topology, workers, skip=[*SKIP[:2], [55, 104], *SKIP[3:]])

    assert check_resume(without_the_empty_epoch, WORLDS, epochs=3) == 10
    workers = [World(workers=2), World(ranks=2, workers=1)]
    assert check_resume(without_the_empty_epoch, workers, epochs=3, every=4, horizon=5) == 3


def test_a_state_at_the_end_passes_over_a_skipped_epoch(make) -> None:
    steps = list(walk(make, World(), epochs=1))
    rest = list(walk(make, World(ranks=2), epochs=1, state=steps[-1].state))
    # The state of epoch 0's end is the beginning of epoch 1, of which nothing is left: an empty pass.
    assert rest == []
    loaded = make(Topology(), 0)
    loaded.load_state_dict(loaded.dataset.resume_state(1, 0).to_dict())
    assert loaded.next_pass() == (2, 0)


@pytest.mark.parametrize(
    ('after', 'ranges'),
    [
        ([], []),
        ([[30, 60]], [(30, 60)]),
        ([['3ba', '5ba'], [44, 49]], [(24, 40), (44, 49)]),
        ([[0, 200]], [(0, 200)]),
    ],
    ids=str,
)
def test_ranges_may_change_at_any_state(make, after, ranges) -> None:
    def allowed(topology: Topology, workers: int) -> StreamingDataLoader:
        return make(topology, workers, skip=after, on_mixture_change='continue')

    for step in list(walk(make, World(), epochs=1))[:3]:
        expected = ids_of(make, ranges, 4, start=int(step.state['sample_in_epoch']))
        # The rest of epoch 0 may be skipped; the first pass is then that of epoch 1.
        got = [now.ids for now in walk(allowed, World(ranks=2), epochs=3, state=step.state)]
        assert got == expected[: len(got)]
        assert bool(got) == (after != [[0, 200]])


def test_the_configuration_has_the_ranges(make_dataset, tmp_path) -> None:
    path = tmp_path / 'mix.yaml'
    path.write_text(
        f'device_batch_size: 8\ntrain:\n  local: {make_dataset("data", SIZE)}\n  skip: [[1ba, 3ba], [30, 35sp]]\n'
    )
    config = load_config(path)
    assert config.train is not None
    assert config.train.skip == (('1ba', '3ba'), (30, '35sp'))
    assert load_config(yaml.safe_load(to_yaml(config))) == config
    ids = [i for batch in build_loader(config.train, topology=Topology()) for i in batch['id'].tolist()]
    assert ids == [*range(8), *range(24, 30), *range(35, 50)]
    assert load_config(path, overrides=['train.skip=[]']).train.skip == ()


def test_every_wrong_range_of_a_file_is_named(tmp_path) -> None:
    path = tmp_path / 'mix.yaml'
    path.write_text('device_batch_size: 8\ntrain:\n  local: /a\n  skip: [[1, 2], [5, 4], [1ep, 2ep], 7]\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert 'mix.yaml:4: train.skip[1]: got [5, 4]; must end after it begins' in lines[1]
    assert "train.skip[2]: got ['1ep', '2ep']; must have bounds that are numbers of samples" in lines[2]
    assert 'train.skip[3]: got 7; must be a pair [begin, end]' in lines[3]
    with pytest.raises(ConfigError, match="train.skip: got '1ba'; must be a list of ranges"):
        load_config(path, overrides=['train.skip=1ba'])


@pytest.mark.parametrize(
    ('after', 'brings_back'),
    [
        ([], r'is nothing now, which brings back \[30, 35\], \[50, 104\], \[140, 150\]'),
        (
            [[0, 33], [50, 104], [140, 150]],
            r'is \[0, 33\], \[50, 104\], \[140, 150\] now, which brings back \[33, 35\]',
        ),
        ([*SKIP[:2], ['6ba', '12ba'], [140, 150]], r'which brings back \[90, 104\]'),
    ],
)
def test_what_a_run_leaves_out_ahead_is_not_brought_back_by_mistake(make, after, brings_back) -> None:
    state = next(iter(walk(make, World(), epochs=1))).state
    assert state['sample_in_epoch'] == 24
    for workers in (0, 1):
        with pytest.raises(ResumeError, match=r'was \[30, 35\], \[50, 104\], \[140, 150\] from.*' + brings_back):
            make(Topology(), workers, skip=after).load_state_dict(state)
    loader = make(Topology(), 0, skip=after, on_mixture_change='continue')
    loader.load_state_dict(state)
    # From then on it is as if it had never been.
    later = next(iter(walk(lambda *_: loader, World(), epochs=1))).state
    make(Topology(), 0, skip=after).load_state_dict(later)


def test_more_may_be_skipped_and_past_ranges_may_be_removed(make) -> None:
    states = [step.state for step in walk(make, World(), epochs=3)]
    make(Topology(), 0, skip=[[0, 200]]).load_state_dict(states[0])
    make(Topology(), 0, skip=[*SKIP, [40, 45]]).load_state_dict(states[0])
    make(Topology(), 0, skip=SKIP[2:]).load_state_dict(states[3])
    assert (states[-1]['epoch'], states[-1]['sample_in_epoch']) == (2, 50)
    make(Topology(), 0, skip=()).load_state_dict(states[-1])
    # The state of a run's beginning holds the ranges that its first batches skip.
    begin = make(Topology(), 0).state_dict()
    with pytest.raises(ResumeError, match=r'was \[8, 24\], \[30, 35\]'):
        make(Topology(), 0, skip=()).load_state_dict(begin)


def test_batches_of_another_size_are_other_samples(make) -> None:
    """The same text, without the skipped ranges."""
    state = make(Topology(), 0, skip=[['3ba', '5ba']]).state_dict()
    with pytest.raises(ResumeError, match=r'was \[24, 40\].* is \[12, 20\] now, which brings back \[24, 40\]'):
        make(Topology(world_size=2), 0, skip=[['3ba', '5ba']], batch_size=2).load_state_dict(state)
    make(Topology(world_size=2), 0, skip=[['6ba', '10ba']], batch_size=2).load_state_dict(state)
    make(Topology(world_size=2), 0, skip=[[24, 40]], batch_size=2).load_state_dict(state)


def test_the_state_holds_skipped_ranges_for_any_remainder(make) -> None:
    """Dropped batches are not counted; the loader says that it drops them, and not the dataset."""

    def dropping(topology: Topology, workers: int) -> StreamingDataLoader:
        return StreamingDataLoader(make(topology, workers, skip=[['6ba', '7ba']]).dataset, drop_last=True)

    loader = dropping(Topology(), 0)
    state = loader.state_dict()
    assert json.loads(str(state['config']))['skip'] == [[50, 58]]
    assert loader.dataset.state_dict(0, True)['config'] != state['config']  # no loader has said so yet
    next(iter(loader))
    assert loader.dataset.state_dict(0, True)['config'] == state['config']
    dropping(Topology(), 0).load_state_dict(state)
    with pytest.raises(ResumeError, match=r'was \[50, 58\].* is \[48, 50\] now'):
        make(Topology(), 0, skip=[['6ba', '7ba']]).load_state_dict(state)


def test_a_dataset_alone_compares_what_it_knows_at_once_and_batches_at_the_first(make) -> None:
    state = make(Topology(), 0).state_dict()
    with pytest.raises(ResumeError, match='is nothing now'):
        make(Topology(), 0, skip=()).dataset.load_state_dict(state)
    dataset = make(Topology(), 0, skip=SKIP[:2]).dataset
    dataset.load_state_dict(state)
    for _ in range(2):  # it does not go away
        with pytest.raises(ResumeError, match=r'brings back \[50, 104\], \[140, 150\]'):
            next(iter(dataset))
    dataset = make(Topology(), 0).dataset
    dataset.load_state_dict(state)
    next(iter(dataset))


def batches_of(dataset: StreamingDataset) -> list[list[int]]:
    return [batch['id'].tolist() for batch in DataLoader(dataset, batch_size=GLOBAL_BATCH)]


def some_batches(dataset: StreamingDataset, number: int) -> int:
    """Read batches, and count their samples as a trainer does."""
    batches = iter(DataLoader(dataset, batch_size=GLOBAL_BATCH))
    return sum(len(next(batches)['id']) for _ in range(number))


@pytest.mark.parametrize('algorithm', ['native', 'py1e'])
def test_a_trainer_that_counts_what_it_had_resumes_behind_what_was_skipped(make, algorithm: str) -> None:
    """Composer saves the dataset of a plain DataLoader by the number of samples that it trained in the epoch."""

    def dataset(state: dict[str, Any] | None = None) -> StreamingDataset:
        made = make(Topology(), 0, shuffle_algo=algorithm, skip=[['1ba', '3ba'], ['4ba', '5ba']]).dataset
        if state is not None:
            made.load_state_dict(state)
        return made

    whole = batches_of(dataset())
    assert [len(batch) for batch in whole] == [8, 8, 8, 2]
    for first in range(5):
        count = some_batches(begun := dataset(), first)
        state = begun.state_dict(count, from_beginning=True)
        assert dataset(state).state_dict(count, from_beginning=True) == state
        assert batches_of(dataset(state)) == whole[first:]
        for second in range(4 - first):
            more = some_batches(begun := dataset(state), second)
            again = begun.state_dict(count + more, from_beginning=True)
            assert begun.state_dict(more, from_beginning=False) == again
            assert batches_of(dataset(again)) == whole[first + second :]


def test_a_trainer_counts_on_where_samples_are_no_longer_skipped(make) -> None:
    whole = batches_of(make(Topology(), 0, skip=()).dataset)
    count = some_batches(begun := make(Topology(), 0, skip=[['1ba', '3ba']]).dataset, 2)
    state = begun.state_dict(count, from_beginning=True)
    for number in (5, 6):
        dataset = make(Topology(), 0, skip=(), on_mixture_change='continue').dataset
        dataset.load_state_dict(state)
        count += some_batches(dataset, 1)
        state = dataset.state_dict(count, from_beginning=True)
        dataset.load_state_dict(state)
        assert batches_of(dataset) == whole[number:]
    assert dataset.state_dict(8, from_beginning=True)['sample_in_epoch'] == 8


def test_a_range_before_the_position_is_not_counted_at_a_resumption(make) -> None:
    """The run had these samples, before they were named."""
    count = some_batches(begun := make(Topology(), 0, skip=()).dataset, 3)
    state = begun.state_dict(count, from_beginning=True)
    for number in range(3):
        dataset = make(Topology(), 0, skip=[['0ba', '2ba'], ['5ba', '6ba']], on_mixture_change='continue').dataset
        dataset.load_state_dict(state)
        count += some_batches(dataset, 1)
        state = dataset.state_dict(count, from_beginning=True)
        assert state['sample_in_epoch'] == [32, 48, 50][number]
    assert count == 24 + 8 + 8 + 2


def test_a_state_of_a_version_without_skipped_ranges_resumes(make) -> None:
    state = make(Topology(), 0).state_dict()
    config = json.loads(str(state['config']))
    del config['skip']
    make(Topology(), 0, skip=()).load_state_dict({**state, 'config': json.dumps(config)})


@pytest.mark.parametrize('remainder', ['repeat', 'exact', 'drop'])
def test_ranges_after_a_change_of_the_epochs_size(make, remainder) -> None:
    """Sample 24 of epoch 1 is sample 74 of the run, and stays it; the rest is short enough to be padded twice."""
    state = make(Topology(), 0).dataset.resume_state(1, 24).to_dict()
    skip = [[82, 86], [94, 98], [100, 104], [115, 117]]
    options = {'epoch_size': 31, 'on_mixture_change': 'continue', 'remainder': remainder}

    def changed(topology: Topology, workers: int) -> StreamingDataLoader:
        return make(topology, workers, skip=skip, **options)

    plain = make(Topology(), 0, skip=(), **options)
    plain.load_state_dict(state)
    epoch, sample = plain.next_pass()
    assert (epoch, sample) == ((2, 0) if remainder == 'drop' else (1, 24))  # 7 samples are no batch
    order = [plain.dataset.order(1), plain.dataset.order(2), plain.dataset.order(3)]
    run = [int(order[0].at(np.array([p]))[0]) for p in range(24, 31)]
    run += [int(i) for later in order[1:] for i in later.at(np.arange(31))]
    # Of the run: 74 to 81 are the rest of epoch 1, 81 to 112 epoch 2, 112 to 143 epoch 3.
    epochs = [range(74, 81), range(81, 112), range(112, 143)]
    kept = [[s for s in of if not any(a <= s < b for a, b in skip)] for of in epochs]
    slots = [of[k : k + 8] for of in kept for k in range(0, len(of), 8)]
    expected = [{run[s - 74] for s in batch} for batch in slots if remainder != 'drop' or len(batch) == 8]
    for world in WORLDS[:2]:
        steps = list(walk(changed, world, epochs=2 if remainder == 'drop' else 3, state=state))
        assert [step.ids for step in steps] == expected  # the padding is the last sample again
