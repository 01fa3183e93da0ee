"""The table of many shards in a dataset and its workers, and the permutations of an epoch in a cache folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import tempfile
import time

import numpy as np
import pytest

from headrace import StreamingDataLoader, StreamingDataset
from headrace.dataset import cache_files
from headrace.dataset.cache_files import EpochPermutations
from headrace.format import ShardTable
from headrace.order import Mixture, OrderConfig, StreamSize, fill_permutation
from headrace.storage.cache.locks import locked_folders

processes = multiprocessing.get_context('fork')


@pytest.fixture
def local(tmp_path):
    return tmp_path / 'local'


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
    with pytest.warns(UserWarning, match='every process computes it for itself') as caught:
        ids = EpochPermutations(tmp_path / 'file').load(MIX, CONFIG, 0)
    assert np.array_equal(ids, expected())
    assert f'Not a directory: {str(tmp_path / "file" / cache_files.FOLDER)!r}): every' in str(caught[0].message)


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
