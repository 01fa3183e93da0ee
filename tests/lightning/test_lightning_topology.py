"""Which rank of how many: what every strategy says in every environment, and what goes in its place."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headrace import StreamingDataset, Topology
from headrace.errors import TopologyError
from headrace.lightning import StreamingDataModule
from headrace.lightning.topology import topology_of
from tests.support.programs.processes import clean_environment
from tests.support.trainers.fake_world import fake_world

pytestmark = [pytest.mark.filterwarnings('ignore')]

# Rank 5, the second of the second node, of 2 nodes x 4 ranks, as a launcher says it.
ENVIRONMENTS = {
    'LightningEnvironment': {'NODE_RANK': '1', 'LOCAL_RANK': '1', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '29500'},
    'TorchElasticEnvironment': {
        'RANK': '5',
        'LOCAL_RANK': '1',
        'WORLD_SIZE': '8',
        'GROUP_RANK': '1',
        'LOCAL_WORLD_SIZE': '4',
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': '29500',
        'TORCHELASTIC_RUN_ID': '1',
    },
    'SLURMEnvironment': {
        'SLURM_JOB_ID': '4217',
        'SLURM_JOB_NAME': 'train',
        'SLURM_NTASKS': '8',
        'SLURM_NTASKS_PER_NODE': '4',
        'SLURM_NNODES': '2',
        'SLURM_NODELIST': 'node[1-2]',
        'SLURM_NODEID': '1',
        'SLURM_PROCID': '5',
        'SLURM_LOCALID': '1',
    },
}
# The ranks of a data-parallel replica, by strategy.
STRATEGIES: dict[str, tuple[Any, int]] = {
    'ddp': (lambda: 'ddp', 1),
    'ddp_spawn': (lambda: 'ddp_spawn', 1),
    'ddp_fork': (lambda: DDPStrategy(start_method='fork'), 1),
    'fsdp': (FSDPStrategy, 1),
    'fsdp hybrid': (lambda: FSDPStrategy(sharding_strategy='HYBRID_SHARD', device_mesh=(2, 4)), 1),
    'deepspeed': (DeepSpeedStrategy, 1),
    'model parallel 2x4': (lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=4), 4),
    'model parallel 4x2': (lambda: ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=2), 2),
    'model parallel auto': (ModelParallelStrategy, 4),
}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were four GPUs and DeepSpeed: FSDP and DeepSpeed refuse CPUs when a trainer is made."""
    monkeypatch.setattr('torch.cuda.device_count', lambda: 4)
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    for module in ('fabric', 'pytorch'):
        monkeypatch.setattr(f'lightning.{module}.accelerators.cuda.num_cuda_devices', lambda: 4)
    for known in ('_DEEPSPEED_AVAILABLE', '_DEEPSPEED_GREATER_EQUAL_0_16'):
        monkeypatch.setattr(f'lightning.pytorch.strategies.deepspeed.{known}', True)
    monkeypatch.setitem(sys.modules, 'deepspeed', mock.MagicMock())


def made(strategy: Any, **options: Any) -> Trainer:
    return Trainer(
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        **{'accelerator': 'cuda', 'devices': 4, 'num_nodes': 2, **options},
    )


@pytest.mark.parametrize('environment_name', ENVIRONMENTS)
@pytest.mark.parametrize('name', STRATEGIES)
def test_every_strategy_says_it_in_every_environment(name, environment_name, gpus, monkeypatch):
    strategy, replication = STRATEGIES[name]
    for variable in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(variable)
    with mock.patch.dict(os.environ, ENVIRONMENTS[environment_name]):
        trainer = made(strategy())
        assert type(trainer.strategy.cluster_environment).__name__ == environment_name
        with fake_world(5, 8) if replication > 1 else contextlib.nullcontext():
            if replication > 1:
                set_up_mesh(trainer)
            found = topology_of(trainer)
    assert found == Topology(rank=5, world_size=8, num_nodes=2, replication=replication)
    assert found.physical_node == 1


def set_up_mesh(trainer: Trainer) -> None:
    """The part of Lightning's `setup_environment` on devices that exist."""
    cpus = [torch.device('cpu')] * 4
    trainer.strategy.parallel_devices = cpus
    trainer.strategy._lightning_module = SimpleNamespace()
    trainer.strategy.accelerator = mock.MagicMock()
    trainer.strategy.setup_environment()


