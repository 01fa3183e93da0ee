"""Places that a dataset is written to, and those that are refused."""

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import AccessDeniedError, ConfigError
from headrace.storage.output import check_output, make_folder, split_out


@pytest.mark.parametrize(
    ('out', 'folder', 'url'),
    [
        ('data', Path('data'), None),
        (Path('data'), Path('data'), None),
        ('file:///a%20b/c', Path('/a b/c'), None),
        ('s3://bucket/data', None, 's3://bucket/data'),
        (('data', 's3://bucket/data'), Path('data'), 's3://bucket/data'),
        (['file:///data', Path('copy')], Path('/data'), 'copy'),
    ],
)
def test_folder_and_url(out, folder, url):
    assert split_out(out) == (folder, url)


@pytest.mark.parametrize(
    'out', ['', None, 7, (), ('data',), ('data', ''), ('', 's3://b'), ('data', None), ('a', 'b', 'c')]
)
def test_what_is_no_place(out):
    with pytest.raises(ConfigError, match=r'`to` must be a folder, a URL, or a pair \(folder, URL\), but is '):
        split_out(out, name='`to`')


@pytest.mark.parametrize('pair', [('taken', 's3://bucket/data'), ('free', 'taken/sub')])
def test_both_of_a_pair_are_checked(tmp_path, monkeypatch, pair):
    monkeypatch.chdir(tmp_path)
    Path('taken').touch()
    with pytest.raises(ConfigError, match='and taken is a file'):
        split_out(pair)


def test_a_pair_in_the_wrong_order():
    with pytest.raises(ConfigError, match=r"a folder and a URL, in this order, but is \('s3://bucket/data', 'data'\)"):
        split_out(('s3://bucket/data', 'data'))


@pytest.mark.parametrize('below', ['', '/sub', '/sub/more'])
@pytest.mark.parametrize('scheme', ['', 'file://'])
def test_a_file_is_no_output(tmp_path, below, scheme):
    (tmp_path / 'taken').touch()
    with pytest.raises(ConfigError, match=rf"is '{scheme}{tmp_path}/taken{below}', and {tmp_path}/taken is a file"):
        check_output(f'{scheme}{tmp_path}/taken{below}')


def test_outputs_that_are_free(tmp_path):
    for place in (tmp_path, tmp_path / 'new' / 'folder', 's3://bucket/taken', 'relative'):
        check_output(place)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_this_user_may_not_make(tmp_path, monkeypatch):
    def deny(path, *_args, **_kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr('pathlib.Path.mkdir', deny)
    with pytest.raises(AccessDeniedError, match=rf'uid .* may not use {tmp_path}/new: .* Change its owner'):
        make_folder(tmp_path / 'new')
