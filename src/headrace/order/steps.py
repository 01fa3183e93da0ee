"""Batches of a run by the number that a trainer counts, their neighbours, and where in the run's sequence they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.errors import ConfigError
from headrace.order.protocols import BatchPlan
from headrace.order.skip import Skip

PlanOf: TypeAlias = 'Callable[[int, int], BatchPlan]'  # Gives the plan of an epoch from a position on, of any rank.


def find_batch(
    plan_of: PlanOf, number: int, *, epoch: int = 0, start: int = 0, skip: Skip = ()
) -> tuple[BatchPlan, int]:
    """The plan and number of a run's batch, counted from 0 at a place, through all epochs; ConfigError: none."""
    plan = plan_of(epoch, start)
    while number >= plan.num_batches:
        number -= plan.num_batches
        epoch += 1
        plan = plan_of(epoch, 0)
        if epoch >= _first_whole_epoch(plan, skip):  # from here on all epochs are alike, except for `batch_cost`
            if not plan.num_batches:
                raise ConfigError(f'the epochs of this loader have no batches from epoch {epoch} on.')
            if not plan.epochs_differ:
                more, number = divmod(number, plan.num_batches)
                return plan_of(epoch + more, 0), number
    return plan, number


def _first_whole_epoch(plan: BatchPlan, skip: Skip) -> int:
    """An epoch after all skipped ranges."""
    size, takeover = len(plan.order), plan.order.mixture.takeover
    batches = max(plan.epoch_batches, 1)
    ends = [
        takeover.epoch + -(-(end.count - takeover.begin) // size) if end.unit == 'sp' else end.count // batches + 1
        for _, end in skip
    ]
    return max(ends, default=0)


def batches_before(plan_of: PlanOf, plan: BatchPlan, k: int, count: int) -> list[tuple[BatchPlan, int]]:
    """The batches before batch k of a plan, with plans, in order; fewer where the run or its mixture began later.

    Those from before the plan's start are cut from its epoch's beginning on, in batches of the plan's size.
    """
    batches: list[tuple[BatchPlan, int]] = []
    while len(batches) < count and (previous := _previous(plan_of, plan, k)) is not None:
        plan, k = previous
        batches.insert(0, previous)
    return batches


def batches_after(plan_of: PlanOf, plan: BatchPlan, k: int, count: int) -> list[tuple[BatchPlan, int]]:
    """The batches of a run after batch k of a plan, through all epochs; arguments as `batches_before`'s."""
    batches: list[tuple[BatchPlan, int]] = []
    for _ in range(count):
        k += 1
        while k >= plan.num_batches:
            plan, k = plan_of(plan.order.epoch + 1, 0), 0
        batches.append((plan, k))
    return batches


def _previous(plan_of: PlanOf, plan: BatchPlan, k: int) -> tuple[BatchPlan, int] | None:
    if k:
        return plan, k - 1
    epoch, number, takeover = plan.order.epoch, plan.batches_before, plan.order.mixture.takeover
    if number:
        plan = plan_of(epoch, 0)
    while not number:
        if epoch <= takeover.epoch:
            return None
        epoch -= 1
        plan = plan_of(epoch, 0)
        number = plan.num_batches
    # This mixture does not know the samples before it took over.
    return None if plan.spans(number - 1, number)[0][0] < plan.order.first else (plan, number - 1)


def run_range(plan: BatchPlan, k: int) -> tuple[int, int]:
    """The samples [begin, end) of the run that a batch lies between, for `skip`: skipped ones, but no padding."""
    spans, order = plan.spans(k, k + 1), plan.order
    begin = order.mixture.takeover.begin_of(order.epoch, len(order))
    # MosaicML Streaming's orders count repeats after an epoch's last sample, where the next epoch begins.
    return begin + min(spans[0][0], len(order) - 1), begin + min(spans[-1][1], len(order))
