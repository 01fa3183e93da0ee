"""The work of one process: tasks, each from its inputs to its shards and its record."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias

from headrace.convert.protocol import BadRow, Inputs
from headrace.convert.record import InputError, TaskRecord, put_bytes
from headrace.convert.tasks import Task
from headrace.errors import ConversionError, DiskFullError, MissingDependencyError, ObjectNotFoundError, StorageError
from headrace.format import EncodedShard, MDSEncoder
from headrace.format.shard_memory import shared_pool
from headrace.storage import Retry, StoreOptions, open_store
from headrace.storage.cache.locks import NO_ROOM

__all__ = ['Job', 'OnError', 'Progress', 'Worker']

OnError: TypeAlias = Literal['stop', 'skip', 'collect']

_UPLOADS: Final = 2
"""Shards of a process that are stored while it encodes the next."""
_LONGEST: Final = 1000
"""Characters of a message in a record."""


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs besides its tasks."""

    inputs: Inputs
    columns: Mapping[str, str]
    out: str
    options: StoreOptions
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    on_error: OnError
    retry: Retry = field(default_factory=Retry)
    first_shard: int = 0
    """The number in the names of the first task's shards."""


class Progress(Protocol):
    """Receives news of a task while it runs."""

    def began(self, number: int) -> None:
        """The input with this number is about to be read."""
        ...

    def did(self, rows: int) -> None:
        """One more input is done, or rows of one."""
        ...


@dataclass(slots=True)
class _Shards:
    """The shards of one task: encodes rows, and stores full shards while the next rows come."""

    number: int
    encoder: MDSEncoder
    store: Callable[[str, bytes], Future[None]]
    columns: Mapping[str, str]
    entries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    stored: deque[Future[None]] = field(default_factory=deque[Future[None]])
    rows: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    nulls: Counter[str] = field(default_factory=Counter[str])
    dropped: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, sample: Mapping[str, Any]) -> None:
        shards = self.encoder.add(sample)
        self.rows += 1
        self.nulls.update(name for name, value in sample.items() if value is None)
        if len(sample) > len(self.columns):
            self.dropped.update((name, None) for name in sample if name not in self.columns)
        for shard in shards:
            self._put(shard)

    def add_batch(self, columns: Mapping[str, Sequence[Any]], rows: int) -> None:
        shards = self.encoder.add_batch(columns)
        self.rows += rows
        for name, encoding in self.columns.items():
            if encoding == 'json' and (nulls := sum(value is None for value in columns[name])):
                self.nulls[name] += nulls
        for shard in shards:
            self._put(shard)

    def finish(self) -> None:
        for shard in self.encoder.finish():
            self._put(shard)
        while self.stored:
            self.stored.popleft().result()

    def _put(self, shard: EncodedShard) -> None:
        entry, ((own_name, data),) = shard.info.entry(), shard.files
        name = f'shard.{self.number:05}.{len(self.entries):05}.mds'
        suffix = own_name.removeprefix(entry['raw_data']['basename'])
        self.raw_bytes += entry['raw_data']['bytes']
        self.stored_bytes += len(data)
        entry['raw_data']['basename'] = name
        if entry['zip_data']:
            entry['zip_data']['basename'] = name + suffix
        self.entries.append(entry)
        while len(self.stored) >= _UPLOADS:
            self.stored.popleft().result()
        self.stored.append(self.store(name + suffix, data))


