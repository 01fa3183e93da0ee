"""Detection of this process' rank and world size.

The source is an initialised `torch.distributed`, else a launcher's environment. Nothing is created, destroyed or waited
for here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch.distributed

from headrace.errors import TopologyError
from headrace.order.topology import Topology

__all__ = ['detect_topology']

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
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
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
