"""Which rank of how many a trainer or a Fabric is."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from headrace.errors import TopologyError
from headrace.order import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer

__all__ = ['topology_of', 'topology_of_fabric', 'with_replication']


def topology_of(trainer: Trainer) -> Topology:
    """The trainer's topology; ranks that share their samples (tensor parallelism) become `replication`.

    Taken from the trainer, never from the environment: Lightning's own launchers set no RANK, and some ranks of a
    `ModelParallelStrategy` must see the same data.

    Raises:
        TopologyError: the strategy's replicas are not equally many consecutive ranks.
    """
    return _topology(
        trainer.global_rank,
        trainer.world_size,
        trainer.num_nodes,
        trainer.distributed_sampler_kwargs,
        type(trainer.strategy).__name__,
    )


def topology_of_fabric(fabric: Fabric) -> Topology:
    """The topology of a launched Fabric; ranks that share their samples become `replication`.

    Raises:
        TopologyError: the strategy's replicas are not equally many consecutive ranks.
    """
    strategy = fabric.strategy
    return _topology(
        fabric.global_rank,
        fabric.world_size,
        # Strategies of a single device have neither.
        getattr(strategy, 'num_nodes', 1),
        getattr(strategy, 'distributed_sampler_kwargs', None),
        type(strategy).__name__,
    )


def with_replication(topology: Topology, replication: int | None, label: str) -> Topology:
    """The topology with a number of ranks that share their samples, where the trainer does not know of any.

    Raises:
        TopologyError: the trainer knows another number.
    """
    if replication in (None, 1, topology.replication):
        return topology
    if topology.replication > 1:
        raise TopologyError(
            f'{label}: the trainer has replication {topology.replication}, but the argument says '
            f'replication={replication}. Remove the argument: the trainer knows it.'
        )
    return dataclasses.replace(topology, replication=replication)


def _topology(rank: int, world_size: int, num_nodes: int, sampler: Mapping[str, Any] | None, strategy: str) -> Topology:
    replicas = world_size if sampler is None else int(sampler['num_replicas'])
    if replicas < 1 or world_size % replicas:
        raise TopologyError(
            f'the data-parallel replicas must divide the ranks, but {strategy} has {replicas} replicas of '
            f'{world_size} ranks.'
        )
    topology = Topology(rank=rank, world_size=world_size, num_nodes=num_nodes, replication=world_size // replicas)
    if sampler is not None and int(sampler['rank']) != topology.replica:
        raise TopologyError(
            f'ranks that see the same samples must be consecutive, so that rank {rank} of {world_size} is replica '
            f'{topology.replica} of {replicas}, but {strategy} says {sampler["rank"]}. '
            f'Make data parallelism the outermost dimension of the device mesh.'
        )
    return topology
