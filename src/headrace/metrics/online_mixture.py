"""Proportions of streams that follow their losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.metrics.per_stream import PerStreamMean
    from headrace.order import Decision


def proportions_by_loss(
    before: Mapping[str, float],
    losses: Mapping[str, float],
    *,
    rate: float = 1.0,
    memory: float = 1.0,
    floor: float = 0.0,
    references: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return shares that sum to 1, in proportion to before^memory · exp(rate · loss), each at least ``floor``.

    With ``memory`` 1 it is the step of exponentiated gradient ascent that DoReMi takes, with a small model's losses
    as ``references``. With ``memory`` 0 it is a softmax of the losses at the temperature 1 / ``rate``.

    Args:
        before: the current shares, by name; a stream with 0 keeps it.
        losses: by name; a stream without one, or with NaN, has the mean of the others.
        rate: shares per nat of loss, in the exponent.
        memory: from 0 to 1.
        floor: the least share of a stream; below 1 / streams.
        references: subtracted from the losses. A stream that is below its reference counts as at it.

    Raises:
        ConfigError: a number is out of range, or no stream has a loss.
    """
    shares = {name: share for name, share in before.items() if share > 0}
    if not (math.isfinite(rate) and 0 <= memory <= 1 and 0 <= floor * len(shares) < 1):
        raise ConfigError(
            f'`rate` is finite, `memory` from 0 to 1, and `floor` from 0 to below 1 / {len(shares)} streams, got '
            f'{rate}, {memory} and {floor}.'
        )
    excess = {name: losses[name] for name in shares if math.isfinite(losses.get(name, math.nan))}
    if not excess:
        raise ConfigError(f'proportions follow the losses of {sorted(shares)}, but got {dict(losses)}.')
    if references is not None:
        if missing := sorted(shares.keys() - references):
            raise ConfigError(f'`references` need a loss of every stream, but have none of {missing}.')
        excess = {name: max(loss - references[name], 0.0) for name, loss in excess.items()}
    mean, total = math.fsum(excess.values()) / len(excess), math.fsum(shares.values())
    logs = {name: memory * math.log(share / total) + rate * excess.get(name, mean) for name, share in shares.items()}
    most = max(logs.values())
    grown = {name: math.exp(log - most) for name, log in logs.items()}
    rest = (1 - floor * len(grown)) / math.fsum(grown.values())
    return {name: floor + rest * grown[name] if name in grown else 0.0 for name in before}


class MixtureObserver:
    """The common part of callbacks that follow losses: arguments as `proportions_by_loss`'s."""

    def __init__(
        self,
        metric: str | PerStreamMean,
        every: int,
        *,
        rate: float,
        memory: float,
        floor: float,
        references: Mapping[str, float] | None,
    ) -> None:
        if every < 1:
            raise ConfigError(f'a mixture is decided every 1 step or more, got {every}.')
        self.every = every
        self._metric = metric
        self._rule = {'rate': rate, 'memory': memory, 'floor': floor}
        proportions_by_loss({'': 1.0}, {'': 0.0}, references=None, **self._rule)  # refuses what is out of range
        self._references = references

    def decide(self, loader: StreamingDataLoader, model: object) -> Decision:
        """Set the loader's proportions by the metric of the model, over all ranks, and reset the metric."""
        from headrace.metrics.per_stream import PerStreamMean

        metric = getattr(model, self._metric, None) if isinstance(self._metric, str) else self._metric
        if not isinstance(metric, PerStreamMean) or sorted(metric.names) != sorted(loader.dataset.stream_names):
            raise ConfigError(
                f'OnlineMixture reads losses of streams {list(loader.dataset.stream_names)} from a PerStreamMean, but '
                f'`metric` {self._metric!r} is {metric!r:.200}. Give its attribute of the model, or the metric.'
            )
        losses = {name.removeprefix(metric.prefix): float(loss) for name, loss in metric.compute().items()}
        metric.reset()
        shares = proportions_by_loss(loader.dataset.run.proportions, losses, references=self._references, **self._rule)
        return loader.set_proportions(shares, by='OnlineMixture')
