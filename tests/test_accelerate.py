"""Loaders for Accelerate. `test_recipes.py` trains on two ranks, and resumes on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError

pytest.importorskip('accelerate', reason='pip install -e ".[recipes]"')

from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader

from headrace.accelerate import prepare


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp('data')
    with MDSWriter(columns={'id': 'int'}, out=str(folder), size_limit=256) as writer:
        for number in range(20):
            writer.write({'id': number})
    return str(folder)


def test_a_dataset_that_a_trainer_of_hugging_face_deals_out_is_refused(data: str) -> None:
    """As `Trainer(train_dataset=dataset)` does on two ranks."""
    Accelerator(cpu=True)
    dataset = StreamingDataset(local=data, batch_size=4, topology=Topology(rank=0, world_size=2))
    dealt = prepare_data_loader(DataLoader(dataset, 4), num_processes=2, process_index=0)
    with pytest.raises(ConfigError, match=r'to all 2 ranks.*headrace\.accelerate\.prepare'):
        next(iter(dealt))


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('how', [{}, {'split_batches': True}, {'dispatch_batches': True, 'put_on_device': True}])
@pytest.mark.parametrize('batch_size', [None, 4])
def test_samples_of_a_rank_that_accelerate_deals_out_once_more_are_refused(
    data: str, workers: int, how: dict[str, Any], batch_size: int | None
) -> None:
    Accelerator(cpu=True)
    dataset = StreamingDataset(local=data, batch_size=batch_size, topology=Topology(rank=0, world_size=2))
    loader = StreamingDataLoader(dataset, 4, num_workers=workers, multiprocessing_context='fork' if workers else None)
    dealt = prepare_data_loader(loader, num_processes=2, process_index=0, **how)
    with pytest.raises(ConfigError, match=r'to all 2 ranks.*headrace\.accelerate\.prepare'):
        next(iter(dealt))


def test_other_data_that_accelerate_deals_out_may_be_an_array(data: str) -> None:
    Accelerator(cpu=True)
    dealt = iter(prepare_data_loader(DataLoader(np.arange(20)), num_processes=2, process_index=0))
    next(dealt)
    dataset = StreamingDataset(local=data, batch_size=1, topology=Topology(rank=0, world_size=2))
    assert len(list(dataset)) == 10


def test_one_rank_may_prepare_a_plain_loader(data: str) -> None:
    loader = Accelerator(cpu=True).prepare(DataLoader(StreamingDataset(local=data, batch_size=4), batch_size=4))
    assert sum((batch['id'].tolist() for batch in loader), []) == list(range(20))


def test_the_position_goes_through_states(data: str, tmp_path: Path) -> None:
    def loaders(accelerator: Accelerator) -> list[Any]:
        datasets = [StreamingDataset(local=data, shuffle=True) for _ in range(3)]
        return [
            prepare(accelerator, StreamingDataLoader(datasets[0], batch_size=4)),
            prepare(accelerator, StreamingDataLoader(datasets[1], batch_size=2, fixed_epoch=0)),
            prepare(accelerator, StreamingDataLoader(datasets[2], batch_size=2)),
        ]

    accelerator = Accelerator(cpu=True)
    first, evaluation, other = loaders(accelerator)
    batches = iter(first)
    next(batches)
    assert len(list(evaluation)) == len(list(evaluation)) == 10
    accelerator.save_state(str(tmp_path / 'state'))
    rest = [batch['id'].tolist() for batch in batches]
    then = [batch['id'].tolist() for batch in other]

    accelerator = Accelerator(cpu=True)
    resumed, _, other = loaders(accelerator)
    accelerator.load_state(str(tmp_path / 'state'))
    assert [batch['id'].tolist() for batch in resumed] == rest
    assert [batch['id'].tolist() for batch in other] == then


def test_the_last_batch_ends_an_accumulation_of_gradients(data: str) -> None:
    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, StreamingDataLoader(StreamingDataset(local=data), batch_size=6))
    ends = [accelerator.gradient_state.end_of_dataloader for _ in loader]
    assert len(loader) == 4
    assert ends == [False, False, False, True]
    assert not accelerator.gradient_state.in_dataloader
