"""The samples of a trainer's step, and the `skip` that omits them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.dataset import StreamingDataset
from headrace.dataset.loader import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.order import (
    BatchExplanation,
    BatchPlan,
    batches_after,
    batches_before,
    documents_skip,
    find_batch,
    run_range,
    with_more,
)
from headrace.packing import PackedDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A global batch of the run, the batches to skip with it, and their ranges. The same on every rank."""

    step: int
    """The requested batch, counted from 0 through the run as a trainer counts."""
    steps: tuple[int, ...]
    """The number of each batch in the run, without any from before its beginning."""
    numbers: tuple[int, ...]
    """The number of each batch in its epoch."""
    batches: tuple[BatchExplanation, ...]
    """The rows of each batch: rank, stream, shard and place in it; with packing, a `PackedExplanation` each."""
    ranges: tuple[tuple[int, int], ...]
    """The range of each batch in samples of the run, the end exclusive; with packing, in sequences."""
    skip: list[list[int | str]]
    """The `skip` of the resumed run: this run's, and these batches."""

    def summary(self) -> list[str]:
        """Lines for people: the place of each batch, and its samples, or documents, by stream."""
        lines: list[str] = []
        for step, number, batch, (begin, end) in zip(self.steps, self.numbers, self.batches, self.ranges, strict=True):
            where = f'{batch.position_unit} {begin} to {end} of the run'
            lines.append(f'Step {step}: global batch {number} of epoch {batch.epoch}, {where}.')
            lines += [f'  {line}' for line in batch.summary()]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain types: the skip, and the place, samples by stream and rows of each batch."""
        batches = [
            {
                'step': step,
                'epoch': batch.epoch,
                'batch': number,
                batch.position_unit: list(samples),
                'streams': batch.stream_counts(),
                'rows': batch.to_json()['rows'],
            }
            for step, number, batch, samples in zip(self.steps, self.numbers, self.batches, self.ranges, strict=True)
        ]
        return {'skip': self.skip, 'batches': batches}


def explain_step(
    loader: StreamingDataLoader,
    step: int,
    *,
    before: int = 0,
    after: int = 0,
    place: tuple[int, int] = (0, 0),
    first_step: int = 0,
    documents: bool = False,
) -> StepReport:
    """Explain a trainer's step from the plan alone: its samples, and the `skip` that omits them.

    Without a place, the run must have had the present global batch size, mixture and `skip` from its beginning.

    Args:
        loader: a training loader of any rank, with the topology of the run; its position does not change.
        step: the batch's number, counted from 0 through all epochs as a trainer counts.
        before: batches before it to skip too.
        after: batches after it to skip too.
        place: epoch and position from which batches are counted, such as `loader.next_pass()` after `load_state_dict`.
        first_step: the number of the batch there.
        documents: as `explain_batches`'.

    Raises:
        ConfigError: a number is negative; the step lies before the place; or no epoch has batches.
    """
    if min(step, before, after) < 0:
        raise ConfigError(f'steps count from 0, and batches around them too, got {step=}, {before=}, {after=}.')
    if step < first_step:
        raise ConfigError(
            f'step {step} lies before the state, which was taken when {first_step} batches were trained. Give a state '
            f'from before the step, or none, to count from the beginning of the run.'
        )
    epoch, start = place
    plan, k = find_batch(loader.plan, step - first_step, epoch=epoch, start=start, skip=loader.dataset.skip)
    return explain_batches(loader, plan, k, step=step, before=before, after=after, documents=documents)


def explain_batches(
    loader: StreamingDataLoader,
    plan: BatchPlan,
    k: int,
    *,
    step: int,
    before: int = 0,
    after: int = 0,
    left_out: Sequence[tuple[int, int]] = (),
    reads_data: bool = True,
    documents: bool = False,
) -> StepReport:
    """Explain batch k of a plan as a step of a run.

    Args:
        loader: the loader whose plan it is.
        plan: the plan.
        k: the batch's number there.
        step: its number in the run.
        before: batches before it to skip too.
        after: batches after it to skip too.
        left_out: more samples of the run to skip.
        reads_data: with packing, whether to read and tokenise documents to name those of sequences that this process
            did not pack lately. Without, the report lacks the documents of such sequences.
        documents: with packing, whether `skip` omits the documents of the batches, in all sequences, in place of the
            sequences.

    Raises:
        ConfigError: the batch is older than the loader's present mixture; or `documents` is given without packing.
    """
    if documents and not isinstance(loader.dataset, PackedDataset):
        raise ConfigError(
            'skip takes documents in place of places of the sequence only with `packing`, but the data is not packed. '
            'Leave out --documents.'
        )
    first = plan.order.first
    if plan.spans(k, k + 1)[0][0] < first:
        raise ConfigError(
            f'step {step} was trained before the mixture took over that the loader has now, at position {first} of '
            f'epoch {plan.order.epoch}. Explain it with the mixture of that time.'
        )
    earlier = batches_before(loader.plan, plan, k, before)
    around = [*earlier, (plan, k), *batches_after(loader.plan, plan, k, after)]
    ranges = tuple(run_range(*batch) for batch in around)
    batches = tuple(loader.dataset.explain(*batch, reads_data=reads_data) for batch in around)
    return StepReport(
        step=step,
        steps=tuple(range(step - len(earlier), step - len(earlier) + len(around))),
        numbers=tuple(plan.batches_before + k for plan, k in around),
        batches=batches,
        ranges=ranges,
        skip=skip_with(loader.dataset, [*left_out, *ranges], batches if documents else ()),
    )


def skip_with(
    dataset: StreamingDataset, ranges: Sequence[tuple[int, int]], named: Sequence[BatchExplanation]
) -> list[list[int | str]]:
    """The dataset's `skip`, with more ranges of its sequence, or with the documents of batches in their place."""
    ids = (sample_id for batch in named for sample_id in batch.ids.tolist())
    unit = dataset.skip_unit
    ranges = [(begin // unit * unit, -(-end // unit) * unit) for begin, end in ranges]
    skipped = dataset.skipped_documents if isinstance(dataset, PackedDataset) else ()
    documents = [*skipped, *((sample_id, sample_id + 1) for sample_id in ids)]
    return [*with_more(dataset.skip, () if named else ranges), *documents_skip(documents)]


Report: TypeAlias = Mapping[str, Any] | Sequence[Any]


def report_text(report: Report) -> str:
    """JSON for people: lists and mappings of plain values take one line each."""
    return _lines(report, '') + '\n'


def _lines(value: Any, indent: str) -> str:
    parts: Any = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, (Mapping, list, tuple)) or not any(isinstance(v, (Mapping, list, tuple)) for v in parts):
        return json.dumps(value)
    inner = indent + '  '
    if isinstance(value, Mapping):
        items = [f'{json.dumps(key)}: {_lines(part, inner)}' for key, part in value.items()]
    else:
        items = [_lines(part, inner) for part in parts]
    begin, end = '{}' if isinstance(value, Mapping) else '[]'
    return f'{begin}\n{inner}' + f',\n{inner}'.join(items) + f'\n{indent}{end}'
