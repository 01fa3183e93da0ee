"""Which sample, when, where: integers in, integers out.

1. `mixture`: stream sizes and weights become the number of samples that an epoch draws from each stream.
2. `order`: `make_order` gives the global sequence of an epoch, `Order.at(positions)`, by an algorithm of `shuffle`.
3. `plan`: a `Plan` cuts the sequence into global batches and says which rows are this rank's (`topology`).
4. `locate`: a `SampleMap` finds shard and row of the ids.
5. `state`: a `ResumeState` is a position of the sequence and what the sequence was made from.
"""

from __future__ import annotations

from headrace.order.config import OrderConfig
from headrace.order.locate import SampleMap
from headrace.order.mixture import Mixture, StreamSize
from headrace.order.order import Order, make_order
from headrace.order.plan import Plan, Remainder
from headrace.order.state import ResumeState, resolved_from_state
from headrace.order.topology import Topology

__all__ = [
    'Mixture',
    'Order',
    'OrderConfig',
    'Plan',
    'Remainder',
    'ResumeState',
    'SampleMap',
    'StreamSize',
    'Topology',
    'make_order',
    'resolved_from_state',
]
