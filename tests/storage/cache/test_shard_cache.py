import errno
import fcntl
import gc
import os
import pickle
import shutil
import stat
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from shards import SIZE, cache_of, make_remote, names
from together import as_somebody_waits, locks_waited_for, run_alone

from descriptors import open_descriptors
from headrace.errors import (
    AccessDeniedError,
    CacheError,
    ChecksumError,
    ConfigError,
    DiskFullError,
    ObjectNotFoundError,
    TransferError,
)
from headrace.storage import CacheEntry, CachePart, CacheStats, LazyEntry, Retry, ShardCache
from headrace.storage.cache.entry import EntrySet
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import CountingStore, FaultyStore
from waiting import until

FAST = Retry(attempts=3, first_delay=0.001)


@pytest.fixture(params=['raw', 'packed', 'two files', 'two packed files', 'subfolder'])
def remote(request, tmp_path):
    kinds = {
        'raw': {},
        'packed': {'packed': True},
        'two files': {'parts': 2},
        'two packed files': {'parts': 2, 'packed': True},
        'subfolder': {'prefix': 'a/b/'},
    }
    return make_remote(tmp_path / 'remote', **kinds[request.param])


@pytest.fixture
def plain(tmp_path):
    return make_remote(tmp_path / 'remote')


@pytest.fixture
def packed(tmp_path):
    return make_remote(tmp_path / 'remote', packed=True)


def raw_names(remote, *numbers):
    return sorted(part.name for number in numbers for part in remote.entries[number].parts)


