"""The measures of docs/shuffle_quality.md: how well an order shuffles, and its cost in shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.order import Mixture, OrderConfig, StreamSize, make_order
from headrace.order.families import family_of

if TYPE_CHECKING:
    from headrace.order.arrays import IntArray

__all__ = ['NodeUse', 'Sequence', 'bits', 'node_use', 'sequence_of']


class Sequence(NamedTuple):
    """An epoch's sequence over one stream."""

    samples: IntArray
    """int64[N]: sample ids; position p is canonical node p mod C's."""
    shards: IntArray
    """int64[N]: their shards."""
    num_nodes: int
    """C, canonical nodes."""

    def node(self, c: int) -> Sequence:
        """Return the part of canonical node c."""
        return Sequence(self.samples[c :: self.num_nodes], self.shards[c :: self.num_nodes], 1)


class NodeUse(NamedTuple):
    """The shards of a canonical node's sequence. A shard is open from its first sample to its last."""

    open: IntArray
    """int64[M]: shards open at each position."""
    new: IntArray
    """int64[batches]: shards that begin in each batch."""


def sequence_of(algorithm: str, sizes: IntArray, num_nodes: int, block_size: int, seed: int) -> Sequence:
    """Make the sequence of epoch 0 over a stream of shards of sizes int64[shards], none of them 0.

    The MosaicML orders get positions like the native one: one sample of each canonical node in turn.

    Raises:
        ConfigError: the algorithm does not take the block size.
    """
    total = int(sizes.sum())
    permute = family_of(algorithm).permutation
    if permute is None:
        config = OrderConfig(shuffle=True, seed=seed, num_canonical_nodes=num_nodes, block_size=block_size)
        mixture = Mixture.resolve([StreamSize(name='stream', shard_sizes=sizes)])
        samples = make_order(mixture, config, 0).at(np.arange(total))
    else:
        by_node = np.empty(total, np.int64)
        permute(by_node, sizes, num_nodes, seed, 0, block_size)
        # Node c's part ends at N·(c+1) div C, so that parts differ by one sample; the longer ones go first here.
        cuts = [total * c // num_nodes for c in range(num_nodes + 1)]
        parts = sorted(np.split(by_node, cuts[1:-1]), key=len, reverse=True)
        samples = np.empty(total, np.int64)
        for c, part in enumerate(parts):
            samples[c::num_nodes] = part
    shards = np.repeat(np.arange(len(sizes)), sizes)[samples]
    return Sequence(samples, shards, num_nodes)


def bits(values: IntArray) -> float:
    """Return the entropy in bits of the absolute differences of neighbours in a sequence int64[n], n > 1.

    The sum over d of -p(d) · log2 p(d), where p(d) is the share of neighbours that differ by d. Runs, or the stored
    order, give few differences, so few bits.
    """
    counts = np.bincount(np.abs(np.diff(values)))
    share = counts[counts > 0] / (len(values) - 1)
    return float(-(share * np.log2(share)).sum())


def node_use(shards: IntArray, batch_size: int) -> NodeUse:
    """Return the shard use of a canonical node, from its sequence of shard numbers int64[M].

    Args:
        shards: the node's sequence.
        batch_size: the node's samples of a global batch.
    """
    num = int(shards.max()) + 1
    places = np.arange(len(shards))
    first, last = np.full(num, -1), np.full(num, -1)
    first[shards[::-1]] = places[::-1]
    last[shards] = places
    used = last >= 0
    change = np.bincount(first[used], minlength=len(shards) + 1)
    change -= np.bincount(last[used] + 1, minlength=len(shards) + 1)
    new = np.bincount(first[used] // batch_size, minlength=-(-len(shards) // batch_size))
    return NodeUse(np.cumsum(change)[:-1], new)
