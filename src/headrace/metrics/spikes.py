"""Detection of spikes in a training loss."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError

__all__ = ['LossSpike', 'SpikeDetector']

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
