"""Which samples of each shard an epoch draws, once or repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.order.generators import RandomStream
    from headrace.order.mixture import IntArray

__all__ = ['resample']


def resample(
    sizes: IntArray, chosen: IntArray, first_id: int, stream: RandomStream
) -> tuple[IntArray, IntArray | None]:
    """List what is drawn from shards that follow one another.

    Of a shard of n samples, c of them drawn, come c div n full copies, then c mod n different samples, ascending. Each
    is a *unit* of its own, which shuffles keep together as they do a shard.

    Args:
        sizes: int64[shards], samples of each shard.
        chosen: int64[shards], samples to draw from each.
        first_id: id of the first shard's first sample.
        stream: random numbers for the samples of part copies.

    Returns:
        Lengths of the units, int64[units], and ids, int64[sum of chosen]; None in place of the ids if these are just
        all samples in stored order.
    """
    if (sizes == chosen).all():
        return sizes[sizes > 0], None
    copies = np.where(sizes > 0, chosen // np.maximum(sizes, 1), 0)
    parts = chosen - copies * sizes
    begins = first_id + np.cumsum(sizes) - sizes
    ids = np.empty(int(chosen.sum()), np.int64)
    units: list[int] = []
    at = 0
    for begin, size, count, part in zip(begins.tolist(), sizes.tolist(), copies.tolist(), parts.tolist(), strict=True):
        for _ in range(count):
            ids[at : at + size] = np.arange(begin, begin + size)
            at += size
        units += [size] * count
        if part:
            drawn = stream.choice(size, part, replace=False)
            drawn.sort()
            ids[at : at + part] = drawn
            ids[at : at + part] += begin
            at += part
            units.append(part)
    return np.array(units, np.int64), ids
