"""Tasks: how inputs are cut into them, and the processes that do them.

Inputs are cut the same for any number of workers, so that shards are, too. A task is a run of consecutive inputs. One
worker writes it into separate shards, of which the last is usually not full. So a task is as large as one to four
shards. Small tasks give work to many processes, large ones make fewer shards that are not full.

A worker takes one task at a time, writes its shards, and adds its record to the job folder. A task can be pickled, so
any executor may run `_Worker.run`. The parent hands tasks out and watches. A worker ends with its parent, also if that
is killed. A worker that dies ends the conversion with an error, which names the input that it was reading. Ctrl-C
reaches the parent only, which ends the workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np

from headrace.convert.inputs.programs import RowInputs
from headrace.convert.inputs.records import BadRow, Inputs
from headrace.convert.job import JobFolder
from headrace.convert.report import InputError, TaskRecord
from headrace.dataset.writing.place import StorePlace
from headrace.errors import (
    ConfigError,
    ConversionError,
    DiskFullError,
    MissingDependencyError,
    ObjectNotFoundError,
    StorageError,
)
from headrace.errors.mapping import add_note
from headrace.format import EncodedShard, MDSEncoder
from headrace.format.shard_memory import shared_pool
from headrace.storage import Retry, StoreOptions, open_store
from headrace.storage.cache.locks import NO_ROOM

OnError: TypeAlias = Literal['stop', 'skip', 'collect']
News: TypeAlias = Callable[[int, int], None]
"""Receives the numbers of inputs and of rows that were done since the last call."""

Encode: TypeAlias = 'Callable[[Mapping[str, Any]], dict[str, Sequence[Any]]]'
"""Makes, of a batch of columns, the `tokens` of its documents that have some, and their `length`."""

_FILL: Final = 0.97
"""Part of a shard's limit that a task plans with: an estimate that is a little low must not cost another shard."""
_SHARDS_PER_TASK: Final = 4
_TASKS: Final = 64  # tasks below which they are of one shard, so that many processes have work
_TASKS_OF_UNKNOWN_SIZE: Final = 256
_UPLOADS: Final = 2  # shards of a process that are stored while it encodes the next
_LONGEST: Final = 1000  # characters of a message in a record
_NEWS_SECONDS: Final = 0.2
_END_SECONDS: Final = 5.0
_VALUE_ERRORS: Final = (KeyError, AttributeError, TypeError, ValueError, OverflowError)
_Samples: TypeAlias = 'Iterable[Mapping[str, Any] | BadRow]'


@dataclass(frozen=True, slots=True)
class Task:
    number: int
    begin: int  # the first input
    end: int  # after the last input
    digest: str | None = None  # of the inputs; see `Inputs.digest`
    inputs: Inputs | None = None  # the inputs, if the parent has read them: only one process can iterate an iterable


def cut(inputs: Inputs, size_limit: int | None) -> Iterator[Task]:
    """The tasks for all inputs, in order. `size_limit`: bytes of a shard; None: one shard for all, so one task."""
    count = len(inputs)
    if not count:
        return
    bounds = [0, count] if size_limit is None else _bounds(inputs, count, size_limit)
    for number, (begin, end) in enumerate(pairwise(bounds)):
        yield Task(number, begin, end, inputs.digest(begin, end))


def cut_by_content(inputs: Inputs, size_limit: int) -> Iterator[Task]:
    """As `cut`, with bounds that depend on the inputs nearby alone, so that other inputs leave a task as it is.

    A task ends behind an input with a probability, drawn from the input's digest, that makes tasks a quarter of a shard
    long on average. At a whole shard it ends, too.
    """
    assert inputs.sizes is not None
    count, number, begin, held = len(inputs), 0, 0, 0.0
    for place in range(count):
        size = float(inputs.sizes.each[place]) if inputs.sizes.each is not None else inputs.sizes.mean or 1.0
        held += size
        digest = inputs.digest(place, place + 1)
        assert digest is not None
        ends = int(digest[:12], 16) / 16**12 < size / (size_limit / 4)
        if ends or held >= size_limit or place == count - 1:
            yield Task(number, begin, place + 1, inputs.digest(begin, place + 1))
            number, begin, held = number + 1, place + 1, 0.0


def tasks_of_rows(chunks: Iterable[RowInputs]) -> Iterator[Task]:
    for number, rows in enumerate(chunks):
        yield Task(number, rows.first, rows.first + len(rows), inputs=rows)


