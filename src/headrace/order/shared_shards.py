"""Shards that several nodes read: how many times a run downloads its data, and the setting that lowers it."""

from __future__ import annotations

import math
from typing import NamedTuple

from headrace.order.config import OrderConfig

__all__ = ['SharedShards', 'shared_shards']


class SharedShards(NamedTuple):
    """Several nodes read each shard."""

    text: str
    """A sentence that says so."""
    fix: str
    """The setting that changes it, as an imperative."""


def shared_shards(config: OrderConfig, shards: int, nodes: int) -> SharedShards | None:
    """Whether several nodes read each shard, though nodes could have shards of their own; None: no.

    Position p of the sequence belongs to canonical node p modulo C, and to node p modulo N. So gcd(N, C) groups of
    nodes have disjoint canonical nodes, and the N / gcd(N, C) nodes of a group read the same shards.

    Args:
        config: how samples are ordered.
        shards: number of shards of all streams together.
        nodes: nodes of the parallel world, N.
    """
    canonical = config.canonical_nodes(shards, nodes)
    copies = nodes // math.gcd(nodes, canonical)
    # With fewer shards than nodes, the parts of nodes would lie in the same shards, too.
    if copies == 1 or shards < nodes:
        return None
    wanted = max(canonical // nodes, 1) * nodes
    if config.has_batches and (config.global_batch_size or 0) % wanted:
        wanted = nodes  # divides every global batch
    return SharedShards(
        f'{copies} of {nodes} nodes download each shard, because num_canonical_nodes is {canonical}',
        f'set `num_canonical_nodes: {wanted}` in a new run, and each node downloads shards of its own; it changes the '
        f'order of the samples',
    )
