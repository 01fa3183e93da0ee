"""The cache among processes: real ones, which are really killed."""

import json
import math
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from shards import SIZE, StuckStore, cache_of, disk_use, fetch_index, make_remote, names
from together import FORK, as_somebody_waits, frozen_disk_use, is_half_there, run_together

from headrace.errors import ConfigError, TransferError
from headrace.storage import CacheLimit, Retry, ShardCache, stats
from headrace.storage.cache import disk_usage
from headrace.storage.cache.disk_usage import LimitedFolder, count_files
from headrace.storage.stats import CacheStats
from headrace.testing.stores import CountingStore, FaultyStore
from waiting import until

pytestmark = pytest.mark.once


def test_a_process_that_was_forked_while_another_thread_counted_counts_by_itself():
    counted = CacheStats()

    def work(_):
        counted.add(fetches=1)
        os._exit(counted.fetches)

    with stats._counting:
        child = FORK.Process(target=work, args=(0,))
        child.start()
        child.join(60)
    child.kill()
    assert child.exitcode == 1


@pytest.mark.parametrize('kind', [{}, {'packed': True, 'parts': 2}])
def test_sixteen_processes_download_each_of_twenty_shards_once(tmp_path, kind):
    remote = make_remote(tmp_path / 'remote', 20, **kind)
    store = CountingStore(remote.store, log=tmp_path / 'log', delay=0.005)
    start = FORK.Barrier(16)

    def work(number):
        entries = list(remote.entries)
        random.Random(number).shuffle(entries)
        cache = cache_of(remote, tmp_path / 'cache', store=store)
        start.wait()
        for entry in entries:
            with cache.acquire(entry) as lease:
                remote.check(lease)

    run_together(work, 16)
    assert set(store.logged().values()) == {1}
    assert len(store.logged()) == 20 * len(remote.entries[0].parts)
    assert names(tmp_path / 'cache') == sorted(remote.data)


def test_sixteen_processes_fetch_one_index_once(tmp_path):
    remote = make_remote(tmp_path / 'remote', 1)
    (remote.folder / 'index.json').write_text('{}')
    store = CountingStore(remote.store, log=tmp_path / 'log', delay=0.05)

    def work(number):
        for _ in range(20):
            assert fetch_index(tmp_path / 'cache', store).path.read_text() == '{}'

    run_together(work, 16)
    assert store.logged()['get index.json'] == 1


@pytest.fixture(params=['counting', 'remembering'])
def counts(request, monkeypatch):
    """Large folders keep their counts in a ledger; here small ones do as well."""
    if request.param == 'remembering':
        monkeypatch.setattr('headrace.storage.cache.disk_usage.CHEAP', -1.0)


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


class TestFailure:
    def test_who_needs_what_could_not_be_fetched_ahead_tries_by_itself(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 1)
        (entry,) = remote.entries
        begun, waiting = FORK.Event(), FORK.Event()

        def fail(data, out):
            begun.set()
            assert waiting.wait(60)
            time.sleep(0.3)
            raise TransferError('503')

        def work(number):
            if number == 0:
                failing = FaultyStore(remote.store, [fail])
                cache = cache_of(remote, tmp_path / 'cache', store=failing, retry=Retry(attempts=1))
                with pytest.raises(TransferError, match='503'):
                    cache.fetch(entry)
                return
            assert begun.wait(60)
            waiting.set()
            with cache_of(remote, tmp_path / 'cache').acquire(entry) as lease:
                remote.check(lease)

        run_together(work, 2)


