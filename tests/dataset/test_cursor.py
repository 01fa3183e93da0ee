"""The place that a loader has reached, and the epoch that its sampler is set to."""

from __future__ import annotations

import itertools
import pickle

from headrace import StreamingDataLoader, Topology


def test_what_was_loaded_is_what_the_next_state_says(mix):
    loader = mix(Topology(), 0)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    for _ in range(3):
        next(batches)
    loader.load_state_dict(state)
    assert loader.state_dict() == state


def test_the_sampler_takes_an_epoch_only_while_nothing_better_is_known(mix):
    loader = mix(Topology(), 0)
    epochs = [[batch['id'].tolist() for batch in loader] for _ in range(3)]
    fresh = mix(Topology(), 0)
    fresh.sampler.set_epoch(1)
    assert [batch['id'].tolist() for batch in fresh] == epochs[1]
    fresh.sampler.set_epoch(1)
    assert [batch['id'].tolist() for batch in fresh] == epochs[2]


def test_the_sampler_says_that_the_trainer_ended_an_epoch_at_its_own_limit(mix):
    def started() -> StreamingDataLoader:
        return mix(Topology(), 0)

    epochs = [[batch['id'].tolist() for batch in loader] for loader in [started()] for _ in range(4)]
    # The loader is an epoch ahead of a trainer that begins it anew within its own epoch.
    for ahead in (0, 1):
        loader = started()
        loader.sampler.set_epoch(0)
        for _ in range(ahead):
            list(loader)
        next(itertools.islice(loader, 2, None))
        state = loader.state_dict()
        for trainer_epoch, expected in ((0, epochs[ahead][3:]), (1, epochs[ahead + 1]), (2, epochs[ahead + 2])):
            resumed = started()
            resumed.load_state_dict(state)
            resumed.sampler.set_epoch(trainer_epoch)
            assert [batch['id'].tolist() for batch in resumed] == expected


def test_a_pickled_loader_knows_its_position(mix):
    loader = mix(Topology(), 0)
    next(itertools.islice(loader, 3, None))
    dataset = pickle.loads(pickle.dumps(loader.dataset))
    assert dataset.num_samples == 140
