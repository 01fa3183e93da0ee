"""No conversion or copy deletes what it reads, whatever names the source and the output have."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Subset

from headrace import MDSWriter
from headrace.cli import main
from headrace.convert import convert as convert_with_bar
from headrace.convert import copy_dataset, merge_index, reshard
from headrace.errors import ConfigError
from headrace.storage import register_store
from tests.support.sources.sources_to_convert import digests, make_images, rows_of
from tests.support.stores.object_store import ObjectStore

convert = partial(convert_with_bar, progress_bar=False, exist_ok=True)


def lines_of(path: Any) -> list[dict[str, Any]]:
    return [{'line': line} for line in Path(path).read_text().splitlines()]


def lines_of_pair(pair: tuple[Any, int]) -> list[dict[str, Any]]:
    return lines_of(pair[0])


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files of lines, below the working folder, and a symbolic link to it."""
    folder = tmp_path / 'data'
    folder.mkdir()
    for name in 'ab':
        (folder / f'{name}.txt').write_text(f'{name}1\n{name}2\n')
    (tmp_path / 'link').symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize('out', ['data', 'link', '.', 'data/../link/'])
@pytest.mark.parametrize('source', ['{}/data/a.txt', 'data/a.txt', '{}/link/b.txt'])
@pytest.mark.parametrize('kind', [str, Path, np.str_])
def test_files_that_a_function_reads(data: Path, tmp_path: Path, source: str, out: str, kind: Any) -> None:
    before = digests(data)
    with pytest.raises(ConfigError, match='would delete'):
        convert([kind(source.format(tmp_path))], out, function=lines_of)
    assert digests(data) == before


def test_paths_within_inputs(data: Path) -> None:
    before = digests(data)
    for source in ([(data / 'a.txt', 1)], [['data/b.txt', 1]]):
        with pytest.raises(ConfigError, match='would delete'):
            convert(source, data, function=lines_of_pair)
    with pytest.raises(ConfigError, match='would delete'):
        convert([{'files': {'text': [f'file://{data}/a.txt']}}], data, function=lambda item: item)
    with pytest.raises(ConfigError, match='would delete'):
        convert([data], data.parent, function=lambda folder: lines_of(folder / 'a.txt'))
    assert digests(data) == before


def test_an_output_within_a_folder_that_a_function_reads(data: Path) -> None:
    for source in (data, str(data), 'data/'):
        with pytest.raises(ConfigError, match='lie in one another'):
            convert([source], data / 'out', function=lambda folder: lines_of(Path(folder) / 'a.txt'))
    assert sorted(os.listdir(data)) == ['a.txt', 'b.txt']


def test_a_link_from_elsewhere_to_a_file_of_the_output(data: Path, tmp_path: Path) -> None:
    (tmp_path / 'apart').mkdir()
    (tmp_path / 'apart' / 'a.txt').symlink_to(data / 'a.txt')
    with pytest.raises(ConfigError, match='would delete'):
        convert([tmp_path / 'apart' / 'a.txt'], data, function=lines_of)
    (data / 'rows.jsonl').write_text('{"a": 1}\n')
    (tmp_path / 'apart' / 'rows.jsonl').symlink_to(data / 'rows.jsonl')
    with pytest.raises(ConfigError, match='would delete'):
        convert(tmp_path / 'apart' / '*.jsonl', data)
    assert sorted(os.listdir(data)) == ['a.txt', 'b.txt', 'rows.jsonl']


def test_an_image_folder_of_links(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'x': 3})
    (tmp_path / 'chosen' / 'x').mkdir(parents=True)
    for path in (tmp_path / 'data').rglob('*.jpg'):
        (tmp_path / 'chosen' / 'x' / path.name).symlink_to(path)
    before = digests(tmp_path)
    with pytest.raises(ConfigError, match='would delete'):
        convert(tmp_path / 'chosen', tmp_path / 'data')
    assert digests(tmp_path) == before


@pytest.mark.parametrize('kind', [list, tuple, iter])
def test_images_that_rows_name(tmp_path: Path, kind: Any) -> None:
    make_images(tmp_path / 'data', {'x': 3})
    before = digests(tmp_path)
    rows = [{'image': path, 'label': 1} for path in sorted((tmp_path / 'data').rglob('*.jpg'))]
    with pytest.raises(ConfigError, match='would delete'):
        convert(kind(rows), tmp_path / 'data', columns={'image': 'jpeg', 'label': 'int'})
    assert digests(tmp_path) == before
    assert convert(rows, tmp_path / 'out', columns={'image': 'jpeg', 'label': 'int'}).rows == 3


def test_a_dataset_of_hugging_face_in_the_output(tmp_path: Path) -> None:
    datasets = pytest.importorskip('datasets')
    datasets.Dataset.from_dict({'a': [1, 2, 3]}).save_to_disk(str(tmp_path / 'saved'))
    before = digests(tmp_path)
    with pytest.raises(ConfigError, match='would delete'):
        convert(datasets.load_from_disk(str(tmp_path / 'saved')), tmp_path / 'saved')
    assert digests(tmp_path) == before


