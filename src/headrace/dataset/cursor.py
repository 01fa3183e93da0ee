"""The place that a loader has reached, and the epoch that a trainer sets on its sampler."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.dataset.progress import Progress
from headrace.order import BatchPlan

__all__ = ['Cursor', 'EpochHint']


class Cursor:
    """The place that a loader has reached. An object of its own, since a `DataLoader` checks each attribute it sets."""

    __slots__ = ('begin', 'handed_out')

    def __init__(self) -> None:
        self.begin: tuple[int, int] | None = None
        """Epoch and first sample of a pass that has given no batch yet."""
        self.handed_out: tuple[BatchPlan, int] | None = None
        """The plan and number of the last batch."""

    @property
    def position(self) -> tuple[int, int] | None:
        """Epoch and sample; None before the first pass."""
        if self.begin is not None or self.handed_out is None:
            return self.begin
        plan, number = self.handed_out
        return plan.order.epoch, plan.end(number)


class EpochHint:
    """A `sampler` for Lightning and Fabric, which set the epoch on it."""

    # It has no reference to the loader: with a cycle the workers would live until a garbage collection.
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def set_epoch(self, epoch: int) -> None:
        """Begin at `epoch`, unless the loader has a position already."""
        self._progress.tell(epoch)

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None
