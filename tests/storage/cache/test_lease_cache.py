"""Leases and maps that are kept between two reads."""

import threading
import time
from pathlib import Path

import pytest

from headrace.storage import CacheLimit
from headrace.storage.cache import lease_cache
from headrace.storage.cache.lease_cache import CachedLease, LeaseCache, MapCache
from tests.support.programs.descriptors import open_descriptors
from tests.support.programs.leases import release_without_a_pause
from tests.support.programs.together import FORK, run_together
from tests.support.programs.waiting import until
from tests.support.stores.shards import SIZE, cache_of, make_remote, names

pytestmark = pytest.mark.once


@pytest.fixture
def remote(tmp_path):
    return make_remote(tmp_path / 'remote', count=4)


@pytest.fixture(autouse=True)
def begun_unpaused(monkeypatch):
    """Leases are kept for ever, unless a test says how long."""
    monkeypatch.setattr(lease_cache, 'PERIOD', 1e9)
    release_without_a_pause()
    yield
    release_without_a_pause()


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(lease_cache, 'PERIOD', 0.3)
    monkeypatch.setattr(lease_cache, 'GAP', 0.1)


def just_after_a_gap():
    """Nothing is kept that was acquired in one."""
    time.sleep(lease_cache.PERIOD - time.monotonic() % lease_cache.PERIOD)


def holding(cache, entry):
    return CachedLease.now(cache.acquire(entry), entry.key)


def is_evictable(cache, entry):
    """Whether nobody has a shard in use; if so it is gone now."""
    return cache.evict(entry)


def test_a_kept_lease_is_taken_again_as_it_was_and_nobody_evicts_it_meanwhile(remote, tmp_path):
    cache = cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    kept = LeaseCache()
    held = holding(cache, remote.entries[0])
    kept.keep(0, held)
    assert not is_evictable(cache, remote.entries[0])
    assert kept.take(0) is held
    assert kept.take(0) is None  # it is the taker's alone
    remote.check(held.lease)
    assert not is_evictable(cache, remote.entries[0])
    held.lease.release()
    assert is_evictable(cache, remote.entries[0])


def test_a_kept_lease_is_given_back_in_time_though_its_holder_does_nothing(remote, tmp_path, short):
    cache = cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    kept = LeaseCache()
    for number in (0, 1):  # with nothing to give back the thread has ended meanwhile
        just_after_a_gap()
        held = holding(cache, remote.entries[number])
        kept.keep(number, held)
        until(lambda entry=remote.entries[number]: is_evictable(cache, entry))
        assert time.monotonic() >= held.until
        assert kept.take(number) is None
        until(lambda: not open_descriptors(tmp_path / 'cache'))  # an unlocked file is closed a moment later
        until(lambda: not any(thread.name == 'headrace-leases' for thread in threading.enumerate()))


def test_reading_on_and_on_does_not_prolong_it(remote, tmp_path, short):
    cache = cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    kept = LeaseCache()
    just_after_a_gap()
    held = holding(cache, remote.entries[0])
    end = held.until
    while held is not None:
        assert time.monotonic() < end + 10
        kept.keep(0, held)
        time.sleep(0.002)
        held = kept.take(0)


def test_nothing_is_kept_in_the_gap(remote, tmp_path, short):
    kept, cache = LeaseCache(), cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    cache.fetch(remote.entries[0])
    just_after_a_gap()
    time.sleep(lease_cache.PERIOD - lease_cache.GAP / 2)
    held = holding(cache, remote.entries[0])
    kept.keep(0, held)
    assert kept.take(0) is None or time.monotonic() % lease_cache.PERIOD < lease_cache.PERIOD - lease_cache.GAP


def test_who_waits_gets_room_though_others_take_turns_to_keep_what_is_in_the_way(remote, tmp_path, short):
    """A lock that others share by turns is never free: they all give it back at the same moment."""
    folder, limit = tmp_path / 'cache', 2 * SIZE + 100
    waited, done = FORK.Value('d', 0.0), FORK.Event()

    def work(number):
        cache = cache_of(remote, folder, limit=limit)
        if number == 3:
            time.sleep(1)
            begin = time.monotonic()
            cache.acquire(remote.entries[2]).release()
            waited.value = time.monotonic() - begin
            done.set()
            return
        kept = LeaseCache()
        time.sleep(0.1 * number)  # else all would begin their time at once
        step = 0
        while not done.wait(0.003):
            step += 1
            held = kept.take(step % 2) or holding(cache, remote.entries[step % 2])
            kept.keep(step % 2, held)

    run_together(work, 4, timeout=60)
    assert waited.value < 10


def test_nothing_is_kept_where_the_cache_has_no_room_for_what_comes_next(remote, tmp_path):
    kept, cache = LeaseCache(), cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    kept.has_room = False
    kept.keep(0, holding(cache, remote.entries[0]))
    assert kept.take(0) is None
    assert is_evictable(cache, remote.entries[0])


def test_without_a_thread_to_give_it_back_nothing_is_kept(remote, tmp_path, monkeypatch):
    def fail(self):
        raise RuntimeError("can't start new thread")

    kept, cache = LeaseCache(), cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, 'start', fail)
        kept.keep(0, holding(cache, remote.entries[0]))
    assert is_evictable(cache, remote.entries[0])
    kept.keep(1, holding(cache, remote.entries[1]))
    assert kept.take(1) is not None


