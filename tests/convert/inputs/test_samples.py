"""Samples of a program that are tuples."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from headrace.errors import ConversionError
from tests.support.sources.converted import convert
from tests.support.sources.sources_to_convert import rows_of


def test_tuples_without_names(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"columns=\['image', 'label'\]"):
        convert([(1, 2)], tmp_path / 'out')


def test_tuples_with_encodings(tmp_path: Path) -> None:
    data = [(Image.new('L', (3, 3), i), i) for i in range(5)]
    report = convert(data, tmp_path / 'out', columns={'image': 'png', 'label': 'uint8'})

    assert report.columns == {'image': 'png', 'label': 'uint8'}
    assert [(row['image'].getpixel((0, 0)), row['label']) for row in rows_of(tmp_path / 'out')] == [
        (i, i) for i in range(5)
    ]
