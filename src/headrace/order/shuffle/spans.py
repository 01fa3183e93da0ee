"""Runs of consecutive samples, and how the shuffles deal them to canonical nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.order.random.numpy_streams import RandomStream, random_stream

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['Spans', 'divide_spans', 'epoch_spans', 'write_spans']


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Runs of positions one after another, cut into parts of about equal numbers of positions."""

    begins: IntArray
    """int64[spans]: first position of each."""
    lengths: IntArray
    """int64[spans]: positions of each; 0 is allowed."""
    bounds: IntArray
    """int64[parts + 1]: part p has the spans from bounds[p] to bounds[p + 1]."""


def divide_spans(begins: IntArray, lengths: IntArray, num_parts: int) -> Spans:
    """Cut spans into parts; part p of C ends at N·(p+1) div C of all N positions.

    A span that crosses an end is split there. One without positions at an end belongs to the earlier part.

    Args:
        begins: int64[spans], first positions, in the spans' order.
        lengths: int64[spans], numbers of positions.
        num_parts: C.
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    part_ends = total * np.arange(1, num_parts + 1, dtype=np.int64) // num_parts
    cuts = np.setdiff1d(part_ends[part_ends > 0], ends)
    # A cut inside span i starts a new span: it stands before span i's end and inherits the rest of it.
    new_ends = np.insert(ends, np.searchsorted(ends, cuts), cuts)
    origins = np.insert(np.arange(len(ends)), np.searchsorted(ends, cuts), np.searchsorted(ends, cuts))
    new_lengths = np.diff(new_ends, prepend=0)
    new_begins = begins[origins] + (new_ends - new_lengths) - (ends - lengths)[origins]
    bounds = np.concatenate([[0], np.searchsorted(new_ends, part_ends, 'right')])
    return Spans(new_begins, new_lengths, bounds)


def epoch_spans(sizes: IntArray, num_parts: int, seed: int, epoch: int) -> tuple[Spans, RandomStream]:
    """Shuffle spans for the run, cut them into parts, and shuffle each part's spans for the epoch.

    Args:
        sizes: int64[spans], lengths of spans that follow one another.
        num_parts: number of canonical nodes.
        seed: of the run; which part a span belongs to depends on it alone.
        epoch: 0, 1, …; the order within a part depends on it too.

    Returns:
        The spans in order, and the epoch's random numbers, to continue with.
    """
    order = random_stream(seed).permutation(len(sizes))
    spans = divide_spans((np.cumsum(sizes) - sizes)[order], sizes[order], num_parts)
    stream = random_stream(seed + epoch)
    order = np.arange(len(spans.begins))
    for begin, end in zip(spans.bounds[:-1].tolist(), spans.bounds[1:].tolist(), strict=True):
        stream.shuffle(order[begin:end])
    return Spans(spans.begins[order], spans.lengths[order], spans.bounds), stream


def write_spans(out: IntArray, spans: Spans) -> IntArray:
    """Write each span's positions, in ascending order, span after span, into out int64[positions].

    Returns:
        int64[spans + 1], where each span begins in ``out``.
    """
    offsets = np.concatenate([[0], np.cumsum(spans.lengths)])
    for at, begin, length in zip(offsets.tolist(), spans.begins.tolist(), spans.lengths.tolist(), strict=False):
        out[at : at + length] = np.arange(begin, begin + length)
    return offsets
