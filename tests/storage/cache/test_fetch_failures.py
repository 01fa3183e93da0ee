"""Folders that are deleted, full, or not to be written during a fetch."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from headrace.errors import (
    CacheError,
    DiskFullError,
)
from headrace.storage import CacheStats
from headrace.testing.stores import FaultyStore
from tests.support.programs.descriptors import open_descriptors
from tests.support.stores.shards import SIZE, cache_of, make_remote, names


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
