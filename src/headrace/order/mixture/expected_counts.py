"""The samples that a mixture promises of each stream, for comparison with the samples delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from headrace.order.mixture.mixture import Mixture

__all__ = ['ExpectedCounts']

_Floats: TypeAlias = NDArray[np.float64]


class ExpectedCounts:
    """How many samples of each stream are to be expected, by the proportions that were asked for.

    A schedule sets the proportions at each position of the run; a ramp is a staircase. ``when_exhausted: drop_stream``
    sets them for each stage of an epoch.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        if mixture.schedule is not None:
            steps = mixture.schedule.steps([stream.name for stream in mixture.streams])
            begins, shares = [step.begin for step in steps], [step.weights for step in steps]
        elif len(mixture.stages) > 1:
            begins, shares = np.cumsum([0, *map(sum, mixture.stages)])[:-1].tolist(), list(mixture.stages)
        else:
            begins, shares = [0], [mixture.proportions]
        self._begins = np.array(begins, np.int64)
        weights = np.array(shares, np.float64)
        self._shares: _Floats = weights / weights.sum(1, keepdims=True)
        lengths = np.diff(self._begins)[:, None]
        self._before: _Floats = np.concatenate([np.zeros_like(weights[:1]), np.cumsum(self._shares[:-1] * lengths, 0)])

    def between(self, epoch: int, begin: int, end: int) -> _Floats:
        """Samples of each stream at positions of an epoch from begin on and below end, float64[streams].

        They sum to the number of positions.
        """
        if self.mixture.schedule is not None:
            offset = self.mixture.takeover.begin_of(epoch, self.mixture.epoch_size)
            begin, end = begin + offset, end + offset
        return self._until(end) - self._until(begin)

    def _until(self, position: int) -> _Floats:
        step = max(int(self._begins.searchsorted(position, 'right')) - 1, 0)
        return self._before[step] + (position - int(self._begins[step])) * self._shares[step]
