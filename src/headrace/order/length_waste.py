"""The waste of batches whose samples differ in cost: padding, and ranks that wait for the one with the most work.

Figures are of the first batches of a plan, and of those that `bucket` or `balance` would make.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.order.lengths import BalancedPlan, BucketedOrder
from headrace.order.native.order import NativeOrder
from headrace.order.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.order.arrays import IntArray
    from headrace.order.config import OrderConfig
    from headrace.order.lengths import Costs, CostsOf
    from headrace.order.protocols import BatchPlan

_BUCKET, _MOST_SORTED = 64, 1 << 17  # batches of the window that is proposed, and rows of it
_MOST_ROWS, _MOST_PARTS = 1 << 13, 256  # looked at: rows, and ranks' parts of batches
_MOST_DEALT = 64  # of parts that are dealt by cost, which takes longer
_PADDING, _SLOWEST = 0.1, 1.05  # from here on a change is proposed, if it takes at least a third of it away


def padding_share(parts: Sequence[IntArray]) -> float:
    """The share of padding if each rank pads its rows of a batch to its longest; parts are such rows' costs."""
    places = sum(len(rows) * int(rows.max()) for rows in parts if len(rows))
    return 1 - sum(int(rows.sum()) for rows in parts) / places if places else 0.0


def slowest_share(batches: Sequence[Sequence[IntArray]], power: float = 1.0) -> float:
    """The most work of a rank as a multiple of the mean rank's, the mean over `batches`: costs by batch and rank.

    A row's work is its cost to this power.
    """
    work = [[float((rows.astype(np.float64) ** power).sum()) for rows in ranks] for ranks in batches]
    return float(np.mean([max(ranks) * len(ranks) / sum(ranks) if any(ranks) else 1.0 for ranks in work]))


class LengthWaste(NamedTuple):
    """The waste of a plan, and what `bucket` and `balance` would make of it; None where they are set, or cannot be."""

    padding: float  # As `padding_share`, from 0 to 1.
    slowest: float  # As `slowest_share`.
    bucket: int  # The window that is proposed, in batches.
    bucketed: float | None  # `padding` with this window.
    balanced: float | None  # `slowest` with ``balance`` 1.

    @classmethod
    def of(cls, plan: BatchPlan, config: OrderConfig, costs: Costs) -> LengthWaste | None:
        """The waste of a plan of this order, in some ten milliseconds; None if it has no batch.

        Padding is of one rank in each batch.
        """
        order, size = plan.order, plan.global_batch_size
        bucket = max(1, min(_BUCKET, _MOST_SORTED // size))
        total = len(plan.batches(0, bucket))
        if not total:
            return None
        bucketed = balanced = power = None
        if isinstance(plan, BalancedPlan):
            power = plan.power
        elif isinstance(plan, Plan) and not order.units:
            same = {setting.name: getattr(plan, setting.name) for setting in fields(plan) if setting.init}
            balanced = slowest_share(_batches(BalancedPlan(**same, costs=costs), costs, total, _MOST_DEALT))
        if isinstance(plan, Plan) and isinstance(order, NativeOrder) and config.takes_bucket:
            window = BucketedOrder(order, replace(config, bucket=bucket, global_batch_size=size), costs)
            bucketed = _padding(replace(plan, order=window), costs, total)
        batches = _batches(plan, costs, total, _MOST_PARTS if power is None else _MOST_DEALT)
        return cls(_padding(plan, costs, total), slowest_share(batches, power or 1.0), bucket, bucketed, balanced)

    def notes(self) -> list[str]:
        """Sentences on the changes that pay."""
        sentences: list[str] = []
        if self.bucketed is not None and self.padding >= _PADDING and 3 * self.bucketed <= 2 * self.padding:
            sentences.append(
                f'batches that are padded to their longest row are {self.padding:.0%} padding; `bucket: {self.bucket}` '
                f'would make it {self.bucketed:.0%}.'
            )
        if self.balanced is not None and self.slowest >= _SLOWEST and 3 * (self.balanced - 1) <= 2 * (self.slowest - 1):
            sentences.append(
                f'the rank with the most work has {self.slowest:.2f} times the mean; `balance: 1` would make it '
                f'{self.balanced:.2f}.'
            )
        return sentences


def _padding(plan: BatchPlan, costs: CostsOf, total: int) -> float:
    """The padding of a rank in each of the first batches; another one in each, since `balance` treats ranks apart."""
    count, ranks = min(total, max(1, _MOST_ROWS // plan.batch_size)), plan.topology.world_size
    return padding_share([costs(plan.of_rank(number % ranks).ids(number)) for number in range(count)])


def _batches(plan: BatchPlan, costs: CostsOf, total: int, most: int) -> list[list[IntArray]]:
    """The costs of the first batches' rows, by batch and rank."""
    by_batch: list[list[IntArray]] = []
    most_batches = min(most // plan.topology.replicas, _MOST_ROWS // plan.global_batch_size)
    for number in range(min(total, max(1, most_batches))):
        ranks, _, positions, _ = plan.rows_of_ranks(number)
        by_batch.append(np.split(costs(plan.order.at(positions)), np.flatnonzero(np.diff(ranks)) + 1))
    return by_batch
