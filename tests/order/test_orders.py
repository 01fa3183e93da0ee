"""Orders and plans by the name of their algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ConfigError, UnknownNameError
from headrace.order import Mixture, OrderConfig, StreamSize, Topology, make_order, make_plan
from headrace.order.families import PERMUTATIONS
from headrace.order.mosaicml.order import MosaicMLOrder
from headrace.order.native.order import NativeOrder

MIXTURE = Mixture.resolve([StreamSize(name='a', shard_sizes=np.array([9, 40, 3]))], epoch_size=None, seed=1)


@pytest.mark.parametrize('algorithm', ['native', *sorted(PERMUTATIONS)])
def test_each_algorithm_orders_all_samples_by_its_family(algorithm: str) -> None:
    order = make_order(MIXTURE, OrderConfig(algorithm=algorithm, shuffle=True, num_canonical_nodes=2), 3)
    assert isinstance(order, NativeOrder if algorithm == 'native' else MosaicMLOrder)
    assert sorted({*order.at(np.arange(len(order))).tolist()}) == list(range(52))


def test_a_plan_is_that_of_its_order() -> None:
    order = make_order(MIXTURE, OrderConfig(), 0)
    ranks = [make_plan(order, Topology(rank=rank, world_size=2), global_batch_size=8, start=4) for rank in range(2)]
    assert [plan.num_batches for plan in ranks] == [6, 6]
    first = sorted(sample for plan in ranks for sample in plan.ids(0).tolist())
    assert first == sorted(order.at(np.arange(4, 12)).tolist())


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"must be one of \['naive', 'native', .*got 'no-such'"):
        make_order(MIXTURE, OrderConfig(algorithm='no-such'), 0)
    with pytest.raises(ConfigError, match='epoch must be at least 0, got -1'):
        make_order(MIXTURE, OrderConfig(), -1)
