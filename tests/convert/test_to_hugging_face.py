"""Datasets of torch, torchvision and Lightning to shards in one call, and shards to a dataset of Hugging Face."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    DataLoader,
)

from headrace import MDSWriter
from headrace.convert import convert, erase, to_hugging_face
from headrace.errors import ConfigError, EmptyDatasetError
from tests.support.sources.bridged import jpeg, row_of
from tests.support.sources.sources_to_convert import rows_of


def test_a_dataset_of_torchvision_needs_no_columns(tmp_path: Path) -> None:
    torchvision = pytest.importorskip('torchvision')
    data = torchvision.datasets.FakeData(size=5, image_size=(3, 8, 8), num_classes=3)
    convert(data, tmp_path / 'out', progress_bar=False)
    for i, row in enumerate(rows_of(tmp_path / 'out')):
        assert np.array_equal(np.asarray(row['image']), np.asarray(data[i][0]))
        assert row['label'] == data[i][1]


COLUMNS = {
    'id': 'int', 'text': 'str', 'image': 'jpeg', 'raw': 'pil', 'meta': 'json', 'vector': 'ndarray:float32:3',
    'grid': 'ndarray:int16:2,2', 'ragged': 'ndarray:int32', 'number': 'uint16', 'half': 'float16', 'data': 'bytes',
    'exact': 'str_decimal', 'late': 'str_int',
}  # fmt: skip


N = 23


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    import decimal

    with MDSWriter(
        out=str(tmp_path / 'shards' / 'train'), columns=COLUMNS, size_limit=3000, compression='zstd', hashes=['xxh64']
    ) as writer:
        for i in range(N):
            writer.write({**row_of(i), 'exact': decimal.Decimal(f'{i}.10')})
    return tmp_path / 'shards'


def of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets = pytest.importorskip('datasets')
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', str(tmp_path / 'hf'))
    return datasets


def test_shards_are_a_dataset_of_hugging_face(tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = of_hugging_face(tmp_path, monkeypatch)
    data = to_hugging_face(shards, split='train')
    assert isinstance(data, datasets.IterableDataset)
    assert data.num_shards > 3
    assert data.features['grid'] == datasets.Array2D(shape=(2, 2), dtype='int16')
    assert data.features['image'] == datasets.Image()
    found = list(data)
    assert [one['id'] for one in found] == list(range(N))
    for i, one in enumerate(found):
        expected = row_of(i)
        assert np.array_equal(np.asarray(one['image']), np.asarray(Image.open(io.BytesIO(expected['image']))))
        assert np.array_equal(np.asarray(one['raw']), np.asarray(expected['raw']))
        for name in ('text', 'number', 'data', 'exact', 'late'):
            assert one[name] == expected[name]
        for name in ('vector', 'grid', 'ragged'):
            assert np.asarray(one[name]).tolist() == expected[name].tolist()
        assert one['half'] == float(expected['half'])
        assert one['meta'] in (str(i), f'{{"a": [{i}]}}')
    raw = next(iter(data.cast_column('image', datasets.Image(decode=False))))
    assert raw['image']['bytes'] == jpeg(0)  # the file as it was written


def test_erased_rows_are_left_out(tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_hugging_face(tmp_path, monkeypatch)
    erase(shards / 'train', [*range(6), 9])
    assert [one['id'] for one in to_hugging_face(shards, split='train')] == [6, 7, 8, *range(10, N)]
    erase(shards / 'train', range(N))
    with pytest.raises(EmptyDatasetError, match='has none'):
        to_hugging_face(shards, split='train')


def test_such_a_dataset_is_divided_shuffled_and_resumed(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = of_hugging_face(tmp_path, monkeypatch)
    data = to_hugging_face(shards, split='train', columns=['id'])
    parts = [[one['id'] for one in data.shard(2, i)] for i in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(N))
    assert all(parts)
    from datasets.distributed import split_dataset_by_node

    assert len(list(split_dataset_by_node(data, rank=1, world_size=2))) < N
    shuffled = data.shuffle(seed=3, buffer_size=4)
    order = [one['id'] for one in shuffled]
    assert sorted(order) == list(range(N))
    assert order != list(range(N))
    iterator = iter(data)
    first = [next(iterator)['id'] for _ in range(9)]
    state = data.state_dict()
    again = pickle.loads(pickle.dumps(to_hugging_face(shards, split='train', columns=['id'])))
    again.load_state_dict(state)
    assert first + [one['id'] for one in again] == list(range(N))
    own = to_hugging_face(
        shards, split='train', columns=['meta'], features=datasets.Features({'meta': datasets.Value('string')})
    )
    assert next(iter(own))['meta'] == '0'


def test_loaders_workers_share_such_a_dataset(tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_hugging_face(tmp_path, monkeypatch)
    data = to_hugging_face(shards, split='train', columns=['id', 'vector']).with_format('torch')
    batches = list(DataLoader(data, batch_size=4, num_workers=2))
    assert sorted(torch.cat([batch['id'] for batch in batches]).tolist()) == list(range(N))
    assert batches[0]['vector'].shape == (4, 3)


class _Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize('has_features', [False, True])
def test_pickles_are_refused_before_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_features: bool
) -> None:
    datasets = of_hugging_face(tmp_path, monkeypatch)
    with MDSWriter(out=str(tmp_path / 'a'), columns={'obj': 'pkl'}) as writer:
        writer.write({'obj': _Attack(tmp_path / 'attacked')})
    features = datasets.Features({'obj': datasets.Value('string')}) if has_features else None
    with pytest.raises(ConfigError, match="'obj' holds pickles"):
        list(to_hugging_face(tmp_path / 'a', features=features))
    assert not (tmp_path / 'attacked').exists()


def test_what_does_not_fit_hugging_face_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_hugging_face(tmp_path, monkeypatch)
    with MDSWriter(out=str(tmp_path / 'a'), columns={'id': 'int', 'obj': 'pkl'}) as writer:
        writer.write({'id': 1, 'obj': {1}})
    with pytest.raises(ConfigError, match="'obj' holds pickles"):
        to_hugging_face(tmp_path / 'a')
    assert list(to_hugging_face(tmp_path / 'a', columns=['id'])) == [{'id': 1}]
    with pytest.raises(ConfigError, match=r"has the columns \['id', 'obj'\], but not 'idd'"):
        to_hugging_face(tmp_path / 'a', columns=['idd'])
    with MDSWriter(out=str(tmp_path / 'b'), columns={'x': 'list[jpeg]'}) as writer:
        writer.write({'x': [Image.new('RGB', (2, 2))]})
    with pytest.raises(ConfigError, match="suits column 'x' of encoding list"):
        to_hugging_face(tmp_path / 'b')
    with MDSWriter(out=str(tmp_path / 'c'), columns={'x': 'int'}):
        pass
    with pytest.raises(EmptyDatasetError, match='has none'):
        to_hugging_face(tmp_path / 'c')


def test_lines_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace import JSONWriter

    of_hugging_face(tmp_path, monkeypatch)
    with JSONWriter(out=str(tmp_path / 'a'), columns={'id': 'int', 'text': 'str', 'x': 'float'}) as writer:
        for i in range(3):
            writer.write({'id': i, 'text': f'{i}', 'x': i / 2})
    assert list(to_hugging_face(tmp_path / 'a')) == [{'id': i, 'text': f'{i}', 'x': i / 2} for i in range(3)]