class Worker:
    """Runs tasks of a job, one after another; a context manager that ends its threads.

    Args:
        job: what is converted, and how.
        progress: receives news.
    """

    def __init__(self, job: Job, progress: Progress) -> None:
        self._job, self._progress = job, progress
        self._out = open_store(job.out, job.options)
        self._blocks = shared_pool()
        """Memory for the encoders of all tasks: kept from one to the next."""
        self._uploader = ThreadPoolExecutor(_UPLOADS, thread_name_prefix='headrace-convert-upload')
        self._readers: ThreadPoolExecutor | None = None
        if job.inputs.reads_ahead > 1:
            self._readers = ThreadPoolExecutor(job.inputs.reads_ahead, thread_name_prefix='headrace-convert-read')

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._uploader.shutdown(cancel_futures=True)
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)

    def run(self, task: Task) -> TaskRecord:
        """Write the shards of a task, then its record.

        Raises:
            ConversionError: an input is bad, and `on_error` is 'stop'.
            StorageError: a store failed.
        """
        job = self._job
        encoder = MDSEncoder(job.columns, compression=job.compression, hashes=job.hashes, size_limit=job.size_limit)
        shards = _Shards(job.first_shard + task.number, encoder, self._store, job.columns)
        errors: list[InputError] = []
        for number, read in self._reads(task):
            self._progress.began(number)
            before = shards.rows
            try:
                for place, error in self._add(read, shards):
                    name = (task.inputs or job.inputs).name(number)
                    self._bad(f'{name}, {place}' if place else name, error, errors)
            finally:
                self._progress.did(shards.rows - before)
        shards.finish()
        record = TaskRecord(
            task.number,
            task.begin,
            task.end,
            task.digest,
            shards.rows,
            shards.raw_bytes,
            shards.stored_bytes,
            tuple(shards.entries),
            tuple(errors),
            dict(shards.nulls),
            tuple(shards.dropped),
        )
        self._put(TaskRecord.key(task.number), record.dump())
        return record

    def _add(
        self, read: Callable[[], Iterable[Mapping[str, Any] | BadRow]], shards: _Shards
    ) -> Iterator[tuple[str, Exception]]:
        """Add the rows of an input; yields the place and the error of each that is bad."""
        done = 0
        try:
            for rows in read():
                if isinstance(rows, BadRow):
                    if _stops_all(rows.error):
                        raise rows.error
                    yield rows.place, rows.error
                    continue
                if not self._job.inputs.gives_batches:
                    shards.add(rows)
                    continue
                count = len(next(iter(rows.values())))
                try:
                    shards.add_batch(rows, count)
                except (KeyError, AttributeError, TypeError, ValueError, OverflowError):
                    # The encoder adds all rows or none. One by one, only the bad ones are left out.
                    for row in range(count):
                        try:
                            shards.add_batch({name: values[row : row + 1] for name, values in rows.items()}, 1)
                        except (KeyError, AttributeError, TypeError, ValueError, OverflowError) as error:  # noqa: PERF203
                            yield f'row {done + row}', error
                done += count
        except Exception as error:
            if _stops_all(error):
                raise
            yield '', error

    def _bad(self, name: str, error: Exception, errors: list[InputError]) -> None:
        text = f'{type(error).__name__}: {error}'
        if self._job.on_error == 'stop':
            raise ConversionError(
                f'{name} cannot be converted: {text.rstrip(".")}. Correct or remove it, or pass '
                f"`on_error='skip'` or 'collect'. Then run the conversion again: it continues where it stopped."
            ) from error
        errors.append(InputError(name, text[:_LONGEST]))

    def _reads(self, task: Task) -> Iterator[tuple[int, Callable[[], Iterable[Mapping[str, Any] | BadRow]]]]:
        """The number of each input, and the function that reads it."""
        read, numbers = (task.inputs or self._job.inputs).read, iter(range(task.begin, task.end))
        if self._readers is None:
            for number in numbers:
                yield number, lambda number=number: read(number)
            return
        submit, ahead = self._readers.submit, self._job.inputs.reads_ahead
        waiting = deque((number, submit(_all, read, number)) for number in islice(numbers, ahead))
        try:
            while waiting:
                number, future = waiting.popleft()
                yield number, future.result
                waiting.extend((later, submit(_all, read, later)) for later in islice(numbers, 1))
        finally:
            for _, future in waiting:
                future.cancel()

    def _store(self, name: str, data: bytes) -> Future[None]:
        return self._uploader.submit(self._put, name, data)

    def _put(self, name: str, data: bytes) -> None:
        try:
            put_bytes(self._out, name, data, self._job.retry)
        except OSError as error:
            # An error of the output must not be taken for one of an input.
            if isinstance(error, StorageError) and not isinstance(error, ObjectNotFoundError):
                raise
            kind = DiskFullError if error.errno in NO_ROOM else StorageError
            raise kind(
                f'Writing {self._out.url}/{name} failed: {error}. Correct it and run the conversion again.'
            ) from error


def _all(read: Callable[[int], Iterable[Mapping[str, Any] | BadRow]], number: int) -> list[Mapping[str, Any] | BadRow]:
    return list(read(number))


def _stops_all(error: Exception) -> bool:
    """Whether an error says nothing about its input: a store that fails, or this machine."""
    if isinstance(error, StorageError):
        return not isinstance(error, ObjectNotFoundError)
    return isinstance(error, MissingDependencyError | MemoryError)
