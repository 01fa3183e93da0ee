"""A reader that replaces samples that cannot be read, marks their rows, and warns of them."""

from __future__ import annotations

import contextlib
from bisect import bisect
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.dataset.batch_keys import is_bad_sample
from headrace.dataset.reading.sample_errors import name_sample
from headrace.dataset.reading.sample_pool import SamplePool
from headrace.errors import FormatError
from headrace.errors.mapping import panics_as
from headrace.errors.redaction import logger_of
from headrace.format import ColumnBatch, Columns
from headrace.order import Places

logger = logger_of(__name__)

_MOST = 20  # shards and samples that one process names; later warnings only count


class BadSampleLog:
    """Names each bad shard, and each bad sample of other shards, once; after a number of them it only counts."""

    def __init__(self, pool: SamplePool) -> None:
        self._pool = pool
        self._named: set[tuple[str, int]] = set()
        self._rows = 0
        self._next_summary = _MOST

    def note(self, sample_id: int, error: Exception) -> None:
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
                    'Rows whose samples cannot be read: %d so far in this process; further ones are not logged. See '
                    'LoaderStats.bad_samples.',
                    self._rows,
                )
            return
        self._named.add(key)
        self._next_summary = 2 * self._rows
        file = stream.shards[local].files[0]
        name = (file.zip or file.raw).basename
        url = f'{stream.url}/{name}' if stream.url else str(stream.folder / file.raw.basename)
        named = f'{file.raw.basename} of stream {stream.name}'
        what, more = f'Sample {sample_id}, row {row} of shard {named},', ''
        if of_shard:
            samples = stream.shards[local].samples
            what, more = f'Shard {named}', f' with its {samples} samples, of which {sample_id} was wanted first'
        logger.warning('%s cannot be read, and is skipped%s (%s): %s: %s', what, more, url, type(error).__name__, error)


BadRows = npt.NDArray[np.bool_]  # bool[rows], True where the sample could not be read.

T = TypeVar('T')

_TRIED = 4  # readable rows around a bad one whose samples are tried in its place


class SkippingReader:
    """Reads the samples of a dataset, and another sample in place of each bad one; `from_user`: see `is_bad_sample`.

    The samples alone decide which rows are bad. A bad row gets the sample of the nearest readable row of the batch on
    this rank. If the batch has none, the reader tries a few other samples. If these fail too, it raises the error: the
    fault is not in one sample.
    """

    def __init__(self, pool: SamplePool, *, from_user: bool) -> None:
        self._pool = pool
        self._from_user = from_user
        self._log = BadSampleLog(pool)
        self._stand_in: int | None = None  # The last sample that replaced a bad one.

    def begin_pass(self) -> None:
        """Forget the bad shards, so that they are tried again."""
        self._pool.shards.bad.clear()

    def gather(self, into: Columns, places: Places) -> tuple[ColumnBatch, BadRows | None]:
        """Samples in columns, and the bad rows; None if all are good."""
        ids, pool = places.ids.tolist(), self._pool
        with pool.shards.trying_once(), _errors_by_row() as failed:
            columns = pool.gather(into, places, failed=failed)
            bad = self._bad_rows(ids, failed)
            if len(failed) == len(ids):
                columns = self._other_rows(into, places.ids, failed)
            elif failed:
                _fill_in(columns, failed, len(ids))
        return columns, bad

    def samples(self, ids: list[int], read: Callable[[int], Any]) -> tuple[list[Any], BadRows | None]:
        """The samples of `ids`, one by one, and the bad rows; None if all are good.

        `read` reads a sample again for a bad row, since a user's code may change samples in place.
        """
        with self._pool.shards.trying_once(), _errors_by_row() as failed:
            samples = self._read(ids, read, failed)
            bad = self._bad_rows(ids, failed)
            readable = [row for row in range(len(ids)) if row not in failed]
            for row in failed:
                near = (ids[other] for other in _nearest(row, readable))
                samples[row] = self._first_readable(chain(near, self._elsewhere(ids[row])), read, failed, row, ids[row])
        return samples, bad

    def readable(self, ids: list[int], read: Callable[[int], Any]) -> tuple[list[Any], BadRows | None]:
        """As `samples`, but with None in bad rows."""
        with self._pool.shards.trying_once(), _errors_by_row() as failed:
            samples = self._read(ids, read, failed)
            bad = self._bad_rows(ids, failed)
            if len(failed) == len(ids):
                self._first_readable(self._elsewhere(ids[0]), read, failed, 0, ids[0])
        return samples, bad

    def readable_values(self, ids: npt.NDArray[np.int64], column: str) -> tuple[list[Any], BadRows | None]:
        """As `readable`, of one column as it is stored; bad rows hold arbitrary values."""
        pool = self._pool
        if column not in pool.shared.arrays:
            return self.readable(ids.tolist(), lambda sample_id: pool.sample(sample_id)[column])
        with pool.shards.trying_once(), _errors_by_row() as failed:
            columns = pool.gather(pool.shared, pool.map.places(ids), [column], failed=failed)
            bad = self._bad_rows(ids.tolist(), failed)
            if len(failed) == len(ids):
                self._other_rows(pool.shared, ids[:1], failed)
        return list(columns.columns[column]), bad

    def _read(self, ids: list[int], read: Callable[[int], Any], failed: dict[int, Exception]) -> list[Any]:
        """Samples; the errors of bad ones go into `failed`, by row."""
        samples: list[Any] = [None] * len(ids)
        for row, sample_id in enumerate(ids):
            try:
                with panics_as(FormatError):
                    samples[row] = read(sample_id)
            except Exception as error:  # noqa: PERF203 - each sample may be bad by itself
                if not is_bad_sample(error, from_user=self._from_user):
                    raise
                failed[row] = error
        return samples

    def _bad_rows(self, ids: list[int], failed: dict[int, Exception]) -> BadRows | None:
        if not failed:
            return None
        for row, error in failed.items():
            self._log.note(ids[row], error)
        bad = np.zeros(len(ids), np.bool_)
        bad[list(failed)] = True
        return bad

    def _other_rows(self, into: Columns, ids: npt.NDArray[np.int64], failed: dict[int, Exception]) -> ColumnBatch:
        """As many rows, all of one sample from outside the batch."""
        pool = self._pool

        def read(sample_id: int) -> ColumnBatch:
            return pool.gather(into, pool.map.places(np.full(len(ids), sample_id)))

        return self._first_readable(self._elsewhere(int(ids[0])), read, failed, 0, int(ids[0]))

    def _elsewhere(self, sample_id: int) -> Iterator[int]:
        return chain(() if self._stand_in is None else (self._stand_in,), self._pool.others(sample_id))

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
                sample = read(other)
            except Exception as another:  # noqa: PERF203 - each sample may be bad by itself
                if not is_bad_sample(another, from_user=self._from_user):
                    raise
            else:
                self._stand_in = other
                return sample
        name_sample(failed[row], sample_id, self._pool.describe)
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
    at = bisect(rows, row)
    return sorted(rows[max(at - _TRIED, 0) : at + _TRIED], key=lambda other: abs(other - row))[:_TRIED]


def _fill_in(columns: ColumnBatch, bad: Collection[int], rows: int) -> None:
    readable = [row for row in range(rows) if row not in bad]
    sources = {row: _nearest(row, readable)[0] for row in bad}
    for column in columns.columns.values():
        if isinstance(column, np.ndarray):
            column[list(sources)] = column[list(sources.values())]
        else:
            for row, source in sources.items():
                column[row] = column[source]
