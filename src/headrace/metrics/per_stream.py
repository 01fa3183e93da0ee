"""Metrics with one value for each stream, and metrics that ignore padding and bad samples."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import ModuleList
from torchmetrics import Metric
from torchmetrics.wrappers.abstract import WrapperMetric

from headrace.dataset.batch_keys import has_rows
from headrace.errors import ConfigError


def excluded_rows(is_padding: Tensor | None, is_bad_sample: Tensor | None) -> Tensor | None:
    """bool[rows], True for a padding or bad row; None without both masks."""
    if is_padding is None or is_bad_sample is None:
        return is_bad_sample if is_padding is None else is_padding
    return is_padding | is_bad_sample.to(is_padding.device)


def select_rows(
    where: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The rows of arguments where bool[rows] is True. Values of `kwargs` without rows stay unchanged."""
    rows = len(where)
    for place, value in enumerate(args):
        if not _is_rows(value) or len(value) != rows:
            shape = tuple(value.shape) if isinstance(value, (Tensor, np.ndarray)) else type(value).__name__
            raise ConfigError(
                f'Every argument must have a value for each of the {rows} rows, but argument {place} has the shape '
                f"{shape}. A loss comes by row with reduction='none', averaged over other dimensions."
            )
    for name, value in kwargs.items():
        if _is_rows(value) and len(value) != rows:
            raise ConfigError(f'Argument {name} must have {rows} rows, or none, but has {len(value)}.')
    chosen = tuple(_select(where, value) for value in args)
    return chosen, {name: _select(where, value) if _is_rows(value) else value for name, value in kwargs.items()}


def _is_rows(value: Any) -> bool:
    return has_rows(value) or isinstance(value, (list, tuple))


def _select(where: Tensor, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value[where.to(value.device)]
    if isinstance(value, np.ndarray):
        return cast('Any', value)[where.cpu().numpy()]
    return type(value)(value[i] for i in torch.nonzero(where).flatten().tolist())


class PerStreamMean(Metric):
    """The mean of a value by stream, such as the loss: ``{'loss/code': 1.9, 'loss/prose': 2.3}``.

    It is made for training: an update never waits for the device. `compute` needs two reductions for any number of
    streams.

    Args:
        names: names of the streams, in their order in the dataset.
        prefix: prefix of the names of values, such as 'loss/'.

    Raises:
        ConfigError: names are missing, or some come twice.
    """

    full_state_update = False
    total: Tensor
    rows: Tensor

    def __init__(self, names: Sequence[str], *, prefix: str = '') -> None:
        super().__init__()
        self.names, self.prefix = _checked(names), prefix
        self.add_state('total', torch.zeros(len(names)), dist_reduce_fx='sum')
        self.add_state('rows', torch.zeros(len(names), dtype=torch.int64), dist_reduce_fx='sum')

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, values: Tensor, streams: Tensor, is_padding: Tensor | None = None, is_bad_sample: Tensor | None = None
    ) -> None:
        """Count the values of a batch.

        Args:
            values: float[rows], one for each row; of packed data float[rows, tokens], one for each token.
            streams: int64[rows], numbers of the rows' streams: ``batch[headrace.STREAM]``; of packed data int64[rows,
                tokens]. A negative number leaves a value out.
            is_padding: bool[rows], True for a row to leave out: ``batch[headrace.PADDING]``.
            is_bad_sample: the same: ``batch[headrace.BAD_SAMPLE]``.

        Raises:
            ConfigError: there is not one value for each row, or token.
        """
        if not values.ndim or values.shape != streams.shape:
            raise ConfigError(
                f'There must be one value for each row, but values have the shape {tuple(values.shape)} and streams '
                f"{tuple(streams.shape)}. A loss comes by row with reduction='none', averaged over other dimensions; "
                f'with packing, by token.'
            )
        values = values.detach().to(self.total).flatten()
        streams = streams.to(self.total.device)
        without = _without(streams, excluded_rows(is_padding, is_bad_sample)).flatten()
        values, counted = values.masked_fill(without, 0), (~without).to(torch.int64)
        streams = streams.flatten().clamp(min=0)
        # Values are added up by batch first: single ones would be lost in a total of millions.
        self.total += torch.zeros_like(self.total).index_add_(0, streams, values)
        self.rows.index_add_(0, streams, counted)

    def compute(self) -> dict[str, Tensor]:
        """The means by name, over all ranks; NaN for a stream without rows."""
        means = self.total / self.rows
        return {self.prefix + name: mean for name, mean in zip(self.names, means, strict=True)}


