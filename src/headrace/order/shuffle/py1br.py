"""py1br: as py1b, with blocks of random sizes that begin at another place on each canonical node."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.order.shuffle.spans import epoch_spans, write_spans

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['shuffle_py1br']


def shuffle_py1br(out: IntArray, sizes: IntArray, num_parts: int, seed: int, epoch: int, block_size: int) -> None:
    """Fill out with a permutation; see `headrace.order.shuffle.Permutation`.

    Raises:
        ConfigError: the block is too small to take three quarters of.
    """
    least, most = int(0.75 * block_size), int(1.25 * block_size)
    if not 0 < least < most:
        raise ConfigError(f'py1br needs a shuffle_block_size of at least 2 samples, got {block_size}. Raise it.')
    spans, stream = epoch_spans(sizes, num_parts, seed, epoch)
    staggers = stream.integers(0, least, num_parts).tolist()
    offsets = write_spans(out, spans)
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
