"""Metrics by stream for Composer: one metric with one number for each stream."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.wrappers.abstract import WrapperMetric

from headrace.errors import ConfigError
from headrace.metrics import PerStream, PerStreamMean


def stream_metrics(metric: PerStream | PerStreamMean) -> dict[str, Metric]:
    """A metric for each stream, for `ComposerModel.get_metrics`, since Composer needs numbers as values.

    Args:
        metric: the metric of all streams; it is copied.

    Returns:
        Metrics by the prefix of `metric` and the name of the stream. Each takes the arguments of `metric`, and counts
        its own stream's rows. The value is NaN for a stream without rows on all ranks. The attribute `metric` holds a
        `PerStream` or `PerStreamMean`.
    """
    return {metric.prefix + name: _OfStream(metric, number) for number, name in enumerate(metric.names)}


class _OfStream(WrapperMetric):
    def __init__(self, metric: PerStream | PerStreamMean, number: int) -> None:
        super().__init__()
        self._streams, self._number = metric.names, number
        name, prefix = metric.names[number], metric.prefix
        self._name = prefix + name
        # Made for one stream: the original holds a metric for each stream.
        self.metric = (
            PerStreamMean([name], prefix=prefix)
            if isinstance(metric, PerStreamMean)
            else PerStream(cast('Metric', metric.metrics[number]), [name], prefix=prefix)
        )

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        *args: Any,
        streams: Tensor,
        is_padding: Tensor | None = None,
        is_bad_sample: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        # One that waits for the device anyway can look.
        if isinstance(self.metric, PerStream) and len(streams) and int(streams.max()) >= len(self._streams):
            raise ConfigError(
                f'There are {len(self._streams)} names of streams, {list(self._streams)}, but rows of stream '
                f'{int(streams.max())}. Give the names of all streams, in their order in the dataset.'
            )
        own = -(streams != self._number).to(streams.dtype)  # 0, and -1 for a row of another stream, which is left out
        self.metric.update(*args, streams=own, is_padding=is_padding, is_bad_sample=is_bad_sample, **kwargs)

    def compute(self) -> Any:
        return self.metric.compute()[self._name]

    def reset(self) -> None:
        super().reset()
        self.metric.reset()
