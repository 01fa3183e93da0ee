"""Trains on several loaders, and writes down the samples of every step: `python lightning_several.py RUN.json`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from headrace.lightning import StreamingDataModule
from tests.support.programs.processes import end_rank


@dataclass(kw_only=True)
class Several:
    """Settings of a run: data, trainer, and the file of its results."""

    name: str
    out: str
    sources: dict[str, str]
    """Folders of the data sets, by the loaders' names."""
    mode: str = 'max_size_cycle'
    devices: int = 1
    workers: int = 0
    batch_size: int = 8
    sizes: dict[str, int] = field(default_factory=dict)
    """Batch sizes of loaders that have their own."""
    checkpoint: str | None = None
    crash_at: int | None = None
    trainer: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    skips: dict[str, list[list[int]]] = field(default_factory=dict)
    """Ranges of samples that loaders skip."""

    def saved(self, steps: int) -> str:
        return str(Path(self.out, self.name, f'step{steps}.ckpt'))


class Crash(Exception):
    """The crash of a run that is told to crash."""


class Model(LightningModule):
    def __init__(self, run: Several) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.run = run
        self.steps: list[tuple[int, int, dict[str, list[int] | None]]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        if self.run.crash_at == len(self.steps):
            raise Crash
        ids = {name: None if rows is None else rows['id'].tolist() for name, rows in batch.items()}
        self.steps.append((self.current_epoch, batch_idx, ids))
        return self.layer(torch.ones(1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(run: Several) -> Model:
    sources: dict[str, Any] = {
        name: {
            'local': folder,
            'shuffle': True,
            'batch_size': run.sizes.get(name),
            'skip': run.skips.get(name, ()),
            **run.dataset,
        }
        for name, folder in run.sources.items()
    }
    data = StreamingDataModule(train=sources, train_mode=run.mode, batch_size=run.batch_size, num_workers=run.workers)
    model = Model(run)
    saver = ModelCheckpoint(
        dirpath=Path(run.out, run.name),
        filename='step{step}',
        auto_insert_metric_name=False,
        save_top_k=-1,
        every_n_train_steps=1,
    )
    trainer = Trainer(
        accelerator='cpu',
        devices=run.devices,
        strategy='ddp' if run.devices > 1 else 'auto',
        callbacks=[saver, OnExceptionCheckpoint(Path(run.out, run.name), 'exception')],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{'max_epochs': 2, **run.trainer},
    )
    try:
        trainer.fit(model, datamodule=data, ckpt_path=run.checkpoint)
    finally:
        Path(run.out, f'{run.name}.rank{trainer.global_rank}.json').write_text(json.dumps(model.steps))
    return model


if __name__ == '__main__':
    torch.set_num_threads(1)
    train(Several(**json.loads(Path(sys.argv[1]).read_text())))
    end_rank()
