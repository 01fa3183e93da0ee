"""What goes where room is short, and the bytes in a folder: counts, and the ledger of them."""

from __future__ import annotations

import json
import math
import pickle
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headrace.storage import CacheEntry, CacheLimit
from headrace.storage.cache import limit
from headrace.storage.cache.limit import LimitedFolder, count_files
from headrace.storage.cache.locks import locked_folders
from headrace.storage.stats import CacheStats
from tests.support.programs.together import locks_waited_for
from tests.support.programs.waiting import until
from tests.support.stores.shards import SIZE, cache_of, disk_use, fetch_index, make_remote, names, unpack


def test_of_a_folder_of_two_streams_goes_what_neither_needs_soon(tmp_path):
    remote = make_remote(tmp_path / 'remote', 4)
    other = replace(remote, entries=[replace(entry, id=100 + entry.id) for entry in remote.entries])
    # Shard 0 is needed next by one of the streams only, shard 1 by both, but later.
    uses = {0: 9.0, 100: 1.0, 1: 5.0, 101: 6.0}
    for streams in ([remote, other], [other, remote]):
        limit, folder = CacheLimit(2 * SIZE + SIZE // 2), tmp_path / f'cache-{streams[0].entries[0].id}'
        caches = [cache_of(stream, folder, limit=limit) for stream in streams]
        for number in (0, 1, 2):
            caches[0].acquire(streams[0].entries[number], next_use=lambda entry: uses.get(entry.id, 99.0)).release()
        assert names(folder) == ['shard.00000.mds', 'shard.00002.mds']
        assert caches[1].is_present(streams[1].entries[0])


def test_an_index_counts_after_unpickling_too(tmp_path):
    remote = make_remote(tmp_path / 'remote', 1)
    (remote.folder / 'index.json').write_text('{}')
    index = fetch_index(tmp_path / 'cache', remote.store)
    cache = cache_of(remote, tmp_path / 'cache', index=index, limit=CacheLimit(10 * SIZE), entry_of=None)
    assert pickle.loads(pickle.dumps(cache)).fixed_size == cache.fixed_size == 2 + len(f'{remote.folder}\n')


@pytest.mark.skipif(sys.platform != 'linux', reason='waiting for locks is looked at in /proc')
def test_a_compressed_file_that_is_evicted_before_the_reservation_has_room_again(tmp_path):
    remote, folder, used = make_remote(tmp_path / 'remote', 2, packed=True), tmp_path / 'cache', list[int]()

    def watched_unpack(packed, raw, limit):
        unpack(packed, raw, limit)
        used.append(disk_use(folder))

    part = replace(remote.entries[0].parts[0], unpack=watched_unpack)
    first, second = CacheEntry((part,), id=0), remote.entries[1]
    limit = 3 * SIZE + SIZE // 2
    remote.entries[0] = first
    cache = cache_of(remote, folder, limit=limit, keep_packed=True)
    cache.fetch(second)
    (folder / part.packed_name).write_bytes((remote.folder / part.packed_name).read_bytes())

    fetch = threading.Thread(target=cache.fetch, args=(first,))
    with locked_folders([folder]):  # as an eviction of the first shard, which has deleted its first file
        fetch.start()
        until(locks_waited_for)
        (folder / part.packed_name).unlink()
    fetch.join()
    assert used
    assert max(used) <= limit
    assert cache.is_present(first)


@pytest.mark.once
def test_a_count_that_was_held_up_once_is_not_good_for_long(tmp_path, monkeypatch):
    clock = SimpleNamespace(seconds=0.0, monotonic=lambda: clock.seconds)
    monkeypatch.setattr(limit, 'time', clock)

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


@pytest.mark.once
class TestLedger:
    """Counts of large folders are remembered; nothing that happens to the record may lead to more than the limit."""

    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setattr('headrace.storage.cache.limit.CHEAP', -1.0)
        monkeypatch.setattr('headrace.storage.cache.limit.SHARE', 1e6)
        self.remote = make_remote(tmp_path / 'remote', 6)
        self.folder = tmp_path / 'cache'
        return cache_of(self.remote, self.folder, limit=3 * SIZE)

    def test_where_nothing_could_go_what_is_there_is_looked_at_again(self, cache, monkeypatch):
        monkeypatch.setattr('headrace.storage.cache.limit.SURE', 1e-6)
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
