"""The bytes in a cache folder: counts, and the ledger of them."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from headrace.storage.cache import limit
from headrace.storage.cache.limit import LimitedFolder, count_files
from headrace.storage.stats import CacheStats
from tests.support.stores.shards import SIZE, cache_of, disk_use, make_remote


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
        monkeypatch.setattr('headrace.storage.cache.limit.SURE', 0)
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
