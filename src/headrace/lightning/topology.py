"""Which rank of how many a trainer is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import TopologyError
from headrace.order import Topology

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ['topology_of']


def topology_of(trainer: Trainer) -> Topology:
    """The trainer's topology; ranks that share their samples (tensor parallelism) become `replication`.

    Taken from the trainer, never from the environment: Lightning's own launchers set no RANK, and some ranks of a
    `ModelParallelStrategy` must see the same data.

    Raises:
        TopologyError: the strategy's replicas are not equally many consecutive ranks.
    """
    world_size, rank = trainer.world_size, trainer.global_rank
    sampler = trainer.distributed_sampler_kwargs
    replicas = world_size if sampler is None else int(sampler['num_replicas'])
    if replicas < 1 or world_size % replicas:
        raise TopologyError(
            f'the data-parallel replicas must divide the ranks, but {type(trainer.strategy).__name__} has '
            f'{replicas} replicas of {world_size} ranks.'
        )
    topology = Topology(
        rank=rank, world_size=world_size, num_nodes=trainer.num_nodes, replication=world_size // replicas
    )
    if sampler is not None and int(sampler['rank']) != topology.replica:
        raise TopologyError(
            f'ranks that see the same samples must be consecutive, so that rank {rank} of {world_size} is replica '
            f'{topology.replica} of {replicas}, but {type(trainer.strategy).__name__} says {sampler["rank"]}. '
            f'Make data parallelism the outermost dimension of the device mesh.'
        )
    return topology
