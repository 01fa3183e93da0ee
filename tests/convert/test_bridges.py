"""Datasets of torch, torchvision and Lightning to shards in one call, and shards to a dataset of Hugging Face."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sources_to_convert import rows_of
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from headrace import MDSWriter
from headrace.convert import convert, to_hugging_face
from headrace.errors import ConfigError, EmptyDatasetError


class Squares(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {'id': i, 'square': torch.tensor([i, i * i], dtype=torch.float32)}


class Lines(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({'text': f'line {i}'} for i in range(30))


def ids(folder: Path) -> list[int]:
    return [row['id'] for row in rows_of(folder)]


def no_collate(samples: list[Any]) -> Any:
    raise AssertionError('a conversion takes samples, not batches')


@pytest.mark.parametrize('sampler', ['order', 'shuffle', 'some', 'batches'])
def test_a_loader_gives_the_samples_that_it_reads_in_the_order_of_its_dataset(tmp_path: Path, sampler: str) -> None:
    data, expected = Squares(), list(range(20))
    if sampler == 'some':
        loader = DataLoader(data, batch_size=4, sampler=SubsetRandomSampler([7, 3, 11]), collate_fn=no_collate)
        expected = [3, 7, 11]
    elif sampler == 'batches':
        loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 6, False), collate_fn=no_collate)
    else:
        loader = DataLoader(data, batch_size=6, drop_last=True, shuffle=sampler == 'shuffle', collate_fn=no_collate)
    report = convert(loader, tmp_path / 'out', progress_bar=False)
    assert report.columns['id'] == 'int'
    assert report.columns['square'].startswith('ndarray:float32')
    assert ids(tmp_path / 'out') == expected
    assert rows_of(tmp_path / 'out')[1]['square'].tolist() == [expected[1], expected[1] ** 2]


def test_a_loader_of_an_iterable_dataset_gives_its_samples(tmp_path: Path) -> None:
    convert(DataLoader(Lines(), batch_size=7, collate_fn=no_collate), tmp_path / 'out', progress_bar=False)
    assert [row['text'] for row in rows_of(tmp_path / 'out')] == [f'line {i}' for i in range(30)]


@pytest.mark.parametrize(
    'sampler',
    [WeightedRandomSampler([1.0] * 20, 20), RandomSampler(Squares(), replacement=True), RandomSampler(range(5))],
)
def test_a_sampler_that_repeats_or_hides_samples_is_refused(tmp_path: Path, sampler: Any) -> None:
    with pytest.raises(ConfigError, match=f'its sampler is a {type(sampler).__name__}'):
        convert(DataLoader(Squares(), sampler=sampler), tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_tuples_are_named_by_columns(tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(6).reshape(3, 2), torch.tensor([0.0, 0.5, 1.0]))
    convert(DataLoader(data), tmp_path / 'out', columns=['pair', 'target'], progress_bar=False)
    assert [(row['pair'].tolist(), row['target']) for row in rows_of(tmp_path / 'out')] == [
        ([0, 1], 0.0), ([2, 3], 0.5), ([4, 5], 1.0),
    ]  # fmt: skip


@pytest.mark.lightning
def test_a_data_module_gives_the_loader_that_split_names(tmp_path: Path) -> None:
    lightning = pytest.importorskip('lightning.pytorch')

    class Module(lightning.LightningDataModule):  # type: ignore[name-defined,misc]
        calls: list[str]

        def __init__(self) -> None:
            super().__init__()
            self.calls = []

        def prepare_data(self) -> None:
            self.calls.append('prepare')

        def setup(self, stage: str) -> None:
            self.calls.append(stage)
            self.data = Squares()

        def train_dataloader(self) -> Any:
            return DataLoader(self.data, sampler=SubsetRandomSampler(range(4, 20)))

        def val_dataloader(self) -> Any:
            return DataLoader(self.data, sampler=SubsetRandomSampler(range(4)))

        def test_dataloader(self) -> Any:
            return [DataLoader(self.data), DataLoader(self.data)]

    module = Module()
    convert(module, tmp_path / 'train', progress_bar=False)
    assert module.calls == ['prepare', 'fit']
    assert ids(tmp_path / 'train') == list(range(4, 20))
    convert(module, tmp_path / 'val', split='val', progress_bar=False)
    assert ids(tmp_path / 'val') == list(range(4))
    with pytest.raises(ConfigError, match='test_dataloader.* gives a list, not one DataLoader'):
        convert(module, tmp_path / 'test', split='test')
    with pytest.raises(ConfigError, match=r'one of train, val, test, predict, but is .valid.'):
        convert(module, tmp_path / 'test', split='valid')


def test_a_dataset_of_torchvision_needs_no_columns(tmp_path: Path) -> None:
    torchvision = pytest.importorskip('torchvision')
    data = torchvision.datasets.FakeData(size=5, image_size=(3, 8, 8), num_classes=3)
    convert(data, tmp_path / 'out', progress_bar=False)
    for i, row in enumerate(rows_of(tmp_path / 'out')):
        assert np.array_equal(np.asarray(row['image']), np.asarray(data[i][0]))
        assert row['label'] == data[i][1]


def jpeg(i: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(i).integers(0, 255, (8, 8, 3), np.uint8)).save(file, 'JPEG')
    return file.getvalue()


COLUMNS = {
    'id': 'int', 'text': 'str', 'image': 'jpeg', 'raw': 'pil', 'meta': 'json', 'vector': 'ndarray:float32:3',
    'grid': 'ndarray:int16:2,2', 'ragged': 'ndarray:int32', 'number': 'uint16', 'half': 'float16', 'data': 'bytes',
    'exact': 'str_decimal', 'late': 'str_int',
}  # fmt: skip
N = 23


def row(i: int) -> dict[str, Any]:
    return {
        'id': i, 'text': f'téxt {i}', 'image': jpeg(i), 'raw': Image.new('L', (2, 3), i),
        'meta': {'a': [i]} if i % 2 else i, 'vector': np.full(3, i, np.float32), 'grid': np.full((2, 2), i, np.int16),
        'ragged': np.arange(i + 1, dtype=np.int32),
        'number': i, 'half': np.float16(i / 2), 'data': bytes([i]), 'exact': f'{i}.10', 'late': i,
    }  # fmt: skip


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    import decimal

    with MDSWriter(
        out=str(tmp_path / 'shards' / 'train'), columns=COLUMNS, size_limit=3000, compression='zstd', hashes=['xxh64']
    ) as writer:
        for i in range(N):
            writer.write({**row(i), 'exact': decimal.Decimal(f'{i}.10')})
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
        expected = row(i)
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
