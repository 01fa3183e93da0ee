"""The dataset behind a loader of torch, and behind a data module of Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
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

from headrace.convert import convert
from headrace.errors import ConfigError
from tests.support.sources.sources_to_convert import rows_of


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
