"""Worker processes: each takes one task at a time. The parent hands tasks out and watches.

A worker ends with its parent, also if that is killed. A worker that dies ends the conversion with an error, which names
the input that it was reading. Ctrl-C reaches the parent only, which ends the workers.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, cast

from headrace.convert.claim import claimed_by_worker
from headrace.convert.job import Job, Worker
from headrace.convert.record import TaskRecord
from headrace.convert.tasks import Task
from headrace.errors import ConfigError, ConversionError
from headrace.notes import add_note
from headrace.storage import open_store

__all__ = ['News', 'run_here', 'run_in_processes']

_NEWS_SECONDS: Final = 0.2
_END_SECONDS: Final = 5.0

News = Callable[[int, int], None]
"""Receives the numbers of inputs and of rows that were done since the last call."""


def run_here(job: Job, tasks: Iterator[Task], news: News) -> Iterator[TaskRecord]:
    """The records of tasks that this process runs, one after another."""
    with Worker(job, _LocalProgress(news)) as worker:
        for task in tasks:
            yield worker.run(task)


class _LocalProgress:
    def __init__(self, news: News) -> None:
        self._news = news

    def began(self, number: int) -> None:
        pass

    def did(self, rows: int) -> None:
        self._news(1, rows)


class _RemoteProgress:
    """Sends news to the parent, a few times a second."""

    def __init__(self, connection: Connection, current: Any) -> None:
        self._connection, self._current = connection, current
        self._inputs = self._rows = 0
        self._next = 0.0

    def began(self, number: int) -> None:
        self._current.value = number

    def did(self, rows: int) -> None:
        self._inputs += 1
        self._rows += rows
        if time.monotonic() >= self._next:
            self.send()

    def send(self) -> None:
        self._connection.send(('news', (self._inputs, self._rows)))
        self._inputs = self._rows = 0
        self._next = time.monotonic() + _NEWS_SECONDS


@dataclass(slots=True)
class _Process:
    """A worker, as the parent sees it."""

    process: BaseProcess
    connection: Connection
    current: Any
    """The number of the input that it reads, in memory that both share."""
    task: Task | None = None


def run_in_processes(
    job: Job, tasks: Iterator[Task], news: News, *, workers: int, start_method: str | None
) -> Iterator[TaskRecord]:
    """The records of tasks in the order in which they end.

    Raises:
        ConfigError: the inputs cannot be sent to a new process.
        ConversionError: an input is bad, or a worker has died.
    """
    context = multiprocessing.get_context(start_method)
    if context.get_start_method() != 'fork':
        _check_pickles(job, context.get_start_method())
    processes: list[_Process] = []
    try:
        while True:
            # One more process at a time: a few tasks need only a few.
            idle = [process for process in processes if process.task is None]
            task = next(tasks, None) if idle or len(processes) < workers else None
            if task is not None:
                if not idle:
                    idle = [_start(context, job)]
                    processes += idle
                idle[0].task = task
                idle[0].current.value = -1
                with contextlib.suppress(BrokenPipeError):  # a dead worker is noticed below
                    idle[0].connection.send(task)
                continue
            busy = [process for process in processes if process.task is not None]
            if not busy:
                return
            ready = wait([*(one.connection for one in busy), *(one.process.sentinel for one in busy)])
            for process in busy:
                if process.connection in ready or process.process.sentinel in ready:
                    yield from _receive(job, process, news)
    finally:
        _end(processes)


def _check_pickles(job: Job, start_method: str) -> None:
    try:
        ForkingPickler.dumps(job)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'Worker processes that start by {start_method!r} receive the function and its inputs as pickles, but '
            f'these cannot be pickled: {error}. Define the function at the top of a module, not inside of another and '
            f"not as a lambda; or pass `start_method='fork'`, where the system has it, or `workers=1`."
        ) from error


def _start(context: BaseContext, job: Job) -> _Process:
    ours, theirs = context.Pipe()
    current = context.RawValue(ctypes.c_int64, -1)
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]  # each context has it
        target=_work, args=(theirs, job, current), name='headrace-convert', daemon=True
    )
    process.start()
    theirs.close()
    return _Process(process, ours, current)


def _receive(job: Job, process: _Process, news: News) -> Iterator[TaskRecord]:
    """Take one message of a worker, or notice its end."""
    kind, content = 'end', cast('Any', None)
    with contextlib.suppress(EOFError, OSError):
        # The pipe still holds the messages of a dead worker.
        if process.connection.poll():
            kind, content = process.connection.recv()
    if kind == 'news':
        news(*content)
    elif kind == 'record':
        process.task = None
        yield content
    elif kind == 'error':
        raise content
    else:
        raise _death(job, process)


def _death(job: Job, process: _Process) -> ConversionError:
    process.process.join()
    task, code, number = process.task, process.process.exitcode or 0, process.current.value
    assert task is not None
    how = f'with exit status {code}' if code >= 0 else f'by {_signal_name(-code)}'
    place = 'before its first input'
    advice = 'SIGSEGV and SIGABRT mean an error in a decoder of that input.'
    if code == -signal.SIGKILL:
        advice = 'That often means that the machine had too little memory: use fewer workers.'
    elif code >= 0:
        advice = "Its output says why. A program whose processes are spawned begins with `if __name__ == '__main__':`."
    if number >= 0:
        place = f'at {(task.inputs or job.inputs).name(number)}'
    return ConversionError(
        f'A worker process (pid {process.process.pid}) of the conversion died {how}, {place}. {advice} '
        f'Run the conversion again: it continues where it stopped.'
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'


def _end(processes: list[_Process]) -> None:
    """End all workers: idle ones by a message, busy ones at once."""
    for one in processes:
        if one.task is not None:
            one.process.kill()
        else:
            with contextlib.suppress(OSError):
                one.connection.send(None)
    until = time.monotonic() + _END_SECONDS
    for one in processes:
        one.process.join(max(0.0, until - time.monotonic()))
        if one.process.exitcode is None:
            one.process.kill()
            one.process.join()
        one.connection.close()
        one.process.close()


def _work(connection: Connection, job: Job, current: Any) -> None:
    """The program of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    claimed_by_worker(open_store(job.out, job.options))
    if not parent.is_alive():  # the next conversion may have begun before the claim
        return
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    progress = _RemoteProgress(connection, current)
    try:
        with Worker(job, progress) as worker:
            while (task := connection.recv()) is not None:
                record = worker.run(task)
                progress.send()
                connection.send(('record', record))
    except (EOFError, BrokenPipeError):  # the parent is gone
        return
    except BaseException as error:
        connection.send(('error', _portable(error)))


def _end_with_parent(parent: BaseProcess) -> None:
    wait([parent.sentinel])
    os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """The error with its cause's traceback as a note, in a form that can be sent."""
    import traceback

    cause = error.__cause__ or error
    text = ''.join(traceback.format_exception(type(cause), cause, cause.__traceback__)).rstrip()
    try:
        sent = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:
        sent = ConversionError(f'{type(error).__name__}: {error}')
    add_note(sent, f'In the worker process:\n{text}')
    return sent
