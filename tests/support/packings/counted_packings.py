"""Packed streams whose tokens are counted."""

from __future__ import annotations

import torch

from tests.support.packings.packed_streams import FIRST


def stream_of(token: int) -> int:
    return int((token - 1) // 1000 >= FIRST['prose'])


def counted(batches: list[dict[str, torch.Tensor]]) -> list[int]:
    """Tokens of each stream, from the tokens themselves."""
    streams = [stream_of(token) for batch in batches for token in batch['input_ids'].flatten().tolist() if token]
    return [streams.count(0), streams.count(1)]
