"""Ranks tell one another where their lanes are, now and then."""

from __future__ import annotations

from typing import Any

import torch

from headrace.dataset import StreamingDataset
from headrace.packing.dataset import PackedDataset

__all__ = ['exchange_now_and_then']

_EVERY = 256
"""Batches between two exchanges: of so many, at most, the documents are tokenised again when a run goes on."""


def exchange_now_and_then(dataset: StreamingDataset, batches: int) -> None:
    """Have a packed dataset know all ranks' lanes, every few hundred batches; all ranks call it after each.

    A few hundred bytes for each lane go through torch.distributed, where it runs.

    Args:
        dataset: any; of others than packed ones there is nothing to know.
        batches: that were handed out until now, the same number on all ranks.
    """
    if not isinstance(dataset, PackedDataset) or batches % _EVERY or dataset.topology.replicas == 1:
        return
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        dataset.exchange_cuts(_all_gather)


def _all_gather(own: Any) -> list[Any]:
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, own)
    return found
