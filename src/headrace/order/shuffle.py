"""MosaicML Streaming's shuffle algorithms, by name.

An algorithm permutes the positions of the samples that an epoch draws. `headrace.order.mosaicml.order` makes the
epoch's sequence from it. The native order (`headrace.order.native`) has another form, and a name beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order.arrays import IntArray
from headrace.order.random.numpy_streams import RandomStream, random_stream

_CHUNK = 1 << 16


Permutation: TypeAlias = 'Callable[[IntArray, IntArray, int, int, int, int], None]'
"""One of MosaicML Streaming's shuffle algorithms: fills ``out`` with a permutation of 0 … N-1. Arguments, by position:

* out: int64[N]; nothing else of its length is held but temporarily, at most two more.
* sizes: int64[units], samples that lie together: shards, or what an epoch draws of them. They sum to N.
* num_parts: number of canonical nodes.
* seed: of the run.
* epoch: 0, 1, …
* block_size: samples over which a canonical node's samples are spread, about.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Runs of positions one after another, cut into parts of about equal numbers of positions."""

    begins: IntArray  # int64[spans]: first position of each.
    lengths: IntArray  # int64[spans]: positions of each; 0 is allowed.
    bounds: IntArray  # int64[parts + 1]: part p has the spans from bounds[p] to bounds[p + 1].


def divide_spans(begins: IntArray, lengths: IntArray, num_parts: int) -> Spans:
    """Cut spans int64[spans], by first positions and lengths, at N·(p+1) div C for parts p of C.

    A span without positions at an end belongs to the earlier part.
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


def _epoch_spans(sizes: IntArray, num_parts: int, seed: int, epoch: int) -> tuple[Spans, RandomStream]:
    """Shuffle spans for the run, cut them into parts, and shuffle each part's spans for the epoch.

    The spans follow one another. Which part one belongs to depends on the seed alone. Also returns the epoch's random
    numbers, to continue with.
    """
    order = random_stream(seed).permutation(len(sizes))
    spans = divide_spans((np.cumsum(sizes) - sizes)[order], sizes[order], num_parts)
    stream = random_stream(seed + epoch)
    order = np.arange(len(spans.begins))
    for begin, end in zip(spans.bounds[:-1].tolist(), spans.bounds[1:].tolist(), strict=True):
        stream.shuffle(order[begin:end])
    return Spans(spans.begins[order], spans.lengths[order], spans.bounds), stream


def _write_spans(out: IntArray, spans: Spans) -> IntArray:
    """Write each span's positions, in ascending order, span after span; where each begins, int64[spans + 1]."""
    offsets = np.concatenate([[0], np.cumsum(spans.lengths)])
    for at, begin, length in zip(offsets.tolist(), spans.begins.tolist(), spans.lengths.tolist(), strict=False):
        out[at : at + length] = np.arange(begin, begin + length)
    return offsets


def naive(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:  # noqa: ARG001
    """One permutation of the whole epoch. Every node reads every shard all the time."""
    out[:] = random_stream(seed + epoch).permutation(len(out))


def py1s(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:  # noqa: ARG001
    """Spans of shards are shuffled once, and the samples inside each span."""
    spans, stream = _epoch_spans(sizes, num_parts, seed, epoch)
    for begin, end in pairwise(_write_spans(out, spans).tolist()):
        stream.shuffle(out[begin:end])


def py2s(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:  # noqa: ARG001
    """As py1s, but samples are shuffled twice: in whole shards for the run, in pieces of shards for the epoch."""
    run = random_stream(seed)
    order = run.permutation(len(sizes))
    shards = Spans((np.cumsum(sizes) - sizes)[order], sizes[order], np.array([0, len(sizes)]))
    ids = np.empty_like(out)
    offsets = _write_spans(ids, shards)
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


def py1b(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:
    """Each canonical node's samples are shuffled in blocks of one size, side by side."""
    if block_size < 1:
        raise ConfigError(f'py1b needs a shuffle_block_size of at least 1 sample, got {block_size}. Raise it.')
    spans, stream = _epoch_spans(sizes, num_parts, seed, epoch)
    offsets = _write_spans(out, spans)
    for part_begin, part_end in pairwise(offsets[spans.bounds].tolist()):
        for begin in range(part_begin, part_end, block_size):
            stream.shuffle(out[begin : min(begin + block_size, part_end)])


def py1br(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:
    """As py1b, with blocks of random sizes that begin at another place on each canonical node."""
    least, most = int(0.75 * block_size), int(1.25 * block_size)
    if not 0 < least < most:
        raise ConfigError(f'py1br needs a shuffle_block_size of at least 2 samples, got {block_size}. Raise it.')
    spans, stream = _epoch_spans(sizes, num_parts, seed, epoch)
    staggers = stream.integers(0, least, num_parts).tolist()
    offsets = _write_spans(out, spans)
    for (part_begin, part_end), stagger in zip(pairwise(offsets[spans.bounds].tolist()), staggers, strict=True):
        blocks: list[tuple[int, int]] = []
        at = part_begin
        while at < part_end:
            size = int(stream.integers(least, most))
            # The first block is short by the stagger, and the second begins that much before the first one's end.
            begin, end = max(at - stagger, part_begin), min(at + size - stagger, part_end)
            blocks.append((begin, end))
            at += end - begin
        for begin, end in blocks:
            stream.shuffle(out[begin:end])


def py1e(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:
    """Each sample moves a random way from its place, over a range about the size of a block."""
    least, most = int(0.75 * block_size), int(1.25 * block_size)
    if least >= most:
        raise ConfigError(f'py1e needs a shuffle_block_size of at least 1 sample, got {block_size}. Raise it.')
    if len(out) < num_parts:
        raise ConfigError(
            f'py1e needs at least one sample for each canonical node, got {len(out)} samples for {num_parts} canonical '
            'nodes. Lower num_canonical_nodes.'
        )
    spans, stream = _epoch_spans(sizes, num_parts, seed, epoch)
    offsets = _write_spans(out, spans)
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

    numpy's fastest sort leaves equal elements in an order that depends on the CPU. They are rare here, so putting them
    right afterwards is cheaper than a stable sort.
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
