"""Reading that goes on where samples cannot be read: what stands in their rows, and which rows these are."""

from __future__ import annotations

import contextlib
from bisect import bisect
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.dataset.batch_keys.bad_sample import is_bad_sample
from headrace.dataset.reading.bad_sample_log import BadSampleLog
from headrace.dataset.reading.sample_errors import collated, name_sample
from headrace.dataset.reading.samples import Samples
from headrace.dataset.reading.shard_pool import collate_columns
from headrace.format import ColumnBatch, Columns

__all__ = ['BadRows', 'SkippingReader']

BadRows = npt.NDArray[np.bool_]
"""bool[rows], True where the sample could not be read."""

T = TypeVar('T')

_TRIED = 4  # readable rows around a bad one, whose samples may do for it


class SkippingReader:
    """Reads the samples of a dataset, and another in the place of each that cannot be read.

    Which rows are bad follows from their samples alone. What stands in them is that of the nearest row of the batch
    that could be read, and so depends on which samples share a batch on this rank; where there is none, a few others
    are tried, and if these cannot be read either, the error is raised: then it is not a sample that is bad.

    Args:
        samples: those of the dataset.
        from_user: whether code of a user's reads samples, whose exceptions may be of any class.
    """

    def __init__(self, samples: Samples, *, from_user: bool) -> None:
        self._samples = samples
        self._from_user = from_user
        self._log = BadSampleLog(samples)
        self._stand_in: int | None = None
        """The sample that was read last in the place of another."""

    def begin_pass(self) -> None:
        """Try everything again that could not be read."""
        self._samples.pool.bad_shards.clear()

    def batch(self, ids: npt.NDArray[np.int64]) -> tuple[dict[str, Any], BadRows | None]:
        """The samples of `ids`, collated, and which rows are bad; None: none is."""
        pool = self._samples.pool
        if pool.columns is None:
            samples, bad = self.samples(ids.tolist(), pool.sample)
            return collated(samples, ids.tolist(), pool.describe), bad
        with pool.trying_once(), _errors_by_row() as failed:
            columns = pool.gather(pool.columns, ids, failed=failed)
            bad = self._bad_rows(ids.tolist(), failed)
            if len(failed) == len(ids):
                columns = self._other_rows(pool.columns, ids, failed)
            elif failed:
                _fill_in(columns, failed, len(ids))
        return collate_columns(columns, ids, pool.describe), bad

    def samples(self, ids: list[int], read: Callable[[int], Any]) -> tuple[list[Any], BadRows | None]:
        """The samples of `ids`, one by one, and which are bad; None: none is.

        Args:
            ids: the samples.
            read: reads one; for a bad row once more that of another, since who gets samples may change them.
        """
        with self._samples.pool.trying_once(), _errors_by_row() as failed:
            samples = self._read(ids, read, failed)
            bad = self._bad_rows(ids, failed)
            readable = [row for row in range(len(ids)) if row not in failed]
            for row in failed:
                near = (ids[other] for other in _nearest(row, readable))
                samples[row] = self._first_readable(chain(near, self._elsewhere(ids[row])), read, failed, row, ids[row])
        return samples, bad

    def readable(self, ids: list[int], read: Callable[[int], Any]) -> tuple[list[Any], BadRows | None]:
        """As `samples`, but what stands in bad rows is None."""
        with self._samples.pool.trying_once(), _errors_by_row() as failed:
            samples = self._read(ids, read, failed)
            bad = self._bad_rows(ids, failed)
            if len(failed) == len(ids):
                self._first_readable(self._elsewhere(ids[0]), read, failed, 0, ids[0])
        return samples, bad

    def readable_values(self, ids: npt.NDArray[np.int64], column: str) -> tuple[list[Any], BadRows | None]:
        """As `readable`, of one column as it is stored; what stands in bad rows is of no use."""
        pool = self._samples.pool
        if column not in pool.shared.arrays:
            return self.readable(ids.tolist(), lambda sample_id: pool.sample(sample_id)[column])
        with pool.trying_once(), _errors_by_row() as failed:
            columns = pool.gather(pool.shared, ids, [column], failed=failed)
            bad = self._bad_rows(ids.tolist(), failed)
            if len(failed) == len(ids):
                self._other_rows(pool.shared, ids[:1], failed)
        return list(columns.columns[column]), bad

    def _read(self, ids: list[int], read: Callable[[int], Any], failed: dict[int, Exception]) -> list[Any]:
        """Samples; the errors of bad ones go by row into `failed`."""
        samples: list[Any] = [None] * len(ids)
        for row, sample_id in enumerate(ids):
            try:
                samples[row] = read(sample_id)
            except Exception as error:  # noqa: PERF203 - each sample may be bad by itself
                if not is_bad_sample(error, from_user=self._from_user):
                    raise
                failed[row] = error
        return samples

    def _bad_rows(self, ids: list[int], failed: dict[int, Exception]) -> BadRows | None:
        """Which rows are bad; they are logged."""
        if not failed:
            return None
        for row, error in failed.items():
            self._log.note(ids[row], error)
        bad = np.zeros(len(ids), np.bool_)
        bad[list(failed)] = True
        return bad

    def _other_rows(self, into: Columns, ids: npt.NDArray[np.int64], failed: dict[int, Exception]) -> ColumnBatch:
        """As many rows, all of one sample from elsewhere."""
        pool = self._samples.pool

        def read(sample_id: int) -> ColumnBatch:
            return pool.gather(into, np.full(len(ids), sample_id))

        return self._first_readable(self._elsewhere(int(ids[0])), read, failed, 0, int(ids[0]))

    def _elsewhere(self, sample_id: int) -> Iterator[int]:
        return chain(() if self._stand_in is None else (self._stand_in,), self._samples.others(sample_id))

    def _first_readable(
        self,
        candidates: Iterable[int],
        read: Callable[[int], T],
        failed: dict[int, Exception],
        row: int,
        sample_id: int,
    ) -> T:
        """The first of these samples that can be read. If none can, the error of the row is raised."""
        for other in candidates:
            try:
                found = read(other)
            except Exception as another:  # noqa: PERF203 - each sample may be bad by itself
                if not is_bad_sample(another, from_user=self._from_user):
                    raise
            else:
                self._stand_in = other
                return found
        name_sample(failed[row], sample_id, self._samples.pool.describe)
        raise failed[row]


@contextlib.contextmanager
def _errors_by_row() -> Generator[dict[int, Exception]]:
    """A dict that is empty in the end: errors hold the frames that hold the dict, and the dataset with them."""
    failed: dict[int, Exception] = {}
    try:
        yield failed
    finally:
        failed.clear()


def _nearest(row: int, rows: list[int]) -> list[int]:
    """Of some rows in rising order, those nearest to a row, the nearest first."""
    at = bisect(rows, row)
    return sorted(rows[max(at - _TRIED, 0) : at + _TRIED], key=lambda other: abs(other - row))[:_TRIED]


def _fill_in(columns: ColumnBatch, bad: Collection[int], rows: int) -> None:
    """Copy into bad rows what is in the nearest ones of the others."""
    readable = [row for row in range(rows) if row not in bad]
    sources = {row: _nearest(row, readable)[0] for row in bad}
    for column in columns.columns.values():
        if isinstance(column, np.ndarray):
            column[list(sources)] = column[list(sources.values())]
        else:
            for row, source in sources.items():
                column[row] = column[source]
