"""Partitions of few samples, and global batches that do not depend on the topology."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import TopologyError
from headrace.order.mosaicml.partition import Partition
from tests.support.orders.mosaicml_plans import TWO_STREAMS, plans


def global_batches(plans_of_ranks):
    return [
        sorted(np.concatenate([p.ids(k) for p in plans_of_ranks]).tolist())
        for k in range(plans_of_ranks[0].num_batches)
    ]


@pytest.mark.parametrize('config', [{}, {'algorithm': 'py1s'}, {'algorithm': 'naive'}, {'batching': 'stratified'}])
def test_elastic_methods_keep_their_global_batches_on_other_topologies(config):
    whole = global_batches(plans(TWO_STREAMS, 1, 1, 8, **config))
    for nodes, ranks in [(2, 1), (2, 2), (4, 2), (1, 8)]:
        assert global_batches(plans(TWO_STREAMS, nodes, ranks, 8, **config))[:-2] == whole[:-2]
        assert global_batches(plans(TWO_STREAMS, nodes, ranks, 8, start=80, **config))[:-2] == whole[10:-2]


def test_a_relaxed_run_continues_on_nodes_that_do_not_fit_its_canonical_nodes():
    whole = global_batches(plans(TWO_STREAMS, 2, 1, 12))
    assert global_batches(plans(TWO_STREAMS, 3, 1, 12, start=48, initial=2))[:-2] == whole[4:-2]
    with pytest.raises(TopologyError, match='4 canonical nodes on 3 nodes'):
        plans(TWO_STREAMS, 3, 1, 12)
    with pytest.raises(TopologyError, match='multiple of the 2 ranks of the 2 nodes'):
        plans(TWO_STREAMS, 3, 1, 15, initial=2)


@given(
    st.integers(1, 40), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.integers(1, 5)
)
def test_few_samples_on_more_nodes_than_canonical_ones_leave_ranks_equal(samples, parts, ratio, ranks, batch):
    partition = Partition(samples, parts, nodes=parts * ratio, ranks=ranks, batch_size=batch)
    rows = partition.rows(np.arange(partition.num_rows)).reshape(-1, parts * ratio * ranks, batch)
    per_rank = (rows >= 0).sum((0, 2))
    assert per_rank.min() == per_rank.max() > 0
    assert set(rows[rows >= 0].tolist()) == set(range(samples))
