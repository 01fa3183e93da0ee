"""Each source gives its rows, value by value; any number of workers writes the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from converted import convert
from sources_to_convert import digests, make_images

from headrace.errors import ConfigError, ConversionError


def test_the_first_rows(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 5, 'b': 5})
    for name, source in {'rows': [{'i': i} for i in range(9)], 'iter': ({'i': i} for i in range(9))}.items():
        assert convert(source, tmp_path / name, limit=7).rows == 7
    assert convert(tmp_path / 'data', tmp_path / 'images', limit=7).rows == 7


@pytest.mark.parametrize('name', ['../../outside', '/etc/outside', 'a\nb', '.headrace-convert', 'index.json'])
def test_names_of_the_source_name_no_file_of_the_dataset(tmp_path: Path, name: str) -> None:
    convert([{'path': name}, {'path': name}], tmp_path / 'a' / 'b' / 'out')
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob('*') if path.is_file())

    assert found == ['a/b/out/index.json', 'a/b/out/shard.00000.00000.mds']


@pytest.mark.parametrize(
    ('options', 'error'),
    [
        ({'workers': 0}, '`workers`'),
        ({'on_error': 'ignore'}, '`on_error`'),
        ({'limit': 0}, '`limit`'),
        ({'compression': 'none'}, 'none'),
        ({'hashes': ['no-such-hash']}, 'no-such-hash'),
        ({'size_limit': '1 shard'}, 'size'),
        ({'columns': ['other']}, "'other'"),
        ({'columns': 'i'}, r"Pass \['i'\]"),
        ({'columns': {'i': 'no-such-encoding'}}, 'no-such-encoding'),
    ],
)
def test_wrong_arguments_before_anything_is_written(tmp_path: Path, options: dict, error: str) -> None:
    with pytest.raises((ConfigError, ConversionError), match=error):
        convert([{'i': 1}], tmp_path / 'out', **options)
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(('source', 'out'), [('data', 'data/out'), ('data/in', 'data'), ('data', 'other/../data')])
def test_an_output_in_its_source_or_around_it(tmp_path: Path, source: str, out: str) -> None:
    make_images(tmp_path / 'data' / 'in', {'a': 1})
    (tmp_path / 'other').mkdir()
    with pytest.raises(ConfigError, match='lie in one another'):
        convert(tmp_path / source, tmp_path / out, exist_ok=True)
    assert list(digests(tmp_path)) == ['data/in/a/0-0.jpg']


def test_an_output_around_a_file_of_a_glob(tmp_path: Path) -> None:
    (tmp_path / 'data-1').mkdir()
    (tmp_path / 'data-1' / 'rows.csv').write_text('a\n1\n')
    source = f'{tmp_path}/data-*/*.csv'
    with pytest.raises(ConfigError, match='would delete'):
        convert(source, tmp_path / 'data-1', exist_ok=True)
    assert list(digests(tmp_path)) == ['data-1/rows.csv']
    convert(source, tmp_path / 'data-mds', progress_bar=False)
    convert(source, tmp_path / 'data-mds', progress_bar=False, exist_ok=True)


def test_emptying_an_output_leaves_what_links_lead_to(tmp_path: Path) -> None:
    make_images(tmp_path / 'precious', {'a': 1})
    convert([{'i': 1}], tmp_path / 'out')
    (tmp_path / 'out' / 'link').symlink_to(tmp_path / 'precious')
    convert([{'i': 2}], tmp_path / 'out', exist_ok=True)
    assert list(digests(tmp_path / 'precious')) == ['a/0-0.jpg']


def test_splits(tmp_path: Path) -> None:
    make_images(tmp_path / 'data' / 'train', {'a': 3, 'b': 2})
    make_images(tmp_path / 'data' / 'val', {'b': 1})
    assert convert(tmp_path / 'data', tmp_path / 'out', split='train').rows == 5
    with pytest.raises(ConfigError, match='`split` of convert'):
        convert([{'i': 1}], tmp_path / 'rows', split='train')
