"""Lightning's loop counters, translated for the tracker of the position and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace.dataset.tracker import Pass, PositionTracker, describe_start
from headrace.lightning.position.loop_progress import Restart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning.pytorch import Trainer

    from headrace.dataset.tracker import Places, TrackedBatches, TrainMode

__all__ = ['TrainPosition', 'is_position']


class TrainPosition(PositionTracker):
    """A position tracker that reads trained batches from Lightning's counters.

    A batch counts when its gradients are in the weights. A failed batch does not count, nor do batches since the last
    optimizer step of `accumulate_grad_batches`.

    Args:
        loaders: the training loaders by name, or the only one.
        trainer: the trainer that trains on them. May be set.
        mode: how several loaders form an epoch.
    """

    advice = 'the learning rate, accumulate_grad_batches and an integer val_check_interval'

    def __init__(
        self, loaders: TrackedBatches | Mapping[str, TrackedBatches], trainer: Trainer, mode: TrainMode
    ) -> None:
        super().__init__(loaders, mode)
        self.trainer = trainer
        self._counts = 0, 0  # Lightning's epochs and batches when the pass began or resumed
        self._is_left = False
        self._loaded_ranks: int | None = None

    @property
    @override
    def limit(self) -> int | float:
        return self.trainer.limit_train_batches

    # Lightning's types of its counters lack their names.
    @property
    def _batches(self) -> Any:
        return self.trainer.fit_loop.epoch_loop.batch_progress

    @property
    def _counts_now(self) -> tuple[int, int]:
        epochs: Any = self.trainer.fit_loop.epoch_progress
        return epochs.current.processed, self._batches.total.processed

    @override
    def begin(self, places: Places | None = None) -> None:
        """Begin a pass, with Lightning's counters from before its first batch.

        Without a loader's length, Lightning begins the first pass of a later `fit` twice.
        """
        super().begin(places)
        self._counts, self._is_left = self._counts_now, False

    def leave(self) -> None:
        """End the count of this pass, because the trainer trains on other data next."""
        self._count_trained()
        self._is_left = True

    @override
    def _repeats(self, begun: Pass) -> bool:
        return super()._repeats(begun) if self._is_left else self._counts_now == self._counts

    def _count_trained(self) -> None:
        """Take the trained batches of the pass from Lightning's counters."""
        begun, progress = self._pass, self._batches
        if begun is None or self._is_left:
            return
        trained = max(progress.total.processed - self._counts[1], 0)
        # Lightning may end a pass early: `limit_train_batches`, or a hook that returns -1. `is_last_batch` is set
        # before that batch is trained, which may still fail.
        is_last = progress.is_last_batch and 0 < begun.handed_out <= trained
        if not is_last and trained < self._whole(begun):
            trained -= min(trained, progress.current.processed % self.trainer.accumulate_grad_batches)
        begun.trained, begun.is_over = trained, is_last

    @override
    def state_dict(self) -> dict[str, Any]:
        self._count_trained()
        begun, here = self._pass, self._snapshot()
        epochs, batches = self._counts_now if begun is None else self._counts
        if begun is not None:
            epochs += self._epochs_between(begun.places, here.places, is_over=here.is_over)
            batches += begun.trained
        ranks = self.loaders[0].dataset.topology.world_size
        return {**self._state_at(here), 'trainer_epoch': epochs, 'trainer_batches': batches, 'ranks': ranks}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._loaded_ranks = state.get('ranks')

    def describe_start(self) -> str:
        """A line about the place where a resumed training continues."""
        places = [(loader.name, *place) for loader, place in zip(self.loaders, self.next(), strict=True)]
        return describe_start(places, self._loaded_ranks, self.loaders[0].dataset.topology.world_size)

    @property
    def is_ahead(self) -> bool:
        """Whether the trainer has begun batches that are not in the weights."""
        if self._pass is None or self._is_left:
            return False
        self._count_trained()
        current, total = self._batches.current, self._batches.total
        return current.started > current.processed or self._pass.trained < total.processed - self._counts[1]

    @property
    def unfinished(self) -> Places | None:
        """The places at which the last pass stopped, unless it is finished or will restart."""
        if self._pass is None or self._repeats(self._pass):
            return None
        self._count_trained()
        here = self._snapshot()
        return None if here.is_over else here.places

    def length(self, *, is_begun: bool) -> int | None:
        """Batches of the current pass, or of the next one; None if all have the same number."""
        if not any(loader.epochs_differ for loader in self.loaders):
            return None
        return self._whole_epoch(self._pass.first_epochs if is_begun and self._pass is not None else None)

    def _whole_epoch(self, first_epochs: Sequence[int] | None = None) -> int:
        first_epochs = self._next_first_epochs() if first_epochs is None else first_epochs
        return self._length([(epoch, 0) for epoch in first_epochs], first_epochs)

    def ends_epochs_of(self, batches: int | float) -> bool:
        """Whether epochs of so many batches end with the loaders, or before."""
        return batches <= self._whole_epoch() and not any(loader.epochs_differ for loader in self.loaders)

    def restart(self, *, epochs: int, batches: int, steps: int) -> Restart:
        """The point at which Lightning must resume for the loaded position."""
        return Restart(
            epochs=epochs,
            batches=batches,
            done=self._whole_epoch() - self._length(self.next(), self._next_first_epochs()),
            steps=steps,
            is_epoch_start=self.is_epoch_start,
            accumulate=self.trainer.accumulate_grad_batches,
        )

    def _next_first_epochs(self) -> Sequence[int]:
        return self._first_epochs or tuple(epoch for epoch, _ in self.next())


def is_position(state: Mapping[str, Any]) -> bool:
    """Whether a state is of a `TrainPosition`."""
    return 'position' in state or 'loaders' in state
