"""Queues of pipes between processes."""

from __future__ import annotations

import multiprocessing
import queue
import threading

import pytest

from headrace.dataset.workers.pipe_queue import PipeContext, PipeQueue, SpawnPipeContext
from tests.support.programs.descriptors import close_leftovers, open_descriptors

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
