"""A process that ends while its threads fetch: the next fetch removes what is left, and others continue."""

import itertools
import json
import multiprocessing
import multiprocessing.util
import os
import subprocess
import sys
import threading
import time

import pytest

from headrace.dataset.progress import Progress
from headrace.dataset.workers import shutdown
from headrace.testing.stores import CountingStore, FaultyStore
from tests.support.programs import quiet_ends
from tests.support.programs.processes import end_well, run_program
from tests.support.programs.together import FORK, as_somebody_waits, is_half_there
from tests.support.programs.waiting import until
from tests.support.stores.shards import SIZE, StuckStore, cache_of, make_remote, names

pytestmark = pytest.mark.once


@pytest.mark.parametrize('moment', [1, 7, 15, 19])
@pytest.mark.parametrize('packed', [False, True])
def test_the_next_fetch_removes_what_daemon_threads_left(tmp_path, packed, moment):
    remote = make_remote(tmp_path / 'remote', 4, packed=packed, parts=2)
    state = tmp_path / 'cache/.headrace'
    steps, seen, begun = FORK.Semaphore(0), threading.Event(), itertools.count()

    def step():
        steps.release()
        if next(begun) >= moment:
            seen.wait(60)

    def slowly(data, out):
        for begin in range(0, len(data), 4000):
            step()
            out.write(data[begin : begin + 4000])
            time.sleep(0.0005)
        step()

    def end_in_the_middle():
        store = FaultyStore(remote.store, [slowly] * 100)
        cache = cache_of(remote, tmp_path / 'cache', store=store, limit=9 * SIZE)
        for half in (remote.entries[:2], remote.entries[2:]):
            threading.Thread(target=lambda of=half: [*map(cache.fetch, of)], daemon=True).start()
        for _ in range(moment):
            assert steps.acquire(timeout=60)
        assert state.exists()
        seen.set()

    child = FORK.Process(target=end_in_the_middle)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    there = [name for name in names(tmp_path / 'cache') if not name.startswith('.headrace')]
    assert all((tmp_path / 'cache' / name).read_bytes() == remote.data[name] for name in there)
    cache = cache_of(remote, tmp_path / 'cache', limit=9 * SIZE)
    assert all(map(cache.fetch, remote.entries))
    if len(there) < len(remote.data):  # else nothing had to be fetched
        assert not state.exists() or [path.name for path in state.iterdir()] == ['ledger']


