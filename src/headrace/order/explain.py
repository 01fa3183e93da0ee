"""When a sample is handed out; without reading any data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.order.protocols import BatchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleUse:
    """Where a sample is handed out."""

    epoch: int
    position: int  # In the epoch's sequence.
    batch: int  # Which batch of its plan it is in.
    rank: int  # The rank that gets it; with replication, the first of those that do.
    row: int  # The row of that rank's batch.


def next_use(
    plan_of: Callable[[int], BatchPlan], sample_id: int, *, epoch: int = 0, batch: int = 0, epochs: int = 1000
) -> SampleUse | None:
    """Say when a sample is seen next.

    Args:
        plan_of: gives the plan of an epoch, of any rank.
        sample_id: global sample id.
        epoch: where to begin.
        batch: which of that epoch's batches to begin with.
        epochs: how many epochs to look through.

    Returns:
        The first use, without padding, or None if the sample is not handed out in those epochs.

    Raises:
        IndexError: the sample does not exist.
    """
    for number in range(epoch, epoch + epochs):
        plan = plan_of(number)
        place = plan.find(sample_id, batch if number == epoch else 0)
        if place is not None:
            k, position = place
            ranks, rows, positions, is_padding = plan.rows_of_ranks(k)
            i = int(((positions == position) & ~is_padding).argmax())
            return SampleUse(epoch=number, position=position, batch=k, rank=int(ranks[i]), row=int(rows[i]))
    return None