class TestFetch:
    @pytest.mark.parametrize('limit', [None, 10 * SIZE])
    def test_an_acquired_shard_is_what_the_store_holds(self, remote, tmp_path, limit):
        cache = cache_of(remote, tmp_path / 'cache', limit=limit)
        for _ in range(2):
            for entry in remote.entries:
                with cache.acquire(entry) as lease:
                    remote.check(lease)
        assert names(tmp_path / 'cache') == raw_names(remote, 0, 1, 2, 3)
        assert (cache.stats.fetches, cache.stats.hits) == (4, 4)
        assert cache.stats.retries == 0

    def test_fetch_makes_present_and_counts(self, remote, tmp_path):
        store = CountingStore(remote.store)
        cache = cache_of(remote, tmp_path / 'cache', store=store)
        entry = remote.entries[1]
        assert not cache.is_present(entry)
        came = cache.fetch(entry)
        assert (bool(came), came.size) == (True, entry.size)
        assert cache.is_present(entry)
        there = cache.fetch(entry)
        assert (bool(there), there.size) == (True, 0)
        cache.acquire(entry).release()
        assert sum(store.calls.values()) == len(entry.parts)
        assert cache.stats.bytes_downloaded == sum(part.packed_size or part.size for part in entry.parts)
        assert cache.stats.bytes_unpacked == sum(part.size for part in entry.parts if part.packed_name)

    def test_nothing_is_touched_before_it_is_needed(self, plain, tmp_path):
        cache_of(plain, tmp_path / 'cache', limit=10 * SIZE)
        assert not (tmp_path / 'cache').exists()

    def test_keep_packed_keeps_the_compressed_file(self, packed, tmp_path):
        cache = cache_of(packed, tmp_path / 'cache', keep_packed=True)
        cache.fetch(packed.entries[0])
        assert names(tmp_path / 'cache') == ['shard.00000.mds', 'shard.00000.mds.gz']

    def test_a_deleted_file_is_fetched_again(self, remote, tmp_path):
        cache = cache_of(remote, tmp_path / 'cache')
        entry = remote.entries[0]
        cache.fetch(entry)
        (tmp_path / 'cache' / entry.parts[-1].name).unlink()
        with cache.acquire(entry) as lease:
            remote.check(lease)

    @pytest.mark.parametrize('size', [0, 1, SIZE - 1, SIZE + 1])
    def test_a_file_of_the_wrong_size_is_fetched_again(self, remote, tmp_path, size):
        cache = cache_of(remote, tmp_path / 'cache')
        entry = remote.entries[0]
        cache.fetch(entry)
        with open(tmp_path / 'cache' / entry.parts[-1].name, 'r+b') as file:
            file.truncate(size)
        with cache.acquire(entry) as lease:
            remote.check(lease)

    def test_a_packed_file_that_is_there_is_used(self, packed, tmp_path):
        store = CountingStore(packed.store)
        (tmp_path / 'cache').mkdir()
        shutil.copy(packed.folder / 'shard.00000.mds.gz', tmp_path / 'cache')
        with cache_of(packed, tmp_path / 'cache', store=store).acquire(packed.entries[0]) as lease:
            packed.check(lease)
        assert not store.calls
        assert names(tmp_path / 'cache') == ['shard.00000.mds']

    @pytest.mark.parametrize('damage', [b'', b'garbage'])
    def test_a_bad_packed_file_that_is_there_is_replaced(self, packed, tmp_path, damage):
        (tmp_path / 'cache').mkdir()
        (tmp_path / 'cache/shard.00000.mds.gz').write_bytes(damage)
        with cache_of(packed, tmp_path / 'cache', keep_packed=True).acquire(packed.entries[0]) as lease:
            packed.check(lease)
        assert names(tmp_path / 'cache') == ['shard.00000.mds', 'shard.00000.mds.gz']

    def test_an_empty_file_is_an_empty_buffer(self, tmp_path):
        (tmp_path / 'remote').mkdir()
        (tmp_path / 'remote/x').touch()
        entry = CacheEntry((CachePart('x', 0),))
        for limit in (None, 1000):
            cache = ShardCache(tmp_path / f'cache{limit}', store=LocalStore(tmp_path / 'remote'), limit=limit)
            with cache.acquire(entry) as lease:
                assert lease.buffers[0] == b''

    def test_foreign_files_do_no_harm(self, plain, tmp_path):
        (tmp_path / 'cache/.headrace').mkdir(parents=True)
        for name in ('shard.00000.mds.tmp', '.headrace/foreign', 'notes.txt'):
            (tmp_path / 'cache' / name).write_text('x')
        cache = cache_of(plain, tmp_path / 'cache', limit=2 * SIZE)
        for entry in plain.entries:
            cache.acquire(entry).release()
        assert {'notes.txt', 'shard.00000.mds.tmp'} < set(names(tmp_path / 'cache'))

    def test_it_pickles(self, plain, tmp_path):
        cache = ShardCache(tmp_path / 'cache', store=plain.store, limit=3 * SIZE, keep_packed=True, retry=FAST)
        cache.fetch(plain.entries[0])
        copy = pickle.loads(pickle.dumps(cache))
        assert (copy.folder, copy.keep_packed, copy.retry) == (cache.folder, True, FAST)
        with copy.acquire(plain.entries[1]) as lease:
            plain.check(lease)
        assert copy.stats.fetches == 1


