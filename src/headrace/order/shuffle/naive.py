"""naive: one permutation of the whole epoch. Every node reads every shard all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.order.random.numpy_streams import random_stream

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['shuffle_naive']


def shuffle_naive(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:  # noqa: ARG001
    """Fill out with a permutation; see `headrace.order.shuffle.Permutation`."""
    out[:] = random_stream(seed + epoch).permutation(len(out))
