"""Native orders of small mixtures, whole."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from headrace.order import Mixture
from tests.support.orders.order_cases import shuffled, whole

nodes_used = st.sampled_from([1, 2, 3, 4, 8, 64])
blocks = st.sampled_from([1, 7, 40, 300, 10**6])


def shards_of_nodes(mix: Mixture, nodes: int, epoch: int, **options) -> list[set[int]]:
    ids = whole(shuffled(mix, epoch, nodes=nodes, **options))
    shards = np.repeat(np.arange(mix.num_shards), mix.shard_sizes)[ids]
    return [set(shards[node::nodes].tolist()) for node in range(nodes)]