def test_the_next_fetch_removes_what_a_program_left(tmp_path):
    done = run_program([sys.executable, '-c', PROGRAM, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    # Who reads as the process ends still can.
    assert done.stdout.split() == ['.headrace', 'True']
    remote = make_remote(tmp_path / 'remote', 3)
    assert cache_of(remote, tmp_path / 'cache').fetch(remote.entries[0])
    assert names(tmp_path / 'cache') == sorted(remote.data)
    assert not (tmp_path / 'cache/.headrace').exists()


def test_what_others_fetch_continues_and_what_waits_takes_over(tmp_path):
    remote = make_remote(tmp_path / 'remote', 2)
    inside, go_on = [FORK.Semaphore(0), FORK.Semaphore(0)], tmp_path / 'go on'

    class Slow(CountingStore):
        def get(self, key, out, **how):
            inside[int(key.split('.')[1])].release()
            until = time.monotonic() + 20
            while not go_on.exists() and time.monotonic() < until:
                time.sleep(0.001)
            return super().get(key, out, **how)

    def begin(number):
        cache = cache_of(remote, tmp_path / 'cache', store=Slow(remote.store))
        thread = threading.Thread(target=cache.fetch, args=(remote.entries[number],), daemon=not number)
        thread.start()
        assert inside[number].acquire(timeout=60)

    other = FORK.Process(target=begin, args=(1,))  # its thread is waited for
    other.start()
    while not (tmp_path / 'cache/.headrace').exists():
        time.sleep(0.001)
    leaving = FORK.Process(target=begin, args=(0,))
    leaving.start()
    leaving.join(60)
    cache = cache_of(remote, tmp_path / 'cache')
    with cache.acquire(remote.entries[0]) as lease:
        remote.check(lease)
    go_on.touch()
    other.join(60)
    assert (leaving.exitcode, other.exitcode) == (0, 0)
    assert names(tmp_path / 'cache') == sorted(remote.data)


def test_a_child_removes_what_another_left_that_was_killed(tmp_path):
    remote = make_remote(tmp_path / 'remote', 3)
    cache = cache_of(remote, tmp_path / 'cache')
    cache.fetch(remote.entries[0])

    def fetch_the_last():
        cache.fetch(remote.entries[2])
        (tmp_path / 'names').write_text(' '.join(names(tmp_path / 'cache')))

    state = tmp_path / 'cache/.headrace'
    state.mkdir()
    (state / f'{"ab" * 16}.lock').touch()
    (state / f'{"ab" * 16}.0.0123abcd.raw').write_bytes(bytes(SIZE))
    child = FORK.Process(target=fetch_the_last)
    child.start()
    end_well([child], 60)
    assert (tmp_path / 'names').read_text().split() == ['shard.00000.mds', 'shard.00002.mds']


def test_who_waits_for_a_process_that_ends_fetches_by_itself(tmp_path):
    remote = make_remote(tmp_path / 'remote', 1, parts=2)
    waiting = tmp_path / 'waiting'

    def leave():
        cache = cache_of(remote, tmp_path / 'cache', store=StuckStore(remote.folder))
        threading.Thread(target=cache.fetch, args=remote.entries, daemon=True).start()
        until(waiting.exists)

    child = FORK.Process(target=leave)
    child.start()
    until(lambda: is_half_there(tmp_path / 'cache'))
    as_somebody_waits(waiting.touch)
    cache = cache_of(remote, tmp_path / 'cache')
    with cache.acquire(remote.entries[0]) as lease:
        remote.check(lease)
    end_well([child], 60)
    assert names(tmp_path / 'cache') == sorted(remote.data)


@pytest.mark.parametrize('thread', ['main', 'daemon'])
def test_an_orphan_ends_whatever_it_does(tmp_path, monkeypatch, thread):
    remote = make_remote(tmp_path / 'remote', 1)

    def work():
        monkeypatch.setattr(shutdown, '_GRACE', 0)
        monkeypatch.setattr(multiprocessing, 'parent_process', lambda: multiprocessing.Process())  # is not alive

        cache = cache_of(remote, tmp_path / 'cache', store=StuckStore(remote.folder))

        def watch():
            until(lambda: is_half_there(cache.folder))
            shutdown._watch(Progress())

        threading.Thread(target=watch, daemon=True).start()
        fetching = threading.Thread(target=cache.acquire, args=remote.entries, daemon=True)
        fetching.run() if thread == 'main' else fetching.start()
        time.sleep(100)

    child = FORK.Process(target=work)
    child.start()
    child.join(60)
    assert child.exitcode == 1
    assert cache_of(remote, tmp_path / 'cache').fetch(remote.entries[0])
    assert names(tmp_path / 'cache') == sorted(remote.data)


PROGRAM = """
import atexit, multiprocessing.util, sys, threading
from pathlib import Path
from tests.support.stores.shards import StuckStore, cache_of, make_remote, names
from tests.support.programs.together import is_half_there
from tests.support.programs.waiting import until

folder = Path(sys.argv[1])
remote = make_remote(folder / 'remote', 3)
cache = cache_of(remote, folder / 'cache')
stuck = cache_of(remote, folder / 'cache', store=StuckStore(remote.folder))

def read():
    print(bool(cache.fetch(remote.entries[1])))

# Before what multiprocessing registered there, and thus run after it.
atexit.unregister(multiprocessing.util._exit_function)
atexit.register(read)
atexit.register(multiprocessing.util._exit_function)
threading.Thread(target=stuck.fetch, args=remote.entries[:1], daemon=True).start()
until(lambda: is_half_there(cache.folder))
print(*{name.partition('/')[0] for name in names(cache.folder)})
# Has another thread for transfers be there already: Python 3.12 starts none in exit functions.
cache.fetch(remote.entries[2])
"""


def test_programs_that_end_within_a_pass_print_nothing(tmp_path):
    environment = {'PATH': os.defpath, 'HOME': str(tmp_path), 'PYTHONPATH': os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, quiet_ends.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    ends = json.loads(done.stdout)
    assert len(ends) == len(quiet_ends.CASES)
    for case, (status, error) in ends.items():
        way = case.split()[0]
        assert status == {'sys.exit': 3, 'exception': 1}.get(way, 0), (case, error)
        lines = error.splitlines()
        assert lines[-1:] == (['ValueError: of the user'] if way == 'exception' else []), (case, error)
        assert 'ignored' not in error
