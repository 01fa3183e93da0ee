"""Samples that an epoch draws less than once, once, or repeatedly."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.order import OrderConfig, make_order
from headrace.order.families import PERMUTATIONS
from tests.support.orders.order_cases import mixture


@pytest.mark.parametrize('algorithm', sorted(PERMUTATIONS))
@pytest.mark.parametrize('resampled', [{}, {'choose': [150, 410]}])
def test_every_sample_is_drawn_as_often_as_asked_for(algorithm, resampled):
    mix = mixture([40] * 5, [7] * 20, **resampled)
    order = make_order(mix, OrderConfig(shuffle=True, algorithm=algorithm, num_canonical_nodes=3, block_size=30), 2)
    ids = order.at(np.arange(len(order)))
    counts = np.bincount(ids, minlength=mix.num_samples)
    for stream, choose in enumerate(mix.choose):
        of_stream = counts[mix.sample_offsets[stream] : mix.sample_offsets[stream + 1]]
        assert of_stream.sum() == choose
        assert of_stream.max() - of_stream.min() <= 1
