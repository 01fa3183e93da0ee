"""Passes over a stream run on over epochs, on each canonical node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import Mixture
from tests.support.orders.native_orders import blocks, nodes_used, shards_of_nodes
from tests.support.orders.order_cases import mixture, mixtures, relaxed, shuffled, whole


@relaxed
@given(mixtures(), nodes_used, blocks, st.integers(0, 2**70), st.booleans())
def test_streams_are_passes_that_run_on_over_epochs(
    mix: Mixture, nodes: int, block: int, seed: int, shuffle: bool
) -> None:
    """Each epoch draws exactly `choose`, and no sample is drawn twice before all of its stream are drawn once."""
    counts = np.zeros(mix.num_samples, int)
    for epoch in range(4):
        ids = whole(shuffled(mix, epoch, nodes=nodes, block=block, seed=seed, shuffle=shuffle))
        counts += np.bincount(ids, minlength=mix.num_samples)
        for stream, choose in enumerate(mix.choose):
            of_stream = counts[mix.sample_offsets[stream] : mix.sample_offsets[stream + 1]]
            drawn = (epoch + 1) * choose
            assert of_stream.sum() == drawn
            assert of_stream.min() == drawn // len(of_stream)
            assert of_stream.max() == -(-drawn // len(of_stream))


def test_passes_that_end_within_epochs_leave_nearly_all_shards_to_their_nodes() -> None:
    mix = mixture([20] * 50, [12] * 50, choose=[1003, 411])
    ever: list[set[int]] = [set() for _ in range(8)]
    for epoch in range(3):
        for node, touched in enumerate(shards_of_nodes(mix, 8, epoch, block=100)):
            ever[node] |= touched
        strays = 2 * (8 // 2) * (epoch + 1)
        assert sum(map(len, ever)) <= mix.num_shards + 2 * 2 * 7 + strays


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