def test_images_that_a_dataset_of_hugging_face_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip('datasets')
    make_images(tmp_path / 'data', {'x': 3})
    before = digests(tmp_path / 'data')
    paths = sorted(map(str, (tmp_path / 'data').rglob('*.jpg')))
    rows = datasets.Dataset.from_dict({'image': paths}).cast_column('image', datasets.Image())
    with pytest.raises(ConfigError, match='would delete'):
        convert(rows, tmp_path / 'data')
    assert digests(tmp_path / 'data') == before


def test_a_dataset_of_torchvision_in_the_output(tmp_path: Path) -> None:
    folders = pytest.importorskip('torchvision.datasets')
    make_images(tmp_path / 'data', {'x': 3})
    before = digests(tmp_path)
    for transform in (None, lambda image: image):
        with pytest.raises(ConfigError, match='would delete'):
            convert(folders.ImageFolder(str(tmp_path / 'data'), transform=transform), tmp_path / 'data')
    pairs = folders.ImageFolder(str(tmp_path / 'data'), transform=lambda image: image)
    with pytest.raises(ConfigError, match='would delete'):
        convert(Subset(Subset(pairs, [0, 1]), [1]), tmp_path, columns=['image', 'label'])
    assert digests(tmp_path) == before


@pytest.fixture
def objects(own_stores: None) -> dict[str, bytes]:
    """The objects of the bucket of ``mem://bucket``."""
    register_store('mem', ObjectStore)
    found = {'data-1/rows.csv': b'a\n1\n', 'data-2/rows.csv': b'a\n2\n', 'data-2/old.bin': b'old'}
    ObjectStore.objects['bucket'] = found
    return found


@pytest.mark.parametrize('out', ['data-1', 'data-2/', '/data-1', 'data-1//', ''])
def test_a_glob_of_a_store_that_chooses_files_of_the_output(objects: dict[str, bytes], out: str) -> None:
    before = dict(objects)
    with pytest.raises(ConfigError, match='would delete|lie in one another'):
        convert('mem://bucket/data-*/*.csv', f'mem://bucket/{out}')
    assert objects == before


def test_a_glob_of_a_store_that_would_choose_new_files_of_the_output(objects: dict[str, bytes]) -> None:
    before = dict(objects)
    with pytest.raises(ConfigError, match='lie in one another'):
        convert('mem://bucket/**', 'mem://bucket/out', format='csv')
    assert objects == before
    report = convert('mem://bucket/data-*/*.csv', 'mem://bucket/data-mds')
    assert report.rows == convert('mem://bucket/data-*/*.csv', 'mem://bucket/data-mds').rows == 2


@pytest.mark.parametrize('out', ['mem://bucket/data-1', 'mem://bucket/data-1/', 'mem://bucket', 'MEM://bucket//data-1'])
def test_urls_that_a_function_reads(objects: dict[str, bytes], out: str) -> None:
    before = dict(objects)
    for source in ('mem://bucket/data-1/rows.csv', ('mem://bucket//data-1/rows.csv', 7)):
        with pytest.raises(ConfigError, match='would delete'):
            convert([source], out, function=lambda url: {'a': url})
    assert objects == before


def test_a_text_is_no_path(data: Path) -> None:
    """Text that names no file within the output is converted; so is a file beside it."""
    (data / 'old').mkdir()
    (data / 'old' / 'index.json').write_text('old')
    texts = ['', '.', '/', 'a\0b', 'x' * 5000, 'a.txt', 'http://a.b/c', 'data/a.txt', 'a\nb', 'ünï']
    assert convert(texts, 'data/old', function=lambda text: {'n': len(text)}).rows == len(texts)
    assert [row['n'] for row in rows_of(data / 'old')] == list(map(len, texts))
    assert sorted(path.name for path in data.iterdir()) == ['a.txt', 'b.txt', 'old']


def test_the_command_says_so(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / 'rows.jsonl').write_text('{"a": 1}\n')
    before = digests(data)
    assert main(['convert', f'{data}/*.jsonl', str(data), '--exist-ok']) == 1
    assert 'Choose another' in capsys.readouterr().err
    assert digests(data) == before


def write(folder: Path) -> None:
    with MDSWriter(out=str(folder), columns={'a': 'int'}) as writer:
        writer.write({'a': 1})


def test_a_copy_over_the_dataset_that_has_its_source_as_a_part(tmp_path: Path) -> None:
    for part in 'xy':
        write(tmp_path / 'all' / part)
    merge_index(str(tmp_path / 'all'))
    (tmp_path / 'link').symlink_to(tmp_path / 'all' / 'x')
    before = digests(tmp_path)
    for source in (tmp_path / 'all' / 'x', tmp_path / 'link'):
        with pytest.raises(ConfigError, match='would delete'):
            copy_dataset(source, tmp_path / 'all', overwrite=True)
    assert digests(tmp_path) == before


@pytest.mark.parametrize('out', ['mem://bucket/', 'mem://bucket//data', 'MEM://bucket/data/'])
def test_resharding_within_a_store(objects: dict[str, bytes], tmp_path: Path, out: str) -> None:
    write(tmp_path / 'data')
    copy_dataset(tmp_path / 'data', 'mem://bucket/data')
    before = dict(objects)
    with pytest.raises(ConfigError, match='another place'):
        reshard('mem://bucket/data', out, exist_ok=True)
    assert objects == before
