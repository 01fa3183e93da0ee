"""Inputs that a program holds: functions, rows and iterables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.sources.converted import convert, squares
from tests.support.sources.sources_to_convert import rows_of


def expected_squares(numbers):
    return [{'n': n, 'square': n**2, 'part': part} for n in numbers if n % 3 for part in range(3 if n % 3 == 2 else 1)]


def test_a_function_over_inputs(tmp_path: Path) -> None:
    report = convert(range(20), tmp_path / 'out', function=squares)

    assert rows_of(tmp_path / 'out') == expected_squares(range(20))
    assert (report.inputs, report.rows, report.num_errors) == (20, len(expected_squares(range(20))), 0)
    assert report.columns == {'n': 'int', 'square': 'int', 'part': 'int'}


@pytest.mark.parametrize('kind', ['list', 'generator', 'torch', 'tuples'])
def test_rows_and_iterables(tmp_path: Path, kind: str) -> None:
    samples = [{'id': i, 'x': torch.full((2,), i), 'y': torch.tensor(i / 2), 'text': 'é' * i} for i in range(50)]

    class MapStyle(torch.utils.data.Dataset):
        def __len__(self):
            return len(samples)

        def __getitem__(self, i):
            return samples[i]

    source = {
        'list': samples,
        'generator': (sample for sample in samples),
        'torch': MapStyle(),
        'tuples': [tuple(sample.values()) for sample in samples],
    }[kind]
    columns = ['id', 'x', 'y', 'text'] if kind == 'tuples' else None
    report = convert(source, tmp_path / 'out', columns=columns, size_limit=600)

    rows = rows_of(tmp_path / 'out')
    assert [(row['id'], row['x'].tolist(), row['y'], row['text']) for row in rows] == [
        (i, [i, i], i / 2, 'é' * i) for i in range(50)
    ]
    assert report.columns == {'id': 'int', 'x': 'ndarray:int64:2', 'y': 'float64', 'text': 'str'}
    assert report.shards > 5


def test_an_iterable_dataset_of_torch(tmp_path: Path) -> None:
    class Numbers(torch.utils.data.IterableDataset):
        def __len__(self):
            return 3

        def __iter__(self):
            return ({'i': i} for i in range(3))

    assert convert(Numbers(), tmp_path / 'out').kind == 'iterable'
