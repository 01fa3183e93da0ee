"""What goes where room is short."""

import pickle
import sys
import threading
from dataclasses import replace

import pytest

from headrace.storage import CacheEntry, CacheLimit
from headrace.storage.cache.locks import locked_folders
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
