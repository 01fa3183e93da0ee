"""The right to fetch a shard, what a killed fetch leaves, and folders that are deleted, full, or not to be written."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import AccessDeniedError, CacheError, DiskFullError, TransferError
from headrace.storage import CacheLimit, CacheStats, Retry
from headrace.storage.cache.fetch_lock import FetchLock
from headrace.testing.stores import CountingStore, FaultyStore
from tests.support.programs.descriptors import open_descriptors
from tests.support.programs.processes import states_of
from tests.support.programs.together import FORK, as_somebody_waits, is_half_there, locks_waited_for, run_together
from tests.support.programs.waiting import until
from tests.support.stores.control_files import LOCK, PART
from tests.support.stores.shards import SIZE, StuckStore, cache_of, fetch_index, make_remote, names


def test_threads_fetch_each_shard_once(remote, tmp_path):
    store = CountingStore(remote.store, delay=0.02)
    cache = cache_of(remote, tmp_path / 'cache', store=store)
    barrier = threading.Barrier(8)

    def work(_):
        barrier.wait()
        for entry in remote.entries:
            with cache.acquire(entry) as lease:
                remote.check(lease)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert set(store.calls.values()) == {1}
    assert cache.stats.counts.shards_fetched == 4
    assert cache.stats.seconds_waiting > 0


def test_who_waited_for_a_failure_gets_it_and_does_not_try_again(plain, tmp_path):
    started, go_on = threading.Event(), threading.Event()

    def fail(data, out):
        started.set()
        go_on.wait()
        raise AccessDeniedError('the door is closed')

    store = FaultyStore(plain.store, [fail])
    cache = cache_of(plain, tmp_path / 'cache', store=store)
    errors = []

    def work():
        try:
            cache.acquire(plain.entries[0])
        except AccessDeniedError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(6)]
    threads[0].start()
    started.wait()
    for thread in threads[1:]:
        thread.start()
    until(lambda: locks_waited_for() == 5)
    go_on.set()
    for thread in threads:
        thread.join()
    assert errors == ['the door is closed'] * 6
    assert sum(store.calls.values()) == 1
    with cache.acquire(plain.entries[0]) as lease:  # a failure is no memory
        plain.check(lease)


@pytest.mark.once
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


@pytest.mark.once
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


@pytest.mark.once
class TestKill:
    @pytest.mark.parametrize(
        ('packed', 'limit', 'moment'),
        [
            *((False, None, moment) for moment in (1, 7, 19, 31, 42, 70)),
            *((True, None, moment) for moment in (7, 31, 70)),
            *((True, 20 * SIZE, moment) for moment in (1, 19, 42)),
        ],
    )
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
        cache = cache_of(remote, tmp_path / 'cache', limit=2 * SIZE)
        with cache.acquire(remote.entries[1]) as lease:  # the fetch was killed after this process looked
            remote.check(lease)
        state.mkdir(exist_ok=True)
        (state / f'{"ab" * 16}.lock').write_text(json.dumps({'reserved': 10 * SIZE}))
        (state / f'{"ab" * 16}.0.0123abcd.raw').write_bytes(bytes(SIZE))
        with cache.acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert 'shard.00000.mds' in names(tmp_path / 'cache')

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
        assert sum(cache.stats.counts.evictions for cache in caches) == 0

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


@pytest.mark.parametrize(('folder', 'file'), [(0o777, 0o644), (0o770, 0o640), (0o755, 0o600), (0o700, 0o600)])
def test_those_who_share_a_folder_may_read_its_files_whatever_the_umask(plain, tmp_path, folder, file):
    (plain.folder / 'index.json').write_text('{}')
    (tmp_path / 'cache').mkdir()
    (tmp_path / 'cache').chmod(folder)
    before = os.umask(0o077)
    try:
        fetch_index(tmp_path / 'cache', plain.store)
        cache_of(plain, tmp_path / 'cache').fetch(plain.entries[0])
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / 'cache').iterdir()}
    assert modes == dict.fromkeys(['.headrace-remote', 'index.json', 'shard.00000.mds'], file)


@pytest.fixture
def impatient(monkeypatch):
    """Waits are looked at and told soon."""
    monkeypatch.setattr('headrace.storage.cache.locks.LOOK', 0.05)
    monkeypatch.setattr('headrace.storage.cache.locks.SAID', 0.1)
    monkeypatch.setattr('headrace.storage.cache.fetch_lock.SAID', 0.1)


@pytest.mark.once
@pytest.mark.usefixtures('impatient')
class TestTakeOver:
    @pytest.mark.parametrize('limit', [None, 2 * SIZE])
    def test_a_stopped_fetch_is_named_and_taken_over_and_begins_anew(self, tmp_path, caplog, limit):
        remote = make_remote(tmp_path / 'remote', 1)
        go_on, (entry,) = FORK.Event(), remote.entries

        def half(data, out):
            out.write(data[: SIZE // 2])
            assert go_on.wait(60)
            out.write(data[SIZE // 2 :])

        def work():
            cache = cache_of(remote, tmp_path / 'cache', store=FaultyStore(remote.store, [half]), limit=limit)
            with cache.acquire(entry) as lease:
                remote.check(lease)

        child = FORK.Process(target=work)
        child.start()
        until(lambda: is_half_there(tmp_path / 'cache'))
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: states_of(child.pid) == {'T'})
        with cache_of(remote, tmp_path / 'cache', limit=limit).acquire(entry) as lease:
            remote.check(lease)
        told = next(record.message for record in caplog.records if 'takes the fetch over' in record.message)
        assert f'kill -CONT {child.pid}' in told
        assert str(tmp_path / 'cache/.headrace') in told
        os.kill(child.pid, signal.SIGCONT)
        go_on.set()
        child.join(60)
        assert child.exitcode == 0
        assert names(tmp_path / 'cache') == ['shard.00000.mds']

    @pytest.mark.parametrize('what', ['shard', 'index'])
    def test_a_fetch_that_hangs_is_taken_over_when_its_retries_would_have_ended(self, tmp_path, caplog, what):
        remote = make_remote(tmp_path / 'remote', 1)
        (remote.folder / 'index.json').write_text('{}')
        retry = Retry(attempts=1, attempt_timeout=0.3)
        with FetchLock(tmp_path / 'cache', 'index.json' if what == 'index' else remote.entries[0].key):
            if what == 'index':
                assert fetch_index(tmp_path / 'cache', remote.store, retry=retry).path.read_text() == '{}'
            else:
                with cache_of(remote, tmp_path / 'cache', retry=retry).acquire(remote.entries[0]) as lease:
                    remote.check(lease)
        assert f'process {os.getpid()} (this one, in another thread)' in caplog.text


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


def test_names_that_headrace_does_not_make_stay(tmp_path):
    remote = make_remote(tmp_path / 'remote')
    state = tmp_path / 'cache/.headrace'
    state.mkdir(parents=True)
    foreign = [
        'thesis.tex',
        'ab.lock',
        'ab.0.raw',
        f'{"ab" * 16}.0.raw',
        f'{"AB" * 16}.lock',
        f'{"ab" * 16}.mds',
        'x.y',
    ]
    for name in [*foreign, LOCK, PART]:
        (state / name).write_text('x')
    cache_of(remote, tmp_path / 'cache', limit=2 * SIZE).fetch(remote.entries[0])
    assert names(state) == sorted(foreign)


class TestDeletedFolder:
    """Somebody deletes the cache folder while shards are fetched into it."""

    @pytest.mark.parametrize('limit', [None, 10 * SIZE])
    @pytest.mark.parametrize('work', ['fetch', 'acquire'])
    def test_a_fetch_continues(self, remote, tmp_path, limit, work):
        def delete(data, out):
            shutil.rmtree(tmp_path / 'cache')
            out.write(data)

        cache = cache_of(
            remote, tmp_path / 'cache', limit=limit, store=FaultyStore(remote.store, [None, delete, delete])
        )
        for entry in remote.entries:
            getattr(cache, work)(entry)
            assert cache.is_present(entry)
            with cache.acquire(entry) as lease:
                remote.check(lease)

    @pytest.mark.parametrize('limit', [None, 10 * SIZE])
    def test_one_that_is_deleted_each_time_is_an_error(self, plain, tmp_path, limit):
        def delete(data, out):
            shutil.rmtree(tmp_path / 'cache')
            out.write(data)

        cache = cache_of(plain, tmp_path / 'cache', limit=limit, store=FaultyStore(plain.store, [delete] * 1000))
        with pytest.raises(CacheError, match='was deleted as often as it was fetched'):
            cache.acquire(plain.entries[0])

    @pytest.mark.parametrize('limit', [None, 10 * SIZE])
    def test_one_that_is_deleted_after_each_fetch_is_an_error_and_leaves_no_open_file(self, plain, tmp_path, limit):
        class Deleting(CacheStats):
            def add(self, change):
                super().add(change)
                if change.shards_fetched:
                    (tmp_path / 'cache' / plain.entries[0].key).unlink()

        cache = cache_of(plain, tmp_path / 'cache', limit=limit, stats=Deleting())
        before = open_descriptors(tmp_path)
        with pytest.raises(CacheError, match='was deleted as often as it was fetched'):
            cache.acquire(plain.entries[0])
        assert open_descriptors(tmp_path) == before
        assert cache.stats.counts.shards_fetched > 1


class TestFolderProblems:
    def test_a_subfolder_that_is_deleted_while_it_is_made_is_made_again(self, tmp_path, monkeypatch):
        remote, make, races = make_remote(tmp_path / 'remote', prefix='sub/'), Path.mkdir, []

        def race(path, *how, **more):
            """Once, another process makes the subfolder first, and a third one removes it before anybody looks."""
            if path == tmp_path / 'cache/sub' and not races:
                races.append(path)
                raise FileExistsError(errno.EEXIST, 'File exists', str(path))
            make(path, *how, **more)

        monkeypatch.setattr(Path, 'mkdir', race)
        with cache_of(remote, tmp_path / 'cache').acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert races

    @pytest.mark.parametrize(('number', 'expected'), [(errno.ENOSPC, DiskFullError), (errno.EACCES, CacheError)])
    def test_a_subfolder_that_cannot_be_made(self, tmp_path, monkeypatch, number, expected):
        remote, make = make_remote(tmp_path / 'remote', prefix='sub/'), Path.mkdir

        def refuse(path, *how, **more):
            if path == tmp_path / 'cache/sub':
                raise OSError(number, os.strerror(number), str(path))
            make(path, *how, **more)

        monkeypatch.setattr(Path, 'mkdir', refuse)
        with pytest.raises(expected, match='/cache/sub (has no room|is not: EACCES)'):
            cache_of(remote, tmp_path / 'cache').acquire(remote.entries[0])

    def test_no_locks_on_this_file_system(self, plain, tmp_path, monkeypatch):
        def refuse(*_):
            raise OSError(38, 'Function not implemented')

        monkeypatch.setattr('fcntl.flock', refuse)
        with pytest.raises(CacheError, match=r'ENOSYS.*Put `local` on a local disk'):
            cache_of(plain, tmp_path / 'cache').acquire(plain.entries[0])

    @pytest.mark.parametrize('folder', ['file/below', '/proc/headrace'])
    def test_a_folder_that_cannot_be_made(self, plain, tmp_path, folder):
        (tmp_path / 'file').touch()
        with pytest.raises(CacheError, match='must be writable'):
            cache_of(plain, tmp_path / folder).acquire(plain.entries[0])

    @pytest.mark.parametrize('limit', [None, 10 << 20])
    def test_a_full_disk(self, small_disk, tmp_path, limit):
        remote = make_remote(tmp_path / 'remote', size=900_000)
        cache = cache_of(remote, small_disk, limit=limit)
        cache.fetch(remote.entries[0])
        with pytest.raises(DiskFullError, match=rf'{small_disk} has no room .* needs 900000 bytes; \d+ bytes are free'):
            cache.fetch(remote.entries[1])
        assert names(small_disk) == ['shard.00000.mds']

    def test_others_may_clear_up_in_a_shared_folder(self, plain, tmp_path):
        (tmp_path / 'cache').mkdir()
        (tmp_path / 'cache').chmod(0o777)
        seen = []

        def look(data, out):
            for path in (tmp_path / 'cache/.headrace', next((tmp_path / 'cache/.headrace').glob('*.lock'))):
                seen.append(stat.S_IMODE(path.stat().st_mode))
            out.write(data)

        before = os.umask(0o077)
        try:
            cache_of(plain, tmp_path / 'cache', store=FaultyStore(plain.store, [look])).fetch(plain.entries[0])
        finally:
            os.umask(before)
        assert seen == [0o777, 0o666]
