"""A Lightning training with a record, `python recorded_training.py RUN DATA`, that resumes from its last checkpoint.

It appends the step and the ids of each batch to RUN/trained, before the model gets it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from headrace.lightning import RunRecord, StreamingDataModule


class Model(LightningModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.trained = (folder / 'trained').open('a', buffering=1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.trained.write(f'{self.global_step} {" ".join(map(str, batch["id"].tolist()))}\n')
        time.sleep(0.05)  # a step during which the test may kill
        return self.layer(batch['row']).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def main() -> None:
    folder, data = Path(sys.argv[1]), sys.argv[2]
    saving = ModelCheckpoint(folder, filename='{step}', every_n_train_steps=5, save_top_k=-1)
    trainer = Trainer(
        default_root_dir=folder,
        accelerator='cpu',
        max_steps=60,
        logger=False,
        enable_progress_bar=False,
        callbacks=[RunRecord(folder), saving],
    )
    trainer.fit(
        Model(folder),
        datamodule=StreamingDataModule(train={'local': data, 'shuffle': True}, batch_size=8),
        ckpt_path=_last_whole(folder),
    )


def _last_whole(folder: Path) -> str | None:
    """The last checkpoint that a kill did not cut."""
    for path in sorted(folder.glob('*.ckpt'), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            torch.load(path, weights_only=False)
        except (RuntimeError, EOFError, OSError):
            continue
        return str(path)
    return None


if __name__ == '__main__':
    main()