def _bounds(inputs: Inputs, count: int, size_limit: int) -> list[int]:
    sizes = inputs.sizes
    if sizes is None:
        step = -(-count // _TASKS_OF_UNKNOWN_SIZE)
        return [*range(0, count, step), count]
    if sizes.each is not None:
        ends = np.cumsum(sizes.each, dtype=np.float64)
    else:
        ends = np.arange(1, count + 1) * max(1.0, sizes.mean or 1.0)
    shard = size_limit * _FILL
    # Estimates may be too high by half. So a task of two estimated shards has a full one.
    fewest = 1 if sizes.is_exact else 2
    task = shard * min(max(int(ends[-1] / shard / _TASKS), fewest), _SHARDS_PER_TASK)
    bounds = [0]
    while bounds[-1] < count:
        begin = bounds[-1]
        limit = (ends[begin - 1] if begin else 0.0) + task
        bounds.append(max(begin + 1, int(np.searchsorted(ends, limit, side='right'))))
    return bounds


# The work of one process


@dataclass(frozen=True)
class Job:
    inputs: Inputs
    columns: Mapping[str, str]
    out: str
    options: StoreOptions
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    on_error: OnError
    retry: Retry = field(default_factory=Retry)
    first_shard: int = 0  # The number in the names of the first task's shards.
    meanings: Mapping[str, str] = field(default_factory=dict[str, str])  # Of columns; see `Schema.meanings`.
    cost: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict[str, object])  # Further ones that a restart compares.
    source_columns: Mapping[str, str] = field(default_factory=dict[str, str])  # Encodings that tell the size of a row.
    keeps_records: bool = False
    """Whether a finished dataset keeps the records of its tasks, so that the same call does only what has changed."""
    encoder: Callable[[], Encode] | None = None
    """Makes, in each worker, the function between the columns that are read and those that are written. None: none."""


_Counts: TypeAlias = MutableSequence[int]
"""The number of the input that a worker reads, or -1; of a process also how many inputs and rows it has done."""


class _Shards:
    """The shards of one task: encodes rows, and stores full shards while the next rows come."""

    def __init__(
        self, job: Job, number: int, store: Callable[[str, bytes], Future[None]], encode: Encode | None
    ) -> None:
        self._number, self._store = job.first_shard + number, store
        self._encoder = MDSEncoder(
            job.columns, compression=job.compression, hashes=job.hashes, size_limit=job.size_limit, cost=job.cost
        )
        self._columns = job.columns
        self._encode = encode
        self._stored: deque[Future[None]] = deque()
        self.entries: list[dict[str, Any]] = []
        self.rows = self.raw_bytes = self.stored_bytes = self.tokens = self.without_tokens = 0
        self.nulls: Counter[str] = Counter()
        self.dropped: dict[str, None] = {}  # columns of samples that are not converted

    def number_from(self, number: int) -> None:
        self._encoder.number_from(number)

    def add(self, sample: Mapping[str, Any]) -> None:
        if self._encode is not None:
            self.add_batch({name: [value] for name, value in sample.items()}, 1)
            return
        shards = self._encoder.add(sample)
        self.rows += 1
        self.nulls.update(name for name, value in sample.items() if value is None)
        if len(sample) > len(self._columns):
            self.dropped.update((name, None) for name in sample if name not in self._columns)
        self._put(shards)

    def add_batch(self, columns: Mapping[str, Sequence[Any]], rows: int) -> None:
        if self._encode is not None:
            columns, given = self._encode(columns), rows
            rows = len(columns['tokens'])
            self.tokens += sum(columns['length'])
            self.without_tokens += given - rows
            if not rows:
                return
        shards = self._encoder.add_batch(columns)
        self.rows += rows
        for name, encoding in self._columns.items():
            if encoding == 'json' and (nulls := sum(value is None for value in columns[name])):
                self.nulls[name] += nulls
        self._put(shards)

    def finish(self) -> None:
        self._put(self._encoder.finish())
        while self._stored:
            self._stored.popleft().result()

    def _put(self, shards: Iterable[EncodedShard]) -> None:
        for shard in shards:
            entry, ((own_name, data),) = shard.info.entry(), shard.files
            name = f'shard.{self._number:05}.{len(self.entries):05}.mds'
            suffix = own_name.removeprefix(entry['raw_data']['basename'])
            self.raw_bytes += entry['raw_data']['bytes']
            self.stored_bytes += len(data)
            entry['raw_data']['basename'] = name
            if entry['zip_data']:
                entry['zip_data']['basename'] = name + suffix
            self.entries.append(entry)
            while len(self._stored) >= _UPLOADS:
                self._stored.popleft().result()
            self._stored.append(self._store(name + suffix, data))


