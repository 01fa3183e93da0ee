"""Which sample, when, where: integers in, integers out.

1. `mixture`: stream sizes and weights become the number of samples that an epoch draws from each stream.
2. `order`: `make_order` gives the global sequence of an epoch, `Order.at(positions)`, by an algorithm of `shuffle`.
3. `plan`: a `BatchPlan` cuts the sequence into global batches and says which rows are this rank's (`topology`).
   MosaicML Streaming's orders have their own (`compatible`): `permutation` is what `Order.at` looks up, made by
   `sampling`, `resampling` and `shuffle`; `partition` and `batching` say which positions make a batch.
4. `locate`: a `SampleMap` finds shard and row of the ids; `kept` says which rows a stream with a selection offers.
5. `state`: a `ResumeState` is a position of the sequence and what the sequence was made from.
"""

from __future__ import annotations

from headrace.order.config import OrderConfig
from headrace.order.kept import SPLIT_UNIT, Kept, KeptBits, KeptRanges, KeptSplit, count_bits, each_kept_row
from headrace.order.locate import SampleMap
from headrace.order.mixture import Mixture, StreamSize
from headrace.order.order import Order, make_order, make_plan
from headrace.order.permutation import fill_permutation, permutation_key
from headrace.order.plan import BatchPlan, Plan, Remainder
from headrace.order.state import ResumeState, resolved_from_state
from headrace.order.topology import Topology

__all__ = [
    'SPLIT_UNIT',
    'BatchPlan',
    'Kept',
    'KeptBits',
    'KeptRanges',
    'KeptSplit',
    'Mixture',
    'Order',
    'OrderConfig',
    'Plan',
    'Remainder',
    'ResumeState',
    'SampleMap',
    'StreamSize',
    'Topology',
    'count_bits',
    'each_kept_row',
    'fill_permutation',
    'make_order',
    'make_plan',
    'permutation_key',
    'resolved_from_state',
]
