"""The position of a training run in its data: batches handed out, batches trained, and the state for checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

from headrace.errors import ConfigError, ResumeError
from headrace.errors.display import count_text
from headrace.errors.redaction import warn
from headrace.order import BatchPlan, Remainder, ResumeState, Topology

if TYPE_CHECKING:
    from headrace.dataset.dataset import StreamingDataset
    from headrace.dataset.loader import StreamingDataLoader
    from headrace.dataset.sequence import Continuation

_PLANS = 8


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """A dataset in global batches, where a trainer makes the loader later."""

    dataset: StreamingDataset
    global_batch_size: int
    remainder: Remainder

    @property
    def handed_out(self) -> None:
        """The last batch: unknown here."""

    def rescale(self, topology: Topology, position: Mapping[str, Any]) -> NoReturn:  # noqa: ARG002
        """Refuse, since nothing would tell the trainer the batch size of each rank."""
        raise ConfigError(
            f'The trainer makes the loaders of this tracker for its own ranks, and cannot change to {topology}. Start '
            f'again from a checkpoint, or use a StreamingDataLoader and a PositionTracker in a loop of your own.'
        )


TrackedBatches: TypeAlias = 'StreamingDataLoader | GlobalBatches'


class LoaderPosition:
    """Batches and positions of one training loader, and the place where its next pass begins.

    A *place* is an epoch and a position in it, as a checkpoint has them; at the end of an epoch it is that end.
    `batches`: the loader, or its dataset and batch size. It may be set, as when the batch size changes.
    """

    def __init__(self, batches: TrackedBatches, name: str = '') -> None:
        self.name = name
        self.batches = batches
        self._plans: dict[object, BatchPlan] = {}  # of the current pass: states are saved often

    @property
    def dataset(self) -> StreamingDataset:
        return self.batches.dataset

    @property
    def global_batch_size(self) -> int:
        return self.batches.global_batch_size

    @property
    def remainder(self) -> Remainder:
        return self.batches.remainder

    @property
    def epochs_differ(self) -> bool:
        """Whether epochs may differ in length. An epoch without end is the only one."""
        return self.dataset.epochs_differ

    def forget_plans(self) -> None:
        """Forget the plans of the last pass: an order may hold much memory."""
        self._plans.clear()

    def begin(self, places: Sequence[tuple[int, int]] | None = None) -> None:  # noqa: ARG002 - requested again below
        """Skip empty epochs, as one of several loaders begins a pass: an empty one would end the pass of all."""
        self.skip_empty_epochs()

    def handed_out(self) -> None:
        """Count nothing: the tracker counts the batches of several loaders together."""

    def next(self) -> tuple[int, int]:
        return self.dataset.next_place

    def move(self, epoch: int, start: int) -> None:
        self.dataset.progress.load(epoch, start)
        self.forget_plans()

    def plan(self, epoch: int, start: int) -> BatchPlan:
        size, remainder = self.global_batch_size, self.remainder
        key = epoch, start, size, remainder, self.dataset.topology, self.dataset.run
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[key] = self.dataset.plan(
                epoch=epoch, start=start, global_batch_size=size or None, remainder=remainder
            )
        return plan

    def continued(self, state: ResumeState, topology: Topology | None = None) -> Continuation | None:
        """What a state continues with, by default on the present ranks; None if it is stale."""
        size, remainder = self.global_batch_size or None, self.remainder
        topology = self.dataset.topology if topology is None else self.dataset.replicated(topology)
        batches = self.dataset.batch_spec(global_batch_size=size, remainder=remainder, topology=topology)
        return None if state.is_stale else self.dataset.continued(state, batches)

    def check_rescale(self, topology: Topology, position: Mapping[str, Any]) -> None:
        if isinstance(self.batches, GlobalBatches):
            self.batches.rescale(topology, position)
        self.continued(ResumeState.from_dict(position), topology)

    def after(self, place: tuple[int, int], batches: int, *, cycles: bool) -> tuple[int, int]:
        """The place after some batches from a place on. `cycles`: whether further epochs follow."""
        epoch, start = place
        plan = self.plan(epoch, start)
        while cycles and batches > len(plan.batches(0, batches)):
            batches -= plan.num_batches
            epoch, start = self.first_epoch(epoch + 1), 0
            plan = self.plan(epoch, start)
            if not self.epochs_differ:  # all whole epochs are alike
                whole = (batches - 1) // plan.num_batches
                epoch, batches = epoch + whole, batches - whole * plan.num_batches
                plan = self.plan(epoch, start)
        batches = len(plan.batches(0, batches))
        return epoch, plan.end(batches - 1) if batches else start

    def batches_left(self, epoch: int, start: int, limit: int | float, most: int | None = None) -> int:
        """Batches that a trainer takes from a place to the end of the epoch, or to its limit of batches or a share.

        `most`: count no further, since it takes time.
        """
        plan = self.plan(epoch, start)
        left = plan.num_batches if most is None else len(plan.batches(0, most))
        if limit == 1.0 and isinstance(limit, float):
            return left
        if isinstance(limit, float):
            limit = int(limit * self.plan(epoch, 0).num_batches)
        return min(left, max(limit - plan.batches_before, 0))

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


TrainMode: TypeAlias = Literal['max_size_cycle', 'max_size', 'min_size']
"""When a pass over several loaders ends, as Lightning's `CombinedLoader` has it."""

