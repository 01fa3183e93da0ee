"""The loader: one sequence on every topology, and a position that survives."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, ResumeError, TopologyError
from headrace.testing.oracle import World, check_resume, walk
from tests.support.orders.mixtures import GLOBAL_BATCH

WORLDS = [
    World(ranks=1),
    World(ranks=1, workers=2),
    World(ranks=2),
    World(ranks=2, workers=1),
    World(ranks=4, workers=2),
    World(ranks=4, nodes=2),
    World(ranks=8, nodes=2, replication=2),
]


IN_PROCESS = [world for world in WORLDS if world.workers == 0]


def name_of(world: World) -> str:
    return f'{world.nodes}nodes-{world.ranks}ranks-{world.workers}workers-x{world.replication}'


@pytest.mark.parametrize('world', WORLDS[1:], ids=name_of)
def test_the_sequence_is_the_same_on_every_topology(mix, world):
    expected = list(walk(mix, World(), epochs=2))
    got = list(walk(mix, world, epochs=2))
    whole = slice(0, 150 // GLOBAL_BATCH)  # the last, smaller batch is padded where ranks would get unequal rows
    for epoch in range(2):
        was = [step.ids for step in expected if step.epoch == epoch]
        now = [step.ids for step in got if step.epoch == epoch]
        assert now[whole] == was[whole]
        assert now[-1] == was[-1]


def test_an_epoch_holds_each_sample_as_often_as_its_stream_says(mix):
    loader = mix(Topology(), 0)
    ids = [sample for batch in loader for sample in batch['id'].tolist()]
    assert len(ids) == 60 * 3 // 2 + 80 * 3 // 4
    counts = {sample: ids.count(sample) for sample in set(ids)}
    assert {counts.get(i, 0) for i in range(60)} == {1, 2}
    assert {counts.get(i, 0) for i in range(1000, 1080)} == {0, 1}


def test_streams_continue_in_the_next_epoch_where_they_stopped(mix):
    loader = mix(Topology(), 0)
    ids = [sample for _ in range(4) for batch in loader for sample in batch['id'].tolist()]
    assert {ids.count(i) for i in range(60)} == {6}
    assert {ids.count(i) for i in range(1000, 1080)} == {3}


def test_every_state_resumes_exactly_on_another_topology(mix):
    assert check_resume(mix, [World(), *IN_PROCESS[1:]]) == 2 * 19


def test_states_resume_exactly_with_workers(mix):
    worlds = [World(ranks=2, workers=1), World(ranks=1, workers=2), World(ranks=4, workers=2)]
    assert check_resume(mix, worlds, every=9, horizon=6) == 5


def test_ten_resumes_in_a_row_lose_and_repeat_nothing(mix):
    state, ids = None, []
    for leg, world in zip(range(10), itertools.cycle(IN_PROCESS)):
        steps = walk(mix, world, state=state, epochs=2)
        for step in itertools.islice(steps, 1 + leg % 3):
            ids.append(step.ids)
            state = step.state
    expected = [step.ids for step in walk(mix, World(), epochs=2)]
    assert ids == expected[: len(ids)]


@pytest.mark.parametrize('size', [4, 16, 20], ids='to-{}'.format)
def test_another_global_batch_cuts_the_rest_of_the_sequence_anew(mix, size):
    first = mix(Topology(), 0)
    ids = [batch['id'].tolist() for batch in itertools.islice(first, 5)]
    second = mix(Topology(), 0, batch=size)
    second.load_state_dict(first.state_dict())
    rest = [batch['id'].tolist() for batch in second]
    whole = [sample for batch in mix(Topology(), 0) for sample in batch['id'].tolist()]
    assert sum(ids, []) + sum(rest, []) == whole
    assert [len(batch) for batch in rest[:-1]] == [size] * (len(rest) - 1)


def test_nothing_happens_before_the_first_batch_is_asked_for(mix):
    loader = mix(Topology(), 0)
    before = loader.state_dict()
    iter(loader)
    iter(loader)
    assert loader.state_dict() == before
    assert before['epoch'] == 0
    assert before['sample_in_epoch'] == 0


def test_a_state_is_plain_and_has_fixed_keys(mix):
    loader = mix(Topology(), 0)
    before = loader.state_dict()
    next(iter(loader))
    after = loader.state_dict()
    assert list(before) == list(after)
    assert all(type(value) in (int, str) for value in after.values())
    torch.save(after, buffer := io.BytesIO())
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == after


def test_a_state_at_the_end_of_an_epoch_continues_with_the_next(mix):
    loader = mix(Topology(), 0)
    epochs = [[batch['id'].tolist() for batch in loader] for _ in range(2)]
    other, third = mix(Topology(), 0), mix(Topology(), 0)
    for _ in other:
        pass
    third.load_state_dict(other.state_dict())
    assert [batch['id'].tolist() for batch in third] == epochs[1]


def test_the_dataset_keeps_the_empty_pass_that_composer_wants(mix):
    loader = mix(Topology(), 0)
    for _ in loader:
        pass
    other = mix(Topology(), 0)
    other.dataset.load_state_dict(loader.dataset.state_dict(150, True))
    assert list(other) == []
    assert other.state_dict()['epoch'] == 0
    next(iter(other))
    assert other.state_dict()['epoch'] == 1


def test_drop_last_leaves_out_the_last_batch_and_still_ends_the_epoch(make_dataset):
    folder = make_dataset('d', 21)

    def make(topology: Topology, workers: int) -> StreamingDataLoader:
        dataset = StreamingDataset(local=str(folder), batch_size=4 // topology.replicas, shuffle=True)
        return StreamingDataLoader(dataset, num_workers=workers, drop_last=True, topology=topology)

    assert len(make(Topology(), 0)) == 5
    assert check_resume(make, [World(), World(ranks=2), World(ranks=4)], epochs=3) == 15


@pytest.mark.parametrize(('samples', 'ranks', 'rows'), [(2, 4, 1), (101, 2, 51), (5, 8, 1), (64, 4, 16)])
def test_ranks_get_equal_rows_and_every_sample(make_dataset, samples, ranks, rows):
    folder = make_dataset('d', samples)
    seen, lengths = set(), set()
    for rank in range(ranks):
        dataset = StreamingDataset(local=str(folder), batch_size=2, shuffle=True)
        loader = StreamingDataLoader(dataset, topology=Topology(rank=rank, world_size=ranks))
        ids = [sample for batch in loader for sample in batch['id'].tolist()]
        seen.update(ids)
        lengths.add((len(ids), len(loader)))
    assert seen == set(range(samples))
    assert {length for length, _ in lengths} == {rows}
    assert len(lengths) == 1


def test_an_overridden_getitem_is_used(make_dataset):
    class Doubled(StreamingDataset):
        def __getitem__(self, at):
            return super().__getitem__(at)['id'] * 2

    loader = StreamingDataLoader(Doubled(local=str(make_dataset('d', 20)), batch_size=5))
    assert torch.cat(list(loader)).tolist() == [2 * i for i in range(20)]


def test_the_position_does_not_depend_on_what_a_batch_looks_like(make_dataset):
    dataset = StreamingDataset(local=str(make_dataset('d', 20)), batch_size=5)
    loader = StreamingDataLoader(dataset, collate_fn=lambda rows: {'one': [1], 'n': len(rows)})
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    assert loader.state_dict()['sample_in_epoch'] == 15


def test_a_loader_made_anew_from_its_attributes_continues(make_dataset):
    # As Lightning does for overfit_batches and predict: every public attribute back into the constructor.
    loader = StreamingDataLoader(StreamingDataset(local=str(make_dataset('d', 40)), batch_size=4, shuffle=True))
    names = ['dataset', 'batch_size', 'num_workers', 'collate_fn', 'pin_memory', 'drop_last', 'timeout',
             'worker_init_fn', 'multiprocessing_context', 'generator', 'prefetch_factor', 'persistent_workers',
             'pin_memory_device']  # fmt: skip
    again = StreamingDataLoader(**{name: getattr(loader, name) for name in names}, sampler=None, batch_sampler=None)
    assert [b['id'].tolist() for b in again] == [b['id'].tolist() for b in StreamingDataLoader(
        StreamingDataset(local=str(make_dataset('e', 40)), batch_size=4, shuffle=True))]  # fmt: skip
    assert isinstance(again, DataLoader)


REFUSED = {
    'two batch sizes': (dict(batch_size=4), dict(batch_size=5), ConfigError, 'given twice with different values: 4'),
    'no batch size': ({}, {}, ConfigError, 'Please pass `batch_size` to StreamingDataset'),
    'shuffle': (dict(batch_size=4), dict(shuffle=True), ConfigError, 'The dataset decides the order'),
    'sampler': (dict(batch_size=4), dict(sampler=[1, 2]), ConfigError, 'The dataset decides the order'),
}


@pytest.mark.parametrize(('dataset', 'loader', 'error', 'message'), REFUSED.values(), ids=REFUSED.keys())
def test_bad_arguments_are_refused(make_dataset, dataset, loader, error, message):
    made = StreamingDataset(local=str(make_dataset()), **dataset)
    with pytest.raises(error, match=message):
        StreamingDataLoader(made, **loader)


def test_a_rank_count_that_does_not_divide_the_global_batch_is_refused(make_dataset):
    dataset = StreamingDataset(local=str(make_dataset()), batch_size=4)
    with pytest.raises(
        TopologyError, match='3 ranks must divide the global batch size, but it is 8.*6 and 9.*`uneven: pad`'
    ):
        dataset.plan(global_batch_size=8, topology=Topology(world_size=3))


def test_a_state_of_other_data_is_refused_with_both_named(make_dataset):
    one = StreamingDataLoader(StreamingDataset(local=str(make_dataset('a', 40)), batch_size=4, shuffle=True))
    two = StreamingDataLoader(StreamingDataset(local=str(make_dataset('b', 50)), batch_size=4, shuffle=True))
    with pytest.raises(ResumeError, match="'stream_0' samples: 50 in the checkpoint, 40 now"):
        one.load_state_dict(two.state_dict())


def test_a_state_supplies_the_seed_of_the_run(make_dataset):
    folder: Path = make_dataset()

    def make(**options: int) -> StreamingDataLoader:
        return StreamingDataLoader(StreamingDataset(local=str(folder), batch_size=4, shuffle=True, **options))

    one, two = make(shuffle_seed=1), make()
    state = one.state_dict()
    two.load_state_dict(state)
    assert [b['id'].tolist() for b in two] == [b['id'].tolist() for b in one]


@pytest.mark.parametrize('workers', [0, 1])
def test_a_fixed_epoch_is_given_in_every_pass_also_after_one_that_was_left(make_dataset, workers):
    dataset = StreamingDataset(local=str(make_dataset('a', 40)), batch_size=4, shuffle=True)
    expected = [batch['id'].tolist() for batch in StreamingDataLoader(dataset, topology=Topology())]
    loader = StreamingDataLoader(dataset, num_workers=workers, fixed_epoch=0)
    next(iter(loader))
    for _ in range(3):
        assert loader.next_pass() == (0, 0)
        assert [batch['id'].tolist() for batch in loader] == expected


SHARED = 'two loaders read the same one in turns'


@pytest.mark.parametrize('workers', [0, 2])
def test_loaders_of_one_dataset_in_turns_are_refused(make_dataset, workers: int):
    dataset = StreamingDataset(local=str(make_dataset('d', 48)), shuffle=True)
    first = StreamingDataLoader(dataset, 8, num_workers=workers)
    second = StreamingDataLoader(dataset, 8)
    both = zip(first, second, strict=True)
    next(both)
    with pytest.raises(ConfigError, match=SHARED):
        next(both)
    assert len(list(second)) == 6
    with pytest.raises(ConfigError, match=SHARED):
        next(iter(first))


def test_a_dataset_for_training_and_evaluation_is_refused(make_dataset):
    folder = str(make_dataset('d', 48))
    for first_epoch, second_epoch in ((None, 0), (0, None)):
        dataset = StreamingDataset(local=folder)
        first, second = (StreamingDataLoader(dataset, 8, fixed_epoch=e) for e in (first_epoch, second_epoch))
        next(iter(first))
        with pytest.raises(ConfigError, match=SHARED):
            next(iter(second))


def test_loaders_of_one_dataset_may_follow_each_other(make_dataset):
    folder = str(make_dataset('d', 48))
    whole = StreamingDataLoader(StreamingDataset(local=folder, shuffle=True), 8)
    epochs = [[batch['id'].tolist() for batch in whole] for _ in range(3)]
    dataset = StreamingDataset(local=folder, shuffle=True)
    for expected in epochs:
        loader = StreamingDataLoader(dataset, 8)
        assert [batch['id'].tolist() for batch in loader] == expected
    loader.load_state_dict(whole.state_dict() | {'epoch': 1, 'sample_in_epoch': 16})
    assert [batch['id'].tolist() for batch in loader] == epochs[1][2:]


def test_evaluations_of_one_dataset_may_take_turns(make_dataset):
    dataset = StreamingDataset(local=str(make_dataset('d', 48)), shuffle=True)
    first, second = (StreamingDataLoader(dataset, 8, fixed_epoch=0) for _ in range(2))
    for _ in range(2):
        assert all(torch.equal(a['id'], b['id']) for a, b in zip(first, second, strict=True))


def test_a_loader_is_in_no_reference_cycle(mix):
    # Or its workers end when the garbage collector pleases.
    loader = StreamingDataLoader(mix(Topology(), 0).dataset, num_workers=2, persistent_workers=True)
    next(iter(loader))
    gone = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_marks_are_in_memory_like_their_batch_whatever_the_default_device(make_dataset):
    dataset = StreamingDataset(local=str(make_dataset()), batch_size=4, on_bad_sample='skip')
    loader = StreamingDataLoader(dataset, remainder='exact', mark_streams=True)
    with torch.device('meta'):
        batch = next(iter(loader))
    assert {name: value.device.type for name, value in batch.items()} == dict.fromkeys(
        ['id', 'row', 'is_padding', 'stream_number', 'is_bad_sample'], 'cpu'
    )


@pytest.mark.parametrize(
    ('workers', 'world', 'options'),
    [
        (0, 1, {}),
        (0, 2, {'fixed_epoch': 1}),
        (2, 1, {'persistent_workers': True}),
        (2, 2, {}),
        pytest.param(0, 2, {}, marks=pytest.mark.slow),
        pytest.param(0, 1, {'fixed_epoch': 1}, marks=pytest.mark.slow),
        pytest.param(2, 1, {}, marks=pytest.mark.slow),
        pytest.param(2, 2, {'persistent_workers': True}, marks=pytest.mark.slow),
        pytest.param(2, 1, {'fixed_epoch': 1}, marks=pytest.mark.slow),
        pytest.param(2, 2, {'fixed_epoch': 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_peek_moves_nothing(make_dataset, workers, world, options):
    data, read = str(make_dataset('data', 22)), []

    class Counted(StreamingDataset):
        def get_item(self, sample_id, retry=7):
            if not workers:
                read.append(sample_id)
            return super().get_item(sample_id, retry)

    def loader():
        topology = Topology(rank=world - 1, world_size=world)
        dataset = Counted(local=data, shuffle=True, batch_size=4 // world, topology=topology)
        return StreamingDataLoader(dataset, num_workers=workers, **options)

    def walked(peeks):
        read.clear()
        made, seen = loader(), []
        for _ in range(3):
            for _ in range(peeks):
                before = made.state_dict(), made.next_pass(), len(made), made.own_samples
                batch = made.peek()
                assert (made.state_dict(), made.next_pass(), len(made), made.own_samples) == before
            for number, found in enumerate(made):
                assert number or not peeks or found is batch
                seen.append((found['id'].tolist(), made.state_dict(), made.handed_out[1]))
                if len(seen) == 8:  # in the second epoch
                    break
        resumed = loader()
        if peeks:
            resumed.peek()
        resumed.load_state_dict(seen[1][1])
        for _ in range(peeks):
            seen.append((resumed.peek()['id'].tolist(), resumed.state_dict()))
        rest = [found['id'].tolist() for found in resumed]
        assert not peeks or rest[0] == seen.pop()[0] == seen.pop()[0]
        return seen, rest, sorted(read)

    seen, rest, reads = walked(0)
    again, rest_again, reads_again = walked(2)
    assert (again, rest_again) == (seen, rest)
    if not workers:
        ahead = loader().peek()['id'].tolist()
        assert sorted([*reads, *ahead]) == sorted(reads_again)  # the peek before the state was loaded


def test_a_peek_during_a_pass_is_refused(make_dataset):
    loader = StreamingDataLoader(StreamingDataset(local=str(make_dataset('data', 8)), batch_size=4))
    for _ in loader:
        with pytest.raises(ConfigError, match='a pass is under way'):
            loader.peek()
    assert loader.peek()['id'].tolist() == [0, 1, 2, 3]


def test_a_loader_shows_what_its_next_iter_begins(make_dataset):
    loader = StreamingDataLoader(StreamingDataset(local=str(make_dataset('data', 8)), batch_size=4))
    loader.peek()
    assert 'next      iter begins at epoch 0, sample 0; peek() only looks there' in repr(loader)
    next(iter(loader))
    assert 'position  epoch 0, sample 4' in repr(loader)
    assert 'next      iter begins at epoch 1, sample 0' in repr(loader)


# A position belongs to the loader that reached it, and to no later pass.


@pytest.fixture
def numbers(tmp_path, make_dataset_in):
    folder = make_dataset_in(tmp_path, samples=64)

    def make(**how):
        return StreamingDataset(local=str(folder), batch_size=4, **how)

    return make


def place_of(loader):
    state = loader.state_dict()
    return state['epoch'], state['sample_in_epoch']


def test_a_loader_saves_the_place_of_its_own_next_pass_after_the_passes_of_others(numbers):
    dataset = numbers()
    other = StreamingDataLoader(dataset, fixed_epoch=3)
    batches = iter(other)
    next(batches), next(batches)
    batches.close()
    del other, batches
    gc.collect()
    trains = StreamingDataLoader(dataset)
    assert place_of(trains) == trains.next_pass()


def test_a_state_that_was_loaded_in_mid_pass_counts_more_than_the_old_pass(numbers):
    loader = StreamingDataLoader(numbers())
    begin, old = loader.state_dict(), iter(loader)
    next(old), next(old)
    loader.load_state_dict(begin)
    next(old)
    assert place_of(loader) == loader.next_pass() == (0, 0)


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_knows_the_state_that_was_loaded(numbers, copied):
    source = numbers(skip=[[8, 16]])
    list(itertools.islice(StreamingDataLoader(source), 3))
    dataset = numbers(skip=[[8, 16]])
    dataset.load_state_dict(source.state_dict(12))
    expected = None
    for one in (dataset, copied(dataset)):
        next(iter(StreamingDataLoader(one)))
        expected = expected or one.state_dict(20)['sample_in_epoch']
        assert one.state_dict(20)['sample_in_epoch'] == expected == 28


def test_a_pass_without_a_batch_that_was_looked_at_ends(make_dataset):
    loader = StreamingDataLoader(StreamingDataset(local=str(make_dataset()), batch_size=10, skip=[[0, 100]]))
    loader.peek()
    assert list(loader) == []
    assert loader.peek() is not None  # of the next epoch
