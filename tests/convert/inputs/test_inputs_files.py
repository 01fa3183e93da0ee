"""Folders of images, as torchvision reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from headrace.errors import ConfigError
from tests.support.sources.converted import convert, pixels
from tests.support.sources.sources_to_convert import digests, make_images, rows_of


def test_an_image_folder_is_that_of_torchvision(tmp_path: Path) -> None:
    folders = pytest.importorskip('torchvision.datasets')
    make_images(tmp_path / 'data', {'dog': 7, 'a cat': 5, 'a-b': 4, 'ünï': 3})
    (tmp_path / 'data' / 'dog' / 'readme.txt').write_text('no image')
    report = convert(tmp_path / 'data', tmp_path / 'out', columns=['image', 'label', 'path'])
    theirs = folders.ImageFolder(str(tmp_path / 'data'))

    assert report.columns == {'image': 'jpeg', 'label': 'int', 'path': 'str'}
    assert json.loads((tmp_path / 'out' / 'classes.json').read_text()) == theirs.classes
    rows = rows_of(tmp_path / 'out')
    assert [(str(tmp_path / 'data' / row['path']), row['label']) for row in rows] == theirs.samples
    assert [pixels(row['image']) for row in rows] == [pixels(image) for image, _ in theirs]


@pytest.mark.parametrize('extension', ['jpg', 'png', 'both'])
def test_bytes_of_images_are_kept(tmp_path: Path, extension: str) -> None:
    for kind in ('jpg', 'png') if extension == 'both' else (extension,):
        make_images(tmp_path / 'data', {f'x-{kind}': 3}, extension=kind)
    report = convert(tmp_path / 'data', tmp_path / 'out')

    assert report.columns['image'] == ('jpeg' if extension == 'jpg' else 'png')
    stored = (tmp_path / 'out' / 'shard.00000.00000.mds').read_bytes()
    files = [path for path in (tmp_path / 'data').rglob('*') if path.is_file()]
    assert len(files) == len(rows_of(tmp_path / 'out')) == 3 * (1 + (extension == 'both'))
    assert all(path.read_bytes() in stored for path in files)


def test_links_to_folders_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    make_images(tmp_path / 'elsewhere', {'cat': 3})
    make_images(tmp_path / 'data', {'dog': 2})
    (tmp_path / 'data' / 'cat').symlink_to(tmp_path / 'elsewhere' / 'cat')
    (tmp_path / 'data' / 'dog' / 'loop').symlink_to(tmp_path / 'data')

    convert(tmp_path / 'data', tmp_path / 'out', columns=['label'])
    assert {row['label'] for row in rows_of(tmp_path / 'out')} == {0, 1}


@pytest.mark.parametrize(
    ('paths', 'error'),
    [
        (['train/cat/1.jpg', 'val/cat/1.jpg'], "Convert each one by itself, with split='train'"),
        (['train/cat/1.jpg', 'test/cat/1.jpg', 'pictures/1.jpg'], r"splits: \['test', 'train'\]"),
        (['cat/1.jpg', '2.jpg'], "holds the image '2.jpg' outside"),
    ],
)
def test_trees_that_are_no_image_folder(tmp_path: Path, paths: list[str], error: str) -> None:
    for path in paths:
        (tmp_path / 'data' / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (2, 2)).save(tmp_path / 'data' / path)
    with pytest.raises(ConfigError, match=error):
        convert(tmp_path / 'data', tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_hostile_names_of_classes(tmp_path: Path) -> None:
    for name in ('..x', '.headrace-convert', 'index.json', 'a\\b', 'c\nd', '%2e%2e'):
        make_images(tmp_path / 'data', {name: 1})
    convert(tmp_path / 'data', tmp_path / 'out', columns=['path'])

    names = ['.headrace-inputs.json', 'classes.json', 'index.json', 'shard.00000.00000.mds']
    assert sorted(digests(tmp_path / 'out')) == names
    assert len(rows_of(tmp_path / 'out')) == 6