class TestKill:
    @pytest.mark.parametrize('moment', [1, 7, 19, 31, 42, 70])
    @pytest.mark.parametrize(('packed', 'limit'), [(False, None), (True, None), (True, 20 * SIZE)])
    def test_the_next_start_reclaims_what_was_left_and_fetches_only_the_rest(self, tmp_path, packed, limit, moment):
        remote = make_remote(tmp_path / 'remote', 4, packed=packed, parts=2)
        steps = FORK.Semaphore(0)
        complete = FORK.Value('i', 0, lock=False)  # or the child may be killed with its lock

        def slowly(data, out):
            for begin in range(0, len(data), 4000):
                steps.release()
                out.write(data[begin : begin + 4000])
                time.sleep(0.0005)

        def fetch_all():
            cache = cache_of(remote, tmp_path / 'cache', store=FaultyStore(remote.store, [slowly] * 100), limit=limit)
            for entry in remote.entries:
                cache.fetch(entry)
                complete.value += 1
            signal.pause()

        child = FORK.Process(target=fetch_all)
        child.start()
        for _ in range(moment):
            assert steps.acquire(timeout=60)
        child.kill()
        child.join()
        left = names(tmp_path / 'cache')
        # Nothing incomplete has a final name.
        assert all((tmp_path / 'cache' / name).read_bytes() == remote.data[name] for name in left if name[0] != '.')
        store = CountingStore(remote.store)
        cache = cache_of(remote, tmp_path / 'cache', store=store, limit=limit)
        for entry in reversed(remote.entries):
            with cache.acquire(entry) as lease:
                remote.check(lease)
        assert names(tmp_path / 'cache') == sorted(remote.data)
        fetched = {int(key.partition('.')[2][:5]) for _, key in store.calls}
        assert not fetched & set(range(complete.value))

    def test_a_waiter_takes_over_from_a_killed_fetcher(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 1)
        stuck = cache_of(remote, tmp_path / 'cache', store=StuckStore(remote.folder))
        child = FORK.Process(target=stuck.fetch, args=remote.entries)
        child.start()
        until(lambda: is_half_there(stuck.folder))
        as_somebody_waits(child.kill)
        cache = cache_of(remote, tmp_path / 'cache')
        with cache.acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert cache.stats.seconds_waiting > 0.1
        child.join()
        assert names(tmp_path / 'cache') == ['shard.00000.mds']

    def test_leftovers_of_a_killed_fetch_do_not_use_up_the_limit(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 3)
        state = tmp_path / 'cache/.headrace'
        state.mkdir(parents=True)
        (state / f'{"ab" * 16}.lock').write_text(json.dumps({'reserved': 10 * SIZE}))
        (state / f'{"ab" * 16}.0.0123abcd.raw').write_bytes(bytes(SIZE))
        cache = cache_of(remote, tmp_path / 'cache', limit=2 * SIZE)
        cache._reclaimed = os.getpid()  # as if the fetch had been killed after this process looked
        with cache.acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert names(tmp_path / 'cache') == ['shard.00000.mds']

    @pytest.mark.parametrize(('others', 'limit'), [(1, SIZE + SIZE // 4), (2, 3 * SIZE)])
    def test_leftovers_of_the_same_shard_count_towards_no_limit(self, tmp_path, others, limit):
        remote = make_remote(tmp_path / 'remote', 1 + others)
        cache = cache_of(remote, tmp_path / 'cache', limit=limit)
        assert all(map(cache.fetch, remote.entries[1:]))
        _kill_halfway(remote, cache.folder, remote.entries[0], limit=limit)
        with cache.acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert len(names(cache.folder)) == limit // SIZE

    def test_room_is_reclaimed_in_all_folders_of_a_limit(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 3)
        limit = CacheLimit(3 * SIZE)
        caches = [cache_of(remote, tmp_path / name, limit=limit) for name in ('a', 'b')]
        for cache in caches:
            assert cache.fetch(remote.entries[0])
            _kill_halfway(remote, cache.folder, remote.entries[1])
        assert caches[0].fetch(remote.entries[2])
        assert sum(cache.stats.evictions for cache in caches) == 0

    def test_a_fetch_in_progress_is_not_reclaimed(self, tmp_path):
        remote = make_remote(tmp_path / 'remote', 2)
        inside, go_on = threading.Event(), threading.Event()

        class Slow(CountingStore):
            def get(self, key, out, **how):
                inside.set()
                go_on.wait()
                super().get(key, out, **how)

        thread = threading.Thread(
            target=lambda: cache_of(remote, tmp_path / 'cache', store=Slow(remote.store)).fetch(remote.entries[0])
        )
        thread.start()
        inside.wait()
        run_together(lambda _: cache_of(remote, tmp_path / 'cache', limit=9 * SIZE).fetch(remote.entries[1]), 1)
        assert len(names(tmp_path / 'cache')) == 3
        go_on.set()
        thread.join()
        assert names(tmp_path / 'cache') == sorted(remote.data)


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


def _kill_halfway(remote, folder, entry, **how):
    """Have a process killed that has fetched half of a shard."""

    def half(data, out):
        out.write(data[: SIZE // 2])
        threading.Event().wait()

    cache = cache_of(remote, folder, store=FaultyStore(remote.store, [half]), **how)
    child = FORK.Process(target=cache.acquire, args=[entry])
    child.start()
    until(lambda: any(path.stat().st_size for path in folder.glob('.headrace/*.raw')))
    child.kill()
    child.join()


def _fetch_all(cache, folder):
    remote = make_remote(Path(folder), 4)
    for entry in remote.entries:
        with cache.acquire(entry) as lease:
            remote.check(lease)


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


def test_a_count_that_was_held_up_once_is_not_good_for_long(tmp_path, monkeypatch):
    clock = SimpleNamespace(seconds=0.0, monotonic=lambda: clock.seconds)
    monkeypatch.setattr(disk_usage, 'time', clock)

    def find(name):
        clock.seconds += 0.2 if name == 'late' else 0.01

    limited = LimitedFolder(tmp_path, find, CacheStats())
    (tmp_path / 'there').touch()
    _, usual = count_files(limited)
    (tmp_path / 'late').touch()
    _, held_up = count_files(limited)
    assert held_up <= 2 * usual < 0.2
    for _ in range(20):
        _, seconds = count_files(limited)
    assert seconds >= 0.2  # which is what it takes now


class TestLedger:
    """Counts of large folders are remembered; nothing that happens to the record may lead to more than the limit."""

    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setattr('headrace.storage.cache.disk_usage.CHEAP', -1.0)
        monkeypatch.setattr('headrace.storage.cache.disk_usage.SHARE', 1e6)
        self.remote = make_remote(tmp_path / 'remote', 6)
        self.folder = tmp_path / 'cache'
        return cache_of(self.remote, self.folder, limit=3 * SIZE)

    def test_where_nothing_could_go_what_is_there_is_looked_at_again(self, cache, monkeypatch):
        monkeypatch.setattr('headrace.storage.cache.disk_usage.SURE', 0)
        entries, uses = self.remote.entries, dict(enumerate([1.0, 2.0, 9.0, 1.5, 3.0, 4.0]))
        next_use = lambda entry: uses[entry.id]  # noqa: E731
        for number in (0, 1, 2, 3):
            assert cache.fetch(entries[number], next_use=next_use)
        assert not cache.is_present(entries[2])
        uses[0] = uses[3] = math.inf  # behind the reader now, while the shard that was needed last comes next
        for number in (4, 5):
            uses[number] = 2.5 if number == 4 else 2.6
            assert cache.fetch(entries[number], next_use=next_use), number
        assert [cache.is_present(entry) for entry in entries] == [False, True, False, False, True, True]

    def read(self):
        return json.loads((self.folder / '.headrace/ledger').read_text())['bytes']

    def test_it_follows_fetches_and_evictions(self, cache):
        for number, entry in enumerate(self.remote.entries):
            cache.fetch(entry)
            assert self.read() == disk_use(self.folder) == SIZE * min(number + 1, 3)
        cache.evict(self.remote.entries[-1])
        assert self.read() == disk_use(self.folder) == 2 * SIZE

    @pytest.mark.parametrize('text', ['', 'null', '{"bytes": -5, "until": 1e30}', '{"bytes": 0, "until": 0}', '\0\0'])
    def test_a_useless_one_is_replaced_by_a_count(self, cache, text):
        for entry in self.remote.entries:
            cache.fetch(entry)
            (self.folder / '.headrace/ledger').write_text(text)
        cache.fetch(self.remote.entries[0])
        assert self.read() == disk_use(self.folder) == 3 * SIZE

    def test_files_that_somebody_else_deletes_do_not_block_anybody(self, cache):
        for entry in self.remote.entries[:3]:
            cache.fetch(entry)
            (self.folder / entry.key).unlink()
        assert self.read() == 3 * SIZE
        for entry in self.remote.entries:
            cache.acquire(entry).release()
        assert disk_use(self.folder) == 3 * SIZE
