"""Which samples of each shard an epoch draws, once or repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray
    from headrace.order.random.numpy_streams import RandomStream

__all__ = ['drawn_ids', 'drawn_units']


def drawn_units(sizes: IntArray, chosen: IntArray) -> IntArray:
    """Return the lengths of units, int64[units].

    Of a shard of n samples, c of them drawn, come c div n full copies, then c mod n different samples. Each is a unit
    of its own, which shuffles keep together as they do a shard.

    Args:
        sizes: int64[shards], samples of each shard.
        chosen: int64[shards], samples to draw from each.
    """
    copies = chosen // np.maximum(sizes, 1)
    parts = chosen - copies * sizes
    # A shard's full copies, then its part copy, if any: two runs for each shard.
    lengths = np.stack([sizes, parts], 1).ravel()
    return np.repeat(lengths, np.stack([copies, (parts > 0).astype(np.int64)], 1).ravel())


def drawn_ids(sizes: IntArray, chosen: IntArray, first_id: int, stream: RandomStream) -> IntArray | None:
    """Return the sample ids of the units, unit after unit, ascending in each; int64[sum of chosen].

    Args:
        sizes: int64[shards], samples of each shard; shards follow one another.
        chosen: int64[shards], samples to draw from each.
        first_id: id of the first shard's first sample.
        stream: random numbers for the samples of part copies.

    Returns:
        None if these are just all samples in stored order.
    """
    if (sizes == chosen).all():
        return None
    begins = first_id + np.cumsum(sizes) - sizes
    ids = np.empty(int(chosen.sum()), np.int64)
    at = 0
    for begin, size, count in zip(begins.tolist(), sizes.tolist(), chosen.tolist(), strict=True):
        copies, part = divmod(count, max(size, 1))
        for _ in range(copies):
            ids[at : at + size] = np.arange(begin, begin + size)
            at += size
        if part:
            drawn = stream.choice(size, part, replace=False)
            drawn.sort()
            ids[at : at + part] = drawn
            ids[at : at + part] += begin
            at += part
    return ids
