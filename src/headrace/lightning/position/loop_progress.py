"""Lightning's loop counters in a checkpoint, rewritten to agree with the position of the data.

Lightning resumes by its own counts of batches, and ends an epoch when the count reaches the number of batches. That
count is wrong after a change of the global batch size. It is also wrong in a checkpoint from the end of an epoch,
from a failed batch, or from between two accumulated batches. Each count exists for the current epoch (`current`) and
for the run (`total`), as ready >= started >= processed >= completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ['Restart', 'catch_up', 'pass_over', 'rewrite', 'set_batches', 'trained_batches', 'trained_epochs']

Counters = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The point at which Lightning's fit loop resumes."""

    epochs: int
    """Finished epochs."""
    batches: int
    """Batches trained in all epochs."""
    done: int
    """Finished batches of the current epoch, in batches of the present size."""
    steps: int
    """Optimizer steps."""
    is_epoch_start: bool
    """Whether no sample of the epoch was trained."""
    accumulate: int
    """Batches of an optimizer step."""


def rewrite(fit_loop: Counters, restart: Restart) -> bool:
    """Write a restart into a checkpoint's ``loops.fit_loop``, in place.

    Returns:
        Whether the epoch loop must begin as in a new epoch: its ``restarting`` must then be set to False once the
        counters are loaded.
    """
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
