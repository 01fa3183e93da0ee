"""A loss spike of a packed run under Lightning: its files, its documents, the run without them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from headrace.lightning import DataStatistics, LossSpikes, StreamingDataModule
from tests.support.packings.packed_streams import SIZE, unpadded
from tests.support.trainers.packed_story import (
    SPIKE,
    STEPS,
    batches_of,
    check_resumed,
    check_story,
    documents_in,
    without,
    write_run,
)

pytestmark = [pytest.mark.lightning, pytest.mark.filterwarnings('ignore')]


class Model(LightningModule):
    """Its loss is 100 for one batch, else 2."""

    def __init__(self, bad: list[list[int]]) -> None:
        super().__init__()
        self.layer, self.bad = torch.nn.Linear(SIZE, 1), bad
        self.trained: list[list[list[int]]] = []

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.trained.append(unpadded(batch))
        loss = 100.0 if self.trained[-1] == self.bad else 2.0
        return self.layer(batch['input_ids'].float()).mean() * 0 + loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(config: Any, folder: Path, bad: list[list[int]], *, steps: int, checkpoint: str | None = None):
    trainer = Trainer(
        accelerator='cpu',
        max_steps=steps,
        callbacks=[DataStatistics(1), LossSpikes(warmup=3, folder=str(folder))],
        logger=CSVLogger(folder, name='logs', version=''),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    model = Model(bad)
    trainer.fit(model, StreamingDataModule(config), ckpt_path=checkpoint)
    return trainer, model


def logged(folder: Path) -> dict[str, float]:
    """The figures of the last log of the data."""
    with (folder / 'metrics.csv').open() as file:
        rows = [row for row in csv.DictReader(file) if row['data/samples']]
    return {name: float(value) for name, value in rows[-1].items() if value}


def test_a_spike_of_a_packed_run_is_told_in_documents(tmp_path):
    path = write_run(tmp_path)
    bad, checkpoint = batches_of(path)[SPIKE], str(tmp_path / 'before.ckpt')
    before, _ = train(path, tmp_path / 'before', bad, steps=SPIKE - 1)
    before.save_checkpoint(checkpoint)
    _, model = train(path, tmp_path, bad, steps=STEPS)
    check_story(path, tmp_path, model.trained, logged(tmp_path / 'logs'))
    documents = documents_in(bad)
    _, resumed = train(without(path, documents), tmp_path / 'later', bad, steps=STEPS, checkpoint=checkpoint)
    check_resumed(path, resumed.trained, documents)
