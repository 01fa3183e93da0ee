"""MosaicML Streaming's orders, beyond the reference vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ResumeError
from headrace.order.families import ALGORITHMS
from tests.support.orders.mosaicml_plans import plans
from tests.support.orders.order_cases import mixture


def test_an_end_beyond_the_last_sample_is_an_empty_pass():
    # 67 samples on 8 canonical nodes are handed out as 72; MosaicML Streaming cannot resume there.
    mix = mixture([22, 22, 22, 1])
    (plan,) = plans(mix, 1, 1, 4, algorithm='naive', num_canonical_nodes=8)
    assert (plan.num_batches, plan.stop, plan.epoch_samples) == (18, 72, 72)
    (rest,) = plans(mix, 1, 1, 4, algorithm='naive', num_canonical_nodes=8, start=72)
    assert (rest.num_batches, rest.stop, rest.total_batches) == (0, 72, 18)
    with pytest.raises(ResumeError, match='inside an epoch of 67 samples, got position 76'):
        plans(mix, 1, 1, 4, algorithm='naive', num_canonical_nodes=8, start=76)


def test_another_rank_of_a_plan_counts_its_own_batches():
    mix = mixture([5, 6], [8, 13])
    of_all = plans(mix, 2, 2, 8, batching='device_per_stream', num_canonical_nodes=2, start=8)
    counts = [(plan.total_batches, plan.epoch_batches, plan.epoch_samples) for plan in of_all]
    assert len(set(counts)) > 1
    for rank, count in enumerate(counts):
        plan = of_all[0].of_rank(rank)
        assert (plan.total_batches, plan.epoch_batches, plan.epoch_samples) == count


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_the_page_of_orders_names_every_algorithm(algorithm: str) -> None:
    assert f'`{algorithm}`' in (Path(__file__).parents[3] / 'docs' / 'order.md').read_text()
