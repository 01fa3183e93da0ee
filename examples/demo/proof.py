"""From records to a verdict: was every sample that the order promised trained, once, in its global batch?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from examples.demo.corpora import corpus_ids
from examples.demo.records import Run, Step

__all__ = ['Promise', 'Proof', 'check_mix', 'joined', 'prove']

Promise = Sequence[Sequence[Sequence[int]]]
"""The ids of each global batch of each epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Comparison of a killed and resumed run with the promised order and an uninterrupted run."""

    expected: int
    """Samples that all epochs together promise, upsampled ones as often as they are due."""
    seen: int
    """Samples trained by the killed run up to the checkpoint, and by the resumed run."""
    lost: int
    repeated: int
    wrong_batches: int
    """Global batches with other ids than promised, in the resumed training or in the uninterrupted one."""
    checkpoint: int
    """Steps that the resumed run found done."""
    killed_at: int
    """The last step that every rank of the killed run recorded."""
    wrong_replays: int
    """Batches that died with the killed run (after the checkpoint) and came back as other batches."""
    loss_difference: float
    """The largest, over the compared steps after the resume; infinite if one of them is missing."""
    whole_loss_difference: float
    """The largest over all steps that both runs did."""
    loss_tolerance: float

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, repeated or moved, and the loss continued as in the uninterrupted run."""
        broken = self.lost or self.repeated or self.wrong_batches or self.wrong_replays
        return not broken and self.seen == self.expected and self.loss_difference <= self.loss_tolerance


def check_mix(promise: Promise, *, rows: int, repeats: Mapping[str, float]) -> None:
    """Check the promised order against the mix, which sets the repeats of each corpus per epoch.

    A stream continues where the last epoch left it. So after any epoch, the counts of its rows differ by at most one.

    Raises:
        RuntimeError: The order breaks the mix, so a comparison with it proves nothing.
    """
    times: Counter[int] = Counter()
    for epoch, batches in enumerate(promise, start=1):
        times.update(i for batch in batches for i in batch)
        for corpus, repeat in repeats.items():
            taken = [times[i] for i in corpus_ids(corpus, rows)]
            passes = repeat * epoch
            if sum(taken) != round(passes * rows) or not set(taken) <= {math.floor(passes), math.ceil(passes)}:
                raise RuntimeError(
                    f'the promised order is not the mix: {epoch} epochs make {passes:g} passes over {corpus}, but they '
                    f'take {sum(taken)} samples of its {rows} rows, and a row {min(taken)} to {max(taken)} times'
                )
        if sum(times.values()) != sum(round(repeat * epoch * rows) for repeat in repeats.values()):
            raise RuntimeError(f'the promised order has {sum(times.values())} samples in {epoch} epochs')


def prove(
    promise: Promise, *, uninterrupted: Run, killed: Run, resumed: Run, compared_steps: int, loss_tolerance: float
) -> Proof:
    """Compare what was trained with ``promise``; steps that the checkpoint does not hold were not trained."""
    trained = joined(killed, resumed)
    expected_batches = {
        step: tuple(sorted(batch))
        for step, batch in enumerate((batch for epoch in promise for batch in epoch), start=1)
    }
    lost, repeated = _lost_and_repeated(promise, trained)
    after_resume = range(resumed.start + 1, resumed.start + 1 + compared_steps)
    return Proof(
        expected=sum(map(len, expected_batches.values())),
        seen=sum(len(step.ids) for step in trained.values()),
        lost=lost,
        repeated=repeated,
        wrong_batches=max(_differing(expected_batches, run) for run in (trained, uninterrupted.steps)),
        checkpoint=resumed.start,
        killed_at=max(killed.steps, default=0),
        wrong_replays=sum(
            step not in resumed.steps or resumed.steps[step].ids != record.ids
            for step, record in killed.steps.items()
            if step > resumed.start
        ),
        loss_difference=_largest_difference(after_resume, trained, uninterrupted.steps),
        whole_loss_difference=_largest_difference(
            trained.keys() & uninterrupted.steps.keys(), trained, uninterrupted.steps
        ),
        loss_tolerance=loss_tolerance,
    )


def joined(killed: Run, resumed: Run) -> dict[int, Step]:
    """The training that counts: the killed run's steps that the checkpoint holds, then the resumed run's."""
    return {step: record for step, record in killed.steps.items() if step <= resumed.start} | dict(resumed.steps)


def _lost_and_repeated(promise: Promise, trained: Mapping[int, Step]) -> tuple[int, int]:
    """Lost and repeated samples within each epoch of the trainer; another epoch's samples do not compensate."""
    due = Counter((epoch, i) for epoch, batches in enumerate(promise) for batch in batches for i in batch)
    done = Counter((record.epoch, i) for record in trained.values() for i in record.ids)
    return (due - done).total(), (done - due).total()


def _differing(expected: Mapping[int, tuple[int, ...]], steps: Mapping[int, Step]) -> int:
    return sum(
        step not in steps or step not in expected or steps[step].ids != expected[step]
        for step in expected.keys() | steps.keys()
    )


def _largest_difference(numbers: Iterable[int], run: Mapping[int, Step], other: Mapping[int, Step]) -> float:
    return max((_difference(run.get(number), other.get(number)) for number in numbers), default=math.inf)


def _difference(step: Step | None, other: Step | None) -> float:
    """Infinite for a step that is missing or whose loss is not a number, so that no comparison lets it through."""
    if step is None or other is None:
        return math.inf
    difference = abs(step.loss - other.loss)
    return math.inf if math.isnan(difference) else difference
