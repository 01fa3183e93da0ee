"""How workers end."""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import StreamingDataLoader, StreamingDataset
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from tests.support import support_file
from tests.support.programs.processes import end_well, run_program


@pytest.mark.once
def test_spawned_workers_end_without_a_word(make_dataset):
    folder = make_dataset('data', 40)
    program = support_file('programs/busy_workers.py')
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout.split()) == (0, ['10'] * 2), done.stderr
    assert 'terminate' not in done.stderr


SAYS_GOODBYE = """
import atexit, sys
from functools import partial
import torch.utils.data
from headrace import StreamingDataLoader, StreamingDataset

torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 60  # seconds after which PyTorch ends a worker with SIGTERM
data, method = sys.argv[1:]
begin = partial(atexit.register, partial(print, 'goodbye', flush=True))
dataset = StreamingDataset(local=data, batch_size=10)
loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context=method, worker_init_fn=begin)
assert len(list(loader)) == 4
"""


@pytest.mark.once
def test_what_a_spawned_worker_registered_for_its_end_runs(make_dataset):
    program = [sys.executable, '-c', SAYS_GOODBYE, make_dataset('data', 40), 'spawn']
    done = subprocess.run(program, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout, done.stderr) == (0, 'goodbye 0\n', '')


def test_what_the_trainer_registered_for_its_end_runs_in_no_worker(make_dataset, tmp_path):
    ran = tmp_path / 'ran'
    atexit.register(ran.touch)
    try:
        dataset = StreamingDataset(local=str(make_dataset('data', 20)), batch_size=4)
        assert len(list(StreamingDataLoader(dataset, num_workers=1, multiprocessing_context='fork'))) == 5
    finally:
        atexit.unregister(ran.touch)
    assert not ran.exists()


def test_a_run_without_standard_output_ends_without_a_word(make_dataset):
    program = [sys.executable, '-c', SAYS_GOODBYE, str(make_dataset('data', 40)), 'fork']
    done = subprocess.run(['sh', '-c', 'exec "$@" >&-', 'sh', *program], stderr=subprocess.PIPE, text=True, timeout=280)
    assert (done.returncode, done.stderr) == (0, '')


KEEPS_ITS_ITERATOR = """
import os, sys
from headrace import StreamingDataLoader, StreamingDataset

dataset = StreamingDataset(local=sys.argv[1], batch_size=2)
kept = iter(StreamingDataLoader(dataset))
next(kept)
dataset.pool.shards.pause = lambda: os.write(1, b'waits for a lock')
"""


