"""Loaders for Hugging Face Accelerate: ranks from the Accelerator, batches on its device, the position in its states.

`accelerator.prepare` deals the samples of a loader out to the ranks. A `StreamingDataLoader` has its rank's samples
already, so `prepare` takes its place here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.errors import MissingDependencyError

try:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device
except ImportError as error:
    raise MissingDependencyError(
        'headrace.accelerate needs the package `accelerate`: pip install accelerate'
    ) from error

from headrace.dataset import StreamingDataLoader, topology_of_mesh
from headrace.dataset.device import check_trainers_device
from headrace.dataset.topology import detect_topology
from headrace.order import Topology
from headrace.order.topology import with_replication

__all__ = ['AccelerateLoader', 'prepare', 'topology_of']


class AccelerateLoader(DataLoaderStateMixin):
    """A `StreamingDataLoader` whose batches lie on an Accelerator's device. `prepare` makes it.

    It tells Accelerate of a pass' last batch, which ends an accumulation of gradients.

    Args:
        loader: the loader, bound to the Accelerator's ranks.
        accelerator: the Accelerator.
        move_to_device: whether batches are moved to its device.
    """

    _drop_last = True  # else Accelerate would cut what it takes for padding off gathered results

    def __init__(self, loader: StreamingDataLoader, accelerator: Accelerator, *, move_to_device: bool = True) -> None:
        self.loader = loader
        """The loader itself, with its plan and sizes."""
        self.gradient_state = GradientState()
        self._accelerator = accelerator
        self._moves = move_to_device

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Batches of the next epoch, or of the rest of a loaded one."""
        self.begin()
        try:
            for batch in self.loader:
                assert self.loader.handed_out is not None
                plan, number = self.loader.handed_out
                self.end_of_dataloader = not plan.batches(number + 1, 1)
                yield send_to_device(batch, self._accelerator.device) if self._moves else batch
        finally:
            self.end()

    def state_dict(self) -> dict[str, int | str]:
        """The position after the last batch, the same on every rank."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next `iter` continue after `state`; as `StreamingDataLoader.load_state_dict`."""
        self.loader.load_state_dict(state)


def prepare(accelerator: Accelerator, loader: StreamingDataLoader, *, move_to_device: bool = True) -> AccelerateLoader:
    """Take the ranks of an Accelerator, in place of `accelerator.prepare(loader)`.

    `accelerator.save_state` saves the position of a training loader, and `accelerator.load_state` restores it on any
    number of ranks that divides the global batch. Prepare several training loaders in the same order in each run.

    Args:
        accelerator: the Accelerator.
        loader: the loader; one with `fixed_epoch`, for evaluation, has no position to save.
        move_to_device: whether batches are moved to the Accelerator's device.

    Raises:
        ConfigError: the loader's `device` is another one than the Accelerator's.
        TopologyError: the ranks cannot share the batches, or the device mesh has dimensions of unknown kind.
    """
    dataset = loader.dataset
    check_trainers_device(loader.device, accelerator.device)
    dataset.bind(with_replication(topology_of(accelerator), dataset.replication, 'prepare'))
    prepared = AccelerateLoader(loader, accelerator, move_to_device=move_to_device)
    if loader.fixed_epoch is None:
        accelerator.register_for_checkpointing(prepared)
    return prepared


def topology_of(accelerator: Accelerator) -> Topology:
    """The ranks of an Accelerator; those that differ only in tensor or context parallelism read the same samples."""
    launched = detect_topology()
    nodes = launched.num_nodes if launched.world_size == accelerator.num_processes else 1
    mesh: Any = accelerator.torch_device_mesh
    if mesh is not None:
        return topology_of_mesh(mesh, num_nodes=nodes)
    return Topology(rank=accelerator.process_index, world_size=accelerator.num_processes, num_nodes=nodes)
