"""The batches that a step of Lightning's trained, which are not always the last ones of the loaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.metrics import TrainedBatch

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.order import BatchPlan

__all__ = ['TrainedBatches']


class TrainedBatches:
    """Finds the batch of each loader that a step trained.

    Without the length of a loader, Lightning fetches one step ahead.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a training."""
        self._handed_out: dict[str, tuple[BatchPlan, int] | None] = {}
        self._fetched: dict[str, TrainedBatch] = {}  # of the next step
        self._is_ahead, self._is_pass_start = False, True

    def begin_pass(self) -> None:
        """Begin an epoch."""
        self._is_pass_start = True

    def after_step(self, loaders: Mapping[str, StreamingDataLoader]) -> dict[str, TrainedBatch]:
        """The batch of each loader that this step trained; with `max_size`, an exhausted loader has none."""
        new: dict[str, TrainedBatch] = {}
        for name, loader in loaders.items():
            now, before = loader.handed_out, self._handed_out.get(name)
            if now is not None and (before is None or now[0] is not before[0] or now[1] != before[1]):
                new[name] = TrainedBatch(loader, *now)
            self._handed_out[name] = now
        if self._is_pass_start:
            # A pass begins with two fetches then.
            self._is_pass_start, self._is_ahead = False, any(batch.number for batch in new.values())
            self._fetched = {name: replace(batch, number=0) for name, batch in new.items() if batch.number}
        if not self._is_ahead:
            return new
        trained, self._fetched = self._fetched, new
        return trained
