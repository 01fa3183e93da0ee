"""py2s: as py1s, but samples are shuffled twice: in whole shards for the run, in pieces of shards for the epoch."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from headrace.order.random.numpy_streams import random_stream
from headrace.order.shuffle.spans import Spans, divide_spans, write_spans

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['shuffle_py2s']


def shuffle_py2s(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:  # noqa: ARG001
    """Fill out with a permutation; see `headrace.order.shuffle.Permutation`."""
    run = random_stream(seed)
    order = run.permutation(len(sizes))
    shards = Spans((np.cumsum(sizes) - sizes)[order], sizes[order], np.array([0, len(sizes)]))
    ids = np.empty_like(out)
    offsets = write_spans(ids, shards)
    for begin, end in pairwise(offsets.tolist()):
        run.shuffle(ids[begin:end])
    pieces = divide_spans(offsets[:-1], shards.lengths, num_parts)  # of `ids`
    stream = random_stream(seed + epoch)
    at = 0
    for first, last in pairwise(pieces.bounds.tolist()):
        order = first + stream.permutation(last - first)
        for begin, length in zip(pieces.begins[order].tolist(), pieces.lengths[order].tolist(), strict=True):
            piece = out[at : at + length]
            piece[:] = ids[begin : begin + length]
            stream.shuffle(piece)
            at += length
