"""What every order and every plan has."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.order import Mixture, OrderConfig, StreamSize, Topology, make_order, make_plan

MIXTURE = Mixture.resolve([StreamSize(name=name, shard_sizes=np.full(3, 8)) for name in 'ab'])
CONFIGS = [
    OrderConfig(shuffle=True, num_canonical_nodes=2),
    OrderConfig(shuffle=True, num_canonical_nodes=2, algorithm='py1e'),
]


@pytest.mark.parametrize('config', CONFIGS, ids=['native', 'py1e'])
def test_a_sample_is_found_at_its_positions_and_others_are_refused(config: OrderConfig) -> None:
    order = make_order(MIXTURE, config, 0)
    ids = order.at(np.arange(len(order)))
    assert [list(order.find(int(sample))) for sample in ids[:5]] == [np.flatnonzero(ids == i).tolist() for i in ids[:5]]
    with pytest.raises(IndexError, match=r'sample ids must be in \[0, 48\), got 48'):
        order.find(48)
    with pytest.raises(IndexError, match=r'positions must be in \[0, 48\], got 49'):
        order.find(0, 49)


@pytest.mark.parametrize('config', CONFIGS, ids=['native', 'py1e'])
def test_a_batch_of_a_replica_is_its_part_of_the_global_one(config: OrderConfig) -> None:
    plan = make_plan(make_order(MIXTURE, config, 0), Topology(world_size=2), global_batch_size=8)
    assert (plan.batch_size, plan.num_batches, plan.total_batches) == (4, 6, 6)
