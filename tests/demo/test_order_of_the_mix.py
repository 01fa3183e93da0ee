"""The demo's own mix on the topologies that are promised: one order, and every state resumes on every other."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from examples.demo.settings import Settings
from examples.demo.shards import write_shards
from headrace import StreamingDataLoader, Topology
from headrace.mixing import build_loader, load_config
from headrace.testing.oracle import World, check_resume, walk

CONFIG = Path(__file__).parents[2] / 'configs' / 'demo.yaml'
WORLDS = [World(ranks=r, workers=w) for r, w in ((1, 0), (1, 2), (2, 0), (2, 1), (4, 2))]


@pytest.fixture(scope='module')
def make(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp('demo')
    write_shards(str(root / 'shards'), Settings())

    def loader(topology: Topology, workers: int) -> StreamingDataLoader:
        overrides = {'variables.root': str(root), 'train.loader.num_workers': workers}
        config = load_config(CONFIG, overrides=overrides)
        assert config.train is not None
        return build_loader(config.train, topology=topology)

    return loader


def test_the_first_three_global_batches_are_the_same_everywhere(make) -> None:
    first = {world: [step.ids for step in itertools.islice(walk(make, world), 3)] for world in WORLDS}
    for world, batches in first.items():
        assert batches == first[WORLDS[0]], world
        assert [len(batch) for batch in batches] == [32, 32, 32]


@pytest.mark.once
def test_states_of_two_epochs_resume_on_the_other_topologies(make) -> None:
    # Each state is restored on one of the others in turn, which read on for three batches: the first of them would
    # give a wrong position away.
    assert check_resume(make, [WORLDS[0], WORLDS[2]], epochs=2, every=12, horizon=3) == 16
    assert check_resume(make, [WORLDS[0], WORLDS[1], WORLDS[3], WORLDS[4]], epochs=2, every=48, horizon=3) == 4


@pytest.mark.slow
def test_a_state_after_every_batch_of_two_epochs_resumes(make) -> None:
    assert check_resume(make, [WORLDS[0], WORLDS[2]], epochs=2) == 192


@pytest.mark.slow
def test_states_with_workers_resume_on_the_other_topologies(make) -> None:
    assert check_resume(make, [WORLDS[0], WORLDS[1], WORLDS[3], WORLDS[4]], epochs=2, every=8, horizon=3) == 24
    assert check_resume(make, [WORLDS[4], WORLDS[0], WORLDS[3]], epochs=2, every=24) == 8