class TestShrunkFiles:
    """The system ends a process that reads a mapped file behind its end."""

    def test_one_that_shrinks_before_it_is_locked_is_fetched_again(self, plain, tmp_path):
        def work():
            cache = cache_of(plain, tmp_path / 'cache', limit=10 * SIZE)
            cache.fetch(plain.entries[0])
            path = tmp_path / 'cache' / plain.entries[0].key
            handle = os.open(path, os.O_RDWR)
            fcntl.flock(handle, fcntl.LOCK_EX)

            def shrink():
                os.ftruncate(handle, 100)
                os.close(handle)

            as_somebody_waits(shrink)
            with cache.acquire(plain.entries[0]) as lease:
                plain.check(lease)
            assert cache.stats.fetches == 2

        run_alone(work)

    @pytest.mark.parametrize('limit', [None, 10 * SIZE])
    @pytest.mark.parametrize('size', [SIZE, SIZE + 10])
    def test_the_cache_replaces_what_is_mapped_and_never_writes_to_it(self, remote, tmp_path, limit, size):
        entry = remote.entries[0]
        first = cache_of(remote, tmp_path / 'cache', limit=limit).acquire(entry)
        held = [bytes(buffer) for buffer in first.buffers]
        path = tmp_path / 'cache' / entry.key
        bad = path.with_name('bad')
        bad.write_bytes(bytes(size))
        os.utime(bad, (0, 0))
        bad.replace(path)
        handle = os.open(path, os.O_RDONLY)
        cache = cache_of(remote, tmp_path / 'cache', limit=limit, verify_present=True)
        with cache.acquire(entry) as lease:
            remote.check(lease)
        assert os.pread(handle, 2 * size, 0) == bytes(size)
        assert [bytes(buffer) for buffer in first.buffers] == held
        os.close(handle)
        first.release()


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

        cache = cache_of(plain, tmp_path / 'cache', limit=limit, store=FaultyStore(plain.store, [delete] * 1000))
        with pytest.raises(CacheError, match='was deleted as often as it was fetched'):
            cache.acquire(plain.entries[0])

    @pytest.mark.parametrize('limit', [None, 10 * SIZE])
    def test_one_that_is_deleted_after_each_fetch_is_an_error_and_leaves_no_open_file(self, plain, tmp_path, limit):
        class Deleting(CacheStats):
            def add(self, *, fetches=0, **others):
                super().add(fetches=fetches, **others)
                if fetches:
                    (tmp_path / 'cache' / plain.entries[0].key).unlink()

        cache = cache_of(plain, tmp_path / 'cache', limit=limit, stats=Deleting())
        before = open_descriptors()
        with pytest.raises(CacheError, match='was deleted as often as it was fetched'):
            cache.acquire(plain.entries[0])
        assert open_descriptors() == before
        assert cache.stats.fetches > 1


class TestBadDownloads:
    """A file that is not what the index says is fetched once more, then it is an error."""

    @pytest.mark.parametrize('fault', ['short', 'flipped', 'long', 'empty'])
    def test_one_bad_download_is_repaired(self, remote, tmp_path, fault):
        store = FaultyStore(remote.store, [fault])
        cache = cache_of(remote, tmp_path / 'cache', store=store, retry=FAST)
        with cache.acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert cache.stats.retries == 1

    @pytest.mark.parametrize('fault', ['short', 'flipped', 'long', 'empty'])
    def test_two_bad_downloads_are_an_error_that_names_everything(self, remote, tmp_path, fault):
        store = FaultyStore(remote.store, [fault] * 2)
        cache = cache_of(remote, tmp_path / 'cache', store=store, retry=FAST)
        part = remote.entries[0].parts[0]
        with pytest.raises(ChecksumError) as caught:
            cache.acquire(remote.entries[0])
        for word in (
            f'{remote.folder}/{part.packed_name or part.name}',
            f'{tmp_path}/cache/{part.name}',
            'fetched twice',
        ):
            assert word in str(caught.value)
        assert store.calls['get', part.packed_name or part.name] == 2
        assert names(tmp_path / 'cache') == []
        with cache.acquire(remote.entries[0]) as lease:  # the store has recovered: nothing of the failure stayed
            remote.check(lease)

    def test_broken_transfers_are_retried(self, remote, tmp_path):
        store = FaultyStore(remote.store, ['broken', 'busy', 'broken'])
        cache = cache_of(remote, tmp_path / 'cache', store=store, retry=FAST)
        with cache.acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert cache.stats.retries == 3

    def test_and_given_up(self, remote, tmp_path):
        store = FaultyStore(remote.store, ['busy'] * 3)
        with pytest.raises(TransferError, match='after 3 attempts'):
            cache_of(remote, tmp_path / 'cache', store=store, retry=FAST).acquire(remote.entries[0])
        assert names(tmp_path / 'cache') == []

    @pytest.mark.parametrize(('fault', 'error'), [('denied', AccessDeniedError), (None, ObjectNotFoundError)])
    def test_what_waiting_does_not_cure_is_raised_at_once(self, plain, tmp_path, fault, error):
        if fault is None:
            (plain.folder / 'shard.00000.mds').unlink()
        store = FaultyStore(plain.store, [fault])
        with pytest.raises(error):
            cache_of(plain, tmp_path / 'cache', store=store).acquire(plain.entries[0])
        assert store.calls['get', 'shard.00000.mds'] == 1

    def test_a_bomb_is_not_unpacked(self, packed, tmp_path):
        part = packed.entries[0].parts[0]
        lying = CachePart(part.name, 100, part.packed_name, part.packed_size, None, None, part.unpack)
        with pytest.raises(ChecksumError, match='more than 100 bytes'):
            cache_of(packed, tmp_path / 'cache').acquire(CacheEntry((lying,)))
        assert names(tmp_path / 'cache') == []

    def test_a_wrong_size_after_unpacking_is_an_error(self, packed, tmp_path):
        part = packed.entries[0].parts[0]
        lying = CachePart(part.name, SIZE + 1, part.packed_name, part.packed_size, None, None, part.unpack)
        with pytest.raises(ChecksumError, match=f'unpacks to {SIZE} bytes, the index gives {SIZE + 1}'):
            cache_of(packed, tmp_path / 'cache').acquire(CacheEntry((lying,)))

    def test_verify_present_repairs_what_was_there(self, remote, tmp_path):
        cache_of(remote, tmp_path / 'cache').fetch(remote.entries[0])
        path = tmp_path / 'cache' / remote.entries[0].parts[-1].name
        path.write_bytes(bytes(SIZE))
        with cache_of(remote, tmp_path / 'cache', verify_present=True).acquire(remote.entries[0]) as lease:
            remote.check(lease)
        path.write_bytes(bytes(SIZE))
        cache = cache_of(remote, tmp_path / 'cache', verify_present=True)
        assert cache.fetch(remote.entries[0])
        with cache_of(remote, tmp_path / 'cache').acquire(remote.entries[0]) as lease:
            remote.check(lease)


