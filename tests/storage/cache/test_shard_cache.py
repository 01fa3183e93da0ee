from __future__ import annotations

import gc
import os
import pickle
import shutil
import warnings

import pytest

from headrace.errors import (
    ChecksumError,
)
from headrace.storage import CacheEntry, CachePart, ShardCache
from headrace.storage.stores.local import LocalStore
from headrace.testing.stores import CountingStore
from tests.support.stores.shards import FAST, SIZE, cache_of, names


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
        assert (cache.stats.counts.shards_fetched, cache.stats.counts.cache_hits) == (4, 4)
        assert cache.stats.counts.retries == 0

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
        assert cache.stats.counts.bytes_downloaded == sum(part.packed_size or part.size for part in entry.parts)
        assert cache.stats.counts.bytes_unpacked == sum(part.size for part in entry.parts if part.packed_name)

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
        assert copy.stats.counts.shards_fetched == 1


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


def test_no_warnings_about_open_files(plain, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        cache = cache_of(plain, tmp_path / 'cache')
        cache.acquire(plain.entries[0])
        gc.collect()
