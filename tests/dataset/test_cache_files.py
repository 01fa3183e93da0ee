"""The kept table of a large index, and the permutations of an epoch, in a cache folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time

import numpy as np
import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.dataset import cache_files
from headrace.dataset.cache_files import EpochPermutations
from headrace.dataset.streams.open_streams import open_streams
from headrace.errors import FormatError
from headrace.format import ShardTable, index
from headrace.order import Mixture, OrderConfig, StreamSize, fill_permutation
from headrace.storage.cache.locks import lock_file, locked_folders

processes = multiprocessing.get_context('fork')


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(cache_files, 'WORTHWHILE', 5)


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
    monkeypatch.setattr(cache_files, 'WORTHWHILE', 11)
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
    damage(local / cache_files.TABLE)
    parses.clear()
    assert opened(remote, local).shards == good
    assert len(parses) == 1
    assert ids(remote=str(remote), local=str(local)) == list(range(100))


def test_what_belongs_to_a_stranger_is_not_believed(remote, local, parses, monkeypatch):
    opened(remote, local)
    handle = os.open(local / cache_files.TABLE, os.O_RDONLY)
    stranger = os.fstat(handle).st_uid + 1
    os.close(handle)
    size = os.path.getsize(local / 'index.json')
    assert cache_files._read_table(local / cache_files.TABLE, owners={stranger}, most=size) is None
    assert cache_files._read_table(local / cache_files.TABLE, owners={stranger, stranger - 1}, most=size)
    assert os.stat(local / cache_files.TABLE).st_mode & 0o022 == 0


def test_unsafe_types_are_still_refused(local, tmp_path, remote):
    text = (remote / 'index.json').read_text().replace('"ndarray:float32:4"', '"pkl"').replace('16', 'null')
    (remote / 'index.json').write_text(text)
    opened(remote, local, allow_unsafe_types=True)
    assert (local / cache_files.TABLE).exists()
    with pytest.raises(FormatError, match='unsafe type'):
        opened(remote, local)


def test_it_is_no_shard_of_a_limited_cache(remote, local):
    limit = os.path.getsize(remote / 'index.json') + 3 * os.path.getsize(remote / 'shard.00000.mds')
    for _ in range(2):
        assert ids(remote=str(remote), local=str(local), cache_limit=limit) == list(range(100))
        assert (local / cache_files.TABLE).exists()


def test_a_folder_that_cannot_take_it(remote, local, parses, monkeypatch):
    def full(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(cache_files.os, 'ftruncate', full)
    for _ in range(2):
        opened(remote, local)
    assert len(parses) == 2
    assert sorted(os.listdir(local)) == ['.headrace-index.tmp', '.headrace-remote', 'index.json']
    monkeypatch.undo()
    monkeypatch.setattr(cache_files, 'WORTHWHILE', 5)
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
            (local / cache_files.TABLE).unlink(missing_ok=True)
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


MIX = Mixture.resolve([StreamSize(name='s', shard_sizes=np.full(100, 1000))])
CONFIG = OrderConfig(shuffle=True, algorithm='py1s', num_canonical_nodes=2).resolve_defaults(MIX)


def expected(epoch=0):
    out = np.empty(MIX.epoch_size, np.int64)
    fill_permutation(MIX, CONFIG, epoch, out)
    return out


def names(folder):
    return sorted(os.listdir(folder / cache_files.FOLDER))


def test_it_is_mapped_read_only_and_found_again(tmp_path):
    ids = EpochPermutations(tmp_path).load(MIX, CONFIG, 0)
    assert np.array_equal(ids, expected())
    assert not ids.flags.writeable
    before = (tmp_path / cache_files.FOLDER / names(tmp_path)[0]).stat()
    assert np.array_equal(EpochPermutations(tmp_path).load(MIX, CONFIG, 0), expected())
    after = (tmp_path / cache_files.FOLDER / names(tmp_path)[0]).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_what_nobody_maps_is_removed_by_the_next_epoch(tmp_path):
    files = EpochPermutations(tmp_path)
    first = files.load(MIX, CONFIG, 0)
    second = files.load(MIX, CONFIG, 1)
    assert len(names(tmp_path)) == 2
    del first
    third = files.load(MIX, CONFIG, 2)
    assert len(names(tmp_path)) == 2
    for epoch, ids in ((1, second), (2, third)):
        assert np.array_equal(ids, expected(epoch))


def test_a_maker_that_hangs_is_named_and_the_order_is_computed_without_it(tmp_path, monkeypatch):
    for name, seconds in {'LOOK': 0.01, 'SAID': 0.05, 'BOUND': 0.1}.items():
        monkeypatch.setattr(f'headrace.storage.cache.locks.{name}', seconds)
    folder = tmp_path / cache_files.FOLDER
    folder.mkdir()
    with locked_folders([folder]), pytest.warns(UserWarning, match=f'{folder}.* held by process {os.getpid()}'):
        assert np.array_equal(EpochPermutations(tmp_path).load(MIX, CONFIG, 0), expected())


def _load(folder, log, barrier):
    def counted(*arguments):
        os.write(log, b'x')
        time.sleep(0.2)
        fill_permutation(*arguments)

    cache_files.fill_permutation = counted
    barrier.wait()
    ids = EpochPermutations(folder).load(MIX, CONFIG, 0)
    os._exit(0 if np.array_equal(ids, expected()) else 1)


def test_one_process_computes_and_the_others_wait(tmp_path):
    log = os.open(tmp_path / 'log', os.O_CREAT | os.O_RDWR | os.O_APPEND)
    barrier = processes.Barrier(4)
    crowd = [processes.Process(target=_load, args=(tmp_path, log, barrier)) for _ in range(4)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(60)
    assert [process.exitcode for process in crowd] == [0] * 4
    assert (tmp_path / 'log').read_bytes() == b'x'


def _hang(folder, ready):
    def hang(*arguments):
        (folder / cache_files.FOLDER / f'{"ab" * 16}.int64.tmp').write_bytes(b'half')
        ready.set()
        signal.pause()

    cache_files.fill_permutation = hang
    EpochPermutations(folder).load(MIX, CONFIG, 0)


def test_a_process_killed_while_it_computes_holds_nobody_up_and_leaves_nothing(tmp_path):
    ready = processes.Event()
    process = processes.Process(target=_hang, args=(tmp_path, ready))
    process.start()
    assert ready.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    ids = EpochPermutations(tmp_path).load(MIX, CONFIG, 0)
    assert np.array_equal(ids, expected())
    assert len(names(tmp_path)) == 1


def test_a_link_in_place_of_its_folder_is_not_followed(tmp_path):
    elsewhere = tmp_path / 'elsewhere'
    elsewhere.mkdir()
    (elsewhere / 'thesis.tex').write_text('mine')
    (tmp_path / cache_files.FOLDER).symlink_to(elsewhere)
    with pytest.warns(UserWarning, match='that is a symbolic link'):
        ids = EpochPermutations(tmp_path).load(MIX, CONFIG, 0)
    assert np.array_equal(ids, expected())
    assert os.listdir(elsewhere) == ['thesis.tex']


def test_files_of_other_names_stay(tmp_path):
    (tmp_path / cache_files.FOLDER).mkdir()
    (tmp_path / cache_files.FOLDER / 'thesis.tex').write_text('mine')
    EpochPermutations(tmp_path).load(MIX, CONFIG, 0)
    assert 'thesis.tex' in names(tmp_path)


def test_a_file_of_the_wrong_size_is_made_anew(tmp_path):
    EpochPermutations(tmp_path).load(MIX, CONFIG, 0)
    path = tmp_path / cache_files.FOLDER / names(tmp_path)[0]
    path.write_bytes(b'short')
    assert np.array_equal(EpochPermutations(tmp_path).load(MIX, CONFIG, 0), expected())


def test_a_folder_that_cannot_be_made_costs_memory_and_a_warning(tmp_path):
    (tmp_path / 'file').write_bytes(b'')
    with pytest.warns(UserWarning, match='every process computes it for itself'):
        ids = EpochPermutations(tmp_path / 'file').load(MIX, CONFIG, 0)
    assert np.array_equal(ids, expected())


def test_a_dataset_keeps_it_in_its_cache_folder(make_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, 'IN_MEMORY', 0)
    remote = make_dataset('remote', 60)
    options = {'shuffle': True, 'shuffle_algo': 'py2s', 'batch_size': 5}
    dataset = StreamingDataset(remote=str(remote), local=str(tmp_path / 'cache'), **options)
    assert not (tmp_path / 'cache' / cache_files.FOLDER).exists()  # nothing is computed before the first batch
    got = [i for batch in StreamingDataLoader(dataset, num_workers=2) for i in batch['id'].tolist()]
    assert sorted(set(got)) == list(range(60))
    assert len(names(tmp_path / 'cache')) == 1


def test_a_dataset_without_a_remote_keeps_it_among_temporary_files(make_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, 'IN_MEMORY', 0)
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))
    folder = make_dataset('data', 40)
    before = sorted(os.listdir(folder))
    dataset = StreamingDataset(local=str(folder), shuffle=True, shuffle_algo='naive', batch_size=5)
    assert sorted(sample['id'] for sample in dataset) == list(range(40))
    assert sorted(os.listdir(folder)) == before
    ours = tmp_path / 'tmp' / f'headrace-{os.geteuid()}'
    assert len(names(ours)) == 1
    assert ours.stat().st_mode & 0o777 == 0o700
    ours.rename(tmp_path / 'elsewhere')
    ours.symlink_to(tmp_path / 'elsewhere')
    with pytest.warns(UserWarning, match='headrace-.* but that is a symbolic link'):
        assert sorted(sample['id'] for sample in dataset) == list(range(40))
