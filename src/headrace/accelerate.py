"""Loaders for Hugging Face Accelerate: ranks from the Accelerator, batches on its device, the position in its states.

`accelerator.prepare` deals the samples of a loader out to the ranks. A `StreamingDataLoader` has its rank's samples
already, so `prepare` takes its place here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch

from headrace.errors import MissingDependencyError

try:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import gather_object, pad_across_processes, recursively_apply, send_to_device
except ImportError as error:
    raise MissingDependencyError(
        'headrace.accelerate needs the package `accelerate`: pip install accelerate'
    ) from error

from headrace.dataset import StreamingDataLoader, topology_of_mesh
from headrace.dataset.batch_keys import pick_rows
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

    _drop_last = True  # Accelerate would take the last rows for padding; `gather_for_metrics` knows which rows are

    def __init__(self, loader: StreamingDataLoader, accelerator: Accelerator, *, move_to_device: bool = True) -> None:
        self.loader = loader
        """The loader itself, with its plan and sizes."""
        self.gradient_state = GradientState()
        self.counted_rows: list[bool] = []
        """Whether each row of this rank's last batch counts: it is neither padding nor a bad sample's stand-in."""
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
                bad_rows = self.loader.own_bad_rows
                self.counted_rows = [row < self.loader.own_samples and not bad for row, bad in enumerate(bad_rows)]
                yield send_to_device(batch, self._accelerator.device) if self._moves else batch
        finally:
            self.end()

    def gather_for_metrics(self, values: Any, use_gather_object: bool = False) -> Any:
        """Values of the last batch from all ranks, rank after rank, with each sample once. All ranks call it.

        Args:
            values: tensors or objects with a row, or equally many rows, for each row of the batch on this rank.
            use_gather_object: gather objects, as Accelerate's function does.
        """
        rows, accelerator = len(self.counted_rows), self._accelerator
        counted = np.flatnonzero(self.counted_rows).tolist()
        count_here = torch.tensor([[len(counted), self.loader.dataset.topology.replica]], device=accelerator.device)
        counts: list[int] = []  # of each rank; ranks that read the same samples count them once
        replicas: set[int] = set()
        for count, replica in cast('Any', accelerator.gather(count_here)).tolist():
            counts.append(0 if replica in replicas else count)
            replicas.add(replica)
        if not counts[accelerator.process_index]:
            counted = []

        def gathered(tensor: torch.Tensor) -> Any:
            if not tensor.ndim or len(tensor) % rows:
                return accelerator.gather(tensor)
            each = len(tensor) // rows
            kept = tensor.unflatten(0, (rows, each))[counted].flatten(0, 1)
            kept = kept if len(set(counts)) == 1 else pad_across_processes(kept)
            parts = cast('Any', accelerator.gather(kept)).chunk(len(counts))
            return torch.cat([part[: count * each] for part, count in zip(parts, counts, strict=True)])

        try:
            recursively_apply(lambda tensor: tensor, values, error_on_other_type=True)
        except TypeError:
            use_gather_object = True
        if use_gather_object:
            return gather_object(pick_rows(values, counted, rows))
        return recursively_apply(gathered, values)

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
    In a pass over a prepared loader, `accelerator.gather_for_metrics` leaves padding out, so each sample counts once.

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
    of_accelerator = accelerator.gather_for_metrics

    def gather_for_metrics(input_data: Any, use_gather_object: bool = False) -> Any:
        is_active = accelerator.gradient_state.active_dataloader is prepared
        return (prepared.gather_for_metrics if is_active else of_accelerator)(input_data, use_gather_object)

    accelerator.gather_for_metrics = gather_for_metrics
    return prepared


def topology_of(accelerator: Accelerator) -> Topology:
    """The ranks of an Accelerator; those that differ only in tensor or context parallelism read the same samples."""
    launched = detect_topology()
    nodes = launched.num_nodes if launched.world_size == accelerator.num_processes else 1
    mesh: Any = accelerator.torch_device_mesh
    if mesh is not None:
        return topology_of_mesh(mesh, num_nodes=nodes)
    return Topology(rank=accelerator.process_index, world_size=accelerator.num_processes, num_nodes=nodes)
