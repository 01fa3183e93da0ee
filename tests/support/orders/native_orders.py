"""Native orders of small mixtures, whole, and small cells."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from headrace.order import Mixture
from headrace.order.native.cell_table import Parts
from headrace.order.random.feistel import column_bits
from headrace.order.random.hashing import hashes
from tests.support.orders.order_cases import shuffled, whole

nodes_used = st.sampled_from([1, 2, 3, 4, 8, 64])
blocks = st.sampled_from([1, 7, 40, 300, 10**6])


def shards_of_nodes(mix: Mixture, nodes: int, epoch: int, **options) -> list[set[int]]:
    ids = whole(shuffled(mix, epoch, nodes=nodes, **options))
    shards = np.repeat(np.arange(mix.num_shards), mix.shard_sizes)[ids]
    return [set(shards[node::nodes].tolist()) for node in range(nodes)]


@st.composite
def cells(draw: st.DrawFn) -> Parts:
    sizes = np.array(draw(st.lists(st.integers(1, 9) | st.integers(20, 40), min_size=1, max_size=8)))
    skipped, after = (np.array([draw(st.integers(0, 2)) for _ in sizes]) for _ in range(2))
    shards = skipped + sizes + after
    return Parts(
        sizes=sizes,
        skipped=skipped,
        starts=np.cumsum(shards) - shards,
        shard_sizes=shards,
        bits=column_bits(shards),
        keys=hashes(draw(st.integers(0, 9)), np.arange(len(sizes))),
    )


added_cells = st.lists(
    st.tuples(cells(), st.integers(1, 30) | st.integers(30, 200) | st.just(1000), st.integers(0, 99)),
    min_size=1,
    max_size=3,
)
