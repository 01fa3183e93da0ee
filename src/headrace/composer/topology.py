"""The topology of this process from Composer: its rank among how many."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from composer.utils import dist

from headrace.errors import TopologyError
from headrace.order import Topology

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataset

__all__ = ['bind_topology', 'composer_topology']


def composer_topology(replication: int = 1) -> Topology:
    """The topology that Composer trains on, from torch.distributed or from the launcher's environment.

    Composer's word is taken, and not a cluster manager's: a shell within an allocation of eight tasks is one rank.
    Under torchrun, NODE_RANK is set in the environment.

    Args:
        replication: Consecutive ranks that see the same samples.

    Raises:
        TopologyError: `replication` does not divide the ranks.
    """
    # Composer cannot load a checkpoint without NODE_RANK, which torchrun sets under another name.
    if 'GROUP_RANK' in os.environ:
        os.environ.setdefault('NODE_RANK', os.environ['GROUP_RANK'])
    world_size = dist.get_world_size()
    # Composer raises if the launcher did not set the number of ranks per node.
    local = os.environ.get('LOCAL_WORLD_SIZE', '')
    ranks_per_node = int(local) if local.isdigit() and int(local) and world_size % int(local) == 0 else world_size
    return Topology(
        rank=dist.get_global_rank(),
        world_size=world_size,
        num_nodes=world_size // ranks_per_node,
        replication=replication,
    )


def bind_topology(dataset: StreamingDataset) -> None:
    """Bind `dataset` to Composer's rank, or check that it is bound to it.

    Raises:
        TopologyError: The dataset was given another rank or number of ranks.
    """
    known = dataset.topology if dataset._topology is not None else None
    found = composer_topology(known.replication if known else dataset.replication or 1)
    if known is None:
        dataset.bind(found)
    elif (known.rank, known.world_size) != (found.rank, found.world_size):
        raise TopologyError(
            f'A dataset must read for the rank that Composer trains on, rank {found.rank} of {found.world_size}, but '
            f'it reads for rank {known.rank} of {known.world_size}. Leave `topology` out, and make the DataSpec after '
            f'the launcher or torch.distributed has said how many ranks there are.'
        )
    elif known.replica_index is not None:
        # Counting tokens needs the ranks of a sample to be neighbours, as in Composer's mesh.
        raise TopologyError(
            f'Under Composer, ranks that get the same samples must be consecutive, but the topology has rank '
            f'{known.rank} as replica {known.replica} with replication {known.replication}.'
        )
