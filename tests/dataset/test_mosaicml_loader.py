"""MosaicML Streaming's orders through real datasets and loaders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ResumeError
from tests.support.golden.resume import write_streams

SMALL = Path(__file__).parents[1] / 'testing' / 'golden_small' / 'order'
CASES = {case['id']: case['args'] for case in json.loads((SMALL / 'manifest.json').read_text())['cases']}
REAL = json.loads((SMALL / 'e2e.json').read_text())['cases']
NAMES = (
    'epoch_size', 'sampling_method', 'sampling_granularity', 'partition_algo', 'num_canonical_nodes', 'batch_size',
    'shuffle', 'shuffle_algo', 'shuffle_seed', 'shuffle_block_size', 'batching_method',
)  # fmt: skip
MOSAICML = {
    'epoch': 1, 'sample_in_epoch': 24, 'num_canonical_nodes': 2, 'shuffle_seed': 7, 'initial_physical_nodes': 2,
}  # fmt: skip


def loader_of(args, folders, rank=0, workers=0, **more):
    streams = [
        Stream(local=str(folder), **{k: v for k, v in stream.items() if k != 'shards' and v is not None})
        for folder, stream in zip(folders, args['streams'], strict=True)
    ]
    nodes, ranks = args['world']['num_nodes'], args['world']['ranks_per_node']
    topology = Topology(rank=rank, world_size=nodes * ranks, num_nodes=nodes, replication=args.get('replication') or 1)
    options = {name: args[name] for name in NAMES if name in args} | more
    return StreamingDataLoader(StreamingDataset(streams=streams, topology=topology, **options), num_workers=workers)


@pytest.mark.filterwarnings('ignore:Shuffle block size')
@pytest.mark.parametrize('real', REAL, ids=lambda real: real['id'])
def test_every_rank_gets_what_a_real_run_gave_it(real, tmp_path):
    args = CASES[real['id']]
    folders = write_streams(args['streams'], tmp_path)
    state = {
        'epoch': args['epoch'],
        'sample_in_epoch': args.get('sample_in_epoch', 0),
        'num_canonical_nodes': args['num_canonical_nodes'] or 0,
        'shuffle_seed': args['shuffle_seed'],
    }
    if args.get('initial_physical_nodes'):
        state['initial_physical_nodes'] = args['initial_physical_nodes']
    for rank, batches in enumerate(real['ranks']):
        loader = loader_of(args, folders, rank, workers=2 if rank == 0 else 0)
        if args['epoch'] or state['sample_in_epoch']:
            loader.load_state_dict(state)
        assert [batch['id'].tolist() for batch in loader] == batches
        if rank == 0:
            got, wanted = loader.state_dict(), dict(real['state_after_epoch'])
            if len({sum(map(len, of_rank)) for of_rank in real['ranks']}) > 1:
                # There each rank multiplies what it had itself by the number of ranks; here all say the same.
                wanted['sample_in_epoch'] = state['sample_in_epoch'] + sum(len(b) for r in real['ranks'] for b in r)
            assert {key: got[key] for key in wanted} == wanted


def ids_of(loader, batches=None):
    out = []
    for batch in loader:
        out.append(batch['id'].tolist())
        if batches is not None and len(out) == batches:
            break
    return out


def test_a_mosaicml_checkpoint_continues_as_py1e_and_its_states_are_ours(make_dataset):
    folder = str(make_dataset('data', 100))
    options = {'local': folder, 'shuffle': True, 'batch_size': 4, 'shuffle_block_size': 30}
    named = StreamingDataLoader(StreamingDataset(**options, shuffle_algo='py1e', num_canonical_nodes=2, shuffle_seed=7))
    ids_of(named)
    whole = ids_of(named)
    loader = StreamingDataLoader(StreamingDataset(**options))
    assert loader.dataset.order_config.algorithm == 'native'
    loader.load_state_dict(MOSAICML)
    assert loader.dataset.order_config.algorithm == 'py1e'
    assert ids_of(loader, 5) == whole[6:11]
    state = loader.state_dict()
    assert state.items() >= {**MOSAICML, 'sample_in_epoch': 44, 'headrace': 1}.items()
    assert json.loads(state['config'])['algorithm'] == 'py1e'
    again = StreamingDataLoader(StreamingDataset(**options))
    again.load_state_dict(state)
    assert ids_of(again) == whole[11:]
    assert again.state_dict()['sample_in_epoch'] == 100
    ended = StreamingDataLoader(StreamingDataset(**options))
    ended.load_state_dict(again.state_dict())
    assert ended.state_dict().items() >= {'epoch': 2, 'sample_in_epoch': 0}.items()  # a state of ours rolls over


def test_default_canonical_nodes_are_those_of_the_first_pass_and_stay(make_dataset):
    folder = str(make_dataset('data', 96))

    def loader(nodes, batch_size):
        dataset = StreamingDataset(local=folder, shuffle=True, shuffle_algo='py1e', batch_size=batch_size)
        return StreamingDataLoader(dataset, topology=Topology(world_size=nodes, num_nodes=nodes))

    first = loader(4, 2)
    assert first.dataset.num_canonical_nodes == 4
    first.dataset.bind(Topology(world_size=2, num_nodes=2))
    assert first.dataset.num_canonical_nodes == 2
    ids_of(first, 3)
    state = first.state_dict()
    assert (state['num_canonical_nodes'], state['initial_physical_nodes'], state['sample_in_epoch']) == (2, 2, 12)
    first.dataset.bind(Topology())
    assert first.dataset.num_canonical_nodes == 2
    second = loader(1, 4)
    second.load_state_dict(state)
    assert second.dataset.num_canonical_nodes == 2
    assert second.dataset.initial_nodes == 2
    whole = StreamingDataset(local=folder, shuffle=True, shuffle_algo='py1e', num_canonical_nodes=2, batch_size=4)
    assert ids_of(second) == ids_of(StreamingDataLoader(whole, topology=Topology()))[3:]


def test_a_plain_dataloader_yields_the_same_samples(make_dataset):
    from torch.utils.data import DataLoader

    folder = str(make_dataset('data', 50))
    options = {'local': folder, 'shuffle': True, 'shuffle_algo': 'py1br', 'shuffle_block_size': 20, 'batch_size': 5}
    ours = ids_of(StreamingDataLoader(StreamingDataset(**options)))
    for workers in (0, 2):
        plain = DataLoader(StreamingDataset(**options), batch_size=5, num_workers=workers)
        assert ids_of(plain) == ours


@pytest.mark.parametrize(
    'bounds', [[['5ba', '7ba'], ['27ba', '28ba']], [[66, 82], [303, 304]]], ids=['batches', 'samples']
)
def test_a_run_that_is_taken_over_leaves_out_a_loss_spike_on_any_topology(make_dataset, bounds):
    """From a checkpoint of MosaicML Streaming on; and from those after it."""
    folder = str(make_dataset('data', 100))
    taken = MOSAICML | {'epoch': 0}

    def ranks(count, nodes, skip):
        return [
            StreamingDataLoader(
                StreamingDataset(local=folder, shuffle=True, batch_size=12 // count, shuffle_block_size=30, skip=skip,
                                 topology=Topology(rank=rank, world_size=count, num_nodes=nodes))
            ) for rank in range(count)
        ]  # fmt: skip

    def steps(loaders, state, epochs=4):
        for loader in loaders:
            loader.load_state_dict(state)
        for _ in range(epochs):
            for batches in zip(*loaders, strict=True):
                states = [loader.state_dict() for loader in loaders]
                assert all(other == states[0] for other in states)
                yield sorted(sum((batch['id'].tolist() for batch in batches), [])), states[0]

    every = [ids for ids, _ in steps(ranks(4, 2, ()), taken)]
    # The checkpoint is at batch 2 of epoch 0, and an epoch has 9 batches: 5, 6 and 27 of the run are 3, 4 and 25 here.
    expected = [ids for k, ids in enumerate(every) if k not in (3, 4, 25)]
    for count, nodes in ((4, 2), (2, 2), (1, 1)):
        found = list(steps(ranks(count, nodes, bounds), taken))
        # The last batches of an epoch have repeats, other ones on other topologies.
        exact = len(expected) if count == 4 else 4
        assert [ids for ids, _ in found[:exact]] == expected[:exact]
        assert len(found) == len(expected)
        state = found[2][1]
        assert [ids for ids, _ in steps(ranks(count, nodes, bounds), state)] == [ids for ids, _ in found[3:]]


@pytest.mark.parametrize('algo', ['py1s', 'py2s', 'py1e'])
@pytest.mark.parametrize('ranks', [1, 2])
def test_every_state_of_an_epoch_that_repeats_more_than_a_batch_loads(algo, ranks, make_dataset):
    data = make_dataset('data', 37)

    def loader(state=None):
        options = {'shuffle': True, 'shuffle_algo': algo, 'num_canonical_nodes': 36, 'batch_size': 8 // ranks}
        made = StreamingDataLoader(
            StreamingDataset(local=str(data), topology=Topology(rank=0, world_size=ranks), **options)
        )
        if state is not None:
            made.load_state_dict(state)
        return made

    whole = loader()
    steps = [(batch['id'].tolist(), whole.state_dict()) for batch in whole]
    assert len(steps) == 9  # of 36 nodes with two samples each
    for number, (_, state) in enumerate(steps[:-1], 1):
        assert [batch['id'].tolist() for batch in loader(state)] == [ids for ids, _ in steps[number:]]
    assert len(list(loader(steps[-1][1]))) == 9


@pytest.fixture
def two_streams(make_dataset):
    folders = [make_dataset('a', 40), make_dataset('b', 60)]

    def make(nodes, ranks, batch_size, method, state=None):
        streams = [Stream(local=str(folder)) for folder in folders]
        topology = Topology(rank=0, world_size=ranks, num_nodes=nodes)
        dataset = StreamingDataset(
            streams=streams, topology=topology, batch_size=batch_size, batching_method=method, shuffle=True,
            shuffle_algo='py1e', num_canonical_nodes=4, partition_algo='orig',
        )  # fmt: skip
        loader = StreamingDataLoader(dataset)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    return make


def state_after(loader, batches):
    taken = iter(loader)
    for _ in range(batches):
        next(taken)
    return loader.state_dict()


@pytest.mark.parametrize(
    ('method', 'then', 'now', 'told'),
    [
        ('device_per_stream', (1, 2, 4), (1, 4, 2), '2 ranks on 1 node in the checkpoint, 4 ranks on 1 node now'),
        ('device_per_stream', (1, 4, 2), (2, 4, 2), '4 ranks on 1 node in the checkpoint, 4 ranks on 2 nodes now'),
        ('device_per_stream', (1, 2, 4), (1, 2, 2), 'global batches of 8 in the checkpoint, of 4 now'),
        ('per_stream', (1, 2, 4), (1, 2, 2), 'global batches of 8 in the checkpoint, of 4 now'),
        ('stratified', (1, 1, 8), (1, 1, 10), 'global batches of 8 in the checkpoint, of 10 now'),
    ],
)
def test_other_batches_in_the_middle_of_an_epoch_are_refused(two_streams, method, then, now, told):
    state = state_after(two_streams(*then, method), 3)
    with pytest.raises(ResumeError, match=f'{method} batches.*{told}'):
        two_streams(*now, method, state)
    two_streams(*then, method, state)
    state = two_streams(*then, method).dataset.state_dict(24, True)  # of a plain loader, whose workers read
    with pytest.raises(ResumeError, match=told):
        two_streams(*now, method, state)
    two_streams(*now, method, state_after(two_streams(*then, method), 0))


@pytest.mark.parametrize('method', ['stratified', 'per_stream', 'random'])
def test_batches_that_do_not_depend_on_ranks_continue_on_others(two_streams, method):
    whole = two_streams(1, 2, 4, method)
    state = state_after(whole, 3)
    plan, rest = whole.plan(0), two_streams(1, 4, 2, method, state).plan(0, 24)
    for number in range(3, 9):
        ids = plan.order.at(plan.global_positions(number))
        assert sorted(ids) == sorted(plan.order.at(rest.global_positions(number - 3)))


def test_a_state_of_an_earlier_version_does_not_say_its_batches(two_streams):
    state = state_after(two_streams(1, 2, 4, 'device_per_stream'), 3)
    config = json.loads(state['config'])
    del config['dealt']
    two_streams(1, 2, 4, 'device_per_stream', {**state, 'config': json.dumps(config)})
