"""Files of a shard that arrive damaged are fetched once more."""

from __future__ import annotations

import os
import pickle
import time
from dataclasses import replace

import pytest

from headrace.errors import (
    AccessDeniedError,
    ChecksumError,
    ObjectNotFoundError,
    TransferError,
)
from headrace.storage import CacheEntry, CachePart, Retry
from headrace.testing.stores import FaultyStore
from tests.support.stores.shards import FAST, SIZE, cache_of, names


class TestBadDownloads:
    """A file that is not what the index says is fetched once more, then it is an error."""

    @pytest.mark.parametrize('fault', ['short', 'flipped', 'long', 'empty'])
    def test_one_bad_download_is_repaired(self, remote, tmp_path, fault):
        store = FaultyStore(remote.store, [fault])
        cache = cache_of(remote, tmp_path / 'cache', store=store, retry=FAST)
        with cache.acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert cache.stats.counts.retries == 1

    @pytest.mark.parametrize('fault', ['short', 'flipped', 'long', 'empty'])
    def test_two_bad_downloads_are_an_error_that_names_everything(self, remote, tmp_path, fault):
        times = 2 if fault == 'flipped' else 1 + len(FAST.pauses)  # one of another size may be about to be replaced
        store = FaultyStore(remote.store, [fault] * times)
        cache = cache_of(remote, tmp_path / 'cache', store=store, retry=FAST)
        part = remote.entries[0].parts[0]
        with pytest.raises(ChecksumError) as caught:
            cache.acquire(remote.entries[0])
        for word in (
            f'{remote.folder}/{part.packed_name or part.name}',
            f'{tmp_path}/cache/{part.name}',
            'fetched more than once',
        ):
            assert word in str(caught.value)
        assert store.calls['get', part.packed_name or part.name] == times
        assert names(tmp_path / 'cache') == []
        with cache.acquire(remote.entries[0]) as lease:  # the store has recovered: nothing of the failure stayed
            remote.check(lease)

    def test_broken_transfers_are_retried(self, remote, tmp_path):
        store = FaultyStore(remote.store, ['broken', 'busy', 'broken'])
        cache = cache_of(remote, tmp_path / 'cache', store=store, retry=FAST)
        with cache.acquire(remote.entries[0]) as lease:
            remote.check(lease)
        assert cache.stats.counts.retries == 3

    def test_and_given_up(self, remote, tmp_path):
        store = FaultyStore(remote.store, ['busy'] * 3)
        with pytest.raises(TransferError, match='after 3 attempts'):
            cache_of(remote, tmp_path / 'cache', store=store, retry=FAST).acquire(remote.entries[0])
        assert names(tmp_path / 'cache') == []

    def test_what_waiting_does_not_cure_is_raised_at_once(self, plain, tmp_path):
        store = FaultyStore(plain.store, ['denied'])
        with pytest.raises(AccessDeniedError):
            cache_of(plain, tmp_path / 'cache', store=store).acquire(plain.entries[0])
        assert store.calls['get', 'shard.00000.mds'] == 1

    @pytest.mark.parametrize('state', ['absent', 'empty', 'a beginning'])
    def test_an_object_that_its_owner_replaces_in_two_steps_is_waited_for(self, plain, tmp_path, state):
        path, (entry, *_) = plain.folder / 'shard.00000.mds', plain.entries
        data, slept = path.read_bytes(), []

        def first_step():
            path.unlink()
            if state != 'absent':
                path.write_bytes(data[: 100 * (state == 'a beginning')])

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 3:
                path.write_bytes(data)

        first_step()
        with cache_of(plain, tmp_path / 'cache', retry=Retry(sleep=sleep)).acquire(entry) as lease:
            plain.check(lease)
        assert slept == [0.5, 1, 2]
        first_step()
        with pytest.raises(ObjectNotFoundError if state == 'absent' else ChecksumError) as caught:
            cache_of(plain, tmp_path / 'other', retry=Retry(sleep=slept.append)).acquire(entry)
        assert slept[3:] == [0.5, 1, 2]
        if state != 'absent':
            assert plain.store.head(entry.key).etag in str(caught.value)

    def test_both_states_of_an_object_that_changes_are_named(self, plain, tmp_path):
        path, first = plain.folder / 'shard.00000.mds', []

        def sleep(seconds):
            path.write_bytes(bytes(77))

        path.write_bytes(bytes(33))
        first = plain.store.head('shard.00000.mds').etag
        with pytest.raises(ChecksumError) as caught:
            cache_of(plain, tmp_path / 'cache', retry=Retry(sleep=sleep)).acquire(plain.entries[0])
        for word in ('has 33 bytes', 'has 77 bytes', first, plain.store.head('shard.00000.mds').etag):
            assert word in str(caught.value)

    def test_a_bomb_is_not_unpacked(self, packed, tmp_path):
        part = packed.entries[0].parts[0]
        lying = CachePart(part.name, 100, part.packed_name, part.packed_size, unpack=part.unpack)
        with pytest.raises(ChecksumError, match='more than 100 bytes'):
            cache_of(packed, tmp_path / 'cache').acquire(CacheEntry((lying,)))
        assert names(tmp_path / 'cache') == []

    def test_a_wrong_size_after_unpacking_is_an_error(self, packed, tmp_path):
        part = packed.entries[0].parts[0]
        lying = CachePart(part.name, SIZE + 1, part.packed_name, part.packed_size, unpack=part.unpack)
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

    @pytest.mark.parametrize('later', [-3600, 0, 3600])
    def test_verify_present_rests_on_no_clock(self, remote, tmp_path, later):
        cache_of(remote, tmp_path / 'cache', verify_present=True).fetch(remote.entries[0])
        path = tmp_path / 'cache' / remote.entries[0].parts[-1].name
        for replaces in (False, True):  # as damage of the disk, and as `rsync -t`
            damaged = tmp_path / 'damaged' if replaces else path
            damaged.write_bytes(bytes(SIZE))
            os.utime(damaged, (time.time() + later,) * 2)
            damaged.replace(path)
            with cache_of(remote, tmp_path / 'cache', verify_present=True).acquire(remote.entries[0]) as lease:
                remote.check(lease)

    def test_what_this_run_has_verified_is_verified_again_only_if_it_changed(self, plain, tmp_path):
        verified = []
        part = replace(plain.entries[0].parts[0], verify=lambda path: verified.append(path.name))
        entry = CacheEntry((part,))
        cache = cache_of(plain, tmp_path / 'cache', verify_present=True, entry_of=None)
        assert cache.fetch(entry)
        worker = pickle.loads(pickle.dumps(cache))
        for each in (cache, worker):
            assert each.fetch(entry)
        assert len(verified) == 1
        assert cache_of(plain, tmp_path / 'cache', verify_present=True).fetch(entry)
        assert len(verified) == 2
        os.utime(tmp_path / 'cache' / part.name, (1, 1))
        assert pickle.loads(pickle.dumps(worker)).fetch(entry)
        assert len(verified) == 3
