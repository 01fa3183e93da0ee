"""Mixtures and orders for tests, and ways to look at them."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from headrace.order import Mixture, OrderConfig, StreamSize, make_order

relaxed = settings()
"""Those of the profile."""


def examples(share: float) -> settings:
    """So many times the examples that the profile has for a property."""
    return settings(max_examples=max(round(settings.default.max_examples * share), 2))


def mixture(*shards: list[int], choose: list[int] | None = None) -> Mixture:
    """A mixture of streams with these shard sizes."""
    streams = [
        StreamSize(name=f's{i}', shard_sizes=np.array(sizes), choose=None if choose is None else choose[i])
        for i, sizes in enumerate(shards)
    ]
    return Mixture.resolve(streams)


def shuffled(mix: Mixture, epoch: int = 0, *, nodes: int = 1, block: int | None = None, seed: int = 0, shuffle=True):
    """The native order of an epoch."""
    config = OrderConfig(shuffle=shuffle, seed=seed, num_canonical_nodes=nodes, block_size=block)
    return make_order(mix, config, epoch)


def whole(order) -> np.ndarray:
    """All ids of an epoch."""
    return order.at(np.arange(len(order)))


shard_lists = st.lists(st.integers(0, 40), min_size=1, max_size=12).map(lambda sizes: [*sizes, 1])


@st.composite
def mixtures(draw: st.DrawFn, max_streams: int = 4) -> Mixture:
    shards = draw(st.lists(shard_lists, min_size=1, max_size=max_streams))
    choose = [
        draw(st.sampled_from([sum(s), 2 * sum(s), 0]) | st.integers(0, 3 * sum(s))) if i else max(1, sum(s))
        for i, s in enumerate(shards)
    ]
    return mixture(*shards, choose=choose)
