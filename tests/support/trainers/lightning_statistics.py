"""A rank program: trains on a mix with `DataStatistics`, logs to a CSV file, and writes down what it trained.

As a program: `python lightning_statistics.py OUT DEVICES FOLDER...`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from headrace.lightning import DataStatistics, StreamingDataModule
from tests.support.programs.processes import end_rank
from tests.support.trainers.statistics_mix import mix


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.ids: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.ids += batch['id'].tolist()
        return self.layer(batch['row']).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(out: str | Path, *callbacks: Any, **options: Any) -> Trainer:
    quiet = {'enable_progress_bar': False, 'enable_model_summary': False, 'enable_checkpointing': False}
    settings = {'accelerator': 'cpu', 'max_epochs': 1, 'num_sanity_val_steps': 0, **quiet, **options}
    return Trainer(callbacks=list(callbacks), logger=CSVLogger(str(out), 'run', 0), **settings)


def main() -> None:
    torch.set_num_threads(1)
    out, devices, *folders = sys.argv[1:]
    model = Model()
    run = trainer(
        out,
        DataStatistics(1, sync_dist=True, tokens=lambda batch: len(batch['id']) * 10),
        devices=int(devices),
        strategy='ddp',
    )
    if run.global_rank:
        run.loggers = []  # as where a program makes a logger on rank 0 only
    # Each rank has a cache of its own, so that it downloads by itself.
    cache = Path(out, f'cache{run.global_rank}')
    data = StreamingDataModule(train=mix(dict(zip('ab', folders, strict=True)), cache), batch_size=4)
    run.fit(model, datamodule=data)
    loader = run.train_dataloader
    assert loader is not None
    Path(out, f'rank{run.global_rank}.json').write_text(
        json.dumps({'ids': model.ids, 'bytes': loader.stats().bytes_downloaded, 'hits': loader.stats().cache_hits})
    )


if __name__ == '__main__':
    main()
    end_rank()
