"""Figures of the data for a trainer's loggers, and metrics that know streams and padding.

1. `meter.DataMeter` turns what loaders count (`StreamingDataLoader.stats`, `.mix`) into rates, shares and text. It
   knows no trainer: `headrace.lightning.DataStatistics` asks it, and so can any loop.
2. `tokens.count_tokens` says how many tokens a batch holds.
3. `per_stream` and `padding` are torchmetrics: one value for each stream, and values without rows that only fill up.

Only 3 needs torchmetrics, and imports it when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError
from headrace.metrics.meter import DataMeter
from headrace.metrics.tokens import count_tokens

if TYPE_CHECKING:
    from headrace.metrics.padding import WithoutPadding
    from headrace.metrics.per_stream import PerStream, PerStreamMean

__all__ = ['DataMeter', 'PerStream', 'PerStreamMean', 'WithoutPadding', 'count_tokens']

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
