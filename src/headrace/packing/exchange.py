"""Exchange of lane states, and of documents' names, among ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headrace.dataset import StreamingDataset
from headrace.packing.dataset import PackedDataset

__all__ = ['exchange_now_and_then', 'gather_of_ranks', 'sync_lane_states']

_EVERY = 256
"""Batches between two exchanges. A resumed run tokenises the documents of at most this many batches again."""


def sync_lane_states(dataset: StreamingDataset, batches: int) -> None:
    """Share a packed dataset's lane states among ranks, every few hundred batches. All ranks call it after each batch.

    An exchange sends a few hundred bytes per lane through torch.distributed, if that is initialized.

    Args:
        dataset: any dataset; nothing happens unless it is packed.
        batches: number of batches delivered so far, the same on all ranks.
    """
    if not isinstance(dataset, PackedDataset) or batches % _EVERY or dataset.topology.replicas == 1:
        return
    gather = gather_of_ranks()
    if gather is not None:
        dataset.sync_lane_states(gather)


exchange_now_and_then = sync_lane_states
"""The name of `sync_lane_states` in version 0.1.0."""


def gather_of_ranks() -> Callable[[Any], list[Any]] | None:
    """A function that gives the values of all ranks through torch.distributed; None if that is not initialized."""
    return _all_gather if torch.distributed.is_available() and torch.distributed.is_initialized() else None


def _all_gather(own: Any) -> list[Any]:
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, own)
    return found
