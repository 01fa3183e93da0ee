"""Global batches shared by streams."""

from __future__ import annotations

from tests.support.orders.mosaicml_plans import plans
from tests.support.orders.order_cases import mixture


def test_dropping_the_remainder_keeps_ranks_equal_where_repeats_would_not():
    config = {'batching': 'device_per_stream', 'num_canonical_nodes': 2, 'shuffle': False}
    assert len({p.num_batches for p in plans(mixture([12]), 2, 2, 8, **config)}) == 2
    dropped = plans(mixture([13] * 4), 2, 2, 8, remainder='drop', **config)
    assert len({p.num_batches for p in dropped}) == 1
    assert all(len(p.ids(k)) == 2 for p in dropped for k in range(p.num_batches))
