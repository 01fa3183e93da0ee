"""A writer that was killed can be started again, whatever it wrote to, and leaves nothing for ever."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.errors import StorageError, TransferError
from headrace.storage import open_store, register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs.killed_children import in_a_child

MARK = '.headrace-writing'


def write(out, n=30, **options):
    with MDSWriter(out=out, columns={'id': 'int'}, size_limit=400, hashes=['sha1'], **options) as writer:
        for i in range(n):
            writer.write({'id': i})


def temporary_folders():
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith('headrace-writer-')]


@pytest.fixture(params=['a folder and a file URL', 'a file URL and what is kept', 's3'])
def target(request, tmp_path):
    """A function that makes an `out`, its URL and further arguments; new ones at each call."""
    numbers = itertools.count()
    if request.param == 's3':
        s3_server = request.getfixturevalue('s3_server')
        bucket = s3_server.new_bucket()

        def make():
            url = f's3://{bucket}/{next(numbers)}'
            return url, url, {}
    else:

        def make():
            number = next(numbers)
            url = f'file://{tmp_path}/remote-{number}'
            return (str(tmp_path / f'local-{number}'), url), url, {'keep_local': 'kept' in request.param}

    return make


stores = functools.cache(open_store)


def names(url):
    return [info.key for info in stores(url).list('')]


def test_a_writer_killed_at_any_step_can_be_started_again(target, tmp_path):
    out, url, options = target()
    write(out, 20, **options)
    whole = names(url)
    out, _, options = target()
    status, steps = in_a_child(lambda: write(out, **options), 0)
    assert status == 0
    outcomes = []
    for number, last in enumerate(range(2, steps - 1, max(1, steps // 14))):
        out, url, options = target()
        status, _ = in_a_child(lambda out=out, last=last, options=options: write(out, **options), last)
        assert os.WIFSIGNALED(status), last
        if 'index.json' in names(url):
            with pytest.raises(FileExistsError, match='Directory is not empty'):
                write(out, **options)
            outcomes.append('finished')
        else:
            write(out, 20, **options)
            assert names(url) == whole
            outcomes.append('again')
        dataset = StreamingDataset(remote=url, local=str(tmp_path / f'cache-{number}'), validate_hash='sha1')
        assert [sample['id'] for sample in dataset[:]] == list(range(30 if outcomes[-1] == 'finished' else 20))
        if url.startswith('file:'):
            assert set(os.listdir(url.removeprefix('file://'))) - {MARK} == set(names(url)) - {MARK}
    assert outcomes.count('again') >= 12
    out, _, options = target()
    write(out, **options)
    assert temporary_folders() == []


def test_files_of_others_beside_an_unfinished_dataset_are_never_deleted(target):
    out, url, options = target()
    _, steps = in_a_child(lambda: write(out, **options), 0)
    out, url, options = target()
    in_a_child(lambda: write(out, **options), steps // 2)
    assert 'index.json' not in names(url)
    stores(url).put('shard.00000.txt', io.BytesIO(b'mine'), size=4)
    before = names(url)
    with pytest.raises(FileExistsError, match=r'holds shard\.00000\.txt'):
        write(out, **options)
    assert names(url) == before
    write(out, exist_ok=True, **options)
    assert 'shard.00000.txt' not in names(url)


def test_shards_without_an_index_that_no_writer_left_are_refused(target):
    out, url, options = target()
    stores(url).put('shard.00000.mds', io.BytesIO(b'mine'), size=4)
    with pytest.raises(FileExistsError, match=r'holds shard\.00000\.mds'):
        write(out, **options)
    assert names(url) == ['shard.00000.mds']


@pytest.mark.parametrize('exist_ok', [False, True])
def test_two_living_writers_to_one_url(s3_server, exist_ok):
    url = f's3://{s3_server.new_bucket()}/data'
    with MDSWriter(out=url, columns={'id': 'int'}) as writer:
        writer.write({'id': 7})
        with pytest.raises(FileExistsError, match='another writer is writing to s3://'):
            write(url, exist_ok=exist_ok)
    assert names(url) == ['index.json', 'shard.00000.mds']


def test_a_writer_whose_prefix_was_taken_over_elsewhere_gives_up(s3_server, tmp_path, monkeypatch):
    url = f's3://{s3_server.new_bucket()}/data'
    with (
        pytest.raises(StorageError, match='Another writer has begun'),
        MDSWriter(out=url, columns={'id': 'int'}) as late,
    ):
        late.write({'id': 7})
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(socket, 'gethostname', lambda: 'elsewhere')
            write(url, 20, exist_ok=True)
    dataset = StreamingDataset(remote=url, local=str(tmp_path / 'cache'))
    assert [sample['id'] for sample in dataset[:]] == list(range(20))


@pytest.mark.parametrize('is_elsewhere', [False, True])
def test_shards_of_a_living_writer_with_a_folder_and_a_url_stay(tmp_path, monkeypatch, is_elsewhere):
    url = f'file://{tmp_path}/remote'
    with MDSWriter(out=(str(tmp_path / 'a'), url), columns={'id': 'int'}, size_limit=400) as writer:
        for i in range(200):
            writer.write({'id': i})
        with monkeypatch.context() as machine:
            if is_elsewhere:
                machine.setattr(socket, 'gethostname', lambda: 'elsewhere')
            says = 'may still run.*exist_ok=True' if is_elsewhere else 'another writer is writing'
            for out in ((str(tmp_path / 'b'), url), (str(tmp_path / 'c'), url)):
                with pytest.raises(FileExistsError, match=says):
                    write(out, keep_local=True)
    dataset = StreamingDataset(remote=url, local=str(tmp_path / 'cache'))
    assert [sample['id'] for sample in dataset[:]] == list(range(200))


@pytest.mark.parametrize('change', ['another folder', 'the folder is gone', 'another boot', 'no mark that can be read'])
def test_after_a_writer_with_a_folder_and_a_url_was_killed(tmp_path, change):
    local, url = str(tmp_path / 'a'), f'file://{tmp_path}/remote'
    _, steps = in_a_child(lambda: write((local, url)), 0)
    shutil.rmtree(local)
    shutil.rmtree(tmp_path / 'remote')
    in_a_child(lambda: write((local, url)), steps // 2)
    mark = tmp_path / 'remote' / MARK
    if change == 'the folder is gone':
        shutil.rmtree(local)
    elif change == 'another boot':
        title, _, text = mark.read_text().partition('\n')
        mark.write_text(f'{title}\n{json.dumps({**json.loads(text), "boot": "another"})}')
    elif change != 'another folder':
        mark.write_text('unfinished')
        with pytest.raises(FileExistsError, match='on an unknown machine'):
            write((str(tmp_path / 'b'), url), 20)
        write((str(tmp_path / 'b'), url), 20, exist_ok=True)
        return
    write((str(tmp_path / 'b'), url), 20)
    dataset = StreamingDataset(remote=url, local=str(tmp_path / 'cache'))
    assert [sample['id'] for sample in dataset[:]] == list(range(20))


def test_temporary_folders_of_other_machines_stay(s3_server, temporary, monkeypatch):
    """A copy of a living writer's folder is what machines see that share files, but no locks."""
    shared = temporary / 'headrace-writer-abcdefgh'
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, 'gethostname', lambda: 'elsewhere')
        writer = MDSWriter(out=f's3://{s3_server.new_bucket()}/data', columns={'id': 'int'})
    with writer:
        writer.write({'id': 7})
        shutil.copytree(writer.local, shared)
        (shared / 'shard.00000.mds').write_text('its')
        write(f's3://{s3_server.new_bucket()}/data')
        assert sorted(os.listdir(shared)) == [MARK, 'shard.00000.mds']


