"""Shards that cannot be read: fetched once a pass, and again in the next one."""

from __future__ import annotations

import pytest

from headrace import (
    BAD_SAMPLE,
    StreamingDataset,
)
from headrace.storage.stores.local import LocalStore
from tests.support.datasets.bad_data import (
    ABSENT,
    BAD,
    CORRUPT,
    SINGLE,
    TRUNCATED,
    Own,
    checked,
    damage,
    make,
    shard_of,
    write_texts,
)


@pytest.fixture
def requests(monkeypatch) -> list[str]:
    """Shards that were asked of the store by this process."""
    found: list[str] = []
    get = LocalStore.get

    def counting(self, key, *args, **kwargs):
        found.append(key)
        return get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, 'get', counting)
    return found


@pytest.mark.parametrize('cls', [StreamingDataset, Own])
@pytest.mark.parametrize('limit', [None, 3000])
def test_a_bad_shard_is_fetched_once_a_pass(damaged_remote, tmp_path, requests, cls, limit):
    loader = make(damaged_remote, tmp_path, cls=cls, global_batch_size=2, cache_limit=limit, download_retry=0)
    for number in (1, 2):
        list(checked(loader))
        asked = {shard: requests.count(f'shard.{shard:05}.mds') for shard in (CORRUPT, ABSENT, TRUNCATED)}
        # Damaged bytes of the right size stay in the cache; the second time they are all there is to fetch anew.
        # Within a limit they may be evicted at any moment before they are read, and be fetched once more.
        if limit is None:
            assert asked[CORRUPT] == 1 + number
        # Once more after a pause: its owner may be replacing it.
        assert asked[ABSENT] == 2 * number
        assert asked[TRUNCATED] == 2 * number


def test_what_is_repaired_is_read_in_the_next_pass(tmp_path):
    damaged_remote = damage(write_texts(tmp_path / 'remote'))
    for loader in ({}, {'persistent_workers': True}):
        workers = 1 if loader else 0
        damage(write_texts(damaged_remote))
        found = make(damaged_remote, tmp_path / f'local{workers}', workers=workers, loader={'fixed_epoch': 0, **loader})
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(found)) == len(BAD)
        write_texts(damaged_remote)
        # The shard with one bad sample is in the cache, and no shard by itself.
        assert sum(int(batch[BAD_SAMPLE].sum()) for batch in checked(found, {SINGLE})) == 1


def test_a_damaged_copy_in_the_cache_is_fetched_anew(tmp_path):
    damaged_remote, local = write_texts(tmp_path / 'remote'), tmp_path / 'local'
    list(checked(make(damaged_remote, local), set()))
    shard_of(local, 2).write_bytes(b'\xff' * shard_of(local, 2).stat().st_size)
    assert len(list(checked(make(damaged_remote, local), set()))) == 5
    assert shard_of(local, 2).read_bytes() == shard_of(damaged_remote, 2).read_bytes()
