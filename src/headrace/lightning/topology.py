"""The topology of a trainer or a Fabric: its rank among how many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.distributed.device_mesh import DeviceMesh

from headrace.dataset import topology_of_mesh
from headrace.errors import TopologyError
from headrace.order import Topology

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from lightning.pytorch import Trainer

    TopologyOverride: TypeAlias = (
        Topology | DeviceMesh | Mapping[str, int] | Callable[[Any], Topology | DeviceMesh | Mapping[str, int]]
    )
    """A topology, a device mesh, or fields that replace the trainer's. Or a function of the trainer or the Fabric that
    returns one of these, called when ranks are known."""
else:
    # The forms that LightningCLI can read from a command line.
    TopologyOverride = Mapping[str, int] | Callable[[Any], Any]

_FIELDS = frozenset(field.name for field in dataclasses.fields(Topology))


def topology_of(runner: Trainer | Fabric, override: TopologyOverride | None = None) -> Topology:
    """The topology of a trainer or a launched Fabric; ranks that share their samples become `replication`.

    The environment is not used: Lightning's launchers set no RANK, and some ranks of a `ModelParallelStrategy` must see
    the same data.

    Args:
        runner: the trainer, or the Fabric.
        override: replicas and nodes to use instead of the strategy's.

    Raises:
        TopologyError: the replicas do not divide the ranks, or the override is of another rank or world.
    """
    strategy, given = runner.strategy, _called(override, runner)
    topology = _topology(
        runner.global_rank,
        runner.world_size,
        # Strategies of a single device have neither.
        getattr(strategy, 'num_nodes', 1),
        None if isinstance(given, (Topology, DeviceMesh)) else getattr(strategy, 'distributed_sampler_kwargs', None),
        type(strategy).__name__,
    )
    return topology if override is None else _overridden(topology, given, type(strategy).__name__)


def _called(override: TopologyOverride | None, runner: object) -> Topology | DeviceMesh | Mapping[str, int] | None:
    if override is None or isinstance(override, (Topology, DeviceMesh, Mapping)):
        return override
    return override(runner)


def _topology(rank: int, world_size: int, num_nodes: int, sampler: Mapping[str, Any] | None, strategy: str) -> Topology:
    replicas = world_size if sampler is None else int(sampler['num_replicas'])
    if replicas < 1 or world_size % replicas:
        raise TopologyError(
            f'the data-parallel replicas must divide the ranks, but {strategy} has {replicas} replicas of '
            f'{world_size} ranks.'
        )
    return Topology(
        rank=rank,
        world_size=world_size,
        num_nodes=num_nodes,
        replication=world_size // replicas,
        replica_index=None if sampler is None else int(sampler['rank']),
    )


def _overridden(actual: Topology, given: Topology | DeviceMesh | Mapping[str, int] | None, strategy: str) -> Topology:
    if isinstance(given, DeviceMesh):
        topology = topology_of_mesh(given, num_nodes=actual.num_nodes)
    elif isinstance(given, Mapping):
        unknown = sorted(set(given) - _FIELDS)
        if unknown:
            raise TopologyError(f'topology has no {", ".join(unknown)}; it has {", ".join(sorted(_FIELDS))}.')
        # The strategy's replica index is void under another replication.
        topology = dataclasses.replace(actual, **{'replica_index': None, **given} if 'replication' in given else given)
    elif isinstance(given, Topology):
        topology = given
    else:
        raise TopologyError(
            f'topology must be a Topology, a DeviceMesh, fields, or a function that returns one of these for the '
            f'trainer, but got {type(given).__name__}.'
        )
    if (topology.rank, topology.world_size) != (actual.rank, actual.world_size):
        # A topology made before the ranks started would be the same on all of them.
        raise TopologyError(
            f'topology says that this is rank {topology.rank} of {topology.world_size}, but by {strategy} it is rank '
            f'{actual.rank} of {actual.world_size}. Leave rank and world_size out, `topology={{"replication": 2}}`, or '
            f'pass a function, `topology=lambda trainer: ...`, which is called when the ranks are known.'
        )
    return topology
