"""Datasets of torchvision."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sources.converted import convert, pixels
from tests.support.sources.sources_to_convert import make_images, rows_of


def test_datasets_of_torchvision(tmp_path: Path) -> None:
    folders = pytest.importorskip('torchvision.datasets')
    fake = folders.FakeData(5, image_size=(3, 4, 4), num_classes=3)
    report = convert(fake, tmp_path / 'fake')
    assert report.columns == {'image': 'png', 'label': 'int'}
    rows = rows_of(tmp_path / 'fake')
    assert [(pixels(row['image']), row['label']) for row in rows] == [(pixels(image), label) for image, label in fake]
    make_images(tmp_path / 'data', {'b': 4, 'a': 3})
    data = folders.ImageFolder(str(tmp_path / 'data'))
    assert convert(data, tmp_path / 'folder').columns == {'image': 'jpeg', 'label': 'int'}
    assert [row['label'] for row in rows_of(tmp_path / 'folder')] == data.targets
    assert (tmp_path / 'folder' / 'classes.json').exists()
    chosen = folders.ImageFolder(str(tmp_path / 'data'), is_valid_file=lambda path: '-1' in path)
    assert convert(chosen, tmp_path / 'chosen').rows == len(chosen)
    changed = folders.ImageFolder(str(tmp_path / 'data'), transform=lambda image: image.convert('L'))
    convert(changed, tmp_path / 'changed')
    assert {row['image'].mode for row in rows_of(tmp_path / 'changed')} == {'L'}
