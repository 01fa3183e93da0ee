"""Locks of a cache folder in a forked child."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from headrace.errors import CacheError, ConfigError
from headrace.storage import Retry, ShardCache
from headrace.storage.cache.locks import LockWait, locked_folders
from headrace.testing.stores import CountingStore
from tests.support.programs.processes import states_of
from tests.support.programs.together import FORK, run_together
from tests.support.programs.waiting import until
from tests.support.stores.shards import SIZE, cache_of, make_remote


@pytest.mark.once
class TestFork:
    def test_a_child_neither_keeps_nor_drops_its_parents_locks(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 3)
        cache = cache_of(remote, tmp_path / 'cache', limit=9 * SIZE)
        lease = cache.acquire(remote.entries[0])
        released = FORK.Event()

        def child(number):
            assert not cache.evict(remote.entries[0])
            remote.check(lease)
            lease.release()
            assert not cache.evict(remote.entries[0])  # it is still the parent's
            mine = remote.entries[1 + number]  # what the other child has mapped cannot be evicted
            with cache.acquire(mine) as own:
                remote.check(own)
            assert cache.evict(mine)

        run_together(child, 2)
        assert not cache.evict(remote.entries[0])

        sleeper = FORK.Process(target=lambda: released.wait(60))
        sleeper.start()
        lease.release()
        assert cache.evict(remote.entries[0])  # although the child has a copy of the descriptor
        released.set()
        sleeper.join()

    def test_a_child_forked_in_the_middle_of_a_fetch_does_not_block_it(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 1)
        children = []

        class Forking(CountingStore):
            def get(self, key, out, **how):
                child = os.fork()
                if not child:
                    time.sleep(100)
                    os._exit(0)
                children.append(child)
                super().get(key, out, **how)
                raise ConfigError('the fetch fails')

        with pytest.raises(ConfigError):
            cache_of(remote, tmp_path / 'cache', store=Forking(remote.store)).fetch(remote.entries[0])
        cache_of(remote, tmp_path / 'cache').fetch(remote.entries[0])
        assert os.waitpid(children[0], os.WNOHANG) == (0, 0)
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)

    @pytest.mark.parametrize('method', ['spawn', pytest.param('forkserver', marks=pytest.mark.slow)])
    def test_other_start_methods(self, tmp_path, method):
        remote = make_remote(tmp_path / 'remote', 4)
        cache = ShardCache(tmp_path / 'cache', store=remote.store, limit=3 * SIZE, retry=Retry(attempts=2))
        child = multiprocessing.get_context(method).Process(target=_fetch_all, args=(cache, str(remote.folder)))
        child.start()
        child.join(60)
        assert child.exitcode == 0


@pytest.mark.once
class TestHeld:
    """A wait for a lock that is not let go of is told, and ends."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch):
        for name, seconds in {'LOOK': 0.05, 'SAID': 0.1, 'BOUND_STOPPED': 0.2}.items():
            monkeypatch.setattr(f'headrace.storage.cache.locks.{name}', seconds)

    def test_by_a_stopped_process(self, tmp_path, caplog):
        def hold_it():
            with locked_folders([tmp_path]):
                os.kill(os.getpid(), signal.SIGSTOP)

        child = FORK.Process(target=hold_it)
        child.start()
        until(lambda: states_of(child.pid) == {'T'})
        rule = f'the lock of {tmp_path}, which is held by process {child.pid}, which is stopped.*kill -CONT {child.pid}'
        with pytest.raises(CacheError, match=rule), locked_folders([tmp_path]):
            pass
        assert re.search(rule, caplog.text)
        os.kill(child.pid, signal.SIGCONT)
        with locked_folders([tmp_path]):
            child.join(60)

    def test_by_one_that_runs(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr('headrace.storage.cache.locks.BOUND', 0.3)
        with (
            locked_folders([tmp_path]),
            pytest.raises(CacheError, match=f'process {os.getpid()} .*If that hangs'),
            locked_folders([tmp_path]),
        ):
            pass
        assert caplog.text.count('has waited') == 1

    @pytest.mark.skipif(sys.platform != 'linux', reason='no /proc')
    def test_by_nobody_in_sight(self, tmp_path):
        with open(tmp_path / 'x', 'w+b') as file:
            assert 'cannot see' in LockWait(file.fileno(), file.name).why()


def _fetch_all(cache, folder):
    remote = make_remote(Path(folder), 4)
    for entry in remote.entries:
        with cache.acquire(entry) as lease:
            remote.check(lease)
