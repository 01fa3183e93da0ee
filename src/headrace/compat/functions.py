"""Functions of `streaming.base.util`, and the ranks of a run: `streaming.base.distributed` and `World`."""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import get_worker_info

from headrace.dataset import detect_topology
from headrace.dataset.ranks import gathered, has_group
from headrace.errors import ConfigError
from headrace.order import Topology

__all__ = [
    'World',
    'all_gather',
    'all_gather_object',
    'barrier',
    'broadcast',
    'clean_stale_shared_memory',
    'dataframe_to_mds',
    'get_import_exception_message',
    'get_index_basename',
    'get_list_arg',
    'get_local_rank',
    'get_local_world_size',
    'get_rank',
    'get_world_size',
    'retry',
    'wait_for_file_to_exist',
]

INDEX = 'index.json'


def clean_stale_shared_memory() -> None:
    """Return at once, since headrace's processes leave nothing in shared memory."""


def dataframe_to_mds(*args: Any, **kwargs: Any) -> tuple[str, str]:
    """`headrace.convert.dataframe_to_mds` without its second result, the number of samples that were left out.

    Returns:
        The folder and the URL of the dataset, each '' if there is none.
    """
    from headrace.convert import dataframe_to_mds as convert

    place, _ = convert(*args, **kwargs)
    return place


def get_index_basename() -> str:
    return INDEX


def get_list_arg(text: str) -> list[str]:
    """The parts of a command line's argument between commas; of an empty text none."""
    return text.split(',') if text else []


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """A message for a package that is missing, and headrace's extra that installs it."""
    return f"The package {package_name} is not installed. Install it with pip install 'headrace[{extra_deps}]'."


def wait_for_file_to_exist(filename: str, poll_interval: float, timeout: float, err_msg: str) -> None:
    """Wait for a file; after `timeout` seconds a RuntimeError, whose message begins with `err_msg`."""
    begin = time.monotonic()
    while not Path(filename).exists():
        waited = time.monotonic() - begin
        if waited > timeout:
            raise RuntimeError(f'{err_msg} {filename} did not appear in {waited:.3f} s; the limit is {timeout:.3f} s.')
        time.sleep(poll_interval)


def retry(
    exc_class: Any = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """Decorate a function: call it again after an exception. Use it as `@retry` or `@retry(...)`.

    Args:
        exc_class: the exception class, or several, after which it is called again.
        clean_up_fn: called after each failed call.
        num_attempts: calls in total.
        initial_backoff: seconds before the second call; doubled for each further one.
        max_jitter: random seconds that are added to each wait, at most.

    Raises:
        ConfigError: `num_attempts` is below 1.
    """
    if num_attempts < 1:
        raise ConfigError(f'num_attempts must be at least 1, but is {num_attempts}.')
    if not isinstance(exc_class, (type, Sequence)):  # `@retry` without arguments gets the function
        return retry()(exc_class)
    retried: Any = exc_class if isinstance(exc_class, type) else tuple(exc_class)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(num_attempts):
                try:
                    return function(*args, **kwargs)
                except retried:
                    if clean_up_fn is not None:
                        clean_up_fn()
                    if attempt == num_attempts - 1:
                        raise
                time.sleep(initial_backoff * 2**attempt + random.random() * max_jitter)
            return None

        return call

    return decorate


def get_rank() -> int:
    return detect_topology().rank


def get_world_size() -> int:
    return detect_topology().world_size


def get_local_rank() -> int:
    """This process' number among the ranks of its node, from 0: the launcher's LOCAL_RANK, if it sets one."""
    topology = detect_topology()
    return int(os.environ.get('LOCAL_RANK', topology.rank % topology.ranks_per_node))


def get_local_world_size() -> int:
    return detect_topology().ranks_per_node


def barrier() -> None:
    """Wait for all ranks; returns at once without a process group."""
    if has_group():
        dist.barrier()


def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Fill `tensor` on all ranks with that of rank `src`; nothing happens without a process group."""
    if has_group():
        dist.broadcast(tensor, src)


def all_gather(tensor_list: list[torch.Tensor], tensor: torch.Tensor) -> None:
    """Fill the list with the tensors of all ranks; nothing happens without a process group."""
    if has_group():
        dist.all_gather(tensor_list, tensor)


def all_gather_object(obj: Any) -> list[Any]:
    """The objects of all ranks, in their order; a RuntimeError if there are several, and no process group."""
    ranks = get_world_size()
    if ranks > 1 and not has_group():
        raise RuntimeError(
            f'There are {ranks} ranks, but no process group to gather objects with. Call '
            '`torch.distributed.init_process_group` first.'
        )
    return gathered(obj)


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
        topology, worker = detect_topology(), get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return cls(topology.num_nodes, topology.ranks_per_node, count, topology.rank * count + number)

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def copy(self) -> World:
        return World(self.num_nodes, self.ranks_per_node, self.workers_per_rank, self.worker)

    def replicate(self, replication: int) -> World:
        """The world in which each `replication` consecutive ranks are one; a ValueError if it does not divide them."""
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
