"""The order of samples: which sample, when, where. Integers in, integers out; no data are read.

1. `mixture`: sizes and weights of streams become the number of samples that an epoch draws from each stream.
   `mixture.schedule` changes them in the course of the run, `mixture.takeover` at a resume, and `decisions` by what is
   decided while the run goes on.
2. `native`: headrace's own order, the global sequence of an epoch, `Order.at(positions)`. `mosaicml` and `shuffle` hold
   MosaicML Streaming's. `protocols` says what others need of any order and plan.
3. `plan`: a `BatchPlan` cuts the sequence into global batches and selects the rows of this rank (`topology`). `skip`
   leaves positions out.
4. `sample_map`: a `SampleMap` finds shard and row of sample ids. A `RowSelection` has the rows that a stream offers.
5. `state`: a `ResumeState` is a position in a sequence, and describes the sequence. `resume` continues from it.
6. A plan explains a batch (`explanation`), and `explain` finds the next use of a sample. `steps` finds the batch of a
   trainer's step.
7. `run`: a `Run` makes all this for one dataset. `random` has the frozen random numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names
from headrace.order.config import DEFAULT_SEED, OrderConfig
from headrace.order.decisions import Decision, decisions_of
from headrace.order.mixture.mixture import Exhaustion, ExpectedCounts, Mixture, StreamSize
from headrace.order.mixture.schedule import Schedule, SchedulePoint
from headrace.order.mosaicml.epoch_permutation import fill_permutation, permutation_key
from headrace.order.orders import make_order, make_plan
from headrace.order.plan import Plan
from headrace.order.protocols import BatchPlan, Order
from headrace.order.resume import resolved_from_state
from headrace.order.run import MixtureChange, Run
from headrace.order.sample_map import (
    SPLIT_UNIT,
    Places,
    RowSelection,
    SampleMap,
    SelectedBits,
    SelectedRanges,
    SelectedSplit,
    count_bits,
    each_selected_row,
)
from headrace.order.skip import SkipRange, documents_skip, parse_skip, with_more
from headrace.order.state import ResumeState, find_state
from headrace.order.steps import batches_after, batches_before, find_batch, run_range
from headrace.order.topology import BatchSpec, Remainder, Topology

if TYPE_CHECKING:
    from headrace.order.explain import SampleUse, next_use
    from headrace.order.explanation import BatchExplanation

__all__ = [
    'DEFAULT_SEED',
    'SPLIT_UNIT',
    'BatchExplanation',
    'BatchPlan',
    'BatchSpec',
    'Decision',
    'Exhaustion',
    'ExpectedCounts',
    'Mixture',
    'MixtureChange',
    'Order',
    'OrderConfig',
    'Places',
    'Plan',
    'Remainder',
    'ResumeState',
    'RowSelection',
    'Run',
    'SampleMap',
    'SampleUse',
    'Schedule',
    'SchedulePoint',
    'SelectedBits',
    'SelectedRanges',
    'SelectedSplit',
    'SkipRange',
    'StreamSize',
    'Topology',
    'batches_after',
    'batches_before',
    'count_bits',
    'decisions_of',
    'documents_skip',
    'each_selected_row',
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

if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            'BatchExplanation': 'headrace.order.explanation',
            **dict.fromkeys(('SampleUse', 'next_use'), 'headrace.order.explain'),
        },
    )
