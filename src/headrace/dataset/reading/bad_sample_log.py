"""Warnings about samples and shards that cannot be read."""

from __future__ import annotations

from headrace.dataset.reading.sample_pool import SamplePool
from headrace.redaction import logger_of

__all__ = ['BadSampleLog']

logger = logger_of(__name__)

_MOST = 20  # shards and samples that one process names; later warnings only count


class BadSampleLog:
    """Names each bad shard, and each bad sample of other shards, once; after a number of them it only counts.

    Args:
        pool: gives the places of samples.
    """

    def __init__(self, pool: SamplePool) -> None:
        self._pool = pool
        self._named: set[tuple[str, int]] = set()
        self._rows = 0
        self._next_summary = _MOST

    def note(self, sample_id: int, error: Exception) -> None:
        """Note a row whose sample cannot be read."""
        self._rows += 1
        stream, local, row = self._pool.stream_of(sample_id)
        shard = stream.first_shard + local
        of_shard = shard in self._pool.shards.bad
        key = ('shard', shard) if of_shard else ('sample', sample_id)
        if key in self._named:
            return
        if len(self._named) >= _MOST:
            if self._rows >= self._next_summary:
                self._next_summary = 2 * self._rows
                logger.warning(
                    'Rows whose samples cannot be read: %d so far in this process; no more of them are named. See '
                    'LoaderStats.bad_samples.',
                    self._rows,
                )
            return
        self._named.add(key)
        self._next_summary = 2 * self._rows
        file = stream.shards[local].files[0]
        name = (file.zip or file.raw).basename
        url = f'{stream.url}/{name}' if stream.url else str(stream.folder / file.raw.basename)
        if of_shard:
            logger.warning(
                'Shard %s of stream %s cannot be read, and is skipped with its %d samples, of which %d was wanted '
                'first (%s): %s: %s',
                file.raw.basename,
                stream.name,
                stream.shards[local].samples,
                sample_id,
                url,
                type(error).__name__,
                error,
            )
        else:
            logger.warning(
                'Sample %d, row %d of shard %s of stream %s, cannot be read, and is skipped (%s): %s: %s',
                sample_id,
                row,
                file.raw.basename,
                stream.name,
                url,
                type(error).__name__,
                error,
            )
