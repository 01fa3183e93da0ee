"""The position of a training under Lightning, and Lightning's loop counters, which are rewritten to agree with it.

Lightning resumes by its own counts of batches, and ends an epoch when the count reaches the number of batches. That
count is wrong after a change of the global batch size. It is also wrong in a checkpoint from the end of an epoch,
from a failed batch, or from between two accumulated batches. Each count exists for the current epoch (`current`) and
for the run (`total`), as ready >= started >= processed >= completed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer
from typing_extensions import override

from headrace.dataset.tracker import Pass, Places, PositionTracker, TrackedBatches, TrainMode, describe_start

Counters = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    epochs: int  # finished epochs
    batches: int  # batches trained in all epochs
    done: int  # finished batches of the current epoch, in batches of the present size
    steps: int  # optimizer steps
    is_epoch_start: bool  # whether no sample of the epoch was trained
    accumulate: int  # batches of an optimizer step


def rewrite(fit_loop: Counters, restart: Restart) -> bool:
    """Write a restart into a checkpoint's ``loops.fit_loop``; True: set ``restarting`` to False after loading it."""
    epochs = fit_loop['epoch_progress']
    earlier_fits = epochs['total']['processed'] - epochs['current']['processed']
    begun = restart.epochs + (not restart.is_epoch_start)
    for counts, offset in ((epochs['current'], 0), (epochs['total'], earlier_fits)):
        done = restart.epochs + offset
        _set(counts, begun + offset, processed=done, completed=done)

    batches, state = fit_loop['epoch_loop.batch_progress'], fit_loop['epoch_loop.state_dict']
    validated = _is_between_validation_and_next_batch(batches['current'], state, restart)
    batches['is_last_batch'] = False
    if restart.done == 0:
        _set(batches['current'], 0)
        _set(batches['total'], restart.batches)
        state['_batches_that_stepped'] = restart.steps
        return True
    if validated:
        # Lightning resumes after the validation, or inside it. An unfinished validation must restart, because the
        # metrics of its first batches are lost.
        _set(batches['total'], restart.batches)
        _begin_anew(fit_loop['epoch_loop.val_loop.batch_progress'])
        return False
    # As in a checkpoint from the end of a training batch. Lightning adds one to `completed`, and to the logged steps
    # if the batch ended an optimizer step.
    _set(batches['current'], restart.done, completed=restart.done - 1)
    _set(batches['total'], restart.batches, completed=restart.batches - 1)
    state['_batches_that_stepped'] = restart.steps - (restart.done % restart.accumulate == 0)
    return False


def trained_epochs(fit_loop: Counters, *, is_epoch_start: bool) -> int:
    """Finished epochs, for a checkpoint without the position's count: Lightning counts the last one late or early."""
    current = fit_loop['epoch_progress']['current']
    if is_epoch_start:
        anything = fit_loop['epoch_loop.batch_progress']['current']['processed'] > 0
        return int(current['started'] if anything else current['processed'])
    return max(int(current['started']) - 1, 0)


def trained_batches(fit_loop: Counters) -> int:
    """Batches trained in all epochs, for a checkpoint without the position's count."""
    return int(fit_loop['epoch_loop.batch_progress']['total']['processed'])


def pass_over(fit_loop: Any, epochs: int) -> None:
    """Count empty epochs as processed, since Lightning ends by this count. `catch_up` follows."""
    for counts in (fit_loop.epoch_progress.current, fit_loop.epoch_progress.total):
        counts.processed += epochs


def catch_up(fit_loop: Any) -> None:
    """Set the other counts of epochs to the processed ones, while an epoch begins."""
    for counts in (fit_loop.epoch_progress.current, fit_loop.epoch_progress.total):
        # The completed count is the epoch's number. All hooks of the last epoch needed its old value.
        counts.ready = counts.processed + 1
        counts.started = counts.completed = counts.processed


def set_batches(trainer: Trainer, batches: int) -> None:
    """Set the length of the epoch that begins, and scale its validation interval."""
    fit_loop: Any = trainer.fit_loop
    fit_loop.max_batches = batches
    fit_loop._combined_loader.limits = batches
    fetcher = fit_loop._data_fetcher
    if fetcher.length is not None:  # else it has prefetched
        fetcher.length = batches  # that of a resume has begun already, with the length before data grew
    interval = getattr(trainer, 'val_check_interval', None)  # not set where it is a time
    if isinstance(interval, float) and trainer.val_check_batch is not None:
        trainer.val_check_batch = max(1, int(batches * interval))


