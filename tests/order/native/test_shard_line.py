"""Stretches of the line of shards, one for each canonical node."""

from __future__ import annotations

import pytest

from tests.support.orders.native_orders import shards_of_nodes
from tests.support.orders.order_cases import mixture, shuffled, whole


@pytest.mark.parametrize('choose', [[1000, 600], [2000, 600], [1000, 1800]], ids=str)
def test_canonical_nodes_read_disjoint_shards_and_the_same_in_all_epochs(choose: list[int]) -> None:
    mix = mixture([20] * 50, [12] * 50, choose=choose)
    epochs = [shards_of_nodes(mix, 8, epoch, block=100) for epoch in range(3)]
    for touched in epochs:
        # A shard is shared only where the line of shards is cut: once for each stream and node, but the first.
        assert sum(map(len, touched)) <= mix.num_shards + 2 * 7
    # Where choose is a multiple of the size, nothing drifts; a repeated pass may cut a few samples further on.
    if choose == [1000, 600]:
        assert epochs[0] == epochs[1] == epochs[2]


def test_empty_shards_and_more_nodes_than_samples() -> None:
    mix = mixture([0, 3, 0, 1, 0])
    for nodes in (1, 3, 64):
        for epoch in range(3):
            assert sorted(whole(shuffled(mix, epoch, nodes=nodes)).tolist()) == [0, 1, 2, 3]
