"""This process' rank and world size: as detected, or as a device mesh describes them.

The source of a detection is an initialised `torch.distributed`, else a launcher's environment. Nothing is created or
destroyed here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from math import prod
from typing import TYPE_CHECKING

import torch.distributed as dist

from headrace.dataset.ranks import has_group
from headrace.errors import TopologyError
from headrace.order.topology import Topology

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# (rank, world size, ranks on this node) as the launchers name them: torchrun and Composer; SLURM; Open MPI.
_LAUNCHERS = (
    ('RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE'),
    ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_NTASKS_PER_NODE'),
    ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE'),
)


def detect_topology(*, replication: int = 1, environ: Mapping[str, str] | None = None) -> Topology:
    """The topology that `torch.distributed` or the launcher's environment describes.

    Args:
        replication: consecutive ranks that see the same samples (tensor or sequence parallel peers).
        environ: the environment to read, `os.environ` by default.

    Returns:
        One rank of one if neither is there. The number of nodes comes from the launcher's ranks per node. Without it
        all ranks count as one node, which changes only which rank reads a sample.

    Raises:
        TopologyError: a variable holds no number, or the numbers contradict each other.
    """
    env = os.environ if environ is None else environ
    names = next((names for names in _LAUNCHERS if names[0] in env and names[1] in env), None)
    if has_group():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    elif names is not None:
        rank, world_size = _number(env, names[0]), _number(env, names[1])
    else:
        rank, world_size = 0, 1
    ranks_per_node = world_size
    # SLURM writes '4(x2)' for the tasks per node of an even allocation; without the variable the node is unknown.
    if names is not None and names[2] in env and env[names[2]].split('(')[0].isdigit():
        ranks_per_node = int(env[names[2]].split('(')[0])
    if ranks_per_node < 1 or world_size % ranks_per_node:
        ranks_per_node = world_size
    return Topology(rank=rank, world_size=world_size, num_nodes=world_size // ranks_per_node, replication=replication)


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise TopologyError(
            f'The environment variable {name} must hold a whole number, as launchers set it, but holds {env[name]!r}. '
            f'Unset it, or pass `topology=Topology(rank=..., world_size=...)`.'
        ) from None


# As PyTorch's tutorials, Lightning, Composer and torchtitan name them. Expert parallelism is in neither set: its ranks
# may be data-parallel outside of the experts.
_DATA = {
    *('data', 'data_parallel', 'data_parallel_replicate', 'data_parallel_shard', 'ddp', 'dp', 'dp_replicate'),
    *('dp_shard', 'fsdp', 'hsdp', 'replicate', 'shard'),
}
_PEERS = {
    *('context_parallel', 'cp', 'model_parallel', 'mp', 'pipeline_parallel', 'pp', 'sequence_parallel', 'sp'),
    *('tensor_parallel', 'tp'),
}


def topology_of_mesh(mesh: DeviceMesh, *, data_dims: Collection[str] | None = None, num_nodes: int = 1) -> Topology:
    """This rank's topology in a device mesh: ranks that differ in data-parallel dimensions read different samples.

    Ranks that differ in any other dimension (tensor, sequence, context, pipeline parallelism) read the same samples.
    The dimensions may be in any order.

    Args:
        mesh: the mesh of all ranks, not a slice of it.
        data_dims: names of the data-parallel dimensions. By default those with a usual name, such as `dp`, `fsdp` or
            `data_parallel`. All others must then have a usual name too, such as `tp` or `cp`.
        num_nodes: number of physical nodes.

    Raises:
        TopologyError: it is not clear which dimensions are data-parallel, or this rank is not in the mesh.
    """
    names = tuple(mesh.mesh_dim_names or ())
    if not names:
        raise TopologyError(
            f'Which of the {mesh.ndim} dimensions of the device mesh are data-parallel? They have no names. Please '
            f'pass `mesh_dim_names` to `init_device_mesh`, such as ("dp", "tp").'
        )
    if data_dims is None:
        unknown = [name for name in names if name not in _DATA | _PEERS]
        if unknown:
            raise TopologyError(
                f'Which dimensions of the device mesh {names} are data-parallel? {unknown} may be or not. Please name '
                f'all that are: `topology_of_mesh(mesh, data_dims=[...])`.'
            )
        data_dims = [name for name in names if name in _DATA]
    elif not set(data_dims) <= set(names):
        raise TopologyError(
            f'data_dims {list(data_dims)} are not all dimensions of the device mesh, which has {names}.'
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise TopologyError('This process is not a rank of the device mesh. Every rank that trains must be one.')
    sizes = dict(zip(names, mesh.mesh.shape, strict=True))
    replica = 0
    for name, place in zip(names, coordinate, strict=True):
        if name in data_dims:
            replica = replica * sizes[name] + place
    return Topology(
        rank=int(mesh.mesh[tuple(coordinate)]),
        world_size=mesh.mesh.numel(),
        num_nodes=num_nodes,
        replication=prod(size for name, size in sizes.items() if name not in data_dims),
        replica_index=replica,
    )
