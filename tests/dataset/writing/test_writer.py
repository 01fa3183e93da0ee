"""Writers: where shards go, and what is left when one crashes."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from headrace import CSVWriter, JSONWriter, MDSWriter, XSVWriter
from headrace.errors import AccessDeniedError, ConfigError, StorageError
from headrace.format import encoder
from headrace.format.shard_memory import BlockPool
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from tests.support.datasets.written import COLUMNS, read, write


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


@pytest.mark.parametrize('place', ['folder', 'store', 'both'])
@pytest.mark.parametrize('permission', ['exist_ok', 'resume'])
def test_a_writer_that_an_exception_left_behind_is_given_up(tmp_path, own_stores, place, permission):
    register_store('objects', lambda url, _: LocalStore(url.removeprefix('objects://')))
    folder, url = str(tmp_path / 'd'), f'objects://{tmp_path}/remote'
    out = {'folder': folder, 'store': url, 'both': (folder, url)}[place]
    left = MDSWriter(out=out, columns=COLUMNS)
    left.write({'id': 1})
    with pytest.raises(AttributeError):
        left.write({'id': 'seven'})
    with pytest.raises(FileExistsError, match=r'of this process: call its `finish` or `abort`.* `exist_ok=True`'):
        MDSWriter(out=out, columns=COLUMNS)
    with MDSWriter(out=out, columns=COLUMNS, **{permission: True}) as writer:
        for i in range(writer.num_samples, 7):
            writer.write({'id': i})
    with pytest.raises(ValueError, match='closed'):
        left.write({'id': 2})
    left.abort()
    assert read(folder if place == 'folder' else tmp_path / 'remote') == list(range(7))


def test_a_writer_that_nobody_has_frees_its_folder(tmp_path):
    MDSWriter(out=str(tmp_path / 'd'), columns=COLUMNS).write({'id': 1})
    gc.collect()
    write(tmp_path / 'd')
    assert read(tmp_path / 'd') == list(range(50))


@pytest.mark.parametrize('error', [OSError(errno.EIO, 'Input/output error'), KeyboardInterrupt()])
@pytest.mark.parametrize('resume', [False, True])
def test_an_error_after_the_index_deletes_nothing(tmp_path, monkeypatch, error, resume):
    write(tmp_path / 'd')
    unlink = Path.unlink

    def fail(path, **options):
        if '.headrace-written' in path.name:
            monkeypatch.setattr(Path, 'unlink', unlink)
            raise error
        unlink(path, **options)

    monkeypatch.setattr(Path, 'unlink', fail)
    if isinstance(error, OSError):
        with pytest.warns(UserWarning, match=r'could not be removed from .*: \.headrace-written\.00000\. Remove them'):
            write(tmp_path / 'd', append=True, resume=resume)
    else:
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / 'd', append=True, resume=resume)
    assert read(tmp_path / 'd') == [*range(50), *range(50)]
    with MDSWriter(out=str(tmp_path / 'd'), columns=COLUMNS, size_limit=400, append=True, resume=True) as writer:
        # One that warned had finished. One that was interrupted did not say so.
        assert writer.num_samples == (0 if isinstance(error, OSError) else 50)
    assert not [name for name in os.listdir(tmp_path / 'd') if name.startswith('.')]
    assert read(tmp_path / 'd') == [*range(50), *range(50)]


def test_a_full_disk_names_the_shard_and_its_path(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with MDSWriter(
                out=str(tmp_path / 'd'), columns={'data': 'bytes'}, size_limit=8192, max_workers=1
            ) as writer:
                for _ in range(50):
                    writer.write({'data': bytes(1000)})
        except StorageError as error:
            is_right = f'{tmp_path}/d/shard.00000.mds could not be written: EFBIG' in str(error)
            os._exit(0 if is_right and 'shard 0' in ''.join(getattr(error, '__notes__', ['shard 0'])) else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


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


@pytest.mark.parametrize('out', [None, '', b'd', 5, ('d',), ['d', ''], ('d', None), {'d': 'e'}])
def test_an_output_that_is_no_place(tmp_path, monkeypatch, out):
    (tmp_path / 'empty').mkdir()
    monkeypatch.chdir(tmp_path / 'empty')
    with pytest.raises(ConfigError, match='`out` must be a folder, a URL, or a pair'):
        MDSWriter(out=out, columns=COLUMNS, exist_ok=True)
    assert os.listdir() == []


def test_a_list_is_a_pair_too(tmp_path):
    with MDSWriter(out=[str(tmp_path / 'd'), f'file://{tmp_path}/remote'], columns=COLUMNS) as writer:
        writer.write({'id': 1})
    assert 'index.json' in os.listdir(tmp_path / 'remote')


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'keep_local': 'no'}, '`keep_local` must be True or False'),
        ({'progress_bar': 'no'}, '`progress_bar` must be True or False'),
        ({'total': '9', 'progress_bar': True}, '`total` must be an integer'),
        ({'retry': '2'}, '`retry` must be an integer'),
        ({'retry': -1}, '`retry` of a writer is 0 or more, and `max_workers` is 1 or more'),
        ({'max_workers': '2'}, '`max_workers` must be an integer'),
        ({'max_workers': -1}, '`retry` of a writer is 0 or more, and `max_workers` is 1 or more'),
    ],
)
def test_numbers_and_truth_values(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        MDSWriter(out=str(tmp_path / 'd'), columns=COLUMNS, **options)
    assert not (tmp_path / 'd').exists()


@pytest.mark.parametrize('below', ['', '/sub'])
@pytest.mark.parametrize('kind', ['folder', 'file URL', 'pair'])
def test_an_output_that_is_a_file(tmp_path, below, kind):
    taken = tmp_path / 'taken'
    taken.write_text('x')
    out = {
        'folder': f'{taken}{below}',
        'file URL': f'file://{taken}{below}',
        'pair': (str(tmp_path / 'd'), f'file://{taken}{below}'),
    }[kind]
    with pytest.raises(ConfigError, match=f'An output is a folder, but is .*, and {taken} is a file. Choose another'):
        MDSWriter(out=out, columns=COLUMNS)
    assert taken.read_text() == 'x'
    assert not (tmp_path / 'd').exists()


def test_an_output_that_this_user_may_not_write_to(tmp_path, monkeypatch):
    def deny(path, *_args, **_kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch, pytest.raises(AccessDeniedError, match=f'uid .* may not use {tmp_path}'):
        patch.setattr('os.open', deny)
        MDSWriter(out=str(tmp_path), columns=COLUMNS)


def test_a_file_url_is_read_where_it_was_written(tmp_path):
    url = f'file://{tmp_path}/a%20b'
    with MDSWriter(out=url, columns=COLUMNS) as writer:
        writer.write({'id': 1})
    assert os.listdir(tmp_path / 'a b')
    with pytest.raises(ConfigError, match='names a path of this machine'):
        MDSWriter(out='file://elsewhere/data', columns=COLUMNS)


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