class TestLocalOnly:
    """A folder without a store is the user's only copy."""

    @pytest.fixture(params=['no store', 'store is the folder', 'store is a link to the folder'])
    def how(self, request, remote, tmp_path):
        if request.param == 'no store':
            return {'store': None}
        if request.param == 'store is the folder':
            return {'store': LocalStore(remote.folder)}
        (tmp_path / 'link').symlink_to(remote.folder)
        return {'store': LocalStore(tmp_path / 'link')}

    def test_nothing_is_written_locked_or_deleted(self, plain, tmp_path, monkeypatch):
        monkeypatch.setattr('fcntl.flock', lambda *_: pytest.fail('a lock was taken'))
        before = {name: (plain.folder / name).stat().st_mtime_ns for name in names(plain.folder)}
        cache = cache_of(plain, plain.folder, store=None, limit=SIZE)
        for entry in plain.entries:
            with cache.acquire(entry) as lease:
                plain.check(lease)
            assert not cache.evict(entry)
        assert {name: (plain.folder / name).stat().st_mtime_ns for name in names(plain.folder)} == before

    def test_packed_only_is_unpacked_and_stays(self, remote, how):
        before = names(remote.folder)
        cache = cache_of(remote, remote.folder, limit=SIZE, **how)
        for entry in remote.entries:
            with cache.acquire(entry) as lease:
                remote.check(lease)
            assert not cache.evict(entry)
        assert set(names(remote.folder)) == {*before, *raw_names(remote, 0, 1, 2, 3)}

    def test_what_is_missing_is_named(self, remote, how):
        entry = remote.entries[0]
        stored = entry.parts[-1].packed_name or entry.parts[-1].name
        (remote.folder / stored).unlink()
        with pytest.raises(RuntimeError, match=r'No `remote` provided, but local file .*shard.00000'):
            cache_of(remote, remote.folder, **how).acquire(entry)

    def test_a_bad_local_file_is_an_error_and_stays(self, remote, how):
        part = remote.entries[0].parts[0]
        path = remote.folder / (part.packed_name or part.name)
        path.write_bytes(b'x')
        with pytest.raises(ChecksumError, match='Restore'):
            cache_of(remote, remote.folder, **how).acquire(remote.entries[0])
        assert path.read_bytes() == b'x'

    def test_a_read_only_folder_is_fine_unless_it_must_be_written(self, plain, tmp_path, monkeypatch):
        def refuse(*args, **kwargs):
            raise PermissionError(30, 'Read-only file system')

        for name in ('mkdir', 'rename', 'replace', 'unlink', 'utime'):
            monkeypatch.setattr(os, name, refuse)
        cache = cache_of(plain, plain.folder, store=None)
        with cache.acquire(plain.entries[0]) as lease:
            plain.check(lease)


