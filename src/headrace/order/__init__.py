"""Which sample, when, where: integers in, integers out.

1. `mixture`: stream sizes and weights become the number of samples that an epoch draws from each stream; `schedule`
   has them change in the course of the run.
2. `order`: `make_order` gives the global sequence of an epoch, `Order.at(positions)`, by an algorithm of `shuffle`.
   `protocols` has what others need to know of any `Order` and `BatchPlan`.
3. `plan`: a `BatchPlan` cuts the sequence into global batches and says which rows are this rank's (`topology`).
   MosaicML Streaming's orders have their own (`compatible`): `permutation` is what `Order.at` looks up, made by
   `sampling`, `resampling` and `shuffle`; `partition` and `batching` say which positions make a batch.
   `skip` says which positions a plan leaves out.
4. `locate`: a `SampleMap` finds shard and row of the ids; `kept` says which rows a stream with a selection offers.
5. `state`: a `ResumeState` is a position of the sequence and what the sequence was made from; `origin` is where one
   mixture took over from another; `resume` goes on from a state.
6. `explain` says which samples make up a batch, and when a sample is seen next; `steps`, which batch a trainer's step
   is, and which samples of the run it takes; `promise`, what the mixture promises of each stream.
7. `run`: a `Run` holds all this together for one dataset.
"""

from __future__ import annotations

from headrace.order.batch_spec import BatchSpec, Remainder
from headrace.order.config import DEFAULT_SEED, OrderConfig
from headrace.order.explain import SampleUse, explain_batch, next_use
from headrace.order.explanation import BatchExplanation
from headrace.order.kept import SPLIT_UNIT, Kept, KeptBits, KeptRanges, KeptSplit, count_bits, each_kept_row
from headrace.order.locate import SampleMap
from headrace.order.mixture import Exhaustion, Mixture, StreamSize
from headrace.order.order import make_order, make_plan
from headrace.order.permutation import fill_permutation, permutation_key
from headrace.order.plan import Plan
from headrace.order.promise import Promise
from headrace.order.protocols import BatchPlan, Order
from headrace.order.resume import resolved_from_state
from headrace.order.run import MixtureChange, Run
from headrace.order.schedule import Schedule, SchedulePoint
from headrace.order.skip import Skip, SkipRange, parse_skip, with_more
from headrace.order.state import ResumeState, find_state
from headrace.order.steps import PlanOf, batches_after, batches_before, find_batch, run_range
from headrace.order.topology import Topology

__all__ = [
    'DEFAULT_SEED',
    'SPLIT_UNIT',
    'BatchExplanation',
    'BatchPlan',
    'BatchSpec',
    'Exhaustion',
    'Kept',
    'KeptBits',
    'KeptRanges',
    'KeptSplit',
    'Mixture',
    'MixtureChange',
    'Order',
    'OrderConfig',
    'Plan',
    'PlanOf',
    'Promise',
    'Remainder',
    'ResumeState',
    'Run',
    'SampleMap',
    'SampleUse',
    'Schedule',
    'SchedulePoint',
    'Skip',
    'SkipRange',
    'StreamSize',
    'Topology',
    'batches_after',
    'batches_before',
    'count_bits',
    'each_kept_row',
    'explain_batch',
    'fill_permutation',
    'find_batch',
    'find_state',
    'make_order',
    'make_plan',
    'next_use',
    'parse_skip',
    'permutation_key',
    'resolved_from_state',
    'run_range',
    'with_more',
]
