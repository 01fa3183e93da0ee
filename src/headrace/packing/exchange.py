"""Periodic exchange of lane states among ranks."""

from __future__ import annotations

from typing import Any

import torch

from headrace.dataset import StreamingDataset
from headrace.packing.dataset import PackedDataset

__all__ = ['exchange_now_and_then']

_EVERY = 256
"""Batches between two exchanges. A resumed run tokenises the documents of at most this many batches again."""


def exchange_now_and_then(dataset: StreamingDataset, batches: int) -> None:
    """Share a packed dataset's lane states among ranks, every few hundred batches. All ranks call it after each batch.

    An exchange sends a few hundred bytes per lane through torch.distributed, if that is initialized.

    Args:
        dataset: any dataset; nothing happens unless it is packed.
        batches: number of batches delivered so far, the same on all ranks.
    """
    if not isinstance(dataset, PackedDataset) or batches % _EVERY or dataset.topology.replicas == 1:
        return
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        dataset.exchange_cuts(_all_gather)


def _all_gather(own: Any) -> list[Any]:
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, own)
    return found
