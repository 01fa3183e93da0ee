"""Evaluation under Lightning counts each sample once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer

from headrace import PADDING, MDSWriter, StreamingDataset
from headrace.errors import ConfigError
from headrace.lightning import StreamingDataModule
from tests.support import support_file
from tests.support.trainers.ranks import run_ranks

SIZES = (1, 9, 101)  # two ranks with 4 rows each: nothing but padding on one, at once or in the last batch; and a row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for size in SIZES:
        with MDSWriter(out=str(tmp_path / str(size)), columns={'id': 'int'}, size_limit=300) as writer:
            for number in range(size):
                writer.write({'id': number * number})
    return tmp_path


def test_metrics_of_two_ranks_are_those_of_the_data(folder: Path) -> None:
    program = support_file('trainers/lightning_evaluation.py')
    run_ranks('lightning', 2, program, folder, *SIZES, folder=folder)
    ranks = [json.loads((folder / f'rank{rank}.json').read_text()) for rank in range(2)]
    for size in SIZES:
        values = [number * number for number in range(size)]
        mean = pytest.approx(sum(values) / size, rel=1e-6)
        for rank in ranks:
            found = rank[str(size)]
            assert found['val'] == found['test'] == {'metric': mean}
            assert found['tuples'] == {'metric': mean}
        assert sorted(ranks[0][str(size)]['predicted'] + ranks[1][str(size)]['predicted']) == values


class Keys(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[set[str]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.keys.append(set(batch))

    test_step = predict_step = validation_step


@pytest.mark.parametrize(
    ('dataset', 'module', 'is_marked', 'batches'),
    [
        ({}, {}, True, 3),
        ({'remainder': 'exact'}, {}, True, 3),
        ({'remainder': 'repeat'}, {}, False, 3),
        ({'remainder': 'drop'}, {}, False, 2),
        ({}, {'drop_last': True}, False, 2),
        ({'shuffle_algo': 'py1e'}, {}, False, 3),  # cannot say what it repeats
    ],
)
def test_batches_are_marked_unless_something_else_was_said(
    folder: Path, dataset: dict[str, Any], module: dict[str, Any], is_marked: bool, batches: int
) -> None:
    source = {'local': str(folder / '9'), 'shuffle': True, **dataset}
    data = StreamingDataModule(val=source, test=source, predict=StreamingDataset(**source), batch_size=4, **module)
    trainer = Trainer(accelerator='cpu', devices=1, logger=False, enable_progress_bar=False)
    for run in (trainer.validate, trainer.test, trainer.predict):
        model = Keys()
        run(model, datamodule=data)
        assert model.keys == [{'id', PADDING} if is_marked else {'id'}] * batches


def test_training_batches_are_marked_where_that_was_said(folder: Path) -> None:
    for remainder, keys in ((None, {'id'}), ('exact', {'id', PADDING})):
        data = StreamingDataModule(train={'local': str(folder / '9'), 'remainder': remainder}, batch_size=4)
        data.trainer = Trainer(accelerator='cpu', devices=1, logger=False)
        assert [set(batch) for batch in data.train_dataloader()] == [keys] * 3


def test_a_column_with_the_name_of_the_mark_is_refused(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={PADDING: 'int'}) as writer:
        writer.write({PADDING: 0})
    data = StreamingDataModule(val={'local': str(tmp_path)}, batch_size=4)
    trainer = Trainer(accelerator='cpu', devices=1, logger=False, enable_progress_bar=False)
    with pytest.raises(ConfigError, match="choose remainder 'repeat'"):
        trainer.validate(Keys(), datamodule=data)
