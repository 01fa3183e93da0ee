"""A rank program, `lightning_spikes.py OUT DEVICES POISONED FOLDER...`: trains with `LossSpikes` on rows of known loss.

One row is poisoned.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from headrace import StreamingDataset
from headrace.lightning import LossSpikes, StreamingDataModule
from tests.support.programs.processes import end_rank
from tests.support.trainers.statistics_mix import mix

SPIKES: dict[str, Any] = {'warmup': 4, 'window': 20}


class Model(LightningModule):
    """The loss of a row is what its id says, whatever the weights are."""

    def __init__(
        self, poison: list[int], *, manual: bool = False, bad: float = 100.0, bad_batch: int | None = None
    ) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.poison, self.bad, self.bad_batch = torch.tensor(poison), bad, bad_batch
        self.automatic_optimization = not manual
        self.ids: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
        parts = list(batch.values()) if 'id' not in batch else [batch]
        ids = torch.cat([part['id'] for part in parts if part is not None])
        self.ids.append(sorted(ids.tolist()))
        is_bad = torch.isin(ids, self.poison) | (len(self.ids) - 1 == self.bad_batch)
        rows = torch.where(is_bad, self.bad, 1 + ids / 1000)
        nothing = sum(self.layer(part['row']).sum() for part in parts if part is not None) * 0
        loss = rows.mean() + nothing
        self.log('loss_of_rank', loss)
        return loss if self.automatic_optimization else None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(out: str | Path, *callbacks: Callback, every: int | None = None, **options: Any) -> Trainer:
    saving = [] if every is None else [saver(out, every)]
    quiet = {'enable_progress_bar': False, 'enable_model_summary': False, 'enable_checkpointing': bool(saving)}
    settings = {'accelerator': 'cpu', 'max_epochs': 1, 'logger': False, **quiet, **options}
    return Trainer(callbacks=[*callbacks, *saving], default_root_dir=str(out), **settings)


def saver(out: str | Path, every: int) -> ModelCheckpoint:
    return ModelCheckpoint(out, filename='{step}', every_n_train_steps=every, save_top_k=-1)


def data(folders: dict[str, str], **options: Any) -> StreamingDataset:
    return mix(folders, **options)


def main() -> None:
    torch.set_num_threads(1)
    out, devices, poisoned, *folders = sys.argv[1:]
    for sync_dist in (True, False):
        model = Model([int(poisoned)])
        folder = Path(out, 'mean' if sync_dist else 'own')
        spikes = LossSpikes(**SPIKES, sync_dist=sync_dist, stop=sync_dist)
        run = trainer(folder, spikes, devices=int(devices), strategy='ddp')
        module = StreamingDataModule(train=data(dict(zip('ab', folders, strict=True))), batch_size=4)
        run.fit(model, datamodule=module)
        folder.mkdir(exist_ok=True)
        (folder / f'rank{run.global_rank}.json').write_text(json.dumps(model.ids))
    try:
        run = trainer(out, LossSpikes(sync_dist=False, stop=True), devices=int(devices), strategy='ddp')
        run.fit(Model([]), datamodule=StreamingDataModule(train=data({'a': folders[0], 'b': folders[1]}), batch_size=4))
    except ValueError as error:
        Path(out, f'refused{run.global_rank}').write_text(str(error))


if __name__ == '__main__':
    main()
    end_rank()
