"""Schedules, stratified batches, exhausted streams, changes at resume: as loaders give them out on any topology."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, ResumeError, StreamError, TopologyError
from headrace.testing.oracle import World, check_resume, walk
from tests.support.suite.example_counts import scaled

BATCH = 24
FIVE = {'a': 60, 'b': 90, 'c': 30, 'd': 45, 'e': 75}
WORLDS = [World(), World(ranks=2), World(ranks=4, nodes=2), World(ranks=6, nodes=3), World(ranks=8, replication=2),
          World(ranks=3), World(ranks=8, nodes=4), World(ranks=12, nodes=2)]  # fmt: skip
RAMP = [
    {'at': 0, 'proportions': {'a': 3, 'b': 1}},
    {'at': 400, 'proportions': {'a': 1, 'b': 1, 'c': 2}, 'change': 'linear'},
    {'at': 700, 'proportions': {'c': 1, 'd': 1, 'e': 2}},
]


@pytest.fixture(scope='module')
def folders(tmp_path_factory, make_dataset_in):
    """Five streams whose samples' ids say which stream they are of: 1000 for a, 2000 for b, …"""
    root = tmp_path_factory.mktemp('five')
    return {
        name: make_dataset_in(root, name, size, first=1000 * (i + 1)) for i, (name, size) in enumerate(FIVE.items())
    }


@pytest.fixture(scope='module')
def loaders(folders):
    """Makes a factory of loaders: of weights by stream name, or of the streams named, with options of the dataset."""

    def factory(weights: dict[str, dict], *, batch: int = BATCH, **options):
        def make(topology: Topology, workers: int) -> StreamingDataLoader:
            streams = [Stream(local=str(folders[name]), name=name, **weight) for name, weight in weights.items()]
            dataset = StreamingDataset(
                streams=streams,
                batch_size=batch // topology.replicas,
                **{'shuffle': True, 'num_canonical_nodes': 4, **options},
            )
            return StreamingDataLoader(dataset, num_workers=workers, topology=topology)

        return make

    return factory