def test_the_end_of_the_interpreter_waits_for_no_lock(make_dataset):
    program = [sys.executable, '-c', KEEPS_ITS_ITERATOR, str(make_dataset('data', 40))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


def ends():
    for workers, method, loader, end in [
        *itertools.product([0, 2], ['fork'], ['StreamingDataLoader'], ['left', 'alive']),
        *itertools.product([2], ['fork'], ['DataLoader'], ['left', 'alive']),
        *itertools.product([2], ['spawn', 'forkserver'], ['StreamingDataLoader'], ['left', 'alive']),
    ]:
        is_usual = (workers, method, loader, end) in {
            (0, 'fork', 'StreamingDataLoader', 'alive'),
            (2, 'fork', 'StreamingDataLoader', 'left'),
        }
        yield pytest.param(workers, method, loader, end, marks=[] if is_usual else pytest.mark.slow)


@pytest.mark.once
@pytest.mark.parametrize(('workers', 'method', 'loader', 'end'), list(ends()))
def test_the_next_run_removes_what_was_fetched_ahead_as_they_ended(
    make_dataset, tmp_path, workers, method, loader, end
):
    remote = make_dataset('remote', 60)
    program = support_file('programs/leaving.py')
    given = [remote, tmp_path / 'local', workers, method, loader, end]
    done = run_program([sys.executable, str(program), *map(str, given)], cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {'.lock', '.raw'}
    local = tmp_path / 'local'
    there = {path.name for path in local.iterdir()} - {'.headrace'}
    assert there == {'.headrace-remote', 'index.json', 'shard.00000.mds'}
    dataset = StreamingDataset(remote=str(remote), local=str(local))
    assert [dataset[number]['id'] for number in range(60)] == list(range(60))
    assert {path.name for path in local.iterdir()} == {'.headrace-remote', *(path.name for path in remote.iterdir())}


def test_idle_threads_of_an_executor_keep_no_worker(make_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr('torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL', 60)
    executors: list[ThreadPoolExecutor] = []
    own = tmp_path / 'pid'  # other tests' processes may run beside it

    def begin(_: int) -> None:
        own.write_text(str(os.getpid()))
        executors.append(ThreadPoolExecutor(2))
        assert list(executors[0].map(abs, [-1, -2])) == [1, 2]

    dataset = StreamingDataset(local=str(make_dataset('data', 20)), batch_size=4)
    loader = StreamingDataLoader(dataset, num_workers=1, worker_init_fn=begin, multiprocessing_context='fork')
    children = {child for _ in loader for child in multiprocessing.active_children()}
    (worker,) = [child for child in children if child.pid == int(own.read_text())]
    assert worker.exitcode == 0  # PyTorch ends one that does not end in time with SIGTERM


def signalled():
    for method, kind, persistent, end in [
        *itertools.product(['fork'], ['StreamingDataLoader', 'DataLoader'], ['-', 'persistent'], ['left', 'alive']),
        *itertools.product(['spawn'], ['StreamingDataLoader', 'DataLoader'], ['persistent'], ['alive']),
    ]:
        is_usual = (method, end) == ('fork', 'left') and (kind == 'StreamingDataLoader') == (persistent != '-')
        yield pytest.param(method, kind, persistent, end, marks=[] if is_usual else pytest.mark.slow)


@pytest.mark.once
@pytest.mark.parametrize(('method', 'kind', 'persistent', 'end'), list(signalled()))
def test_workers_leave_signals_to_their_rank(make_dataset, tmp_path, method, kind, persistent, end):
    data = make_dataset('data', 60)
    program = support_file('programs/signalled.py')
    given = [data, method, kind, persistent, end]
    done = run_program([sys.executable, str(program), *map(str, given)], cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    samples = 120 if persistent == 'persistent' else 60
    assert done.stdout == f"{samples} ['SIGINT', 'SIGTERM']\n"


def test_an_interrupted_pass_is_followed_by_a_whole_one(make_dataset, tmp_path, monkeypatch):
    """As in a notebook, which interrupts the kernel and its workers while a worker waits for a silent store."""
    monkeypatch.setattr('torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL', 0.1)
    is_silent, rank = tmp_path / 'is_silent', os.getpid()
    is_silent.touch()

    class Silent(StreamingDataset):
        def get_item(self, sample_id, retry=7):
            if sample_id == 0 and is_silent.exists():
                for process in os.getpid(), rank:
                    os.kill(process, signal.SIGINT)
            while is_silent.exists():
                time.sleep(0.01)
            return super().get_item(sample_id, retry)

    loader = StreamingDataLoader(
        Silent(local=str(make_dataset('data', 20)), batch_size=1), num_workers=2, multiprocessing_context='fork'
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Composer's, if another test has imported it
    others = set(multiprocessing.active_children())  # of a test before
    try:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    finally:
        signal.signal(signal.SIGINT, before)
    for worker in set(multiprocessing.active_children()) - others:  # they were told to end
        worker.join(60)
        assert not worker.is_alive()
    is_silent.unlink()
    assert sorted(int(batch['id']) for batch in loader) == list(range(20))


class SlowStore(LocalStore):
    """A folder whose shards take a while."""

    def get(self, key, out, **how):
        time.sleep(0.0 if key == 'index.json' else 0.1)
        return super().get(key, out, **how)


@pytest.mark.once
@pytest.mark.usefixtures('own_stores')
def test_a_thread_that_is_waited_for_reads_on_as_its_process_ends(make_dataset, tmp_path):
    register_store('slow', lambda url, _: SlowStore(url.removeprefix('slow://')))
    remote, out = make_dataset('remote', 60, per_shard=5), tmp_path / 'read'

    def work():
        dataset = StreamingDataset(
            remote=f'slow://{remote}', local=str(tmp_path / 'local'), batch_size=20, shuffle=True
        )
        begun = threading.Event()

        def read():
            with out.open('w', buffering=1) as file:
                for sample in dataset:
                    file.write(f'{sample["id"]}\n')
                    begun.set()

        threading.Thread(target=read).start()
        assert begun.wait(60)

    child = multiprocessing.get_context('fork').Process(target=work)
    child.start()
    end_well([child], 60)
    assert sorted(map(int, out.read_text().split())) == list(range(60))
    assert not (tmp_path / 'local/.headrace').exists()
