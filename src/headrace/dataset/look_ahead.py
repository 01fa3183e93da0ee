"""How far ahead of its reader a process has shards fetched."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ['LookAhead', 'look_ahead']

_SAMPLES = 1 << 16
_BYTES = 512 << 20


class LookAhead(NamedTuple):
    """How far ahead of its reader a process has shards fetched."""

    batches: int
    bytes: float
    """Of shards fetched and not yet used."""
    lag: int = 8
    """Batches by which another rank may be behind: its trainer has not taken what its workers have read."""


def look_ahead(predownload: int | None, batch_size: int, workers: int = 1) -> LookAhead:
    """How far a process that makes batches looks ahead for shards to fetch.

    Args:
        predownload: samples for each worker, as the dataset was given them; None: some samples, bounded in bytes.
        batch_size: samples of a batch on this rank.
        workers: processes that make batches of this rank in turn.
    """
    lag = max(8, 4 * workers)  # each has some batches ready, 2 as a rule
    if predownload is None:
        return LookAhead(max(8, _SAMPLES // batch_size), _BYTES, lag)
    return LookAhead(math.ceil(predownload / batch_size) * workers, math.inf, lag)
