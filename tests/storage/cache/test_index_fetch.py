"""The fetch of a folder's index. `tests/dataset/streams/test_changed_data.py` has changes of the remote."""

from __future__ import annotations

import shutil

import pytest

from headrace.errors import ConfigError, FormatError, StreamError
from headrace.storage.cache import index_fetch
from headrace.testing.stores import CountingStore, FaultyStore
from tests.support.programs.together import run_together
from tests.support.stores.shards import fetch_index, make_remote, names


@pytest.fixture
def remote(tmp_path):
    remote = make_remote(tmp_path / 'remote', 1)
    (remote.folder / 'index.json').write_text('{}')
    return remote


@pytest.fixture
def folder(tmp_path):
    return tmp_path / 'cache'


def test_it_is_fetched_once(remote, folder):
    store = CountingStore(remote.store)
    for _ in range(3):
        assert fetch_index(folder, store).path == folder / 'index.json'
    assert store.calls['get', 'index.json'] == 1
    assert names(folder) == ['.headrace-remote', 'index.json']
    assert (folder / '.headrace-remote').read_text() == f'{remote.folder}\n'


def test_a_bad_one_is_fetched_again_once(remote, folder, tmp_path):
    folder.mkdir()
    (folder / 'index.json').touch()
    fetch_index(folder, FaultyStore(remote.store, ['short']), checks=True)
    assert (folder / 'index.json').read_text() == '{}'
    (remote.folder / 'index.json').write_text('bad')
    with pytest.raises(FormatError, match='no index'):
        fetch_index(tmp_path / 'other', remote.store, checks=True)
    assert names(tmp_path / 'other') == []


def test_it_comes_even_if_the_folder_is_deleted_meanwhile(remote, folder):
    def delete(data, out):
        shutil.rmtree(folder)
        out.write(data)

    fetch_index(folder, FaultyStore(remote.store, [delete]))
    assert (folder / 'index.json').read_text() == '{}'


def test_one_that_another_remote_publishes_meanwhile_is_not_taken(remote, folder, tmp_path, monkeypatch):
    other = make_remote(tmp_path / 'other', 1)
    (other.folder / 'index.json').write_text('{}')
    open_file = index_fetch.open_file

    def late(root, name):
        monkeypatch.undo()
        fetch_index(folder, other.store)
        return open_file(root, name)

    monkeypatch.setattr(index_fetch, 'open_file', late)
    with pytest.raises(StreamError, match=r'is the cache of .*/other vs\. '):
        fetch_index(folder, remote.store)


def test_names_stay_inside(remote, folder):
    with pytest.raises(ConfigError):
        fetch_index(folder, remote.store, '../index.json')


@pytest.mark.once
def test_sixteen_processes_fetch_one_index_once(tmp_path):
    remote = make_remote(tmp_path / 'remote', 1)
    (remote.folder / 'index.json').write_text('{}')
    store = CountingStore(remote.store, log=tmp_path / 'log', delay=0.05)

    def work(number):
        for _ in range(20):
            assert fetch_index(tmp_path / 'cache', store).path.read_text() == '{}'

    run_together(work, 16)
    assert store.logged()['get index.json'] == 1
