"""The topology that a device mesh describes."""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import TYPE_CHECKING

from headrace.errors import TopologyError
from headrace.order.topology import Topology

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ['topology_of_mesh']

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
        raise TopologyError('This process is no rank of the device mesh. Every rank that trains must be one.')
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