Places: TypeAlias = 'Sequence[tuple[int, int]]'  # an epoch and a position in it, for each loader

_Batch = TypeVar('_Batch')


class PositionListener(Protocol):
    """Follows the passes over the data."""

    def begin(self, places: Sequence[tuple[int, int]] | None = None) -> None:
        """A pass begins, at an epoch of each loader and a position in it."""

    def handed_out(self) -> None:
        """The next batch of the pass is handed out."""


class PositionTracker:
    """The position of the trained samples, as opposed to those that a loader handed out.

    A training loop reports each batch that is in the weights; a checkpoint asks for the state. A resume repeats a batch
    that failed, was only prefetched, or whose gradients no optimizer step has used yet:

        tracker = PositionTracker(loader)
        for batch in tracker.follow(loader):
            ...
            optimizer.step()
            tracker.trained()
        torch.save({'model': model.state_dict(), 'data': tracker.state_dict()}, path)

    `state_dict` and `load_state_dict` make it a ``torch.distributed.checkpoint.stateful.Stateful``. The state is the
    same on every rank and loads on any number of ranks.

    A *pass* is one iteration over the data: an epoch, or its rest after a resume. With several loaders, each step has
    a batch of each, and a pass ends as `mode` says.

    Args:
        loaders: the loader, or several by name.
        mode: when a pass over several loaders ends: with the longest, while others start over ('max_size_cycle') or
            stop ('max_size'), or with the shortest ('min_size').

    Raises:
        ConfigError: several loaders have the same dataset, or one may start over under `on_growth`.
    """

    advice = 'the learning rate and the accumulation of gradients'
    """Settings to check after a change of the global batch size."""

    def __init__(
        self, loaders: TrackedBatches | Mapping[str, TrackedBatches], mode: TrainMode = 'max_size_cycle'
    ) -> None:
        named: Mapping[str, TrackedBatches] = loaders if isinstance(loaders, Mapping) else {'': loaders}
        if len({id(loader.dataset) for loader in named.values()}) < len(named):
            raise ConfigError(
                f'Each loader of a tracker needs a dataset of its own, but some of {", ".join(named)} have the same '
                f'StreamingDataset, which has one position. Make a StreamingDataset for each.'
            )
        grown = [name for name, loader in named.items() if loader.dataset.follows_growth]
        if grown and len(named) > 1 and mode == 'max_size_cycle':
            raise ConfigError(
                f"Under 'max_size_cycle' a loader may begin anew in the middle of a pass, where none can take samples "
                f"that were appended, but `on_growth` is set for {', '.join(grown)}. Have a pass end by 'max_size' or "
                f"'min_size', or set `on_growth` to 'ignore'."
            )
        self.loaders = tuple(LoaderPosition(loader, name) for name, loader in named.items())
        """The loaders' positions, in the given order."""
        self.mode: TrainMode = mode
        self.rolled_over = 0
        """Empty epochs that the last `load_state_dict` skipped."""
        self._pass: Pass | None = None
        self._first_epochs: Sequence[int] | None = None  # of the pass that a state was taken in

    @property
    def limit(self) -> int | float:
        """Batches of an epoch that the trainer takes, or a share of them."""
        return 1.0

    # -- counting --------------------------------------------------------------------------------------------------

    def follow(self, loader: Iterable[_Batch]) -> Iterator[_Batch]:
        """Batches of the loader's next pass, each counted as it is handed out."""
        self.begin()
        begun = self._begun()
        for batch in loader:
            self.handed_out()
            yield batch
        if self._pass is begun and not begun.handed_out:
            begun.is_over = True  # an empty pass must not come again

    def begin(self, places: Places | None = None) -> None:
        """Begin a pass, or repeat an untrained one, whose first batch may have failed.

        Args:
            places: the epoch and the position of each loader; by default where their next passes begin.
        """
        places = self.next() if places is None else places
        first_epochs = self._first_epochs or _epochs(places)
        self._first_epochs = None
        last = self._pass
        if last is not None and self._repeats(last):
            places, first_epochs = last.places, last.first_epochs
            self._move(places)
        for loader in self.loaders:
            loader.forget_plans()
        self._pass = Pass(tuple(places), first_epochs)

    def take_growth(self) -> None:
        """Decide what the next pass reads of data that grow, before its length is asked for; see `on_growth`."""
        is_over = self._pass is not None and self._snapshot().is_over
        for loader in self.loaders:
            loader.dataset.take_growth()
        if is_over:  # a pass over other samples is not continued
            self._pass = None

    def handed_out(self) -> None:
        """Count a batch of the pass that is handed out.

        Raises:
            ConfigError: no pass has begun.
        """
        self._begun().handed_out += 1

    def trained(self, batches: int | None = None, *, is_last: bool = False) -> None:
        """Say which batches of the pass are in the weights.

        Args:
            batches: how many, counted from the first batch of the pass; by default all that were handed out.
            is_last: whether the trainer ends the pass with them, before its last batch.

        Raises:
            ConfigError: no pass has begun, or fewer batches were handed out.
        """
        begun = self._begun()
        if batches is not None and not 0 <= batches <= begun.handed_out:
            raise ConfigError(
                f'`trained` counts batches of the pass that were handed out, 0 to {begun.handed_out}, got {batches}. '
                f'Count from the first batch after `begin`, and call `handed_out` for each.'
            )
        begun.trained = begun.handed_out if batches is None else batches
        begun.is_over = is_last

    def _begun(self) -> Pass:
        if self._pass is None:
            raise ConfigError('A tracker counts batches of a pass, but none has begun. Call `begin`, or use `follow`.')
        return self._pass

    def _repeats(self, begun: Pass) -> bool:
        return not (begun.trained or begun.is_over)

    @property
    def has_begun(self) -> bool:
        """Whether a pass has begun since the start, or since the last state was loaded."""
        return self._pass is not None

    # -- saving ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position for a checkpoint: ints and strs, the same on every rank, valid at any time."""
        for loader in self.loaders:
            loader.dataset.keep_topology(loader.batches.handed_out)
        return self._state_at(self._snapshot())

    def _state_at(self, here: PositionSnapshot) -> dict[str, Any]:
        entries = [
            {
                'position': loader.dataset.resume_state(*place, loader.global_batch_size, loader.remainder).to_dict(),
                'global_batch_size': loader.global_batch_size,
            }
            for loader, place in zip(self.loaders, here.places, strict=True)
        ]
        if len(entries) == 1:
            return {**entries[0]}
        return {
            'loaders': {
                loader.name: {**entry, 'first_epoch': first_epoch}
                for loader, entry, first_epoch in zip(self.loaders, entries, here.first_epochs, strict=True)
            },
            'mode': self.mode,
        }

    def _snapshot(self) -> PositionSnapshot:
        begun = self._pass
        if begun is None:
            places = self.next()
            return PositionSnapshot(places, self._first_epochs or _epochs(places), is_over=False)
        places = self._after(begun.places, begun.trained)
        if not (begun.is_over or self._is_whole(begun, begun.trained)):
            return PositionSnapshot(places, begun.first_epochs, is_over=False)
        places = self._next_epochs(places)
        return PositionSnapshot(places, _epochs(places), is_over=True)

    def _after(self, places: Places, batches: int) -> Places:
        cycles = len(self.loaders) > 1 and self.mode == 'max_size_cycle'
        return [loader.after(place, batches, cycles=cycles) for loader, place in zip(self.loaders, places, strict=True)]

    def _next_epochs(self, places: Places) -> Places:
        return [(loader.first_epoch(epoch + 1), 0) for loader, (epoch, _) in zip(self.loaders, places, strict=True)]

    def _is_whole(self, begun: Pass, batches: int) -> bool:
        """Whether these are all batches of a pass, if no trainer limits it."""
        return batches >= self._length(begun.places, begun.first_epochs, limit=1.0, most=batches + 1)

    def _length(
        self,
        places: Places,
        first_epochs: Sequence[int],
        *,
        limit: int | float | None = None,
        most: int | None = None,
    ) -> int:
        """Batches of a pass, begun in `first_epochs`, from these places to its end; `most`: count no further."""
        limit = self.limit if limit is None else limit
        lengths = [
            loader.batches_left(*place, limit, most)
            for loader, place, first_epoch in zip(self.loaders, places, first_epochs, strict=True)
            # A loader that has started over does not end the pass.
            if place[0] == first_epoch
        ]
        return (min if self.mode == 'min_size' else max)(lengths, default=0)

    # -- resuming --------------------------------------------------------------------------------------------------

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next pass continue where `state` was taken; at the end of an epoch, with the next epoch.

        States of a `StreamingDataLoader` load too.

        Raises:
            ResumeError: the state is malformed, or belongs to other data, another mixture, another order or other
                loaders.
        """
        entries = self._entries(state)
        resumes = [ResumeState.from_dict(entry['position']) for entry in entries]
        continuations = [loader.continued(resume) for loader, resume in zip(self.loaders, resumes, strict=True)]
        for loader, there in zip(self.loaders, continuations, strict=True):
            if there is not None:
                loader.dataset.take(there)
            loader.forget_plans()
        self._pass, self._first_epochs = None, None
        places = self.next()
        first_epochs = tuple(entry.get('first_epoch', epoch) for entry, (epoch, _) in zip(entries, places, strict=True))
        is_over = not self._length(places, first_epochs, most=1)
        if is_over and not any(resume.is_stale for resume in resumes):
            self._move(self._next_epochs(places))
        elif not self.is_epoch_start:
            self._first_epochs = first_epochs
        before = [(resume.epoch, resume.sample_in_epoch) for resume in resumes]
        self.rolled_over = self._epochs_between(before, self.next(), is_over=is_over)
        self._warn_of_batch_sizes(entries)

    def rescale(self, topology: Topology, state: Mapping[str, Any] | None = None) -> None:
        """Have other ranks read on, as `StreamingDataLoader.rescale` of each loader; passes that are under way go on.

        Args:
            topology: rank and world size from now on.
            state: where to go on, as `state_dict` gives it; None: after the trained batches, so that a step that failed
                comes again.

        Raises:
            TopologyError, ConfigError, ResumeError: as `StreamingDataLoader.rescale` and `load_state_dict`.
        """
        here = self.state_dict()
        state = here if state is None else state
        entries = self._entries(state)
        for loader, entry in zip(self.loaders, entries, strict=True):
            loader.check_rescale(topology, entry['position'])  # all of them, before one changes
        for loader, entry in zip(self.loaders, entries, strict=True):
            loader.batches.rescale(topology, entry['position'])
        is_passing = self.has_begun
        self.load_state_dict(state)
        if is_passing:
            self.begin()

    def _epochs_between(self, before: Places, after: Places, *, is_over: bool) -> int:
        """A trainer's epochs from one place to another; for a single loader, skipped ones count too."""
        return after[0][0] - before[0][0] if len(self.loaders) == 1 else int(is_over)

    def _entries(self, state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        entries = loader_entries(state)
        names = [loader.name for loader in self.loaders]
        if len(names) == len(entries) == 1:
            return [*entries.values()]
        if sorted(entries) != sorted(names) or state.get('mode', self.mode) != self.mode:
            raise ResumeError(
                f'The checkpoint was taken with {_described(entries, state.get("mode"))}, but this run has '
                f'{_described(names, self.mode)}. Give the same training loaders by the same names, and the same '
                f'`train_mode`.'
            )
        return [entries[name] for name in names]

    def _warn_of_batch_sizes(self, entries: Sequence[Mapping[str, Any]]) -> None:
        for loader, entry in zip(self.loaders, entries, strict=True):
            before, now = entry.get('global_batch_size', loader.global_batch_size), loader.global_batch_size
            if before != now and not loader.dataset.topology.rank:
                of_loader = f' of {loader.name}' if loader.name else ''
                warn(
                    f'The global batch size{of_loader} was {before} when the checkpoint was taken and is {now} now. '
                    f'The data continues exactly, in batches of the new size; check {self.advice}.',
                    stacklevel=4,
                )

    def move(self, epoch: int = 0, start: int = 0) -> None:
        """Have the next pass begin at a position of an epoch."""
        self._move([(epoch, start)] * len(self.loaders))
        self._pass = self._first_epochs = None

    def stay(self) -> None:
        """Have the next pass begin where the loaders are, in whichever epoch a trainer is."""
        self._move(self.next())

    def _move(self, places: Places) -> None:
        for loader, place in zip(self.loaders, places, strict=True):
            loader.move(*place)

    @property
    def is_epoch_start(self) -> bool:
        """Whether the next pass is a whole one."""
        return not any(start for _, start in self.next())

    def skip_empty_epochs(self) -> int:
        """Have the next pass begin in epochs with samples left.

        Returns:
            Number of the trainer's epochs that it skips.
        """
        passed = [loader.skip_empty_epochs() for loader in self.loaders]
        return passed[0] if len(passed) == 1 else 0

    def next(self) -> list[tuple[int, int]]:
        """The epoch and the position of each loader where the next pass begins."""
        return [loader.next() for loader in self.loaders]


class PositionSnapshot(NamedTuple):
    places: Places
    first_epochs: Sequence[int]
    is_over: bool  # Whether a pass ends there.


@dataclasses.dataclass(slots=True)
class Pass:
    places: Places  # The loaders' places at its start, or at a resume.
    first_epochs: Sequence[int]  # The loaders' epochs at its very beginning.
    handed_out: int = 0
    trained: int = 0
    is_over: bool = False  # Whether the trainer ended it, before its last batch or after.


def loader_entries(state: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The entry of each training loader in a state, by name; a single loader has an empty name."""
    return state.get('loaders', {'': state if 'position' in state else {'position': state}})


def _epochs(places: Places) -> Sequence[int]:
    return tuple(epoch for epoch, _ in places)


def _described(names: Mapping[str, Any] | Sequence[str], mode: str | None) -> str:
    if len(names) == 1:
        return 'one training loader'
    return f'the training loaders {", ".join(names)} (train_mode {mode!r})'


def describe_start(places: Iterable[tuple[str, int, int]], saved_ranks: int | None, ranks: int) -> str:
    """A line about the place where a training continues; `places`: of each loader, its name, epoch and sample."""
    at = ', '.join(f'{name} at epoch {epoch}, sample {sample}'.lstrip() for name, epoch, sample in places)
    changed = '' if saved_ranks in (None, ranks) else f' (checkpoint of {count_text(saved_ranks, "rank")}, now {ranks})'
    return f'the data continue {at}{changed}'
