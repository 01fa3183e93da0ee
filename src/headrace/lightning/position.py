"""Where the training is in its data: what Lightning's counters and the datasets' plans say together."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lightning.pytorch.utilities import rank_zero_warn

from headrace.errors import ResumeError
from headrace.lightning.counters import Restart
from headrace.lightning.loader_position import LoaderPosition
from headrace.order import ResumeState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning.pytorch import Trainer

__all__ = ['TrainMode', 'TrainPosition', 'is_position', 'loader_entries']

TrainMode: TypeAlias = Literal['max_size_cycle', 'max_size', 'min_size']
"""When an epoch of several training loaders ends, as Lightning's `CombinedLoader` has it."""

Places: TypeAlias = 'Sequence[tuple[int, int]]'  # an epoch and a position in it, for each loader


class TrainPosition:
    """The position of the samples that were trained, as opposed to those that the loaders handed out.

    A batch counts when Lightning has processed it and its gradients are in the weights: not a batch that failed, and
    with `accumulate_grad_batches` not those since the last optimizer step, whose gradients no checkpoint holds.

    An epoch of Lightning's is a *pass*. With one loader it is an epoch of the data. With several, each step has a batch
    of each; the longest loader or the shortest says how many steps there are, and what is then left of an epoch of the
    others is left out.

    Args:
        loaders: the training loaders' positions.
        trainer: the trainer that trains on them.
        mode: how several of them make an epoch of Lightning's.
    """

    def __init__(self, loaders: Sequence[LoaderPosition], trainer: Trainer, mode: TrainMode = 'max_size_cycle') -> None:
        self.trainer = trainer
        self.loaders = tuple(loaders)
        self.mode: TrainMode = mode
        self.rolled_over = 0
        """Epochs of Lightning's that the state which was loaded last had behind it beyond those that it counts."""
        self._pass: _Pass | None = None
        self._first_epochs: tuple[int, ...] | None = None  # of the pass that a state was taken in

    def begin(self, places: Places) -> None:
        """A pass begins, at these places: Lightning's counters are those from before its first batch.

        A pass of which nothing was trained comes again. A batch may have failed; and without a loader's length,
        Lightning begins the first pass of a later `fit` twice.
        """
        first_epochs = self._first_epochs or tuple(epoch for epoch, _ in places)
        self._first_epochs = None
        last = self._pass
        if last is not None and self._comes_again(last):
            places, first_epochs = last.places, last.first_epochs
            self._move(places)
        for loader in self.loaders:
            loader.forget_plans()
        self._pass = _Pass(tuple(places), first_epochs, self._epochs.current.processed, self._batches.total.processed)

    def _comes_again(self, begun: _Pass) -> bool:
        """Whether nothing of a pass was trained."""
        return (self._epochs.current.processed, self._batches.total.processed) == (
            begun.trainer_epoch,
            begun.trainer_batches,
        )

    def hand_out(self) -> None:
        """A batch of the pass is handed out."""
        assert self._pass is not None
        self._pass.handed_out += 1

    def length(self, *, is_begun: bool) -> int | None:
        """Batches of the pass under way, or of the next one; None where all have the same number."""
        if not any(loader.epochs_differ for loader in self.loaders):
            return None
        if is_begun and self._pass is not None:
            first_epochs = self._pass.first_epochs
        else:
            first_epochs = self._first_epochs or tuple(epoch for epoch, _ in self.next())
        limit = self.trainer.limit_train_batches
        return self._length([(epoch, 0) for epoch in first_epochs], first_epochs, limit=limit)

    @property
    def has_begun(self) -> bool:
        """Whether a pass was begun since the start, or since the last state was loaded."""
        return self._pass is not None

    @property
    def unfinished(self) -> Places | None:
        """The places at which the last pass was left, if it is neither over nor comes again."""
        if self._pass is None or self._comes_again(self._pass):
            return None
        places, _, is_ended = self._trained(self._pass)
        return None if is_ended else places

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
        begun = self._pass
        if begun is None:
            places, first_epochs = self.next(), self._first_epochs
            trainer_epoch, trainer_batches = self._epochs.current.processed, self._batches.total.processed
        else:
            places, trained, is_ended = self._trained(begun)
            first_epochs = None if is_ended else begun.first_epochs
            trainer_epoch = begun.trainer_epoch + self._epochs_between(begun.places, places, is_ended=is_ended)
            trainer_batches = begun.trainer_batches + trained
        states = [loader.state(*place) for loader, place in zip(self.loaders, places, strict=True)]
        sizes = [loader.global_batch_size for loader in self.loaders]
        counters = {'trainer_epoch': trainer_epoch, 'trainer_batches': trainer_batches}
        if len(states) == 1:
            return {'position': states[0], 'global_batch_size': sizes[0], **counters}
        first_epochs = first_epochs or tuple(epoch for epoch, _ in places)
        return {
            'loaders': {
                loader.name: {'position': state, 'global_batch_size': size, 'first_epoch': first_epoch}
                for loader, state, size, first_epoch in zip(self.loaders, states, sizes, first_epochs, strict=True)
            },
            'mode': self.mode,
            **counters,
        }

    def _trained(self, begun: _Pass) -> tuple[Places, int, bool]:
        """The places to go on from, how many batches of the pass are trained, and whether it is over."""
        progress = self._batches
        trained = max(progress.total.processed - begun.trainer_batches, 0)
        # Lightning may end a pass before its last batch: `limit_train_batches`, or a hook that returns -1. It says so
        # as soon as it has that batch, which may fail yet.
        is_ended = progress.is_last_batch and 0 < begun.handed_out <= trained
        if is_ended or trained >= self._length(begun.places, begun.first_epochs, limit=None):
            there = self._after(begun.places, trained)
            return self._next_epochs(there), trained, True
        trained -= min(trained, progress.current.processed % self.trainer.accumulate_grad_batches)
        return self._after(begun.places, trained), trained, False

    def _after(self, places: Places, batches: int) -> Places:
        cycles = len(self.loaders) > 1 and self.mode == 'max_size_cycle'
        return [loader.after(place, batches, cycles=cycles) for loader, place in zip(self.loaders, places, strict=True)]

    def _next_epochs(self, places: Places) -> Places:
        return [(loader.first_epoch(epoch + 1), 0) for loader, (epoch, _) in zip(self.loaders, places, strict=True)]

    def _epochs_between(self, before: Places, after: Places, *, is_ended: bool) -> int:
        """Epochs of Lightning's from one place to another. Of a single loader, those that are left out count too."""
        return after[0][0] - before[0][0] if len(self.loaders) == 1 else int(is_ended)

    def _length(self, places: Places, first_epochs: Sequence[int], *, limit: int | float | None) -> int:
        """Batches of a pass from these places to its end.

        Args:
            places: where the loaders are.
            first_epochs: in which epochs they were when it began.
            limit: the trainer's ``limit_train_batches``, if it is to count.
        """
        lengths = [
            loader.plan(*place).num_batches if limit is None else loader.batches_left(*place, limit)
            for loader, place, first_epoch in zip(self.loaders, places, first_epochs, strict=True)
            # A loader that has begun anew ends no pass.
            if place[0] == first_epoch
        ]
        return (min if self.mode == 'min_size' else max)(lengths, default=0)

    # -- resuming --------------------------------------------------------------------------------------------------

    def load(self, state: Mapping[str, Any]) -> None:
        """Have the next pass go on where `state` was taken; where its epoch is over, with the next epoch.

        Raises:
            ResumeError: the state is no state, or belongs to other data, another mixture, another order or other
                loaders.
        """
        entries = self._entries(state)
        resumes = [ResumeState.from_dict(entry['position']) for entry in entries]
        for loader, resume in zip(self.loaders, resumes, strict=True):
            loader.load(resume)
        self._pass, self._first_epochs = None, None
        places = self.next()
        first_epochs = tuple(entry.get('first_epoch', epoch) for entry, (epoch, _) in zip(entries, places, strict=True))
        is_over = not self._length(places, first_epochs, limit=self.trainer.limit_train_batches)
        if is_over and not any(resume.is_stale for resume in resumes):
            self._move(self._next_epochs(places))
        elif not self.is_epoch_start:
            self._first_epochs = first_epochs
        before = [(resume.epoch, resume.sample_in_epoch) for resume in resumes]
        self.rolled_over = self._epochs_between(before, self.next(), is_ended=is_over)
        self._warn_of_batch_sizes(entries)

    def _entries(self, state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        entries = loader_entries(state)
        names = [loader.name for loader in self.loaders]
        if len(names) == len(entries) == 1:
            return [*entries.values()]
        if sorted(entries) != sorted(names) or state.get('mode', self.mode) != self.mode:
            raise ResumeError(
                f'The checkpoint was taken with {_described(entries, state.get("mode"))}, but this run has '
                f'{_described(names, self.mode)}. Give the data module the same training loaders by the same names, '
                f'and the same `train_mode`.'
            )
        return [entries[name] for name in names]

    def _warn_of_batch_sizes(self, entries: Sequence[Mapping[str, Any]]) -> None:
        for loader, entry in zip(self.loaders, entries, strict=True):
            before, now = entry.get('global_batch_size', loader.global_batch_size), loader.global_batch_size
            if before != now:
                of_loader = f' of {loader.name}' if loader.name else ''
                rank_zero_warn(
                    f'The global batch size{of_loader} was {before} when the checkpoint was taken and is {now} now. '
                    f'The data continues exactly, in batches of the new size; check the learning rate, '
                    f'accumulate_grad_batches and an integer val_check_interval.'
                )

    def reset(self, epoch: int = 0) -> None:
        """Have the next pass begin at the start of an epoch."""
        self._move([(epoch, 0)] * len(self.loaders))
        self._pass = self._first_epochs = None

    def _move(self, places: Places) -> None:
        for loader, place in zip(self.loaders, places, strict=True):
            loader.move(*place)

    def restart(self, *, epochs: int, batches: int, steps: int) -> Restart:
        """Where Lightning must go on for the position that was loaded."""
        places, limit = self.next(), self.trainer.limit_train_batches
        first_epochs = self._first_epochs or tuple(epoch for epoch, _ in places)
        whole = self._length([(epoch, 0) for epoch in first_epochs], first_epochs, limit=limit)
        return Restart(
            epochs=epochs,
            batches=batches,
            done=whole - self._length(places, first_epochs, limit=limit),
            steps=steps,
            is_epoch_start=self.is_epoch_start,
            accumulate=self.trainer.accumulate_grad_batches,
        )

    @property
    def is_epoch_start(self) -> bool:
        """Whether the next pass is a whole one."""
        return not any(start for _, start in self.next())

    def pass_over_empty_epochs(self) -> int:
        """Have the next pass begin in epochs of which something is left, since Lightning ends at an empty one.

        Returns:
            How many epochs of Lightning's that passes over. They count among Lightning's.
        """
        passed = [loader.pass_over_empty_epochs() for loader in self.loaders]
        return passed[0] if len(passed) == 1 else 0

    def next(self) -> list[tuple[int, int]]:
        """The places where the next pass begins."""
        return [loader.next() for loader in self.loaders]


@dataclasses.dataclass(slots=True)
class _Pass:
    """A pass over the data, and Lightning's counters when it began, or was resumed."""

    places: Places
    first_epochs: Sequence[int]
    """The loaders' epochs at its very beginning."""
    trainer_epoch: int
    trainer_batches: int
    handed_out: int = 0


def is_position(state: Mapping[str, Any]) -> bool:
    """Whether a state is a `TrainPosition`'s, or holds one."""
    return 'position' in state or 'loaders' in state


def loader_entries(state: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What a state says of each training loader, by their names; the only one has none."""
    return state.get('loaders', {'': state})


def _described(names: Mapping[str, Any] | Sequence[str], mode: str | None) -> str:
    if len(names) == 1:
        return 'one training loader'
    return f'the training loaders {", ".join(names)} (train_mode {mode!r})'