class TestSafety:
    @pytest.mark.parametrize('name', ['../x', '/etc/passwd', 'a/../../x', 'a\\..\\x', '', 'a\0', './x'])
    def test_a_name_that_leaves_the_folder_is_no_part(self, name):
        with pytest.raises(ConfigError, match='relative to its root'):
            CachePart(name, 1)
        with pytest.raises(ConfigError, match='relative to its root'):
            CachePart('x', 1, packed_name=name, unpack=lambda *_: None)

    @pytest.mark.parametrize('local_only', [False, True])
    @pytest.mark.parametrize('of', ['file', 'folder'])
    def test_a_link_out_of_the_folder_is_refused(self, tmp_path, local_only, of):
        remote = make_remote(tmp_path / 'remote', prefix='sub/')
        cache = cache_of(remote, tmp_path / 'cache', **({'store': None} if local_only else {}))
        outside = tmp_path / 'outside'
        outside.mkdir()
        (outside / 'shard.00000.mds').write_bytes(remote.data['sub/shard.00000.mds'])
        (tmp_path / 'cache').mkdir()
        if of == 'folder':
            (tmp_path / 'cache/sub').symlink_to(outside)
        else:
            (tmp_path / 'cache/sub').mkdir()
            (tmp_path / 'cache/sub/shard.00000.mds').symlink_to(outside / 'shard.00000.mds')
        with pytest.raises(CacheError, match=r'may lead out of it.*cp -L'):
            cache.acquire(remote.entries[0])
        if of == 'folder' and not local_only:
            with pytest.raises(CacheError, match='may lead out of it'):
                cache.acquire(remote.entries[1])
            assert names(outside) == ['shard.00000.mds']

    def test_a_link_inside_the_folder_is_followed(self, plain):
        (plain.folder / 'shard.00000.mds').rename(plain.folder / 'blob')
        (plain.folder / 'shard.00000.mds').symlink_to('blob')
        with cache_of(plain, plain.folder, store=None).acquire(plain.entries[0]) as lease:
            plain.check(lease)

    @pytest.mark.parametrize('make', [os.mkdir, os.mkfifo])
    def test_what_is_no_file_is_no_shard(self, plain, tmp_path, make):
        (tmp_path / 'cache').mkdir()
        make(tmp_path / 'cache/shard.00000.mds')
        with pytest.raises(CacheError, match='regular file'):
            cache_of(plain, tmp_path / 'cache').acquire(plain.entries[0])


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


