"""A dataset of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.sources.converted import convert, pixels
from tests.support.sources.sources_to_convert import make_images, rows_of


def test_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip('datasets')
    make_images(tmp_path / 'images', {'x': 12}, extension='png')
    files = sorted(str(path) for path in (tmp_path / 'images').rglob('*.png'))
    data = datasets.Dataset.from_dict(
        {
            'image': files,
            'tokens': [list(range(i + 1)) for i in range(12)],
            'text': [f'text {i}' for i in range(12)],
            'maybe': [i if i % 2 else None for i in range(12)],
        }
    ).cast_column('image', datasets.Image())
    data = data.shuffle(seed=3)
    convert(data, tmp_path / 'out')

    rows = rows_of(tmp_path / 'out')
    assert [(row['text'], row['tokens'].tolist(), row['maybe'], pixels(row['image'])) for row in rows] == [
        (row['text'], row['tokens'], row['maybe'], pixels(row['image'])) for row in data
    ]
    convert(data, tmp_path / 'some', columns=['text'], limit=5)
    assert rows_of(tmp_path / 'some') == [{'text': text} for text in data['text'][:5]]


@pytest.mark.parametrize('kind', ['dataset', 'parquet', 'arrow'])
def test_names_of_classes_are_kept(tmp_path: Path, kind: str) -> None:
    datasets = pytest.importorskip('datasets')
    features = {
        'label': datasets.ClassLabel(names=['né', 'pos']),
        'tags': datasets.Sequence(datasets.ClassLabel(names=['a', 'b'])),
        'left_out': datasets.ClassLabel(names=['x']),
    }
    data = datasets.Dataset.from_dict(
        {'label': [1, 0], 'tags': [[0], [1]], 'left_out': [0, 0]}, features=datasets.Features(features)
    )
    if kind == 'parquet':
        data.to_parquet(str(tmp_path / 'in.parquet'))
    elif kind == 'arrow':
        data.save_to_disk(str(tmp_path / 'in'))
    source = {'dataset': data, 'parquet': tmp_path / 'in.parquet', 'arrow': tmp_path / 'in'}[kind]
    convert(source, tmp_path / 'out', columns=['label', 'tags'])
    assert json.loads((tmp_path / 'out' / 'classes.json').read_text()) == {'label': ['né', 'pos'], 'tags': ['a', 'b']}


@pytest.mark.parametrize('workers', [1, 2])
def test_a_transform_is_applied(tmp_path: Path, workers: int) -> None:
    datasets = pytest.importorskip('datasets')
    data = datasets.Dataset.from_dict({'number': list(range(40)), 'text': [f'text {i}' for i in range(40)]})
    data = data.with_transform(_doubled)
    convert(data, tmp_path / 'out', workers=workers)
    assert rows_of(tmp_path / 'out') == [{'double': 2 * i, 'text': f'TEXT {i}'} for i in range(40)]
    convert(data, tmp_path / 'some', columns=['double'], limit=5, workers=workers)
    assert rows_of(tmp_path / 'some') == [{'double': 2 * i} for i in range(5)]


def _doubled(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {'double': [2 * number for number in rows['number']], 'text': [text.upper() for text in rows['text']]}
