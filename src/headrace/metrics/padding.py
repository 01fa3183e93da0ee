"""A metric that ignores padding rows and rows in place of bad samples."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.wrappers.abstract import WrapperMetric

from headrace.errors import ConfigError
from headrace.metrics.selected_rows import excluded_rows, select_rows

__all__ = ['WithoutPadding']


class WithoutPadding(WrapperMetric):
    """Another metric, of the rows of a batch that count: ``metric.update(scores, labels, is_padding=batch[PADDING])``.

    A rank without such a row in a batch does not update the metric, but takes part in its synchronisation.

    Args:
        metric: any metric whose arguments have a row for each sample; it is not copied.
    """

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self.metric = metric

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *args: Any, is_padding: Tensor | None = None, is_bad_sample: Tensor | None = None, **kwargs: Any
    ) -> None:
        """Update the metric with the rows that count.

        Args:
            args: the metric's arguments, each with a row for each sample: tensors, arrays, lists.
            is_padding: bool[rows], True for a row to ignore: ``batch[headrace.PADDING]``.
            is_bad_sample: the same: ``batch[headrace.BAD_SAMPLE]``.
            kwargs: as args; values without rows go to the metric unchanged.

        Raises:
            ConfigError: an argument does not have as many rows, or neither mark is given.
        """
        without = _given(excluded_rows(is_padding, is_bad_sample))
        if not bool(without.all()):
            args, kwargs = select_rows(~without, args, kwargs)
            self.metric.update(*args, **kwargs)

    def forward(
        self, *args: Any, is_padding: Tensor | None = None, is_bad_sample: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """Update the metric, and return its value for the batch; None where no row counts."""
        self._forward_cache = None
        without = _given(excluded_rows(is_padding, is_bad_sample))
        if not bool(without.all()):
            args, kwargs = select_rows(~without, args, kwargs)
            self._forward_cache = self.metric(*args, **kwargs)
        return self._forward_cache

    def compute(self) -> Any:
        """The metric's value, over all ranks as the metric itself has it."""
        # A rank with only padding rows would otherwise return its cached value, while others wait for it.
        self.metric._computed = None
        return self.metric.compute()

    def reset(self) -> None:
        """Reset the metric."""
        super().reset()
        self.metric.reset()


def _given(without: Tensor | None) -> Tensor:
    if without is None:
        raise ConfigError(
            'WithoutPadding leaves out rows by their mark, but got none. Pass `is_padding=batch[headrace.PADDING]`, '
            '`is_bad_sample=batch[headrace.BAD_SAMPLE]`, or both.'
        )
    return without
