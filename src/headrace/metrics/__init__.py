"""Figures of the data for a trainer's loggers, and metrics that know streams and padding.

1. `meter.DataMeter` turns what loaders count (`StreamingDataLoader.stats`, `.mix`) into rates, shares and text. It
   knows no trainer: `headrace.lightning.DataStatistics` asks it, and so can any loop.
2. `tokens.count_tokens` says how many tokens a batch holds.
3. `step_report` says what a trainer's step was made of, and the `skip` that leaves it out; `spikes` finds the steps
   whose loss stands out, and `spike_report` makes the files of them.
4. `per_stream` and `padding` are torchmetrics: one value for each stream, and values without rows that only fill up.

Only 4 needs torchmetrics, and imports it when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError
from headrace.metrics.meter import DataMeter
from headrace.metrics.spike_report import SpikeFile, SpikeReports, TrainedBatch, skip_yaml
from headrace.metrics.spikes import LossSpike, SpikeDetector
from headrace.metrics.step_report import StepReport, explain_batches, explain_step, report_text
from headrace.metrics.tokens import count_tokens

if TYPE_CHECKING:
    from headrace.metrics.padding import WithoutPadding
    from headrace.metrics.per_stream import PerStream, PerStreamMean

__all__ = [
    'DataMeter',
    'LossSpike',
    'PerStream',
    'PerStreamMean',
    'SpikeDetector',
    'SpikeFile',
    'SpikeReports',
    'StepReport',
    'TrainedBatch',
    'WithoutPadding',
    'count_tokens',
    'explain_batches',
    'explain_step',
    'report_text',
    'skip_yaml',
]

_OF_TORCHMETRICS = {
    'PerStream': 'headrace.metrics.per_stream',
    'PerStreamMean': 'headrace.metrics.per_stream',
    'WithoutPadding': 'headrace.metrics.padding',
}


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCHMETRICS:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        import torchmetrics  # noqa: F401 # pyright: ignore[reportUnusedImport] — the module imported below uses it
    except ImportError as error:
        raise MissingDependencyError(
            f'headrace.metrics.{name} needs the package `torchmetrics`: pip install "torchmetrics>=1.4".'
        ) from error
    return getattr(import_module(_OF_TORCHMETRICS[name]), name)
