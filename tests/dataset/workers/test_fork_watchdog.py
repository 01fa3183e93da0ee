"""Workers that stand still in fork()."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import threading
from pathlib import Path

import pytest

from headrace.dataset.workers.fork_watchdog import worker_context
from tests.support.programs.processes import run_well

# The first child stands still where CPython's does: after the fork, before a line of the worker has run.
PROGRAM = """
import os, sys, time, warnings
from multiprocessing.connection import wait
import torch.distributed  # it forks by itself while it is imported
from headrace import StreamingDataLoader, StreamingDataset
from headrace.dataset.workers import fork_watchdog

def stand_still():
    try:
        os.close(os.open(sys.argv[2], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if not {always}:
            return
    os.write(standing[1], b's')
    time.sleep(600)

def wait_for_either(objects, seconds):
    assert 0 < seconds < 60
    # Only who stands still is late: any other has all the time that a busy machine needs.
    ready = wait([*objects, standing[0]], 60)
    if standing[0] not in ready:
        return ready
    os.read(standing[0], 1)
    return []

standing = os.pipe()
fork_watchdog.wait = wait_for_either
os.register_at_fork(after_in_child=stand_still)
dataset = StreamingDataset(local=sys.argv[1], batch_size=10)
loader = StreamingDataLoader(dataset, num_workers=2)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter('always')
    try:
        ids = [i for batch in loader for i in batch['id'].tolist()]
    except RuntimeError as error:
        print(str(error))
    else:
        assert ids == list(range(100)), ids
        print(sum('stood still in fork()' in str(warning.message) for warning in warned))
"""


@pytest.mark.skipif('fork' not in multiprocessing.get_all_start_methods(), reason='there is no fork')
@pytest.mark.parametrize(('always', 'says'), [(False, '1\n'), (True, 'No worker could be forked: 6 in a row')])
def test_a_worker_that_stands_still_is_forked_anew(make_dataset, tmp_path: Path, always: bool, says: str) -> None:
    program = PROGRAM.format(always=always)
    done = run_well([sys.executable, '-c', program, str(make_dataset()), str(tmp_path / 'first')], timeout=120)
    assert done.stdout.startswith(says)


@pytest.mark.skipif('fork' not in multiprocessing.get_all_start_methods(), reason='there is no fork')
def test_a_fork_waits_for_imports_of_other_threads(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / 'imported_slowly.py').write_text(
        'import threading\nthreading.begun.set()\nthreading.Event().wait(0.2)\nvalue = 7\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(threading, 'begun', threading.Event(), raising=False)
    thread = threading.Thread(target=importlib.import_module, args=['imported_slowly'])
    thread.start()
    assert threading.begun.wait(60)
    child = worker_context(multiprocessing.get_context('fork')).Process(target=exit_with_the_value)
    child.start()
    child.join(60)
    thread.join()
    assert child.exitcode == 7


# An import that ends after all children; the clock advances with each look at the imports.
AN_IMPORT_THAT_WAITS = """
import importlib, multiprocessing, sys, threading
from headrace.dataset.workers import fork_watchdog

class Clock:
    waited, monotonic = 0.0, staticmethod(lambda: Clock.waited)
    def sleep(seconds):
        Clock.waited += 20.0
fork_watchdog.time = Clock
threading.begun, threading.done = threading.Event(), threading.Event()
sys.path.insert(0, sys.argv[1])
thread = threading.Thread(target=importlib.import_module, args=['waits_for_training'])
thread.start()
threading.begun.wait()
context = fork_watchdog.worker_context(multiprocessing.get_context('fork'))
for _ in range(3):
    child = context.Process(target=int)
    child.start()
    child.join()
    assert child.exitcode == 0
threading.done.set()
thread.join()
print(Clock.waited)
"""


@pytest.mark.skipif('fork' not in multiprocessing.get_all_start_methods(), reason='there is no fork')
def test_forks_wait_once_for_an_import_that_waits_for_them(tmp_path: Path) -> None:
    (tmp_path / 'waits_for_training.py').write_text('import threading\nthreading.begun.set()\nthreading.done.wait()\n')
    done = run_well([sys.executable, '-c', AN_IMPORT_THAT_WAITS, str(tmp_path)], timeout=120)
    assert done.stdout == '60.0\n'


def exit_with_the_value() -> None:
    sys.exit(importlib.import_module('imported_slowly').value)


@pytest.mark.parametrize('method', multiprocessing.get_all_start_methods())
def test_other_contexts_start_processes_in_their_own_way(method: str) -> None:
    context = multiprocessing.get_context(method)
    chosen = worker_context(context)
    assert chosen.get_start_method() == method
    assert isinstance(chosen, type(context))