@pytest.mark.parametrize('method', ['spawn', 'fork', 'popen'])
def test_a_rank_that_lightning_starts_learns_its_place(method, monkeypatch):
    """Lightning's launchers set the local rank in the process that they start, and nothing else."""
    for variable in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(variable)
    trainer = made(DDPStrategy(start_method=method), accelerator='cpu', num_nodes=1)
    assert topology_of(trainer) == Topology(rank=0, world_size=4)
    monkeypatch.setenv('LOCAL_RANK', '3')
    trainer.strategy.set_world_ranks()
    assert topology_of(trainer) == Topology(rank=3, world_size=4)


def test_a_single_device_is_one_rank_in_an_allocation(monkeypatch):
    """An interactive shell within a job of eight tasks."""
    monkeypatch.setenv('SLURM_NTASKS', '8')
    monkeypatch.setenv('SLURM_PROCID', '3')
    monkeypatch.setenv('SLURM_JOB_NAME', 'bash')
    assert topology_of(made('auto', accelerator='cpu', devices=1, num_nodes=1)) == Topology()


# -- an explicit topology ---------------------------------------------------------------------------------------------


def ranks(*, rank: int, world_size: int, replicas: int | None = None, replica: int | None = None) -> Any:
    """The topology of a trainer or a Fabric."""
    sampler = {'num_replicas': replicas or world_size, 'rank': rank if replica is None else replica}
    strategy = SimpleNamespace(num_nodes=2, distributed_sampler_kwargs=sampler, checkpoint_io=None)
    return SimpleNamespace(
        global_rank=rank,
        world_size=world_size,
        datamodule=None,
        num_nodes=2,
        distributed_sampler_kwargs=sampler,
        strategy=strategy,
        callbacks=[],
    )


def mesh(rank: int, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    with fake_world(rank, 4):
        return init_device_mesh('cpu', shape, mesh_dim_names=names)


EXPLICIT = Topology(rank=1, world_size=4, num_nodes=2, replication=2)


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        (EXPLICIT, EXPLICIT),
        ({'replication': 2}, EXPLICIT),
        ({'rank': 1, 'world_size': 4, 'num_nodes': 1}, Topology(rank=1, world_size=4)),
        (lambda runner: {'replication': runner.world_size // 2}, EXPLICIT),
        (lambda _: mesh(1, (2, 2), ('dp', 'tp')), EXPLICIT),
        (
            lambda _: mesh(1, (2, 2), ('pp', 'dp')),
            Topology(rank=1, world_size=4, num_nodes=2, replication=2, replica_index=1),
        ),
    ],
    ids=['topology', 'fields', 'all fields', 'function', 'mesh', 'mesh, data inside'],
)
def test_an_explicit_topology_goes_in_the_place_of_the_trainers(given, expected):
    assert topology_of(ranks(rank=1, world_size=4), given) == expected


def test_fields_go_over_what_the_strategy_says():
    trainer = ranks(rank=1, world_size=4, replicas=2, replica=1)
    assert topology_of(trainer, {'num_nodes': 1}).replica == 1
    assert topology_of(trainer, {'num_nodes': 1}).replication == 2
    assert topology_of(trainer, {'replication': 4}).replica == 0


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (Topology(rank=1, world_size=8), 'rank 1 of 8, but by SimpleNamespace it is rank 1 of 4'),
        (Topology(rank=0, world_size=4), 'rank 0 of 4, but by SimpleNamespace it is rank 1 of 4.*a function'),
        ({'replicas': 2}, 'no replicas; it has .*replication'),
        ({'replication': 3}, 'replication must divide world_size'),
        (lambda _: None, 'got NoneType'),
        (lambda _: mesh(1, (2, 2), ('dp', 'experts')), "'experts'.*may be or not"),
    ],
)
def test_an_explicit_topology_of_other_ranks_is_refused(given, message):
    with pytest.raises(TopologyError, match=message):
        topology_of(ranks(rank=1, world_size=4), given)


def test_the_data_module_reads_on_the_topology_that_it_is_given(mixes):
    read = {}
    for rank in range(4):
        data = StreamingDataset(local=mixes['even']['a'], shuffle=True)
        module = StreamingDataModule(
            train=data, batch_size=6, topology=lambda trainer: mesh(trainer.global_rank, (2, 2), ('pp', 'dp'))
        )
        module.trainer = ranks(rank=rank, world_size=4)
        module.setup('fit')
        plan = data.plan(epoch=0, global_batch_size=12)
        read[rank] = [plan.ids(k).tolist() for k in range(plan.num_batches)]
    assert read[0] == read[2]
    assert read[1] == read[3]
    assert sorted(i for batch in read[0] + read[1] for i in batch) == list(range(60))


def test_a_command_line_may_give_fields():
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(StreamingDataModule, 'data')
    parsed = parser.parse_args(['--data.topology', json.dumps({'replication': 2})])
    assert parsed.data.topology == {'replication': 2}
