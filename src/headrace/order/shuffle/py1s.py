"""py1s: spans of shards are shuffled once, and the samples inside each span."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.order.shuffle.spans import epoch_spans, write_spans

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['shuffle_py1s']


def shuffle_py1s(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:  # noqa: ARG001
    """Fill out with a permutation; see `headrace.order.shuffle.Permutation`."""
    spans, stream = epoch_spans(sizes, num_parts, seed, epoch)
    for begin, end in pairwise(write_spans(out, spans).tolist()):
        stream.shuffle(out[begin:end])
