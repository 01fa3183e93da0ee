"""The position of one training loader in its data, in batches and in samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from headrace.order import BatchPlan, Remainder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.dataset.dataset import StreamingDataset
    from headrace.dataset.loader import StreamingDataLoader

__all__ = ['GlobalBatches', 'LoaderPosition', 'TrackedBatches']

_PLANS = 8


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """A dataset in global batches, where a trainer makes the loader later."""

    dataset: StreamingDataset
    global_batch_size: int
    remainder: Remainder


TrackedBatches: TypeAlias = 'StreamingDataLoader | GlobalBatches'


class LoaderPosition:
    """Batches and positions of one training loader, and the place where its next pass begins.

    A *place* is an epoch and a position in it, as a checkpoint has them; at the end of an epoch it is that end.

    Args:
        batches: the loader, or its dataset and batch size. May be set, as when the batch size changes.
        name: its name among several loaders; empty for the only one.
    """

    def __init__(self, batches: TrackedBatches, name: str = '') -> None:
        self.name = name
        self.batches = batches
        self._plans: dict[object, BatchPlan] = {}  # of the current pass: states are saved often

    @property
    def dataset(self) -> StreamingDataset:
        """The dataset that is read."""
        return self.batches.dataset

    @property
    def global_batch_size(self) -> int:
        """Samples of a batch over all ranks."""
        return self.batches.global_batch_size

    @property
    def remainder(self) -> Remainder:
        """Handling of the samples after the last full global batch."""
        return self.batches.remainder

    @property
    def epochs_differ(self) -> bool:
        """Whether epochs may differ in length, because ``skip`` shortens some. An epoch without end is the only one."""
        return bool(self.dataset.skip) and self.dataset.has_length

    def forget_plans(self) -> None:
        """Forget the plans of the last pass: an order may hold much memory."""
        self._plans.clear()

    def begin(self, places: Sequence[tuple[int, int]] | None = None) -> None:  # noqa: ARG002 - asked for anew, below
        """Skip empty epochs, as one of several loaders begins a pass: an empty one would end the pass of all."""
        self.skip_empty_epochs()

    def handed_out(self) -> None:
        """Count nothing: the tracker counts the batches of several loaders together."""

    def next(self) -> tuple[int, int]:
        """The place where the next pass begins."""
        return self.dataset.progress.next(rank=self.dataset.topology.rank)

    def move(self, epoch: int, start: int) -> None:
        """Have the next pass begin at a place."""
        self.dataset.progress.load(epoch, start)
        self.forget_plans()

    def plan(self, epoch: int, start: int) -> BatchPlan:
        """The batches from a place to the end of its epoch."""
        size, remainder = self.global_batch_size, self.remainder
        key = epoch, start, size, remainder, self.dataset.topology
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[key] = self.dataset.plan(
                epoch=epoch, start=start, global_batch_size=size or None, remainder=remainder
            )
        return plan

    def after(self, place: tuple[int, int], batches: int, *, cycles: bool) -> tuple[int, int]:
        """The place after some batches.

        Args:
            place: where the first of them begins.
            batches: how many there are.
            cycles: whether further epochs follow; else the batches end with this one.
        """
        epoch, start = place
        plan = self.plan(epoch, start)
        while cycles and batches > plan.num_batches:
            batches -= plan.num_batches
            epoch, start = self.first_epoch(epoch + 1), 0
            plan = self.plan(epoch, start)
            if not self.epochs_differ:  # all whole epochs are alike
                whole = (batches - 1) // plan.num_batches
                epoch, batches = epoch + whole, batches - whole * plan.num_batches
                plan = self.plan(epoch, start)
        batches = min(batches, plan.num_batches)
        return epoch, plan.end(batches - 1) if batches else start

    def batches_left(self, epoch: int, start: int, limit: int | float) -> int:
        """Batches that a trainer takes from a place to the end of the epoch, or to its own limit.

        Args:
            epoch: the place's epoch.
            start: the place's position.
            limit: batches of an epoch, or a share of them.
        """
        plan = self.plan(epoch, start)
        if limit == 1.0 and isinstance(limit, float):
            return plan.num_batches
        if isinstance(limit, float):
            limit = int(limit * self.plan(epoch, 0).num_batches)
        return min(plan.num_batches, max(limit - plan.batches_before, 0))

    def first_epoch(self, epoch: int) -> int:
        """The first epoch, from this one on, with samples that ``skip`` leaves."""
        while self.epochs_differ and self.plan(epoch, 0).is_skipped:
            epoch += 1
        return epoch

    def skip_empty_epochs(self) -> int:
        """Have the next pass begin in an epoch with samples left; return the number of skipped epochs."""
        epoch, start = self.next()
        there = epoch if start else self.first_epoch(epoch)
        if there != epoch:
            self.move(there, 0)
        return there - epoch
