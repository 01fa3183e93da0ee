"""The table of a batch: each row, and where it comes from."""

from __future__ import annotations

import numpy as np

from headrace.order import (
    OrderConfig,
    SampleMap,
    Topology,
    make_order,
    make_plan,
)
from tests.support.orders.order_cases import mixture


def test_a_table_says_where_each_row_comes_from() -> None:
    order = make_order(mixture([3, 2], [4]), OrderConfig(), 0)
    explained = make_plan(order, Topology(world_size=2), global_batch_size=6).explain(1)
    assert str(explained).splitlines() == [
        'rank  row  position  stream  shard  shard_row  id',
        '   0    0         6      s1      0          1   6',
        '   0    1         8      s1      0          3   8',
        '   1    0         7      s1      0          2   7',
        '   1    1         8      s1      0          3   8  padding',
    ]
    assert explained.stream_counts() == {'s0': 0, 's1': 3}


def test_a_selection_shows_the_rows_that_are_stored() -> None:
    class EveryOther:
        counts = np.array([3, 2])

        def rows(self, shards: np.ndarray, ranks: np.ndarray) -> np.ndarray:
            return 2 * ranks + 1

    mix = mixture([3, 2])
    explained = make_plan(make_order(mix, OrderConfig(), 0), Topology(), global_batch_size=5).explain(
        0, SampleMap.of(mix, [EveryOther()])
    )
    assert explained.shards.tolist() == [0, 0, 0, 1, 1]
    assert explained.shard_rows.tolist() == [1, 3, 5, 1, 3]
