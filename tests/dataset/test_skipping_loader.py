"""Ranges left out by a loader: over epochs, workers and resumptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError
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
        dataset = StreamingDataset(
            local=folder, batch_size=GLOBAL_BATCH // topology.replicas, **{'shuffle': True, 'skip': SKIP, **options}
        )
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


def test_the_position_counts_what_is_left_out(make) -> None:
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


def test_a_state_at_the_end_goes_over_an_epoch_that_is_left_out(make) -> None:
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
    def changed(topology: Topology, workers: int) -> StreamingDataLoader:
        return make(topology, workers, skip=after)

    for step in list(walk(make, World(), epochs=1))[:3]:
        expected = ids_of(make, ranges, 4, start=int(step.state['sample_in_epoch']))
        # What is left of epoch 0 may be left out, and the first pass that of epoch 1.
        got = [now.ids for now in walk(changed, World(ranks=2), epochs=3, state=step.state)]
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
