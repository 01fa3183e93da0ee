"""Files with the data of a loss spike, and with the `skip` that omits it from the resumed run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.dataset.loader import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.metrics.spikes import LossSpike
from headrace.metrics.step_report import explain_batches, report_text
from headrace.order import BatchPlan, batches_before
from headrace.packing import PackedDataset

__all__ = ['SpikeFile', 'SpikeReports', 'TrainedBatch', 'skip_yaml']


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """A global batch of one loader that a step trained."""

    loader: StreamingDataLoader
    plan: BatchPlan
    number: int
    """Number of the batch in the plan."""


@dataclass(frozen=True, slots=True)
class SpikeFile:
    """A file to write: its name and its text."""

    name: str
    text: str


class SpikeReports:
    """Makes the files of a run's spikes, on any rank, from the plans. It reads no data, and knows no trainer.

    Each file skips its own spike, all earlier ones of this run, and the run's own `skip`. The last file skips all.

    Args:
        before: batches before each spike to skip with it.
        after: batches after each spike to skip with it.
        limit: maximum number of spikes with files; a loss that stays high would have one for each step.

    Raises:
        ConfigError: `before` or `after` is negative, or `limit` is below 1.
    """

    def __init__(self, *, before: int = 0, after: int = 0, limit: int = 10) -> None:
        if min(before, after) < 0 or limit < 1:
            raise ConfigError(
                f'`before` and `after` must be at least 0 batches, and `limit` at least 1 spike, got before={before}, '
                f'after={after}, limit={limit}.'
            )
        self._before, self._after, self._limit = before, after, limit
        self._found = self._shared = 0
        self._ranges: dict[str, list[tuple[int, int]]] = {}

    def begin(self) -> None:
        """Begin a run: forget the spikes of the previous one."""
        self._found = self._shared = 0
        self._ranges.clear()

    def share_documents(
        self, batches: Mapping[str, TrainedBatch], gather: Callable[[Any], Sequence[Any]] | None
    ) -> None:
        """Share the documents of a spike's packed batches among ranks, before `files` names those of all.

        Without it, `files` names those of this rank alone. Batches that are not packed share nothing.

        Args:
            batches: as `files`'; the same on all ranks, which all call this for every spike.
            gather: as of `PackedDataset.sync_lane_states`; None: there are no other ranks.
        """
        self._shared += 1
        if gather is None or self._shared > self._limit:
            return
        for batch in batches.values():
            dataset, loader, last = batch.loader.dataset, batch.loader, (batch.plan, batch.number)
            if isinstance(dataset, PackedDataset):
                dataset.share_documents([*batches_before(loader.plan, *last, self._before), last], gather)

    def files(
        self, spike: LossSpike, step: int, batches: Mapping[str, TrainedBatch], *, optimizer_step: int | None = None
    ) -> list[SpikeFile]:
        """The files of a spike: ``loss-spike-batch147.json``, and ``.yaml`` if the order can skip samples.

        Several loaders get no YAML, which describes one. Later spikes than `limit` get no file.

        Args:
            spike: the spike.
            step: the global batch of the run, counted from 0 as the trainer counts.
            batches: its batches, by names of the loaders ('' if there is one).
            optimizer_step: the step's number in the trainer's loggers, if it differs.

        Raises:
            ConfigError: the batch is older than a loader's present mixture.
        """
        self._found += 1
        if self._found > self._limit:
            return []
        reports = {
            name: explain_batches(
                batch.loader,
                batch.plan,
                batch.number,
                step=step,
                before=self._before,
                after=self._after,
                left_out=self._ranges.get(name, ()),
                reads_data=False,  # tokenising would stop the training
            )
            for name, batch in batches.items()
        }
        for name, report in reports.items():
            self._ranges.setdefault(name, []).extend(report.ranges)
        first = min(report.steps[0] for report in reports.values())
        lines = [(f'{name}: {line}' if name else line) for name, report in reports.items() for line in report.summary()]
        resume = f'To train without: resume from a checkpoint of at most {first} batches, with `skip` as it is here.'
        document: dict[str, Any] = {'step': step}
        if optimizer_step is not None:
            document['optimizer_step'] = optimizer_step
        document |= {
            'loss': _plain(spike.loss),
            'median': spike.median,
            'threshold': spike.threshold,
            'summary': [
                f'The loss was {spike}.',
                'Steps are global batches here, counted from 0 through the run.',
                *lines,
                resume,
            ],
        }
        if len(reports) == 1:
            (report,) = reports.values()
            document |= report.to_json()
        else:
            document['loaders'] = {name: report.to_json() for name, report in reports.items()}
        name = f'loss-spike-batch{step}'
        files = [SpikeFile(f'{name}.json', report_text(document))]
        skip = document.get('skip')
        if skip is not None:
            head = f'The loss of batch {step} was {spike}. {name}.json says what it was.'
            files.append(SpikeFile(f'{name}.yaml', skip_yaml(skip, [head, resume])))
        return files

    @property
    def is_over(self) -> bool:
        """Whether there was more than one spike beyond `limit`: a loss that stays NaN is a spike in each step."""
        return self._found > self._limit + 1


def _plain(loss: float) -> float | str:
    return loss if math.isfinite(loss) else str(loss)  # JSON has no other numbers


def skip_yaml(skip: list[list[int | str]], comments: list[str], defaults: list[str] | None = None) -> str:
    """A configuration with the `skip` of the training, to merge over another one.

    Args:
        skip: the ranges.
        comments: lines above it.
        defaults: configurations to merge it over; None: another file names it in its `defaults`.
    """
    lines = [f'# {line}' for line in comments]
    if defaults is not None:
        lines.append(f'defaults: {json.dumps(defaults)}')
    return '\n'.join([*lines, 'train:', f'  skip: {json.dumps(skip)}', ''])
