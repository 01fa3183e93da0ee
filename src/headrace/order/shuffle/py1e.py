"""py1e: each sample moves a random way from its place, over a range about the size of a block."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ConfigError
from headrace.order.shuffle.spans import epoch_spans, write_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.order.arrays import IntArray

__all__ = ['shuffle_py1e', 'stable_argsort']

_CHUNK = 1 << 16


def shuffle_py1e(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:
    """Fill out with a permutation; see `headrace.order.shuffle.Permutation`.

    Raises:
        ConfigError: the block is smaller than one sample, or a canonical node gets no samples.
    """
    least, most = int(0.75 * block_size), int(1.25 * block_size)
    if least >= most:
        raise ConfigError(f'py1e needs a shuffle_block_size of at least 1 sample, got {block_size}. Raise it.')
    if len(out) < num_parts:
        raise ConfigError(
            f'py1e needs at least one sample for each canonical node, got {len(out)} samples for {num_parts} canonical '
            'nodes. Lower num_canonical_nodes.'
        )
    spans, stream = epoch_spans(sizes, num_parts, seed, epoch)
    offsets = write_spans(out, spans)
    for first, last in pairwise(spans.bounds.tolist()):
        part = out[offsets[first] : offsets[last]]
        bounds = (offsets[first : last + 1] - offsets[first]).tolist()
        for begin, end in pairwise(bounds):
            stream.shuffle(part[begin:end])
        places = np.arange(len(part), dtype=np.float64)
        for begin, end in pairwise(bounds):
            reach = max(0, (int(stream.integers(least, most)) - (end - begin)) / 2)
            low, high = max(-reach, -begin), min(reach, len(part) - end)
            # Generator.uniform's formula, which a compiler must not be free to round once instead of twice.
            moves = stream.random(end - begin)
            moves *= high - low
            moves += low
            places[begin:end] += moves
        order = stable_argsort(places)
        del places
        part[:] = part[order]


def stable_argsort(x: NDArray[np.float64]) -> IntArray:
    """Return int64[n], the order that sorts x float64[n], equal elements in their own order.

    numpy's fastest sort leaves equal elements in an order that depends on the CPU. They are rare here, so it is
    cheaper to sort that way and then put them right than to sort stably.
    """
    order = np.argsort(x)
    done = 0
    for begin in range(0, len(order) - 1, _CHUNK):
        values = x[order[begin : begin + _CHUNK + 1]]
        for i in (begin + np.flatnonzero(values[1:] == values[:-1])).tolist():
            if i >= done:  # the first of a run of equal elements
                done = int(np.searchsorted(x, x[order[i]], 'right', sorter=order))
                order[i:done].sort()
    return order
