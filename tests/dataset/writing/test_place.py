"""Folders and stores that writers write to."""

from __future__ import annotations

import os

import pytest

from headrace import StreamingDataset
from headrace.errors import ArgumentError
from tests.support.datasets.written import read, write


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


def test_a_folder_that_holds_something_is_refused_or_emptied(tmp_path):
    write(str(tmp_path / 'd'))
    with pytest.raises(FileExistsError, match='Directory is not empty'):
        write(str(tmp_path / 'd'))
    assert read(tmp_path / 'd') == list(range(50))
    write(str(tmp_path / 'd'), n=3, exist_ok=True)
    assert read(tmp_path / 'd') == [0, 1, 2]


@pytest.mark.parametrize('permission', ['exist_ok', 'append', 'resume'])
def test_text_is_no_permission(tmp_path, permission):
    write(str(tmp_path / 'd'))
    with pytest.raises(ArgumentError, match=f"`{permission}` must be True or False, but is 'no'"):
        write(str(tmp_path / 'd'), n=3, **{permission: 'no'})
    assert read(tmp_path / 'd') == list(range(50))


def test_a_store_that_holds_something_is_refused_or_emptied(tmp_path):
    out = (str(tmp_path / 'local'), str(tmp_path / 'remote'))
    write(out)
    with pytest.raises(FileExistsError, match='Directory is not empty'):
        write((str(tmp_path / 'other'), str(tmp_path / 'remote')))
    write((str(tmp_path / 'third'), str(tmp_path / 'remote')), n=2, exist_ok=True)
    assert read(tmp_path / 'remote') == [0, 1]


@pytest.mark.parametrize('has_store', [False, True])
def test_emptying_an_output_leaves_what_links_lead_to(tmp_path, has_store):
    out = (str(tmp_path / 'local'), str(tmp_path / 'd')) if has_store else str(tmp_path / 'd')
    write(tmp_path / 'precious')
    write(out)
    (tmp_path / 'd' / 'link').symlink_to(tmp_path / 'precious')
    write(out, 20, exist_ok=True)
    assert read(tmp_path / 'd') == list(range(20))
    assert read(tmp_path / 'precious') == list(range(50))