class TestLease:
    @pytest.mark.parametrize('limit', [None, 10 * SIZE])
    def test_arrays_outlive_the_lease(self, plain, tmp_path, limit):
        cache = cache_of(plain, tmp_path / 'cache', limit=limit)
        lease = cache.acquire(plain.entries[0])
        array = np.frombuffer(lease.buffers[0], np.uint8)
        view = lease.buffers[0][10:20]
        lease.release()
        lease.release()
        assert lease.buffers == ()
        assert cache.evict(plain.entries[0])
        assert array.tobytes() == plain.data['shard.00000.mds']
        assert view == plain.data['shard.00000.mds'][10:20]

    def test_buffers_are_read_only(self, plain, tmp_path):
        with cache_of(plain, tmp_path / 'cache').acquire(plain.entries[0]) as lease:
            with pytest.raises(TypeError):
                lease.buffers[0][0] = 1
            assert not np.frombuffer(lease.buffers[0], np.uint8).flags.writeable

    @pytest.mark.parametrize('limit', [None, 10 * SIZE])
    @pytest.mark.parametrize('release', [True, False])
    def test_descriptors_do_not_grow(self, remote, tmp_path, limit, release):
        def use(cache):
            for entry in remote.entries:
                lease = cache.acquire(entry)
                np.frombuffer(lease.buffers[0], np.uint8)
                if release:
                    lease.release()

        def work():
            cache = cache_of(remote, tmp_path / 'cache', limit=limit)
            use(cache)
            gc.collect()
            before = open_descriptors()
            for _ in range(50):
                use(cache)
                cache.evict(remote.entries[0])
            cache = None
            gc.collect()
            assert open_descriptors() == before

        run_alone(work)

    def test_failures_leave_no_descriptors(self, plain, tmp_path):
        def work():
            store = FaultyStore(plain.store, ['denied'] * 20)
            cache = cache_of(plain, tmp_path / 'cache', store=store, limit=10 * SIZE)
            before = open_descriptors()
            for _ in range(20):
                with pytest.raises(AccessDeniedError):
                    cache.acquire(plain.entries[0])
            assert open_descriptors() == before

        run_alone(work)

    def test_a_leased_shard_is_not_evicted(self, plain, tmp_path):
        cache = cache_of(plain, tmp_path / 'cache', limit=10 * SIZE)
        with cache.acquire(plain.entries[0]), cache.acquire(plain.entries[0]):
            assert not cache.evict(plain.entries[0])
        assert cache.evict(plain.entries[0])
        assert not cache.evict(plain.entries[0])

    def test_a_folder_that_is_mounted_read_only_keeps_its_times(self, plain, tmp_path, monkeypatch):
        """``utime`` fails there with EROFS, and not with EACCES as for another user's file."""
        cache_of(plain, tmp_path / 'cache').fetch(plain.entries[0])
        monkeypatch.setattr('headrace.storage.cache.mapped_file.USE_NOTED', -1.0)  # at each use
        refused = []

        def utime(*_, **__):
            refused.append(1)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(os, 'utime', utime)
        with cache_of(plain, tmp_path / 'cache', limit=10 * SIZE).acquire(plain.entries[0]) as lease:
            plain.check(lease)
        assert refused


@pytest.mark.parametrize('name', ['.headrace/ledger', '.headrace-remote', 'a/.HeadRace-index'])
def test_names_are_none_of_the_cache_itself(name):
    with pytest.raises(ConfigError, match='begins with `.headrace`'):
        CachePart(name, 1)
    with pytest.raises(ConfigError, match='begins with `.headrace`'):
        CachePart('shard', 1, packed_name=name, unpack=lambda *_: None)


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
    assert cache.stats.fetches == 4
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


def test_no_warnings_about_open_files(plain, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        cache = cache_of(plain, tmp_path / 'cache')
        cache.acquire(plain.entries[0])
        gc.collect()


def test_a_set_of_entries_with_numbers_and_without():
    def entry(number: int, name: str = 'x') -> CacheEntry:
        return CacheEntry((CachePart(name, 1),), id=number)

    found = EntrySet()
    for number in (0, 5, 1023, 1024, 70_000):
        found.add(entry(number))
    found.add(entry(-1, 'y'))
    assert [n for n in range(71_000) if entry(n) in found] == [0, 5, 1023, 1024, 70_000]
    assert entry(-1, 'y') in found
    assert entry(-1, 'x') not in found


def test_a_late_entry_is_the_one_it_is_made_of():
    made: list[int] = []

    def make(number: int) -> CacheEntry:
        made.append(number)
        return CacheEntry((CachePart('a', 3), CachePart('b', 4)), id=number)

    entry = make(7)
    late = LazyEntry(entry, make)
    assert (late.id, late.key, made) == (7, 'a', [7])
    assert (late.parts, late.size) == (entry.parts, 7)
    assert made == [7, 7, 7]
