"""The cache among processes: real ones, which are really killed."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest

from headrace.storage import CacheLimit
from tests.support.programs.together import FORK, as_somebody_waits, frozen_disk_use, run_together
from tests.support.stores.shards import SIZE, cache_of, make_remote, names

pytestmark = pytest.mark.once


@pytest.fixture(params=['counting', 'remembering'])
def counts(request, monkeypatch):
    """Large folders keep their counts in a ledger; here small ones do as well."""
    if request.param == 'remembering':
        monkeypatch.setattr('headrace.storage.cache.limit.CHEAP', -1.0)


@pytest.mark.usefixtures('counts')
class TestLimit:
    @pytest.mark.parametrize(
        ('kind', 'room', 'planned'),
        [
            ({}, 3, False),
            ({'packed': True, 'parts': 2}, 7, True),
            *(
                pytest.param(kind, room, planned, marks=pytest.mark.slow)
                for kind, room, planned in (
                    ({}, 3, True),
                    ({'packed': True}, 4, False),
                    ({'packed': True}, 4, True),
                    ({'parts': 2}, 5, False),
                    ({'parts': 2}, 5, True),
                    ({'packed': True, 'parts': 2}, 7, False),
                )
            ),
        ],
    )
    def test_it_is_never_exceeded_and_everybody_gets_everything(self, tmp_path, kind, room, planned):
        remote = make_remote(tmp_path / 'remote', 12, **kind)
        limit = room * SIZE + 5000
        (tmp_path / 'cache').mkdir()

        def work(number):
            dice = random.Random(number)
            cache = cache_of(remote, tmp_path / 'cache', limit=limit)
            for _ in range(3):
                entries = list(remote.entries)
                dice.shuffle(entries)
                when = {entry.id: float(turn) for turn, entry in enumerate(entries)}
                next_use = (lambda entry, when=when: when[entry.id]) if planned else None
                for turn, entry in enumerate(entries):
                    if turn + 1 < len(entries):
                        cache.fetch(entries[turn + 1], next_use=next_use, wait=dice.random() < 0.5)
                    with cache.acquire(entry, next_use=next_use) as lease:
                        remote.check(lease)
                    when[entry.id] += len(entries)

        assert SIZE < run_together(work, 5, watch=tmp_path / 'cache') <= limit
        assert not [name for name in names(tmp_path / 'cache') if name.endswith(('.lock', '.raw', '.packed'))]

    def test_holding_one_lease_while_fetching_another_never_deadlocks(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 8)

        def work(number):
            dice = random.Random(number)
            cache = cache_of(remote, tmp_path / 'cache', limit=2 * SIZE + 1000)
            held = None
            for _ in range(60):
                lease = cache.acquire(dice.choice(remote.entries))
                if held is not None:
                    remote.check(held)
                    held.release()
                held = lease

        run_together(work, 6)

    def test_threads_and_processes_mixed(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 8)

        def work(number):
            cache = cache_of(remote, tmp_path / 'cache', limit=3 * SIZE + 1000)
            failures = []

            def read(seed):
                dice = random.Random(seed)
                try:
                    for _ in range(30):
                        with cache.acquire(dice.choice(remote.entries)) as lease:
                            remote.check(lease)
                        cache.fetch(dice.choice(remote.entries), wait=False)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=read, args=(10 * number + index,)) for index in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures

        run_together(work, 3)

    def test_several_folders_share_one_limit(self, tmp_path):
        remotes = [make_remote(tmp_path / f'remote{number}', 6, seed=number) for number in range(3)]
        (tmp_path / 'cache').mkdir()
        limit = 4 * SIZE

        def work(number):
            dice = random.Random(number)
            shared = CacheLimit(limit)
            caches = [cache_of(remote, tmp_path / f'cache/{i}', limit=shared) for i, remote in enumerate(remotes)]
            for _ in range(40):
                index = dice.randrange(3)
                with caches[index].acquire(dice.choice(remotes[index].entries)) as lease:
                    remotes[index].check(lease)

        assert SIZE < run_together(work, 4, watch=tmp_path / 'cache') <= limit

    def test_who_needs_room_waits_for_a_reader_in_another_process(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 2)
        limit = SIZE + 1000
        reading, waiting, done = FORK.Event(), FORK.Event(), FORK.Value('d', 0)

        def work(number):
            cache = cache_of(remote, tmp_path / 'cache', limit=limit)
            if number == 0:
                with cache.acquire(remote.entries[0]):
                    reading.set()
                    assert waiting.wait(60)
                    done.value = time.monotonic()
            else:
                assert reading.wait(60)
                assert not cache.fetch(remote.entries[1], wait=False)
                as_somebody_waits(waiting.set)
                with cache.acquire(remote.entries[1]):
                    assert 0 < done.value <= time.monotonic()
                    assert cache.stats.seconds_waiting > 0.1

        run_together(work, 2)

    def test_a_killed_reader_holds_nothing(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 2)
        reading = FORK.Event()

        def hold():
            lease = cache_of(remote, tmp_path / 'cache', limit=SIZE + 1000).acquire(remote.entries[0])
            reading.set()
            signal.pause()
            lease.release()

        child = FORK.Process(target=hold)
        child.start()
        assert reading.wait(60)
        threading.Timer(0.2, child.kill).start()
        with cache_of(remote, tmp_path / 'cache', limit=SIZE + 1000).acquire(remote.entries[1]) as lease:
            remote.check(lease)
        child.join()


@pytest.mark.slow
@pytest.mark.usefixtures('counts')
def test_soak_under_a_limit_with_kills(tmp_path):
    """Workers are killed at random and replaced, for a while; the limit holds and everybody gets everything."""
    remote = make_remote(tmp_path / 'remote', 16, packed=True, parts=2)
    limit = 9 * SIZE
    (tmp_path / 'cache').mkdir()

    def work(seed):
        dice = random.Random(seed)
        cache = cache_of(remote, tmp_path / 'cache', limit=limit)
        while True:
            with cache.acquire(dice.choice(remote.entries)) as lease:
                remote.check(lease)
            cache.fetch(dice.choice(remote.entries), wait=dice.random() < 0.5)

    dice = random.Random(0)
    workers, most = [], 0
    for turn in range(60):
        while len(workers) < 6:
            workers.append(FORK.Process(target=work, args=(len(workers) + 100 * turn,)))
            workers[-1].start()
        until = time.monotonic() + dice.random() * 0.5
        while time.monotonic() < until:
            most = max(most, frozen_disk_use(tmp_path / 'cache', workers))
        assert all(worker.is_alive() for worker in workers)
        victim = workers.pop(dice.randrange(len(workers)))
        victim.kill()
        victim.join()
    for worker in workers:
        worker.kill()
        worker.join()
    assert SIZE < most <= limit
    cache = cache_of(remote, tmp_path / 'cache', limit=limit)
    for entry in remote.entries:
        with cache.acquire(entry) as lease:
            remote.check(lease)
    assert not [name for name in names(tmp_path / 'cache') if name.endswith(('.lock', '.raw', '.packed'))]