class _Worker:
    """Runs tasks of a job, one after another; a context manager that ends its threads."""

    def __init__(self, job: Job, counts: _Counts, news: News) -> None:
        self._job, self._counts, self._news = job, counts, news
        self._out = StorePlace(open_store(job.out, job.options), job.retry)
        self._blocks = shared_pool()  # memory for the encoders of all tasks: kept from one to the next
        self._uploader = ThreadPoolExecutor(_UPLOADS, thread_name_prefix='headrace-convert-upload')
        self._readers: ThreadPoolExecutor | None = None
        if job.inputs.reads_ahead > 1:
            self._readers = ThreadPoolExecutor(job.inputs.reads_ahead, thread_name_prefix='headrace-convert-read')
        self._encode = None if job.encoder is None else job.encoder()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._uploader.shutdown(cancel_futures=True)
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)

    def run(self, task: Task) -> TaskRecord:
        shards = _Shards(
            self._job, task.number, lambda name, data: self._uploader.submit(self._put, name, data), self._encode
        )
        errors: list[InputError] = []
        inputs = task.inputs or self._job.inputs
        are_rows = inputs.rows == len(inputs) and not inputs.gives_batches
        for number, read in self._reads(task):
            self._counts[0] = number
            # Messages count the rows of all inputs if each is one, else those of the input.
            shards.number_from(number if are_rows else 0)
            before = shards.rows
            try:
                for place, error in self._add(read, shards):
                    name = inputs.name(number)
                    self._bad(f'{name}, {place}' if place else name, error, errors)
            finally:
                self._news(1, shards.rows - before)
        shards.finish()
        record = TaskRecord(
            task=task.number,
            begin=task.begin,
            end=task.end,
            digest=task.digest,
            rows=shards.rows,
            raw_bytes=shards.raw_bytes,
            stored_bytes=shards.stored_bytes,
            shards=tuple(shards.entries),
            errors=tuple(errors),
            nulls=dict(shards.nulls),
            dropped=tuple(shards.dropped),
            tokens=shards.tokens,
            without_tokens=shards.without_tokens,
        )
        JobFolder(self._out).add(task.number, asdict(record))
        return record

    def _add(self, read: Callable[[], _Samples], shards: _Shards) -> Iterator[tuple[str, Exception]]:
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
                except _VALUE_ERRORS:
                    # The encoder adds all rows or none. One by one, only the bad ones are left out.
                    shards.number_from(done)
                    for row in range(count):
                        try:
                            shards.add_batch({name: values[row : row + 1] for name, values in rows.items()}, 1)
                        except _VALUE_ERRORS as error:  # noqa: PERF203
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

    def _reads(self, task: Task) -> Iterator[tuple[int, Callable[[], _Samples]]]:
        read, numbers = (task.inputs or self._job.inputs).read, iter(range(task.begin, task.end))
        if self._readers is None:
            for number in numbers:
                yield number, lambda number=number: read(number)
            return

        def submit(number: int) -> tuple[int, Future[list[Mapping[str, Any] | BadRow]]]:
            assert self._readers is not None
            return number, self._readers.submit(lambda: list(read(number)))

        waiting = deque(map(submit, islice(numbers, self._job.inputs.reads_ahead)))
        try:
            while waiting:
                number, future = waiting.popleft()
                yield number, future.result
                waiting.extend(map(submit, islice(numbers, 1)))
        finally:
            for _, future in waiting:
                future.cancel()

    def _put(self, name: str, data: bytes) -> None:
        try:
            self._out.write(name, data)
        except OSError as error:
            # An error of the output must not be taken for one of an input.
            if isinstance(error, StorageError) and not isinstance(error, ObjectNotFoundError):
                raise
            kind = DiskFullError if error.errno in NO_ROOM else StorageError
            raise kind(
                f'Writing {self._out.shown}/{name} failed: {error}. Correct it and run the conversion again.'
            ) from error


def _stops_all(error: Exception) -> bool:
    """Whether an error says nothing about its input: a store that fails, or this machine."""
    if isinstance(error, StorageError):
        return not isinstance(error, ObjectNotFoundError)
    return isinstance(error, MissingDependencyError | MemoryError)


# The processes


def run_tasks(
    job: Job, tasks: Iterator[Task], news: News, *, workers: int, start_method: str | None
) -> Iterator[TaskRecord]:
    """The records of tasks in the order in which they end. A single worker is this process."""
    if workers > 1:
        yield from _Pool(job, news, workers, start_method).run(tasks)
        return
    with _Worker(job, [-1], news) as worker:
        for task in tasks:
            yield worker.run(task)


@dataclass(slots=True)
class _Process:
    process: BaseProcess
    connection: Connection
    counts: _Counts  # in memory that both share
    task: Task | None = None


