"""Evaluates under Lightning on all ranks that there are: `python lightning_evaluation.py FOLDER SIZE...`.

Writes what metrics and predictions give for each data set of the folder, by number of samples.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torchmetrics import MeanMetric

from headrace import PADDING, StreamingDataset, without_padding
from headrace.lightning import StreamingDataModule
from tests.support.programs.processes import end_rank


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.mean = MeanMetric()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        values = (self.layer(batch['id'].float()[:, None])[:, 0] * 0 + batch['id'])[~batch[PADDING]]
        self.mean.update(values)
        self.log('metric', self.mean, on_epoch=True)

    test_step = validation_step

    def predict_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> list[int]:
        return without_padding(batch)['id'].tolist()


class Tuples(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return sample['id'], sample['id']


class OfTuples(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        own, _ = without_padding(batch, self.trainer.val_dataloaders.own_samples)
        self.mean.update(own)
        self.log('metric', self.mean, on_epoch=True)


def main() -> None:
    warnings.simplefilter('ignore')
    folder = Path(sys.argv[1])
    results: dict[str, Any] = {}
    for size in sys.argv[2:]:
        trainer = Trainer(
            accelerator='cpu',
            devices=int(os.environ['WORLD_SIZE']),
            strategy='ddp',
            logger=False,
            enable_progress_bar=False,
        )
        source = {'local': str(folder / size), 'shuffle': True}
        module = StreamingDataModule(val=source, test=source, predict=source, batch_size=4, num_workers=1)
        model = Model()
        found: dict[str, Any] = {'val': trainer.validate(model, module, verbose=False)[0]}
        found['test'] = trainer.test(model, module, verbose=False)[0]
        found['predicted'] = sum(trainer.predict(model, module) or [], [])
        tuples = StreamingDataModule(val=source, batch_size=4, num_workers=2, dataset_class=Tuples)
        found['tuples'] = trainer.validate(OfTuples(), tuples, verbose=False)[0]
        results[size] = found
    (folder / f'rank{trainer.global_rank}.json').write_text(json.dumps(results))


if __name__ == '__main__':
    main()
    end_rank()
