"""A configuration, a mixture and states of both orders."""

from __future__ import annotations

from headrace.order import OrderConfig, ResumeState
from tests.support.orders.order_cases import mixture

MIX = mixture([10] * 30, [5] * 9, choose=[300, 90])
CONFIG = OrderConfig(shuffle=True, seed=7, num_canonical_nodes=2)
STATE = ResumeState.of(CONFIG, MIX, epoch=3, sample_in_epoch=24)


MOSAICML = {
    'epoch': 0,
    'sample_in_epoch': 24,
    'num_canonical_nodes': 4,
    'shuffle_seed': 9176,
    'initial_physical_nodes': 1,
}