class PerStream(WrapperMetric):
    """Another metric for each stream: ``{'accuracy/code': 0.8, 'accuracy/prose': 0.7}``.

    Each stream has a copy of the metric, which synchronises over ranks by itself. An update waits for the device to
    learn the streams of a batch; for means, use `PerStreamMean`, which does not.

    Args:
        metric: any metric whose arguments have a row for each sample; it is copied.
        names: names of the streams, in their order in the dataset.
        prefix: prefix of the names of values, such as 'accuracy/'.

    Raises:
        ConfigError: names are missing, or some come twice.
    """

    def __init__(self, metric: Metric, names: Sequence[str], *, prefix: str = '') -> None:
        super().__init__()
        self.names, self.prefix = _checked(names), prefix
        self.metrics = ModuleList(copy.deepcopy(metric) for _ in names)
        self.rows = _Rows(len(names))

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        *args: Any,
        streams: Tensor,
        is_padding: Tensor | None = None,
        is_bad_sample: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Update the metrics of the streams that are in a batch.

        Args:
            args: the metric's arguments, each with a row for each sample: tensors, arrays, lists.
            streams: int64[rows], numbers of the rows' streams: ``batch[headrace.STREAM]``. Of packed data int64[rows,
                tokens]; arguments are then tensors or arrays [rows, tokens, ...]. A negative number leaves out.
            is_padding: bool[rows], True for a row to leave out: ``batch[headrace.PADDING]``.
            is_bad_sample: the same: ``batch[headrace.BAD_SAMPLE]``.
            kwargs: as args; values without rows go to the metric unchanged.

        Raises:
            ConfigError: an argument does not have as many rows, or a number has no stream.
        """
        for number, chosen, named in self._parts(args, kwargs, streams, excluded_rows(is_padding, is_bad_sample)):
            self._metric(number).update(*chosen, **named)

    def forward(
        self,
        *args: Any,
        streams: Tensor,
        is_padding: Tensor | None = None,
        is_bad_sample: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Update the metrics, and return the batch's own values, by stream."""
        parts = self._parts(args, kwargs, streams, excluded_rows(is_padding, is_bad_sample))
        values = {self.prefix + self.names[s]: self._metric(s)(*chosen, **named) for s, chosen, named in parts}
        self._forward_cache = values
        return values

    def _metric(self, number: int) -> Any:
        return self.metrics[number]

    def _parts(
        self, args: Sequence[Any], kwargs: dict[str, Any], streams: Tensor, without: Tensor | None
    ) -> Iterator[tuple[int, tuple[Any, ...], dict[str, Any]]]:
        counted = ~_without(streams, without)
        counts = Counter(streams[counted].tolist())
        unknown = sorted(set(counts) - set(range(len(self.names))))
        if unknown:
            raise ConfigError(
                f'There are {len(self.names)} names of streams, {list(self.names)}, but rows of streams {unknown}. '
                f'Give the names of all streams, in their order in the dataset.'
            )
        self.rows.update(counts)
        for number in sorted(counts):
            yield number, *select_rows((streams == number) & counted, args, kwargs)

    def compute(self) -> dict[str, Any]:
        """The values by name, over all ranks; NaN for a stream that had no rows on any of them."""
        values: dict[str, Any] = {}
        with warnings.catch_warnings():
            # A stream may have had rows on other ranks only.
            warnings.filterwarnings('ignore', r'The ``compute`` method of metric \w+ was called before the ``update``')
            counts = self.rows.compute().reshape(-1).tolist()  # torchmetrics makes a number of a single one
            for number, (name, count) in enumerate(zip(self.names, counts, strict=True)):
                metric = self._metric(number)
                # A rank without new rows would otherwise return its cached value, while others wait for it.
                metric._computed = None
                values[self.prefix + name] = metric.compute() if count else torch.tensor(torch.nan)
        return values

    def reset(self) -> None:
        """Reset the metric."""
        super().reset()
        self.rows.reset()
        for number in range(len(self.names)):
            self._metric(number).reset()


class _Rows(Metric):
    """Rows of each stream on all ranks, so that ranks agree on which metrics have a value."""

    full_state_update = False
    rows: Tensor

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.add_state('rows', torch.zeros(streams, dtype=torch.int64), dist_reduce_fx='sum')

    def update(self, counts: Counter[int]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for number, count in counts.items():
            self.rows[number] += count

    def compute(self) -> Tensor:
        return self.rows


def _checked(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise ConfigError(f'`names` must be a list of the different names of all streams, but is {names!r}.')
    return tuple(names)


def _without(streams: Tensor, without: Tensor | None) -> Tensor:
    """The values to leave out, a bool of the shape of `streams`: negative ones, and those of rows left out."""
    negative = streams < 0
    if without is None:
        return negative
    without = without.to(streams.device)
    return negative | without.reshape(-1, *[1] * (streams.ndim - 1))


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
