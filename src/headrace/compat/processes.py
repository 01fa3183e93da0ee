"""The ranks of a run: `streaming.base.distributed` and `World`."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from headrace.dataset import detect_topology
from headrace.order import Topology

__all__ = [
    'World',
    'all_gather',
    'all_gather_object',
    'barrier',
    'broadcast',
    'get_local_rank',
    'get_local_world_size',
    'get_rank',
    'get_world_size',
]


def get_rank() -> int:
    """This process' number among all ranks, from 0."""
    return detect_topology().rank


def get_world_size() -> int:
    """Number of ranks."""
    return detect_topology().world_size


def get_local_rank() -> int:
    """This process' number among the ranks of its node, from 0: the launcher's LOCAL_RANK, if it sets one."""
    topology = detect_topology()
    return int(os.environ.get('LOCAL_RANK', topology.rank % topology.ranks_per_node))


def get_local_world_size() -> int:
    """Number of ranks on this node."""
    return detect_topology().ranks_per_node


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def barrier() -> None:
    """Wait for all ranks; returns at once without a process group."""
    if _has_group():
        dist.barrier()


def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Fill `tensor` on all ranks with that of rank `src`; nothing happens without a process group."""
    if _has_group():
        dist.broadcast(tensor, src)


def all_gather(tensor_list: list[torch.Tensor], tensor: torch.Tensor) -> None:
    """Fill the list with the tensors of all ranks; nothing happens without a process group."""
    if _has_group():
        dist.all_gather(tensor_list, tensor)


def all_gather_object(obj: Any) -> list[Any]:
    """The objects of all ranks, in their order.

    Raises:
        RuntimeError: there are several ranks, and no process group.
    """
    if not _has_group():
        ranks = get_world_size()
        if ranks > 1:
            raise RuntimeError(
                f'There are {ranks} ranks, but no process group to gather objects with. Call '
                '`torch.distributed.init_process_group` first.'
            )
        return [obj]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, obj)
    return found


class World:
    """Ranks, nodes and dataloader workers, as numbers. `World.detect()` is this process' own.

    Args:
        num_nodes, ranks_per_node, workers_per_rank: the sizes.
        worker: this worker's number among all.
    """

    def __init__(self, num_nodes: int, ranks_per_node: int, workers_per_rank: int, worker: int) -> None:
        self.num_nodes, self.ranks_per_node, self.workers_per_rank = num_nodes, ranks_per_node, workers_per_rank
        self.worker = worker
        self.num_ranks = num_nodes * ranks_per_node
        self.num_workers = self.num_ranks * workers_per_rank
        self.workers_per_node = ranks_per_node * workers_per_rank
        self.rank, self.worker_of_rank = divmod(worker, workers_per_rank)
        self.node, self.rank_of_node = divmod(self.rank, ranks_per_node)
        self.worker_of_node = worker % self.workers_per_node
        self.is_multinode = num_nodes > 1
        self.is_leader, self.is_local_leader = not worker, not self.worker_of_node

    @classmethod
    def detect(cls) -> World:
        """This process' place."""
        topology, worker = detect_topology(), get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return cls(topology.num_nodes, topology.ranks_per_node, count, topology.rank * count + number)

    def to_json(self) -> dict[str, Any]:
        """All numbers by name."""
        return dict(self.__dict__)

    def copy(self) -> World:
        """Another object with the same numbers."""
        return World(self.num_nodes, self.ranks_per_node, self.workers_per_rank, self.worker)

    def replicate(self, replication: int) -> World:
        """The world in which each `replication` consecutive ranks are one.

        Raises:
            ValueError: the number of ranks does not divide by it.
        """
        topology = Topology(
            rank=self.rank, world_size=self.num_ranks, num_nodes=self.num_nodes, replication=replication
        )
        worker = topology.replica * self.workers_per_rank + self.worker_of_rank
        return World(topology.nodes, topology.replicas_per_node, self.workers_per_rank, worker)

    def detect_workers(self) -> World:
        """The same ranks, with the dataloader worker that calls it."""
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return World(self.num_nodes, self.ranks_per_node, count, self.rank * count + number)
