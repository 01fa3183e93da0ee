"""Figures of the data for a trainer's loggers, and metrics that know streams and padding.

1. `meter.DataMeter` turns the counters of loaders (`StreamingDataLoader.stats`, `.mix`) into rates, shares and text. It
   knows no trainer: any loop can use it. `bottleneck.BottleneckWatch` names the part of the data path that is too slow.
2. `tokens.count_tokens` counts the tokens of a batch.
3. `step_report` lists the samples of a trainer's step, and the `skip` that omits them. `spikes` finds steps with an
   unusual loss, and writes their files.
4. `observers` have what the callbacks of all trainers share.
5. `per_stream` has torchmetrics: one value for each stream, and values without padding rows.
6. `online_mixture` makes proportions of streams from their losses.
7. `exporters` serve figures to Prometheus, and make OpenTelemetry spans. Each imports its library at first use.

Only 5 needs torchmetrics, and imports it when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError
from headrace.metrics.bottleneck import Bottleneck, BottleneckWatch
from headrace.metrics.exporters import BatchSpans, PrometheusEndpoint
from headrace.metrics.meter import DataMeter
from headrace.metrics.online_mixture import proportions_by_loss
from headrace.metrics.spikes import LossSpike, SpikeDetector, SpikeFile, SpikeReports, TrainedBatch, skip_yaml
from headrace.metrics.step_report import StepReport, explain_batches, explain_step, report_text
from headrace.metrics.tokens import count_tokens

if TYPE_CHECKING:
    from headrace.metrics.per_stream import PerStream, PerStreamMean, WithoutPadding

__all__ = [
    'BatchSpans',
    'Bottleneck',
    'BottleneckWatch',
    'DataMeter',
    'LossSpike',
    'PerStream',
    'PerStreamMean',
    'PrometheusEndpoint',
    'SpikeDetector',
    'SpikeFile',
    'SpikeReports',
    'StepReport',
    'TrainedBatch',
    'WithoutPadding',
    'count_tokens',
    'explain_batches',
    'explain_step',
    'proportions_by_loss',
    'report_text',
    'skip_yaml',
]


_OF_TORCHMETRICS = ('PerStream', 'PerStreamMean', 'WithoutPadding')


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCHMETRICS:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        import torchmetrics  # noqa: F401 # pyright: ignore[reportUnusedImport] — the module imported below uses it
    except ImportError as error:
        raise MissingDependencyError(
            f'headrace.metrics.{name} needs the package `torchmetrics`: pip install "torchmetrics>=1.4".'
        ) from error
    return getattr(import_module('headrace.metrics.per_stream'), name)