def _is_between_validation_and_next_batch(current: Counters, state: Counters, restart: Restart) -> bool:
    counts = {current[name] for name in ('ready', 'started', 'processed', 'completed')}
    # Lightning counts a step for the loggers after the validation that follows it.
    return counts == {restart.done} and state.get('_batches_that_stepped', 0) < restart.steps


def _set(counts: Counters, count: int, *, processed: int | None = None, completed: int | None = None) -> None:
    counts.update(ready=count, started=count, processed=count, completed=count)
    if processed is not None:
        counts['processed'] = processed
    if completed is not None:
        counts['completed'] = completed


def _begin_anew(validation: Counters) -> None:
    total, current = validation['total'], validation['current']
    if total['ready'] == total['started'] == total['processed'] + 1:
        current.update(ready=1, started=1, processed=0, completed=0)


class TrainPosition(PositionTracker):
    """A position tracker that reads trained batches from Lightning's counters.

    A batch counts when its gradients are in the weights. A failed batch does not count, nor do batches since the last
    optimizer step of `accumulate_grad_batches`. The `trainer` may be set.
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
        self._done: int | None = None  # batches of the epoch that were trained before the pass, as the state says

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
        """Begin a pass at Lightning's counters. Without a length, it begins the first pass of a later `fit` twice."""
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
        begun, progress = self._pass, self._batches
        if begun is None or self._is_left:
            return
        trained = max(progress.total.processed - self._counts[1], 0)
        # Lightning may end a pass early: `limit_train_batches`, or a hook that returns -1. `is_last_batch` is set
        # before that batch is trained, which may still fail.
        is_last = progress.is_last_batch and 0 < begun.handed_out <= trained
        if not is_last and not self._is_whole(begun, trained):
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
        state = {**self._state_at(here), 'trainer_epoch': epochs, 'trainer_batches': batches, 'ranks': ranks}
        if self._counts_itself:
            before = self._done if begun is None or any(start for _, start in begun.places) else 0
            trained = 0 if begun is None else begun.trained
            state['epoch_batches'] = 0 if here.is_over else (before or 0) + trained
        return state

    @property
    def _counts_itself(self) -> bool:
        """Whether a state says how many batches of its epoch were trained, since to count them takes long."""
        return not all(loader.dataset.is_counted for loader in self.loaders if loader.dataset.has_length)

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._loaded_ranks, self._done = state.get('ranks'), state.get('epoch_batches')

    def describe_start(self) -> str:
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
        """Batches of the current pass, or of the next one; None if all have equally many, or none are counted."""
        if self._counts_itself or not any(loader.epochs_differ for loader in self.loaders):
            return None
        return self._whole_epoch(self._pass.first_epochs if is_begun and self._pass is not None else None)

    def _whole_epoch(self, first_epochs: Sequence[int] | None = None) -> int:
        first_epochs = self._next_first_epochs() if first_epochs is None else first_epochs
        return self._length([(epoch, 0) for epoch in first_epochs], first_epochs)

    def ends_epochs_of(self, batches: int | float) -> bool:
        """Whether epochs of this many batches end with the loaders, or before."""
        return not any(loader.epochs_differ for loader in self.loaders) and batches <= self._whole_epoch()

    def restart(self, *, epochs: int, batches: int, steps: int) -> Restart:
        """The point at which Lightning must resume for the loaded position."""
        done = self._done
        if done is None:
            done = self._whole_epoch() - self._length(self.next(), self._next_first_epochs())
        return Restart(
            epochs=epochs,
            batches=batches,
            done=done,
            steps=steps,
            is_epoch_start=self.is_epoch_start,
            accumulate=self.trainer.accumulate_grad_batches,
        )

    def _next_first_epochs(self) -> Sequence[int]:
        return self._first_epochs or tuple(epoch for epoch, _ in self.next())


def is_position(state: Mapping[str, Any]) -> bool:
    return 'position' in state or 'loaders' in state
