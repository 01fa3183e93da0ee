"""Where the training is in its data: what Lightning's counters and the dataset's plan say together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_warn

from headrace.lightning.counters import Restart
from headrace.order import BatchPlan, Remainder, ResumeState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning.pytorch import Trainer

    from headrace.dataset.dataset import StreamingDataset

__all__ = ['TrainPosition']


class TrainPosition:
    """The position of the samples that were trained, as opposed to those that the loader handed out.

    A batch counts when Lightning has processed it and its gradients are in the weights: not a batch that failed, and
    with `accumulate_grad_batches` not those since the last optimizer step, whose gradients no checkpoint holds.

    Args:
        dataset: the training dataset, bound to this rank.
        trainer: the trainer that trains on it.
    """

    global_batch_size: int
    """Samples of a batch on all ranks; set before the first use."""
    remainder: Remainder
    """What happens to the samples after the last full global batch; set before the first use."""

    def __init__(self, dataset: StreamingDataset, trainer: Trainer) -> None:
        self.trainer = trainer
        self._dataset = dataset
        self._pass: _Pass | None = None

    def begin(self, epoch: int, start: int) -> None:
        """A pass over the data begins: Lightning's counters are those from before its first batch."""
        self._pass = _Pass(epoch, start, self._epochs.current.processed, self._batches.total.processed)

    def hand_out(self) -> None:
        """A batch of the pass is handed out."""
        assert self._pass is not None
        self._pass.handed_out += 1

    # Lightning types its counters by what they have in common.
    @property
    def _epochs(self) -> Any:
        return self.trainer.fit_loop.epoch_progress

    @property
    def _batches(self) -> Any:
        return self.trainer.fit_loop.epoch_loop.batch_progress

    # -- saving ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The position for a checkpoint: ints and strs, the same on every rank, valid at any time."""
        if self._pass is None:
            epoch, start = self.next()
            trainer_epoch, trainer_batches = self._epochs.current.processed, self._batches.total.processed
        else:
            epoch, start, trained = self._trained(self._pass)
            trainer_epoch = self._pass.trainer_epoch + epoch - self._pass.epoch
            trainer_batches = self._pass.trainer_batches + trained
        return {
            'position': self._dataset.resume_state(epoch, start, self.global_batch_size, self.remainder).to_dict(),
            'global_batch_size': self.global_batch_size,
            'trainer_epoch': trainer_epoch,
            'trainer_batches': trainer_batches,
        }

    def _trained(self, begun: _Pass) -> tuple[int, int, int]:
        """Epoch and position to go on from, and how many batches of the pass are trained."""
        progress = self._batches
        trained = max(progress.total.processed - begun.trainer_batches, 0)
        plan = self._plan(begun.epoch, begun.start)
        # Lightning may end a pass before its last batch: `limit_train_batches`, or a hook that returns -1. It says so
        # as soon as it has that batch, which may fail yet.
        is_ended = progress.is_last_batch and 0 < begun.handed_out <= trained
        if trained >= plan.num_batches or is_ended:
            return self._from_epoch(begun.epoch + 1), 0, trained
        trained -= min(trained, progress.current.processed % self.trainer.accumulate_grad_batches)
        return begun.epoch, plan.end(trained - 1) if trained else begun.start, trained

    # -- resuming --------------------------------------------------------------------------------------------------

    def load(self, state: Mapping[str, Any]) -> None:
        """Have the next pass go on where `state` was taken; where its epoch is over, with the next epoch.

        Raises:
            ResumeError: the state is no state, or belongs to other data, another mixture or another order.
        """
        resume = ResumeState.from_dict(state['position'])
        self._dataset.load_resume_state(resume, self.global_batch_size)
        self._pass = None
        epoch, start = self.next()
        if not resume.is_stale and not self._batches_left(epoch, start):
            self._dataset.progress.load(self._from_epoch(epoch + 1), 0)
        before = state.get('global_batch_size', self.global_batch_size)
        if before != self.global_batch_size:
            rank_zero_warn(
                f'The global batch size was {before} when the checkpoint was taken and is {self.global_batch_size} '
                f'now. The data continues exactly, in batches of the new size; check the learning rate, '
                f'accumulate_grad_batches and an integer val_check_interval.'
            )

    def reset(self, epoch: int = 0) -> None:
        """Have the next pass begin at the start of an epoch."""
        self._dataset.progress.load(epoch, 0)
        self._pass = None

    def restart(self, *, epochs: int, batches: int, steps: int) -> Restart:
        """Where Lightning must go on for the position that was loaded."""
        epoch, start = self.next()
        return Restart(
            epochs=epochs,
            batches=batches,
            done=self._batches_left(epoch, 0) - self._batches_left(epoch, start),
            steps=steps,
            is_epoch_start=start == 0,
            accumulate=self.trainer.accumulate_grad_batches,
        )

    def batches_of_next_epoch(self) -> int | None:
        """Batches that Lightning takes from the epoch begun next; None where all epochs have the same number."""
        return self._batches_left(self.next()[0], 0) if self._dataset.skip else None

    def pass_over_empty_epochs(self) -> int:
        """Have the next pass begin in an epoch of which something is left, since Lightning ends at an empty one.

        Returns:
            How many epochs that passes over. They count among Lightning's.
        """
        epoch, start = self.next()
        there = epoch if start else self._from_epoch(epoch)
        if there != epoch:
            self._dataset.progress.load(there, 0)
        return there - epoch

    def _from_epoch(self, epoch: int) -> int:
        """The first epoch from this one on that `skip` does not leave out as a whole."""
        while self._dataset.skip and self._plan(epoch, 0).is_left_out:
            epoch += 1
        return epoch

    def next(self) -> tuple[int, int]:
        """Epoch and first position of the pass that will be begun next."""
        return self._dataset.progress.next(rank=self._dataset.topology.rank)

    def _batches_left(self, epoch: int, start: int) -> int:
        """Batches that Lightning takes from `start` to the end of the epoch, or to its own limit."""
        batches, limit = self._plan(epoch, start).num_batches, self.trainer.limit_train_batches
        if isinstance(limit, float):
            limit = int(limit * self._plan(epoch, 0).num_batches)
        return min(batches, max(limit - self._plan(epoch, start).batches_before, 0))

    def _plan(self, epoch: int, start: int) -> BatchPlan:
        return self._dataset.plan(
            epoch=epoch, start=start, global_batch_size=self.global_batch_size, remainder=self.remainder
        )


@dataclasses.dataclass(slots=True)
class _Pass:
    """A pass over the data, and Lightning's counters when it began."""

    epoch: int
    start: int
    trainer_epoch: int
    trainer_batches: int
    handed_out: int = 0
