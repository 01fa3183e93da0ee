"""Locks of a conversion to a folder."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.convert.job import JobFolder
from headrace.dataset.writing.place import StorePlace
from headrace.errors import ConversionError
from headrace.storage import Retry
from headrace.storage.stores.local import LocalStore
from tests.support.programs.waiting import until
from tests.support.sources.converted import convert
from tests.support.sources.sources_to_convert import rows_of

STOPPED: dict[str, Path] = {}


def stop_at_17(number: int) -> dict[str, int]:
    """One sample; a worker that reads input 17 writes its pid and stops."""
    if number == 17 and 'pid' in STOPPED:
        STOPPED['pid'].write_text(f'{os.getpid()}.')
        os.setsid()  # the kernel wakes stopped processes of a session whose parents end
        os.kill(os.getpid(), signal.SIGSTOP)
    return {'n': number}


def test_the_next_conversion_waits_for_workers_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file, out = tmp_path / 'pid', tmp_path / 'out'
    options = {'function': stop_at_17, 'columns': {'n': 'int'}, 'workers': 2}
    monkeypatch.setitem(STOPPED, 'pid', pid_file)
    parent = multiprocessing.get_context('fork').Process(target=lambda: convert(range(30), out, **options))
    parent.start()
    until(lambda: pid_file.exists() and pid_file.read_text().endswith('.'))
    worker = int(pid_file.read_text().rstrip('.'))
    try:
        until(lambda: Path(f'/proc/{worker}/stat').read_text().rpartition(')')[2].split()[0] == 'T')
        parent.kill()
        parent.join()
        with claim_of_workers(out) as is_free:
            assert not is_free  # it could still write
    finally:
        os.kill(worker, signal.SIGKILL)
    monkeypatch.delitem(STOPPED, 'pid')
    convert(range(30), out, **options)

    assert [row['n'] for row in rows_of(out)] == list(range(30))


@contextlib.contextmanager
def claim_of_workers(out: Path) -> Iterator[bool]:
    """Whether the lock for which the next conversion waits is free."""
    (name,) = (name for name in JobFolder(StorePlace(LocalStore(out), Retry())).locks if 'workers' in name)
    with open(out / name, 'rb') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def test_two_conversions_to_one_folder(tmp_path: Path) -> None:
    def samples():
        yield from ({'i': i} for i in range(100))
        with pytest.raises(ConversionError, match='Another conversion is writing'):
            convert([{'i': 1}], tmp_path / 'out')
        yield {'i': 2}

    assert convert(samples(), tmp_path / 'out').rows == 101