def test_only_temporary_folders_of_dead_writers_are_removed(target, temporary, tmp_path):
    mine = tmp_path / 'mine'
    mine.mkdir()
    for name in ('shard.00000.mds', MARK):
        (mine / name).write_text('mine')
    (temporary / 'headrace-writer-abcdefgh').symlink_to(mine, target_is_directory=True)
    noted = temporary / 'headrace-writer-bcdefghi'
    noted.mkdir()
    (noted / MARK).touch()
    (noted / 'notes.txt').write_text('mine')
    other = temporary / 'headrace-writer-notes'
    other.mkdir()
    foreign = temporary / 'headrace-writer-cdefghij'
    foreign.mkdir()
    (foreign / MARK).touch()
    if not os.geteuid():
        os.chown(foreign, 65534, 65534)
    dead = temporary / 'headrace-writer-defghijk'
    dead.mkdir()
    empty = temporary / 'headrace-writer-efghijkl'
    empty.mkdir()
    for name in ('shard.00000.mds', 'shard.00001.mds.tmp', 'index.json.tmp', 'index.json'):
        (dead / name).touch()
    with MDSWriter(out=str(tmp_path / 'like'), columns={'id': 'int'}) as like:
        for folder in (dead, noted, foreign):
            shutil.copy(like.local / MARK, folder)
    out, _, options = target()
    write(out, **options)
    assert sorted(os.listdir(mine)) == [MARK, 'shard.00000.mds']
    assert os.listdir(noted) == ['notes.txt']
    assert other.exists()
    assert foreign.exists() == (not os.geteuid())
    assert not dead.exists()
    assert not empty.exists()


class NoIndex(LocalStore):
    """A store that takes everything but an index."""

    def put(self, key, source, *, size):
        if key == 'index.json':
            raise TransferError('no')
        super().put(key, source, size=size)


def test_after_an_index_could_not_be_uploaded_the_dataset_is_written_again(tmp_path):
    register_store('no-index', lambda url, _: NoIndex(Path(url.removeprefix('no-index://'))))
    local, remote = str(tmp_path / 'local'), str(tmp_path / 'remote')
    with pytest.raises(TransferError):
        write((local, f'no-index://{remote}'), retry=0)
    assert os.listdir(local) == []
    write((local, f'file://{remote}'), 20)
    assert sorted(os.listdir(remote))[0] == 'index.json'
