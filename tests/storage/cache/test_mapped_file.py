"""Mapped files and their leases: what shrinks, what leads out of the folder, and what leases hold."""

from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from headrace.errors import (
    AccessDeniedError,
    CacheError,
    ConfigError,
)
from headrace.storage import CachePart
from headrace.testing.stores import FaultyStore
from tests.support.programs.descriptors import open_descriptors
from tests.support.programs.together import as_somebody_waits, run_alone
from tests.support.stores.shards import SIZE, cache_of, make_remote, names


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
            assert cache.stats.counts.shards_fetched == 2

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

    def test_descriptors_do_not_grow(self, remote, tmp_path):
        def use(cache, release):
            for entry in remote.entries:
                lease = cache.acquire(entry)
                np.frombuffer(lease.buffers[0], np.uint8)
                if release:
                    lease.release()

        def work():
            for limit, release in itertools.product([None, 10 * SIZE], [True, False]):
                cache = cache_of(remote, tmp_path / f'{limit} {release}', limit=limit)
                use(cache, release)
                gc.collect()
                before = open_descriptors()
                for _ in range(20):
                    use(cache, release)
                    cache.evict(remote.entries[0])
                cache = None
                gc.collect()
                assert open_descriptors() == before, (limit, release)

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


@pytest.mark.parametrize('limit', [None, 10 * SIZE])
def test_a_lease_that_outlives_its_modules_ends_quietly(plain, tmp_path, limit):
    program = """if True:
        import sys
        from tests.support.stores.shards import cache_of, make_remote
        from pathlib import Path
        remote = make_remote(Path(sys.argv[1]))
        lease = cache_of(remote, sys.argv[2], limit=eval(sys.argv[3])).acquire(remote.entries[0])
        module = sys.modules['headrace.storage.cache.mapped_file']
        for name in list(vars(module)):  # as the interpreter does it at its end
            setattr(module, name, None)
        del lease
    """
    environ = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
    command = [sys.executable, '-W', 'ignore', '-c', program, str(plain.folder), str(tmp_path / 'cache'), str(limit)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, '')
