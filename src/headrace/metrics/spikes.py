"""Spikes in a training loss: their detection, and files with their data and with the `skip` that omits it."""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.dataset.loader import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.errors.display import count_text
from headrace.metrics.step_report import explain_batches, report_text
from headrace.order import BatchPlan, batches_before
from headrace.packing import PackedDataset

_NORMAL = 1.4826  # standard deviations of a normal distribution in its median absolute deviation
_LEAST_SPREAD = 0.01  # of the median: losses that hardly vary would make a spike of any


@dataclass(frozen=True, slots=True)
class LossSpike:
    """A loss far above the earlier ones."""

    loss: float
    """May be infinite or NaN."""
    median: float | None
    """Median of the losses before it; None before there were enough."""
    threshold: float | None
    """The largest loss that was not a spike."""

    def __str__(self) -> str:
        if self.median is None or self.threshold is None:
            return f'{self.loss:.4g}'
        return (
            f'{self.loss:.4g}, where the median before it was {self.median:.4g}, and {self.threshold:.4g} the threshold'
        )


class SpikeDetector:
    """Detects spikes by the median and the spread of earlier losses in a window.

    A loss is a spike if it is above the median by more than `factor` standard deviations, or is not finite. The
    deviation is estimated from the median absolute deviation, which single spikes do not move. It is at least 1 % of
    the median. All finite losses enter the window, so a loss that stays high is not a spike after half a window.

    Args:
        factor: standard deviations above the median.
        window: number of remembered losses.
        warmup: losses before the first judgement; an infinite or NaN loss is a spike at once.

    Raises:
        ConfigError: `factor` is not above 0, `warmup` is below 2, or `window` is below `warmup`.
    """

    def __init__(self, *, factor: float = 10.0, window: int = 100, warmup: int = 20) -> None:
        if not factor > 0:
            raise ConfigError(f'`factor` must be above 0 standard deviations, got {factor}.')
        if not 2 <= warmup <= window:
            raise ConfigError(
                f'`warmup` must be at least 2 losses, and `window` at least `warmup`, got warmup={warmup}, '
                f'window={window}.'
            )
        self._factor, self._warmup = factor, warmup
        self._losses: deque[float] = deque(maxlen=window)

    def add(self, loss: float) -> LossSpike | None:
        """Take the next loss; returns it if it is a spike."""
        median = threshold = None
        if len(self._losses) >= self._warmup:
            median = statistics.median(self._losses)
            deviation = _NORMAL * statistics.median(abs(other - median) for other in self._losses)
            threshold = median + self._factor * max(deviation, _LEAST_SPREAD * abs(median))
        if not math.isfinite(loss):
            return LossSpike(loss, median, threshold)
        self._losses.append(loss)
        return LossSpike(loss, median, threshold) if threshold is not None and loss > threshold else None

    def state_dict(self) -> dict[str, Any]:
        """The losses that are remembered, for a checkpoint."""
        return {'losses': list(self._losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the losses of a checkpoint."""
        self._losses.clear()
        self._losses.extend(float(loss) for loss in state.get('losses', ()))


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
            gather: as of `PackedDataset.sync_lane_states`, or None if this is the only rank.
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
        most = count_text(first, 'batch')
        resume = f'To train without: resume from a checkpoint of at most {most}, with `skip` as it is here.'
        document: dict[str, Any] = {'step': step}
        if optimizer_step is not None:
            document['optimizer_step'] = optimizer_step
        document |= {
            'loss': spike.loss if math.isfinite(spike.loss) else str(spike.loss),  # JSON has no other numbers
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


def skip_yaml(skip: list[list[int | str]], comments: list[str], defaults: list[str] | None = None) -> str:
    """A configuration with the `skip` of the training, to merge over another one.

    Args:
        skip: the ranges.
        comments: lines above it.
        defaults: configurations to merge it over; without them, another file names it in its `defaults`.
    """
    lines = [f'# {line}' for line in comments]
    if defaults is not None:
        lines.append(f'defaults: {json.dumps(defaults)}')
    return '\n'.join([*lines, 'train:', f'  skip: {json.dumps(skip)}', ''])
