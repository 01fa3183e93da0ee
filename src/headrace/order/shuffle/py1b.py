"""py1b: each canonical node's samples are shuffled in blocks of one size, side by side."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.order.shuffle.spans import epoch_spans, write_spans

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['shuffle_py1b']


def shuffle_py1b(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:
    """Fill out with a permutation; see `headrace.order.shuffle.Permutation`.

    Raises:
        ConfigError: the block is smaller than one sample.
    """
    if block_size < 1:
        raise ConfigError(f'py1b needs a shuffle_block_size of at least 1 sample, got {block_size}. Raise it.')
    spans, stream = epoch_spans(sizes, num_parts, seed, epoch)
    offsets = write_spans(out, spans)
    for part_begin, part_end in pairwise(offsets[spans.bounds].tolist()):
        for begin in range(part_begin, part_end, block_size):
            stream.shuffle(out[begin : min(begin + block_size, part_end)])