def test_who_finds_no_room_gives_way_and_keeps_nothing_for_a_while(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(lease_cache, 'PAUSE', 1e9)
    limit = CacheLimit(2 * SIZE + 100)
    cache = cache_of(remote, tmp_path / 'cache', limit=limit)
    kept, others = LeaseCache(), LeaseCache()
    kept.keep(0, holding(cache, remote.entries[0]))
    others.keep(1, holding(cache, remote.entries[1]))
    with cache.acquire(remote.entries[2]) as lease:  # would wait for ever for either of them
        remote.check(lease)
    assert kept.take(0) is None
    assert others.take(1) is None
    held = holding(cache, remote.entries[2])
    kept.keep(2, held)
    assert not held.lease.is_valid
    release_without_a_pause()
    kept.keep(2, holding(cache, remote.entries[2]))
    assert kept.take(2) is not None


def test_a_fetch_ahead_that_finds_no_room_makes_its_process_give_way(remote, tmp_path, monkeypatch):
    cache = cache_of(remote, tmp_path / 'cache', limit=2 * SIZE + 100)
    kept = LeaseCache()
    for number in (0, 1):
        kept.keep(number, holding(cache, remote.entries[number]))
    assert not cache.fetch(remote.entries[2], wait=False)
    assert kept.take(0) is None
    assert cache.fetch(remote.entries[2], wait=False)


def test_a_lease_that_was_suspended_is_not_kept(remote, tmp_path):
    cache = cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    kept = LeaseCache()
    held = holding(cache, remote.entries[0])
    with cache.acquire(remote.entries[1]):  # fetches, so this thread puts down what it holds
        assert not held.lease.is_valid
        remote.check(held.lease)
    kept.keep(0, held)
    assert kept.take(0) is None


def test_a_kept_lease_is_not_suspended_by_its_thread(remote, tmp_path):
    cache = cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    kept = LeaseCache()
    kept.keep(0, holding(cache, remote.entries[0]))
    with cache.acquire(remote.entries[1]):
        pass
    held = kept.take(0)
    assert held is not None
    assert held.lease.is_valid
    with cache.acquire(remote.entries[2]):  # but a taken one is, again
        assert not held.lease.is_valid


def test_descriptors_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_cache, 'LEASED_SHARDS', 3)
    remote = make_remote(tmp_path / 'remote', count=12, size=500)
    cache = cache_of(remote, tmp_path / 'cache', limit=100_000)
    kept = LeaseCache()
    for number, entry in enumerate(remote.entries):
        kept.keep(number, holding(cache, entry))
    assert open_descriptors(tmp_path / 'cache').total() == 3
    assert [number for number in range(12) if kept.take(number) is not None] == [9, 10, 11]


def test_threads_that_read_one_shard_have_leases_of_their_own_and_leave_one(remote, tmp_path, monkeypatch):
    cache = cache_of(remote, tmp_path / 'cache', limit=9 * SIZE)  # a shard that is being fetched may count twice
    kept = LeaseCache()
    failures = []

    def read(number):
        try:
            for step in range(300):
                at = (step * number + step) % 4
                held = kept.take(at) or holding(cache, remote.entries[at])
                remote.check(held.lease)
                kept.keep(at, held)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert open_descriptors(tmp_path / 'cache').total() == 4
    kept.close()
    assert not open_descriptors(tmp_path / 'cache')
    assert all(is_evictable(cache, entry) for entry in remote.entries)


def test_a_forked_child_inherits_nothing_that_is_kept(remote, tmp_path):
    cache = cache_of(remote, tmp_path / 'cache', limit=3 * SIZE)
    kept = LeaseCache()
    kept.keep(0, holding(cache, remote.entries[0]))
    forked, evicted = FORK.Barrier(3), FORK.Event()

    def work(_):
        forked.wait(60)
        assert evicted.wait(60)
        assert not open_descriptors(tmp_path / 'cache')  # whose space the disk would not have back
        assert not [line for line in Path('/proc/self/maps').read_text().splitlines() if str(tmp_path) in line]

    def evict():
        forked.wait(60)
        assert is_evictable(cache, remote.entries[0])
        evicted.set()

    threading.Thread(target=evict).start()
    run_together(work, 2)


@pytest.mark.parametrize('limit', [2 * SIZE + 100, 3 * SIZE])
def test_processes_that_keep_leases_do_not_stop_each_other_in_a_small_cache(remote, tmp_path, short, limit):
    """Each needs what the others keep, and more than fits is kept by all of them together."""
    folder = tmp_path / 'cache'

    def work(number):
        cache = cache_of(remote, folder, limit=limit)
        kept = LeaseCache()
        for step in range(60):
            at = (step * (number + 1)) % 4
            held = kept.take(at) or holding(cache, remote.entries[at])
            remote.check(held.lease)
            kept.keep(at, held)

    assert run_together(work, 4, watch=folder) <= limit
    assert set(names(folder)) <= {entry.key for entry in remote.entries}


def test_without_a_limit_the_shards_used_last_stay(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(lease_cache, 'MAPPED_SHARDS', 2)
    cache = cache_of(remote, tmp_path / 'cache')
    kept = MapCache()
    for number in (0, 1):
        kept.keep(number, holding(cache, remote.entries[number]))
    assert kept.take(0) is kept.take(0)  # shared, and used last now
    kept.keep(2, holding(cache, remote.entries[2]))
    assert kept.take(1) is None
    held = kept.take(0)
    kept.drop([0, 3])
    assert kept.take(0) is None
    remote.check(held.lease)  # for as long as somebody reads from it
    kept.close()
    assert kept.take(2) is None
