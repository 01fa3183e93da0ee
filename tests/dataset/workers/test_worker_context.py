"""Queues that are pipes, and workers that hang in their fork."""

from __future__ import annotations

import importlib
import multiprocessing
import queue
import sys
import threading
from pathlib import Path

import pytest

from headrace.dataset.workers.worker_context import PipeContext, PipeQueue, SpawnPipeContext, worker_context
from tests.support.programs.descriptors import close_leftovers, open_descriptors
from tests.support.programs.processes import run_well

CONTEXTS = [PipeContext(), SpawnPipeContext()]


def put_all(items, number, count):
    for at in range(count):
        items.put((number, at, b'x' * (at * 7919 % 90_000)))


@pytest.mark.parametrize('context', CONTEXTS, ids=['fork', 'spawn'])
def test_items_of_several_processes_arrive_whole_and_in_order(context):
    items = context.Queue()
    assert type(items) is PipeQueue
    processes = [context.Process(target=put_all, args=(items, number, 40)) for number in range(2)]
    for process in processes:
        process.start()
    got = [items.get(timeout=60) for _ in range(80)]
    for process in processes:
        process.join()
    for number in range(2):
        mine = [(at, len(data)) for who, at, data in got if who == number]
        assert mine == [(at, at * 7919 % 90_000) for at in range(40)]
    with pytest.raises(queue.Empty):
        items.get(timeout=0)
    with pytest.raises(queue.Empty):
        items.get(block=False)


def test_a_process_that_nobody_reads_from_any_more_ends():
    context = PipeContext()
    items = context.Queue()
    process = context.Process(target=put_all, args=(items, 0, 400))
    process.start()
    items.get(timeout=60)
    items.close()
    process.join(60)
    assert process.exitcode == 0


def test_the_end_of_a_queue_lets_all_that_wait_continue():
    context = PipeContext()
    items = context.Queue()
    processes = [context.Process(target=put_all, args=(items, number, 400)) for number in range(2)]
    for process in processes:
        process.start()
    items.get(timeout=60)
    items.end()  # its pipe stays open, as other children may have it
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    with pytest.raises(queue.Empty):
        while True:  # items that have arrived
            items.get()
    for _ in range(200):
        items.put(b'x' * 1000)  # more than a pipe holds
    items.close()
    items.end()


def test_an_item_that_cannot_be_pickled_leaves_the_queue_as_it_was():
    items = PipeQueue(multiprocessing.get_context())
    with pytest.raises(Exception, match='pickle'):
        items.put(threading.Lock())
    items.put('next')
    assert items.get() == 'next'


def of_queues():
    """Open descriptors of kinds that queues use; threads of earlier tests open and close others."""
    return open_descriptors('pipe:') + open_descriptors('anon_inode:[eventfd]')


def test_nothing_stays_open():
    close_leftovers()
    before = of_queues()
    items = PipeQueue(multiprocessing.get_context())
    items.put(1)
    assert (of_queues() - before).total() == 3
    items.cancel_join_thread()
    items.close()
    items.close()
    items.join_thread()
    del items
    assert not of_queues() - before


# The first child stands still where CPython's does: after the fork, before a line of the worker has run.
PROGRAM = """
import os, sys, time, warnings
from multiprocessing.connection import wait
import torch.distributed  # it forks by itself while it is imported
from headrace import StreamingDataLoader, StreamingDataset
from headrace.dataset.workers import worker_context

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
worker_context.wait = wait_for_either
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
from headrace.dataset.workers import worker_context

class Clock:
    waited, monotonic = 0.0, staticmethod(lambda: Clock.waited)
    def sleep(seconds):
        Clock.waited += 20.0
worker_context.time = Clock
threading.begun, threading.done = threading.Event(), threading.Event()
sys.path.insert(0, sys.argv[1])
thread = threading.Thread(target=importlib.import_module, args=['waits_for_training'])
thread.start()
threading.begun.wait()
context = worker_context.worker_context(multiprocessing.get_context('fork'))
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