class _Pool:
    """Worker processes. An executor tells neither which one died, nor of what, and cannot end a busy one."""

    def __init__(self, job: Job, news: News, workers: int, start_method: str | None) -> None:
        self._job, self._news, self._workers = job, news, workers
        self._context = multiprocessing.get_context(start_method)
        self._processes: list[_Process] = []
        self._inputs = self._rows = 0  # those that the news told of
        if self._context.get_start_method() != 'fork':
            _check_pickles(job, self._context.get_start_method())

    def run(self, tasks: Iterator[Task]) -> Iterator[TaskRecord]:
        try:
            while True:
                idle = [worker for worker in self._processes if worker.task is None]
                task = next(tasks, None) if idle or len(self._processes) < self._workers else None
                if task is not None:
                    # One more process at a time: a few tasks need only a few.
                    self._give(idle[0] if idle else self._start(), task)
                    continue
                busy = [worker for worker in self._processes if worker.task is not None]
                if not busy:
                    return
                handles = [handle for worker in busy for handle in (worker.connection, worker.process.sentinel)]
                ready = wait(handles, _NEWS_SECONDS)
                self._tell()
                for worker in busy:
                    if worker.connection in ready or worker.process.sentinel in ready:
                        yield self._answer(worker)
        finally:
            self._end()

    def _tell(self) -> None:
        inputs, rows = (sum(worker.counts[place] for worker in self._processes) for place in (1, 2))
        if inputs != self._inputs:
            self._news(inputs - self._inputs, rows - self._rows)
            self._inputs, self._rows = inputs, rows

    def _start(self) -> _Process:
        ours, theirs = self._context.Pipe()
        counts = cast('_Counts', self._context.RawArray(ctypes.c_int64, 3))
        process: BaseProcess = self._context.Process(  # type: ignore[attr-defined]  # each context has it
            target=_work, args=(theirs, self._job, counts), name='headrace-convert', daemon=True
        )
        process.start()
        theirs.close()
        self._processes.append(_Process(process, ours, counts))
        return self._processes[-1]

    def _give(self, worker: _Process, task: Task) -> None:
        worker.task, worker.counts[0] = task, -1
        with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed later
            worker.connection.send(task)

    def _answer(self, worker: _Process) -> TaskRecord:
        answer: Any = None
        with contextlib.suppress(EOFError, OSError):
            # The pipe still holds the answer of a dead worker.
            if worker.connection.poll():
                answer = worker.connection.recv()
        if isinstance(answer, TaskRecord):
            worker.task = None
            return answer
        raise answer if isinstance(answer, BaseException) else self._death(worker)

    def _death(self, worker: _Process) -> ConversionError:
        worker.process.join()
        task, code, number = worker.task, worker.process.exitcode or 0, worker.counts[0]
        assert task is not None
        how = f'with exit status {code}' if code >= 0 else f'by {_signal_name(-code)}'
        place = 'before its first input'
        advice = 'SIGSEGV and SIGABRT mean an error in a decoder of that input.'
        if code == -signal.SIGKILL:
            advice = 'That often means that the machine had too little memory: use fewer workers.'
        elif code >= 0:
            advice = (
                "Its output says why. A program whose processes are spawned begins with `if __name__ == '__main__':`."
            )
        if number >= 0:
            place = f'at {(task.inputs or self._job.inputs).name(number)}'
        return ConversionError(
            f'A worker process (pid {worker.process.pid}) of the conversion died {how}, {place}. {advice} '
            f'Run the conversion again: it continues where it stopped.'
        )

    def _end(self) -> None:
        """End all workers: idle ones by a message, busy ones at once."""
        for worker in self._processes:
            if worker.task is not None:
                worker.process.kill()
            else:
                with contextlib.suppress(OSError):
                    worker.connection.send(None)
        until = time.monotonic() + _END_SECONDS
        for worker in self._processes:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
            worker.process.close()


def _check_pickles(job: Job, start_method: str) -> None:
    try:
        ForkingPickler.dumps(job)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'Worker processes that start by {start_method!r} receive the function and its inputs as pickles, but '
            f'these cannot be pickled: {error}. Define the function at the top of a module, not inside of another and '
            f"not as a lambda; or pass `start_method='fork'`, where the system has it, or `workers=1`."
        ) from error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'


def _work(connection: Connection, job: Job, counts: _Counts) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    JobFolder(StorePlace(open_store(job.out, job.options), job.retry)).claim_by_worker()
    if not parent.is_alive():  # the next conversion may have begun before the claim
        return
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()

    def count(inputs: int, rows: int) -> None:
        counts[1] += inputs
        counts[2] += rows

    try:
        with _Worker(job, counts, count) as worker:
            while (task := connection.recv()) is not None:
                connection.send(worker.run(task))
    except (EOFError, BrokenPipeError):  # the parent is gone
        return
    except BaseException as error:
        connection.send(_portable(error))


def _end_with_parent(parent: BaseProcess) -> None:
    wait([parent.sentinel])
    os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """The error with its cause's traceback as a note, in a form that can be sent."""
    cause = error.__cause__ or error
    text = ''.join(traceback.format_exception(type(cause), cause, cause.__traceback__)).rstrip()
    try:
        sent = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:
        sent = ConversionError(f'{type(error).__name__}: {error}')
    add_note(sent, f'In the worker process:\n{text}')
    return sent
