"""What goes where room is short."""

import pickle
from dataclasses import replace

from shards import SIZE, cache_of, make_remote, names

from headrace.storage import CacheLimit


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
    cache = cache_of(remote, tmp_path / 'cache', limit=CacheLimit(10 * SIZE), entry_of=None)
    cache.fetch_index('index.json')
    assert pickle.loads(pickle.dumps(cache)).fixed_size == cache.fixed_size == 2 + len(f'{remote.folder}\n')