def by_stream(ids) -> Counter[str]:
    return Counter('?abcde'[i // 1000] for i in ids)


KINDS = {
    'schedule': ({name: {} for name in FIVE}, {'schedule': RAMP, 'epoch_size': 500}),
    'schedule, stratified': (
        {name: {} for name in FIVE},
        {'schedule': RAMP, 'epoch_size': 500, 'batching_method': 'stratified'},
    ),
    'stratified': (
        {name: {'proportion': i + 1} for i, name in enumerate(FIVE)},
        {'batching_method': 'stratified', 'epoch_size': 500},
    ),
    'stratified, 9 nodes': (
        {name: {'proportion': i + 1} for i, name in enumerate(FIVE)},
        {'batching_method': 'stratified', 'epoch_size': 500, 'num_canonical_nodes': 9},
    ),
    'per_stream': (
        {name: {'proportion': i + 1} for i, name in enumerate(FIVE)},
        {'batching_method': 'per_stream', 'epoch_size': 500},
    ),
    'schedule, per_stream': (
        {name: {} for name in FIVE},
        {'schedule': RAMP, 'epoch_size': 500, 'batching_method': 'per_stream'},
    ),
    'fixed': (
        {name: {'repeat': 0.2 * i + 0.3} for i, name in enumerate(FIVE)},
        {'sampling_method': 'fixed', 'sampling_granularity': 4},
    ),
    'drop_stream': ({name: {'proportion': 1} for name in FIVE}, {'when_exhausted': 'drop_stream'}),
    'stop': ({name: {'proportion': 1} for name in FIVE}, {'when_exhausted': 'stop'}),
    'in stored order': ({name: {'repeat': 1.5} for name in FIVE}, {'shuffle': False, 'num_canonical_nodes': 1}),
}


@pytest.mark.once
@pytest.mark.parametrize('every', [23, pytest.param(1, marks=pytest.mark.slow)], ids=['each of a few', 'all'])
@pytest.mark.parametrize('kind', KINDS)
def test_states_of_three_epochs_resume_exactly_on_other_topologies(loaders, kind, every) -> None:
    weights, options = KINDS[kind]
    assert check_resume(loaders(weights, **options), WORLDS, epochs=3, every=every) > 20 // every


DEVICES = [World(ranks=4), World(ranks=2), World(), World(ranks=4, nodes=2), World(ranks=12, nodes=3),
           World(ranks=8, replication=2), World(ranks=8, nodes=2), World(ranks=2, workers=1)]  # fmt: skip
"""The topology that begins, with four device batches, and seven others."""


@pytest.mark.parametrize('options', [{}, {'schedule': RAMP}, {'when_exhausted': 'drop_stream'}], ids=str)
def test_a_run_whose_devices_batches_are_of_one_stream_resumes_exactly_on_seven_other_topologies(loaders, options):
    weights = {name: {} if options else {'proportion': i + 1} for i, name in enumerate(FIVE)}
    if 'when_exhausted' in options:
        weights = {name: {'proportion': 1} for name in FIVE}
    else:
        options = options | {'epoch_size': 500}
    make = loaders(weights, batching_method='device_per_stream', **options)
    assert check_resume(make, DEVICES, epochs=2, every=5, horizon=6) >= 5
    # Each rank's batch is of one stream, also of the last ones, which are padded.
    ranks = [make(Topology(rank=rank, world_size=4), 0) for rank in range(4)]
    for batches in zip(*ranks, strict=True):
        assert all(len(by_stream(batch['id'].tolist())) == 1 for batch in batches)


def test_fewer_ranks_than_device_batches_need_streams_of_the_same_columns(tmp_path) -> None:
    for name in 'xy':
        with MDSWriter(out=str(tmp_path / name), columns={name: 'int'}) as out:
            for number in range(96):
                out.write({name: number})

    def loader(ranks: int) -> StreamingDataLoader:
        streams = [Stream(local=str(tmp_path / name), name=name) for name in 'xy']
        dataset = StreamingDataset(streams=streams, batch_size=24 // ranks, batching_method='device_per_stream')
        return StreamingDataLoader(dataset, topology=Topology(world_size=ranks))

    first = loader(4)
    batches = iter(first)
    assert len(next(batches)) == 1
    state = first.state_dict()
    fewer = loader(2)
    fewer.load_state_dict(state)
    with pytest.raises(StreamError, match="'x' is in .*, and not in "):
        next(iter(fewer))


def test_other_ranks_than_divide_the_device_batches_are_refused(loaders) -> None:
    weights, options = KINDS['per_stream']
    make = loaders(weights, **options | {'batching_method': 'device_per_stream'})
    state = next(iter(walk(make, World(ranks=4)))).state
    with pytest.raises(TopologyError, match=r'the 4 device batches that the run began with.*got 3'):
        next(iter(walk(make, World(ranks=3), state=state)))


@pytest.mark.parametrize('kind', ['schedule, stratified', pytest.param('drop_stream', marks=pytest.mark.slow)])
def test_states_resume_exactly_with_workers(loaders, kind) -> None:
    weights, options = KINDS[kind]
    worlds = [World(ranks=2, workers=1), World(ranks=4, workers=2), World(ranks=1, workers=3)]
    check_resume(loaders(weights, **options), worlds, epochs=2, every=29)


def test_stratified_batches_hold_each_streams_share_within_one_sample(loaders) -> None:
    weights, options = KINDS['stratified']
    for step in walk(loaders(weights, **options), World(ranks=2), epochs=2):
        if step.rows == BATCH:
            counts = by_stream(step.ids)
            assert all(abs(counts[name] - (i + 1) / 15 * BATCH) <= 1 for i, name in enumerate(FIVE)), counts


def test_a_dropped_stream_leaves_an_epoch_that_has_every_sample_once(loaders) -> None:
    weights, options = KINDS['drop_stream']
    steps = list(walk(loaders(weights, **options), World(ranks=3)))
    assert sorted(itertools.chain.from_iterable(step.ids for step in steps)) == sorted(
        1000 * (i + 1) + k for i, size in enumerate(FIVE.values()) for k in range(size)
    )
    assert set(by_stream(steps[0].ids)) == set('abcde')
    assert set(by_stream(steps[-1].ids)) == {'b'}  # the largest


def test_an_epoch_stops_with_the_first_stream_that_is_exhausted(loaders) -> None:
    weights, options = KINDS['stop']
    steps = list(walk(loaders(weights, **options), World()))
    assert by_stream(itertools.chain.from_iterable(step.ids for step in steps)) == dict.fromkeys('abcde', 30)


def changed_run(loaders, before, after, worlds, *, at: int, batch: int = BATCH, **options):
    """A run that continues under another mixture after batch `at`, in a second world.

    A third world resumes from each of its states, and must give the same rest.
    """
    first = list(itertools.islice(walk(loaders(before, **options), worlds[0], epochs=2), at))
    make = loaders(after, batch=batch, on_mixture_change='continue', **options)
    rest = list(walk(make, worlds[1], epochs=2, state=first[-1].state))
    plain = loaders(after, batch=batch, **options)  # from here on nothing changes, so nothing has to be allowed
    for i in range(0, len(rest) - 1, 3):
        again = walk(plain, worlds[2], epochs=2, state=rest[i].state)
        for was, now in zip(rest[i + 1 :], again, strict=False):
            assert was.epoch == now.epoch
            if was.rows == now.rows == batch:  # the last one is padded to equal ranks
                assert was.ids == now.ids, f'resumed after batch {i} of the rest'
    return first, rest


@pytest.mark.parametrize('batching', ['random', 'stratified', 'per_stream'])
def test_weights_change_and_streams_come_and_go_at_a_resume_and_later_states_resume_elsewhere(loaders, batching):
    before = {'a': {'proportion': 2}, 'b': {'proportion': 1}, 'c': {'proportion': 1}}
    after = {'d': {'proportion': 1}, 'b': {'proportion': 3}, 'a': {'proportion': 1}}
    first, rest = changed_run(
        loaders, before, after, [WORLDS[1], WORLDS[2], WORLDS[3]], at=4, epoch_size=360, batching_method=batching
    )
    was = by_stream(itertools.chain.from_iterable(step.ids for step in first))
    now = Counter(i for step in rest for i in step.ids)
    assert was['c'] > 0
    assert was['d'] == 0
    assert by_stream(now.elements())['c'] == 0
    assert by_stream(now.elements())['b'] > 2 * by_stream(now.elements())['a']
    assert rest[0].epoch == first[-1].epoch


@pytest.mark.once
def test_five_streams_saved_on_8_ranks_continue_on_6_and_then_on_12(loaders) -> None:
    weights = {name: {'proportion': i + 1} for i, name in enumerate(FIVE)}
    make = loaders(weights, epoch_size=700)
    run = list(walk(make, World(ranks=8, nodes=2), epochs=3))
    first = list(itertools.islice(walk(make, World(ranks=8, workers=1, nodes=2), epochs=3), 17))
    second = list(itertools.islice(walk(make, World(ranks=6, nodes=2), epochs=3, state=first[-1].state), 21))
    third = list(walk(make, World(ranks=12, nodes=3), epochs=2, state=second[-1].state))
    played = [*first, *second, *third]
    whole = [step for step in run if step.rows == BATCH]  # the last ones are padded to equal ranks
    assert [step.ids for step in played if step.rows == BATCH] == [step.ids for step in whole][: len(played)]
    assert len(played) == len(run)


def test_a_change_that_was_not_asked_for_is_refused_with_both_values(loaders) -> None:
    state = next(iter(walk(loaders({'a': {'proportion': 1}, 'b': {'proportion': 1}}), World()))).state
    other = loaders({'a': {'proportion': 1}, 'b': {'proportion': 2}})(Topology(), 0)
    with pytest.raises(ResumeError, match=r"stream 'a' choose: 75 in the checkpoint, 50 now.*on_mixture_change"):
        other.load_state_dict(state)


def test_another_schedule_is_a_change_of_mixture(loaders) -> None:
    weights, options = KINDS['schedule']
    state = next(iter(walk(loaders(weights, **options), World()))).state
    other = {**options, 'schedule': RAMP[:2]}
    with pytest.raises(ResumeError, match=r"schedule: \[.*'at': 700.* in the checkpoint, .* now"):
        loaders(weights, **other)(Topology(), 0).load_state_dict(state)
    loaders(weights, **other, on_mixture_change='continue')(Topology(), 0).load_state_dict(state)


def test_a_stratified_run_keeps_its_global_batch_unless_it_may_change(loaders) -> None:
    weights, options = KINDS['stratified']
    first = list(itertools.islice(walk(loaders(weights, **options), World(), epochs=2), 5))
    with pytest.raises(ResumeError, match='global_batch_size: 24 in the checkpoint, 12 now'):
        loaders(weights, batch=12, **options)(Topology(), 0).load_state_dict(first[-1].state)
    make = loaders(weights, batch=12, **options, on_mixture_change='continue')
    rest = list(walk(make, World(ranks=2), state=first[-1].state))
    assert len(rest) == -(-(500 - 5 * 24) // 12)
    for step in rest[:-1]:
        counts = by_stream(step.ids)
        assert all(abs(counts[name] - (i + 1) / 15 * 12) <= 1 for i, name in enumerate(FIVE)), counts


def test_a_stratified_loader_that_would_change_its_batches_in_mid_run_is_refused(loaders) -> None:
    weights, options = KINDS['stratified']
    loader = loaders(weights, **options)(Topology(), 0)
    next(iter(loader))
    with pytest.raises(ConfigError, match='keeps its size during a run, which began with 24, but got 12'):
        loader.dataset.plan(epoch=0, start=24, global_batch_size=12)


MIXTURES = {
    'weights': st.lists(st.sampled_from([0.4, 1.0, 2.0]), min_size=5, max_size=5),
    'later': st.lists(st.sampled_from([0.5, 1.0, 1.5]), min_size=5, max_size=5),
    'ranks': st.permutations([1, 2, 3, 4, 6, 8, 12]),
    'at': st.integers(1, 12),
    'stratified': st.booleans(),
}


def change_a_random_mixture(loaders, weights, later, ranks, at, stratified) -> None:
    before, after = ({n: {'repeat': w} for n, w in zip(FIVE, ws, strict=True)} for ws in (weights, later))
    worlds = [World(ranks=n) for n in ranks[:3]]
    changed_run(loaders, before, after, worlds, at=at, batching_method='stratified' if stratified else 'random')


@pytest.mark.once
@settings(max_examples=scaled(3))
@given(**MIXTURES)
def test_a_few_random_mixtures_change_and_resume_exactly(loaders, **mixture) -> None:
    change_a_random_mixture(loaders, **mixture)


@pytest.mark.slow
@settings(max_examples=scaled(50))
@given(**MIXTURES)
def test_random_mixtures_change_and_resume_exactly(loaders, **mixture) -> None:
    change_a_random_mixture(loaders, **mixture)


def test_persistent_workers_follow_the_mixture_of_a_state_that_is_loaded_later(loaders) -> None:
    before, after = {'a': {'repeat': 1}, 'b': {'repeat': 1}}, {'a': {'repeat': 2}, 'b': {'repeat': 0.5}}
    state = list(itertools.islice(walk(loaders(before), World()), 3))[-1].state
    make = loaders(after, on_mixture_change='continue')
    expected = [step.ids for step in walk(make, World(), state=state)]
    dataset = make(Topology(), 0).dataset
    loader = StreamingDataLoader(dataset, num_workers=1, persistent_workers=True, topology=Topology())
    for _ in loader:
        pass
    loader.load_state_dict(state)
    assert [frozenset(batch['id'].tolist()) for batch in loader] == expected


@pytest.mark.parametrize('batch', [36, pytest.param(20, marks=pytest.mark.slow), 16])
def test_stratified_batches_of_another_size_hold_their_shares_from_the_change_on(loaders, batch) -> None:
    """Batches of the rest of the epoch begin where the change was, which is no multiple of their size."""
    weights, options = KINDS['stratified']
    first = list(itertools.islice(walk(loaders(weights, **options), World(), epochs=2), 5))
    make = loaders(weights, batch=batch, **options, on_mixture_change='continue')
    rest = list(walk(make, World(), state=first[-1].state))
    assert len(rest) == -(-(500 - 5 * BATCH) // batch)
    for step in rest[:-1]:
        counts = by_stream(step.ids)
        if sum(counts.values()) < batch:  # a sample is in it twice: the end of a pass, and the begin of the next
            continue
        assert all(abs(counts[name] - (i + 1) / 15 * batch) <= 1 for i, name in enumerate(FIVE)), counts


def test_each_stage_of_dropped_streams_is_stratified(loaders) -> None:
    weights, options = KINDS['drop_stream']
    steps = list(walk(loaders(weights, **options, batching_method='stratified', batch=12), World(ranks=3)))
    kinds = [by_stream(step.ids) for step in steps]
    for before, counts, after in zip(kinds, kinds[1:], kinds[2:], strict=False):
        if set(before) == set(counts) == set(after):  # within a stage
            assert max(counts.values()) - min(counts.values()) <= 1, counts
