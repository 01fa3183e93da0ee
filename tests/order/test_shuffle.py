"""py1e: its stable sort, and the least number of samples."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.order import OrderConfig, make_order
from headrace.order.shuffle import stable_argsort
from tests.support.orders.order_cases import mixture


def test_equal_elements_are_sorted_in_their_own_order():
    for n in (1, 2, 7, 100, 70_000):
        x = np.random.default_rng(n).integers(0, max(n // 3, 1), n).astype(np.float64)
        assert np.array_equal(stable_argsort(x), np.argsort(x, kind='stable'))


def test_py1e_wants_a_sample_for_each_canonical_node():
    order = make_order(mixture([5]), OrderConfig(algorithm='py1e', shuffle=True, num_canonical_nodes=8), 0)
    with pytest.raises(ConfigError, match='at least one sample for each canonical node, got 5 samples for 8'):
        order.at(np.arange(5))
