"""How many samples an epoch draws from each shard of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ConfigError
from headrace.order.random.numpy_streams import random_stream

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['choose_per_shard']

_CHUNK = 1 << 16


def choose_per_shard(sizes: IntArray, choose: int, granularity: int, seed: int) -> IntArray:
    """Spread a stream's samples over its shards: whole passes evenly, the rest by random picks.

    Args:
        sizes: int64[shards], samples of each shard, some of them above 0.
        choose: samples to draw from the stream.
        granularity: samples of a pick, all from one shard.
        seed: of the picks.

    Returns:
        int64[shards], samples to draw from each.

    Raises:
        ConfigError: choose is negative or the granularity below 1.
    """
    if choose < 0:
        raise ConfigError(f'a stream must choose at least 0 samples, got {choose}.')
    if granularity < 1:
        raise ConfigError(f'sampling_granularity must be at least 1, got {granularity}.')
    passes, rest = divmod(choose, int(sizes.sum()))
    chosen = sizes * passes
    if not rest:
        return chosen
    picks = -(-sizes // granularity)
    ends = np.cumsum(picks)
    last = sizes - (picks - 1) * granularity  # the last pick of a shard is the rest

    # MosaicML Streaming counts the pick before an empty shard as a whole one. So this pick's shard may have to give
    # more samples than it has.
    full = np.flatnonzero(picks)
    before_empty = full[np.append(np.diff(full) > 1, full[-1] < len(sizes) - 1)]
    last[before_empty] = granularity
    count = int(ends[-1])
    order = np.arange(count, dtype=np.uint32 if count < 1 << 32 else np.int64)  # shuffled with the same draws
    random_stream(seed).shuffle(order)
    for begin in range(0, count, _CHUNK):
        chunk = order[begin : begin + _CHUNK]
        shards = np.searchsorted(ends, chunk, 'right')
        taken = np.where(chunk == ends[shards] - 1, last[shards], granularity)
        total = np.cumsum(taken)
        if total[-1] < rest:
            np.add.at(chosen, shards, taken)
            rest -= int(total[-1])
            continue
        used = int(np.searchsorted(total, rest)) + 1
        taken[used - 1] -= total[used - 1] - rest  # of the last pick only a part
        np.add.at(chosen, shards[:used], taken[:used])
        break
    return chosen
