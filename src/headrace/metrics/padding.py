"""A metric that leaves out the rows that only fill up a batch, and those that stand for bad samples."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.wrappers.abstract import WrapperMetric

from headrace.errors import ConfigError
from headrace.metrics.selected_rows import left_out, select_rows

__all__ = ['WithoutPadding']


class WithoutPadding(WrapperMetric):
    """Another metric, of the rows of a batch that count: ``metric.update(scores, labels, is_padding=batch[PADDING])``.

    A rank that has no such row in a batch leaves the metric as it is, and takes part in its synchronisation as ever.

    Args:
        metric: any metric whose arguments have a row for each sample; it is used itself, and not copied.
    """

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self.metric = metric

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *args: Any, is_padding: Tensor | None = None, is_bad_sample: Tensor | None = None, **kwargs: Any
    ) -> None:
        """Update the metric with the rows that count.

        Args:
            args: what the metric takes, each with a row for each sample: tensors, arrays, lists.
            is_padding: bool[rows], True for a row to leave out: ``batch[headrace.PADDING]``.
            is_bad_sample: the same: ``batch[headrace.BAD_SAMPLE]``.
            kwargs: as args; values that are no rows go to the metric as they are.

        Raises:
            ConfigError: an argument does not have as many rows, or neither mark is given.
        """
        without = _given(left_out(is_padding, is_bad_sample))
        if not bool(without.all()):
            args, kwargs = select_rows(~without, args, kwargs)
            self.metric.update(*args, **kwargs)

    def forward(
        self, *args: Any, is_padding: Tensor | None = None, is_bad_sample: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """Update the metric, and return its value for the batch; None where no row counts."""
        self._forward_cache = None
        without = _given(left_out(is_padding, is_bad_sample))
        if not bool(without.all()):
            args, kwargs = select_rows(~without, args, kwargs)
            self._forward_cache = self.metric(*args, **kwargs)
        return self._forward_cache

    def compute(self) -> Any:
        """The metric's value, over all ranks as the metric itself has it."""
        # Else a rank whose last rows were all padding would answer what it remembers, while others wait for it.
        self.metric._computed = None
        return self.metric.compute()

    def reset(self) -> None:
        """Begin anew."""
        super().reset()
        self.metric.reset()


def _given(without: Tensor | None) -> Tensor:
    if without is None:
        raise ConfigError(
            'WithoutPadding leaves out rows by their mark, but got none. Pass `is_padding=batch[headrace.PADDING]`, '
            '`is_bad_sample=batch[headrace.BAD_SAMPLE]`, or both.'
        )
    return without
