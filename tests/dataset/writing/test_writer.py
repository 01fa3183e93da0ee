"""Writers: where shards go, and what is left when one crashes."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import weakref

import pytest

from headrace import CSVWriter, JSONWriter, MDSWriter, StreamingDataset, XSVWriter
from headrace.format import encoder
from headrace.format.block_pool import BlockPool

COLUMNS = {'id': 'int'}


def write(out, n=50, **options):
    with MDSWriter(out=out, columns=COLUMNS, size_limit=400, **options) as writer:
        for i in range(n):
            writer.write({'id': i})


def read(folder):
    return [sample['id'] for sample in StreamingDataset(local=str(folder))[:]]


def test_to_a_folder_and_a_store(tmp_path):
    remote = f'file://{tmp_path}/remote'
    write((str(tmp_path / 'local'), str(tmp_path / 'remote')), keep_local=True, progress_bar=True)
    assert sorted(os.listdir(tmp_path / 'local')) == sorted(os.listdir(tmp_path / 'remote'))
    assert read(tmp_path / 'remote') == list(range(50))
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / 'cache'))
    assert [sample['id'] for sample in dataset[:]] == list(range(50))


def test_without_keep_local_the_folder_ends_empty(tmp_path):
    write((str(tmp_path / 'local'), str(tmp_path / 'remote')))
    assert os.listdir(tmp_path / 'local') == []
    assert read(tmp_path / 'remote') == list(range(50))


@pytest.mark.parametrize('fails', [False, True])
def test_a_closed_writer_holds_no_memory_of_shards(tmp_path, monkeypatch, fails):
    pools = []

    def new_pool():
        pool = BlockPool()
        pools.append(weakref.ref(pool))
        return pool

    monkeypatch.setattr(encoder, 'shared_pool', new_pool)
    writer = MDSWriter(out=str(tmp_path / 'd'), columns={'data': 'bytes'}, size_limit=3 << 20)
    with pytest.raises(KeyError) if fails else contextlib.nullcontext(), writer:
        for _ in range(80):
            writer.write({'data': bytes(90_000)})
        assert pools[0]() is not None
        if fails:
            writer.write({})
    gc.collect()
    assert [pool() for pool in pools] == [None]
    assert writer.num_samples == 80


def test_a_folder_that_holds_something_is_refused_or_emptied(tmp_path):
    write(str(tmp_path / 'd'))
    with pytest.raises(FileExistsError, match='Directory is not empty'):
        write(str(tmp_path / 'd'))
    assert read(tmp_path / 'd') == list(range(50))
    write(str(tmp_path / 'd'), n=3, exist_ok=True)
    assert read(tmp_path / 'd') == [0, 1, 2]


def test_a_store_that_holds_something_is_refused_or_emptied(tmp_path):
    out = (str(tmp_path / 'local'), str(tmp_path / 'remote'))
    write(out)
    with pytest.raises(FileExistsError, match='Directory is not empty'):
        write((str(tmp_path / 'other'), str(tmp_path / 'remote')))
    write((str(tmp_path / 'third'), str(tmp_path / 'remote')), n=2, exist_ok=True)
    assert read(tmp_path / 'remote') == [0, 1]


def test_an_exception_leaves_no_index_and_no_shards(tmp_path):
    with pytest.raises(ZeroDivisionError), MDSWriter(out=str(tmp_path / 'd'), columns=COLUMNS, size_limit=400) as out:
        for i in range(50):
            out.write({'id': i})
        raise ZeroDivisionError
    assert os.listdir(tmp_path / 'd') == []
    write(str(tmp_path / 'd'))


def test_a_bad_sample_is_left_out_and_the_writer_continues(tmp_path):
    with MDSWriter(out=str(tmp_path / 'd'), columns=COLUMNS) as writer:
        writer.write({'id': 1})
        with pytest.raises(AttributeError):
            writer.write({'id': 'one'})
        with pytest.raises(KeyError):
            writer.write({'no': 1})
        writer.write({'id': 2})
    assert read(tmp_path / 'd') == [1, 2]
    with pytest.raises(ValueError, match='closed'):
        writer.write({'id': 3})


KILLED = """
import os, signal, sys
from headrace import MDSWriter
writer = MDSWriter(out=sys.argv[1], columns={'id': 'int'}, size_limit=400)
for i in range(200):
    writer.write({'id': i})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_kill_9_there_is_no_index_and_the_next_writer_starts_over(tmp_path):
    folder = tmp_path / 'd'
    killed = subprocess.run([sys.executable, '-c', KILLED, str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert any(folder.glob('shard.*'))
    with pytest.raises(RuntimeError, match='No `remote` provided, but local file'):
        read(folder)
    write(str(folder), n=7)
    assert read(folder) == list(range(7))
    assert sorted(os.listdir(folder)) == ['index.json', 'shard.00000.mds']


def test_two_writers_to_one_folder(tmp_path):
    with MDSWriter(out=str(tmp_path / 'd'), columns=COLUMNS), pytest.raises(FileExistsError, match='another writer'):
        MDSWriter(out=str(tmp_path / 'd'), columns=COLUMNS, exist_ok=True)


@pytest.mark.parametrize(
    ('writer', 'options', 'message'),
    [
        (MDSWriter, {'min_workers': 2}, 'Invalid Writer argument'),
        (MDSWriter, {'size_limit': 1 << 32}, '`size_limit` must be less than'),
        (CSVWriter, {'separator': ';'}, 'Invalid Writer argument'),
        (MDSWriter, {'compression': 'lzma'}, 'is not a supported compression algorithm'),
        (MDSWriter, {'hashes': ['md6']}, 'md6'),
    ],
)
def test_bad_arguments(tmp_path, writer, options, message):
    with pytest.raises(ValueError, match=message):
        writer(out=str(tmp_path / 'd'), columns=COLUMNS, **options)
    write(str(tmp_path / 'd'))


def test_get_config(tmp_path):
    mds = MDSWriter(out=str(tmp_path / 'a'), columns={'b': 'int', 'a': 'str'}, size_limit='1kb')
    assert mds.get_config() == {
        'version': 2, 'format': 'mds', 'compression': None, 'hashes': [], 'size_limit': 1024,
        'column_names': ['a', 'b'], 'column_encodings': ['str', 'int'], 'column_sizes': [None, 8],
    }  # fmt: skip
    json_writer = JSONWriter(out=str(tmp_path / 'b'), columns=COLUMNS)
    assert json_writer.get_config()['columns'] == COLUMNS
    assert 'separator' not in CSVWriter(out=str(tmp_path / 'c'), columns=COLUMNS).get_config()
    assert XSVWriter(out=str(tmp_path / 'd'), columns=COLUMNS, separator='|').get_config()['separator'] == '|'


def test_what_we_write_mosaicml_streaming_reads(tmp_path, mosaicml_streaming):
    streaming = mosaicml_streaming
    columns = {'id': 'int', 'text': 'str', 'x': 'float32', 'v': 'ndarray', 'raw': 'bytes', 'j': 'json'}
    import numpy as np

    for compression in (None, 'zstd', 'gz', 'br', 'bz2', 'snappy'):
        folder = tmp_path / str(compression)
        with MDSWriter(
            out=str(folder), columns=columns, compression=compression, hashes=['sha1', 'xxh64'], size_limit=2000
        ) as writer:
            for i in range(40):
                writer.write({'id': i, 'text': 'ä' * i, 'x': np.float32(i), 'v': np.arange(i + 1), 'raw': b'\0' * i,
                              'j': {'i': i}})  # fmt: skip
        theirs = streaming.LocalDataset(local=str(folder)) if compression is None else streaming.StreamingDataset(
            remote=str(folder), local=str(tmp_path / f'{compression}-cache'), validate_hash='sha1', batch_size=1
        )  # fmt: skip
        for i in range(40):
            sample = theirs[i]
            assert (sample['id'], sample['text'], sample['x'], sample['raw'], sample['j']) == (
                i, 'ä' * i, i, b'\0' * i, {'i': i})  # fmt: skip
            assert np.array_equal(sample['v'], np.arange(i + 1))
    assert json.loads((tmp_path / 'zstd' / 'index.json').read_text())['version'] == 2
