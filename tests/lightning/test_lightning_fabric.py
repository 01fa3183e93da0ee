"""Fabric: the position in its checkpoints, across ranks and workers; what `setup` takes and refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import SingleDeviceStrategy

from headrace import PADDING, PositionTracker, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, ResumeError, TopologyError
from headrace.lightning import FabricLoader, setup
from headrace.lightning.topology import topology_of
from headrace.mixing import load_config
from tests.support import support_file
from tests.support.trainers.fabric_run import EPOCHS, Leg, global_batches, train
from tests.support.trainers.ranks import run_alone, run_ranks

pytestmark = [pytest.mark.filterwarnings('ignore')]

SAVED = (0, 3, 13, 17)
"""Batches after which to save, of 13 in an epoch: none, in mid-epoch, all of the epoch, in the next one."""


def content(streams: dict[str, str], **more: Any) -> dict[str, Any]:
    train = {'shuffle': True, 'streams': {name: {'local': folder} for name, folder in streams.items()}}
    return {'global_batch_size': 8, 'train': train} | more


def alone() -> Fabric:
    return Fabric(accelerator='cpu', devices=1)


PROGRAM = support_file('trainers/fabric_run.py')


def written(legs: Sequence[Leg], folder: Path) -> Path:
    path = folder / f'{legs[0].name}.json'
    path.write_text(json.dumps([dataclasses.asdict(leg) for leg in legs]))
    return path


@pytest.fixture(scope='module')
def whole(mixes: dict[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Leg:
    """The uninterrupted run on two ranks, which leaves checkpoints."""
    out = tmp_path_factory.mktemp('fabric')
    leg = Leg(name='whole', out=str(out), config=content(mixes['uneven']), devices=2, save_at=list(SAVED))
    run_alone('lightning', PROGRAM, written([leg], out), folder=out)  # Fabric starts the other rank
    return leg


def resumed(whole: Leg, *, devices: int) -> list[Leg]:
    return [
        dataclasses.replace(
            whole,
            name=f'{devices}x{workers}.{batches}',
            devices=devices,
            workers=workers,
            save_at=[],
            checkpoint=whole.saved(batches),
        )
        for batches in SAVED
        for workers in (0, 1)
    ]


def test_the_uninterrupted_run_trains_the_plan(whole, mixes):
    data = setup(alone(), content(mixes['uneven'])).train.dataset
    expected = []
    for epoch in range(EPOCHS):
        plan = data.plan(epoch=epoch, global_batch_size=8)
        ids = data.order(epoch)
        batches = [sorted(ids.at(plan.global_positions(k)).tolist()) for k in range(plan.num_batches)]
        expected += [(len(expected) + k, epoch, batch) for k, batch in enumerate(batches)]
    assert global_batches(whole) == expected


@pytest.mark.parametrize('devices', [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_checkpoint_of_two_ranks_continues_exactly(whole, devices):
    legs = resumed(whole, devices=devices)
    if devices == 1:
        for leg in legs:
            train(leg, alone())
    else:
        folder = Path(whole.out)
        run_ranks('lightning', devices, PROGRAM, written(legs, folder), folder=folder)
    uninterrupted = global_batches(whole)
    for leg, batches in zip(legs, [n for n in SAVED for _ in (0, 1)], strict=True):
        assert global_batches(leg) == uninterrupted[batches:], leg.name


def test_every_batch_is_a_place_to_continue_from(whole, mixes):
    fabric = alone()
    ids = [batch for _, _, batch in global_batches(whole)][:13]
    loader = setup(fabric, content(mixes['uneven'])).train
    states = [loader.state_dict()]
    for _ in loader:
        states.append(loader.state_dict())
    for k, state in enumerate(states[:-1]):
        again = setup(fabric, content(mixes['uneven'])).train
        again.load_state_dict(state)
        assert [sorted(batch['id'].tolist()) for batch in again] == ids[k:]


class Sharded(SingleDeviceStrategy):
    """Loads as strategies for sharded models do: puts states in the place of objects that are no models."""

    def load_checkpoint(self, path: Any, state: Any = None, **options: Any) -> dict[str, Any]:
        state |= torch.load(path, weights_only=True)
        return {}


@pytest.mark.parametrize('kind', ['loader', 'tracker'])
def test_a_sharded_checkpoint_restores_the_position(mixes, tmp_path: Path, kind: str) -> None:
    def start() -> tuple[Fabric, FabricLoader, Any]:
        fabric = Fabric(strategy=Sharded(torch.device('cpu')))
        loader = setup(fabric, content(mixes['even'])).train
        assert loader is not None
        return fabric, loader, loader if kind == 'loader' else PositionTracker(loader.loader)

    fabric, loader, data = start()
    followed = iter(loader) if kind == 'loader' else data.follow(loader)
    for _ in range(3):
        next(followed)
    if kind == 'tracker':
        data.trained()
    fabric.save(tmp_path / 'sharded.ckpt', {'data': data, 'step': 3})
    expected = [next(followed)['id'].tolist() for _ in range(2)]
    fabric, loader, data = start()
    setup(fabric, content(mixes['even']))  # a second time
    state = {'data': data, 'step': 0}
    fabric.load(tmp_path / 'sharded.ckpt', state)
    assert state == {'data': data, 'step': 3}
    assert [batch['id'].tolist() for batch in loader][:2] == expected


def test_a_checkpoint_continues_at_another_global_batch_size(mixes):
    loader = setup(alone(), content(mixes['uneven'])).train
    batches = iter(loader)
    begun = [i for _ in range(3) for i in next(batches)['id'].tolist()]
    again = setup(alone(), content(mixes['uneven'], global_batch_size=20)).train
    again.load_state_dict(loader.state_dict())
    rest = [batch['id'].tolist() for batch in again]
    assert [len(ids) for ids in rest] == [20, 20, 20, 17]
    assert sorted(begun + sum(rest, [])) == list(range(101))


@pytest.mark.parametrize('kind', ['file', 'mapping', 'config', 'loader config', 'dataset', 'loader'])
def test_data_may_be_given_in_any_way(mixes, tmp_path, kind):
    given: Any = content(mixes['even'])
    data = dict(given['train'], device_batch_size=8)
    if kind == 'file':
        given = tmp_path / 'mix.yaml'
        given.write_text(json.dumps(content(mixes['even'])))
    elif kind == 'config':
        given = load_config(given)
    elif kind == 'loader config':
        given = load_config({'train': data}).train
    elif kind in ('dataset', 'loader'):
        given = setup(alone(), given).train.dataset
        given = StreamingDataLoader(given) if kind == 'loader' else given
    options = {'batch_size': 8} if kind == 'dataset' else {}
    made = setup(alone(), given, **options)
    loader = made if isinstance(made, FabricLoader) else made.train
    expected = setup(alone(), content(mixes['even'])).train
    assert [batch['id'].tolist() for batch in loader] == [batch['id'].tolist() for batch in expected]
    assert (len(loader), loader.global_batch_size, loader.epoch) == (12, 8, 1)


def test_evaluation_loaders_repeat_themselves_and_mark_padding(mixes):
    streams = content(mixes['uneven'])['train']
    loaders = setup(alone(), {**content(mixes['even']), 'eval': {'books': streams}, 'test': streams})
    assert list(loaders.val) == ['books']
    assert list(loaders.test) == ['test']
    first, second = ([batch['id'].tolist() for batch in loaders.val['books']] for _ in range(2))
    assert first == second
    assert all(PADDING in batch for batch in loaders.test['test'])
    assert loaders.test['test'].own_samples == 5
    data = StreamingDataset(local=mixes['even']['a'], shuffle=True)
    assert PADDING in next(iter(setup(alone(), data, evaluation=True, batch_size=8)))


def test_batches_may_stay_where_they_are(mixes, monkeypatch):
    fabric = alone()
    monkeypatch.setattr(type(fabric), 'device', property(lambda self: torch.device('meta')))
    data = StreamingDataset(local=mixes['even']['a'])
    assert next(iter(setup(fabric, data, batch_size=8)))['row'].device.type == 'meta'
    assert next(iter(setup(fabric, data, batch_size=8, move_to_device=False)))['row'].device.type == 'cpu'


def ranks(**fields: Any) -> Any:
    strategy = SimpleNamespace(num_nodes=fields.pop('num_nodes', 1))
    if 'replicas' in fields:
        strategy.distributed_sampler_kwargs = {'num_replicas': fields.pop('replicas'), 'rank': fields.pop('replica')}
    return SimpleNamespace(strategy=strategy, **fields)


def test_the_topology_is_the_fabrics(monkeypatch):
    monkeypatch.setenv('RANK', '5')
    monkeypatch.setenv('WORLD_SIZE', '64')
    assert topology_of(alone()) == Topology()
    found = topology_of(ranks(global_rank=5, world_size=8, num_nodes=2, replicas=4, replica=2))
    assert found == Topology(rank=5, world_size=8, num_nodes=2, replication=2)
    assert topology_of(ranks(global_rank=5, world_size=8, replicas=4, replica=1)).replica == 1
    with pytest.raises(TopologyError, match='3 replicas of 8 ranks'):
        topology_of(ranks(global_rank=5, world_size=8, replicas=3, replica=1))


def test_wrong_use_is_refused(mixes):
    data = StreamingDataset(local=mixes['even']['a'])
    with pytest.raises(ConfigError, match=r'fabric.launch\(\)'):
        setup(Fabric(accelerator='cpu', devices=2, strategy='ddp'), data, batch_size=8)
    with pytest.raises(ConfigError, match='batch_size cannot be given together with a dict'):
        setup(alone(), content(mixes['even']), batch_size=8)
    with pytest.raises(ConfigError, match='num_workers, evaluation cannot be given'):
        setup(alone(), StreamingDataLoader(data, batch_size=8), num_workers=1, evaluation=True)
    for option in ({'num_workers': 0}, {'drop_last': False}, {'evaluation': False}):
        with pytest.raises(ConfigError, match=f'{next(iter(option))} cannot be given together with a dict'):
            setup(alone(), content(mixes['even']), **option)
    with pytest.raises(ConfigError, match='num_workers cannot be given together with a LoaderConfig'):
        setup(alone(), load_config(content(mixes['even'])).train, num_workers=0)
    with pytest.raises(ConfigError, match='overrides cannot be given'):
        setup(alone(), data, batch_size=8, overrides=['a=1'])
    with pytest.raises(TopologyError, match='replication'):
        setup(alone(), data, batch_size=8, replication=2)


def test_a_dataset_for_two_loaders_is_refused(mixes):
    data = StreamingDataset(local=mixes['even']['a'])
    training, evaluation = (setup(alone(), data, batch_size=8, evaluation=evaluates) for evaluates in (False, True))
    next(iter(training))
    with pytest.raises(ConfigError, match='Make a StreamingDataset for each loader'):
        next(iter(evaluation))


def test_a_state_of_other_data_is_refused(mixes):
    state = setup(alone(), content(mixes['uneven'])).train.state_dict()
    with pytest.raises(ResumeError, match='epoch_size'):
        setup(alone(), content(mixes['even'])).train.load_state_dict(state)


def test_what_leaves_nothing_to_train_is_refused(mixes: dict[str, dict[str, str]]) -> None:
    config = content(mixes['even'], global_batch_size=97)
    config['train']['loader'] = {'drop_last': True}
    with pytest.raises(ConfigError, match='train has no batch in an epoch: its 96 samples .* 97.*`drop_last`'):
        setup(alone(), config)
    assert setup(alone(), config, overrides=['global_batch_size=96']).train is not None


def test_a_pass_on_fabric_goes_on_in_another_world(mixes):
    whole = [batch['id'].tolist() for batch in setup(alone(), content(mixes['uneven'])).train]
    loader = setup(alone(), content(mixes['uneven'])).train
    for number, batch in enumerate(loader):
        if number in (1, 2):  # of which the second step fails on two ranks
            loader.rescale(Topology(rank=number - 1, world_size=2), None if number == 1 else 16)
        found = batch['id'].tolist()
        assert set(found) <= set(whole[number if number < 3 else number - 1])
    assert loader.global_batch_size == 8
    assert number == len(whole)


def test_proportions_are_set_on_fabric(mixes):
    loader = setup(alone(), content(mixes['uneven'])).train
    passing = iter(loader)
    next(passing)
    decision = loader.set_proportions({'a': 0, 'b': 1}, by='test')
    assert (decision.at, decision.by) == (8, 'test')
    assert next(passing)['id'].min() >= 60  # of stream b
