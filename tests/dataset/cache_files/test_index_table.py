"""The cached table of a large index: used if it is right, else ignored."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import time

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.dataset.cache_files import index_table
from headrace.dataset.streams.open_streams import open_streams
from headrace.errors import FormatError
from headrace.format import ShardTable, index
from headrace.storage.cache.locks import lock_file

processes = multiprocessing.get_context('fork')


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(index_table, 'WORTHWHILE', 5)


@pytest.fixture
def remote(make_dataset):
    return make_dataset('remote', 100)


@pytest.fixture
def local(tmp_path):
    return tmp_path / 'local'


@pytest.fixture
def parses(monkeypatch):
    """One entry for each time that an index is parsed."""
    calls = []
    parse = index.parse_index

    def counted(*arguments, **options):
        calls.append(arguments)
        return parse(*arguments, **options)

    monkeypatch.setattr(index, 'parse_index', counted)
    return calls


def opened(remote, local, *, allow_unsafe_types=False):
    stream = Stream(remote=str(remote), local=str(local))
    open_streams([stream], cache_limit=None, allow_unsafe_types=allow_unsafe_types)
    return stream


def ids(**arguments):
    return [sample['id'] for sample in StreamingDataset(**arguments)[:]]


def test_an_index_is_parsed_once(remote, local, parses):
    first = opened(remote, local)
    assert len(parses) == 1
    second = opened(remote, local)
    assert len(parses) == 1
    assert second.shards == first.shards == StreamingDataset(local=str(remote)).shards
    assert second.fingerprint == first.fingerprint
    assert sorted(os.listdir(local)) == ['.headrace-index', '.headrace-remote', 'index.json']
    assert ids(remote=str(remote), local=str(local)) == list(range(100))


def test_nothing_is_kept_of_a_small_index_or_in_the_users_own_folder(remote, local, monkeypatch):
    before = sorted(os.listdir(remote))
    StreamingDataset(local=str(remote))
    StreamingDataset(remote=str(remote), local=str(remote))
    assert sorted(os.listdir(remote)) == before
    monkeypatch.setattr(index_table, 'WORTHWHILE', 11)
    opened(remote, local)
    assert sorted(os.listdir(local)) == ['.headrace-remote', 'index.json']


def test_another_index_is_parsed_and_kept_again(remote, local, parses):
    opened(remote, local)
    text = (local / 'index.json').read_text()
    samples = f'"samples": {opened(remote, local).shards[0].samples}'
    for change in (text.replace(samples, '"samples": 1'.ljust(len(samples))), text + ' '):
        (local / 'index.json').write_text(change)
        parses.clear()
        assert opened(remote, local).shards == opened(remote, local).shards
        assert len(parses) == 1
    assert opened(remote, local).shards == opened(remote, local.with_name('other')).shards


def replace_by_folder(kept):
    kept.unlink()
    kept.mkdir()


def replace_by_link(kept):
    shutil.move(kept, kept.with_name('elsewhere'))
    kept.symlink_to('elsewhere')


def replace_by_pipe(kept):
    kept.unlink()
    os.mkfifo(kept)


DAMAGE = {
    'truncated': lambda kept: os.truncate(kept, 300),
    'empty': lambda kept: os.truncate(kept, 0),
    'flipped': lambda kept: kept.write_bytes(kept.read_bytes()[:-9] + b'?' + kept.read_bytes()[-8:]),
    'other version': lambda kept: kept.write_bytes(kept.read_bytes().replace(b'table 1', b'table 0')),
    'too large': lambda kept: os.truncate(kept, 1 << 40),
    'unreadable': lambda kept: kept.write_bytes(os.urandom(500)),
    'a folder': replace_by_folder,
    'a link': replace_by_link,
    'a pipe': replace_by_pipe,
}


@pytest.mark.parametrize('damage', DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_not_believed(remote, local, parses, damage):
    good = opened(remote, local).shards
    damage(local / index_table.TABLE)
    parses.clear()
    assert opened(remote, local).shards == good
    assert len(parses) == 1
    assert ids(remote=str(remote), local=str(local)) == list(range(100))


def test_what_belongs_to_a_stranger_is_not_believed(remote, local, parses, monkeypatch):
    opened(remote, local)
    handle = os.open(local / index_table.TABLE, os.O_RDONLY)
    stranger = os.fstat(handle).st_uid + 1
    os.close(handle)
    size = os.path.getsize(local / 'index.json')
    assert index_table._read_table(local / index_table.TABLE, owners={stranger}, most=size) is None
    assert index_table._read_table(local / index_table.TABLE, owners={stranger, stranger - 1}, most=size)
    assert os.stat(local / index_table.TABLE).st_mode & 0o022 == 0


def test_unsafe_types_are_still_refused(local, tmp_path, remote):
    text = (remote / 'index.json').read_text().replace('"ndarray:float32:4"', '"pkl"').replace('16', 'null')
    (remote / 'index.json').write_text(text)
    opened(remote, local, allow_unsafe_types=True)
    assert (local / index_table.TABLE).exists()
    with pytest.raises(FormatError, match='unsafe type'):
        opened(remote, local)


def test_it_is_no_shard_of_a_limited_cache(remote, local):
    limit = os.path.getsize(remote / 'index.json') + 3 * os.path.getsize(remote / 'shard.00000.mds')
    for _ in range(2):
        assert ids(remote=str(remote), local=str(local), cache_limit=limit) == list(range(100))
        assert (local / index_table.TABLE).exists()


def test_a_folder_that_cannot_take_it(remote, local, parses, monkeypatch):
    def full(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(index_table.os, 'ftruncate', full)
    for _ in range(2):
        opened(remote, local)
    assert len(parses) == 2
    assert sorted(os.listdir(local)) == ['.headrace-index.tmp', '.headrace-remote', 'index.json']
    monkeypatch.undo()
    monkeypatch.setattr(index_table, 'WORTHWHILE', 5)
    opened(remote, local)  # takes over what was left
    assert sorted(os.listdir(local)) == ['.headrace-index', '.headrace-remote', 'index.json']


def test_nobody_waits_for_a_writer(remote, local):
    local.mkdir()
    handle = os.open(local / '.headrace-index.tmp', os.O_RDWR | os.O_CREAT)
    lock_file(handle, 'here')
    begin = time.monotonic()
    opened(remote, local)
    assert time.monotonic() - begin < 100
    os.close(handle)
    assert os.listdir(local).count('.headrace-index') == 0
    opened(remote, local)
    assert sorted(os.listdir(local)) == ['.headrace-index', '.headrace-remote', 'index.json']


def _open(remote, local, barrier, failures):
    try:
        barrier.wait()
        for _ in range(5):
            if opened(remote, local).shards.samples.sum() != 100:
                failures.put('wrong')
            (local / index_table.TABLE).unlink(missing_ok=True)
    except BaseException as error:
        failures.put(repr(error))


def test_many_processes_write_it(remote, local, parses):
    barrier, failures = processes.Barrier(6), processes.Queue()
    crowd = [processes.Process(target=_open, args=(remote, local, barrier, failures)) for _ in range(6)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join()
    assert failures.empty()
    opened(remote, local)
    parses.clear()
    opened(remote, local)
    assert not parses
    assert sorted(os.listdir(local)) == ['.headrace-index', '.headrace-remote', 'index.json']


# -- a dataset over many shards ---------------------------------------------------------------------------------------

SHARDS = 20_000


@pytest.fixture
def many(make_dataset):
    """A dataset whose index lists many shards, of which the first ten exist."""
    folder = make_dataset('many', 100)
    entries = json.loads((folder / 'index.json').read_text())['shards']
    text = json.dumps(entries[0])
    more = [text.replace('shard.00000', f'shard.{i:05}') for i in range(len(entries), SHARDS)]
    (folder / 'index.json').write_text(f'{{"shards": [{", ".join([*map(json.dumps, entries), *more])}], "version": 2}}')
    return folder


@pytest.mark.parametrize('options', [{}, {'cache_limit': '1gb'}], ids=['', 'limited'])
def test_no_object_is_made_for_each_shard(many, local, options, monkeypatch):
    made = []
    make = ShardTable._shard

    def counted(table, shard):
        made.append(shard)
        return make(table, shard)

    monkeypatch.setattr(ShardTable, '_shard', counted)
    for _ in range(2):
        dataset = StreamingDataset(remote=str(many), local=str(local), batch_size=4, predownload=8, **options)
        batch = next(iter(StreamingDataLoader(dataset)))
        assert batch['id'].tolist() == [0, 1, 2, 3]
    assert len(made) < 100


@pytest.mark.parametrize('method', ['fork', pytest.param('spawn', marks=pytest.mark.slow)])
def test_workers_get_the_table_as_arrays(many, local, method):
    dataset = StreamingDataset(remote=str(many), local=str(local), batch_size=4, predownload=8)
    assert len(pickle.dumps(dataset)) < 100 * SHARDS
    loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context=method)
    assert next(iter(loader))['id'].tolist() == [0, 1, 2, 3]
