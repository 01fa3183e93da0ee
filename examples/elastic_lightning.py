"""Lightning under elastic torchrun: nodes come and go, and all ranks restart from the last checkpoint.

usage: torchrun --nnodes 1:4 --max-restarts 100 --rdzv-backend c10d --rdzv-endpoint HOST examples/elastic_lightning.py
    FOLDER [STEPS]

Trains on the shards of examples/plain_pytorch.py up to STEPS (20), and saves every fifth.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from headrace import LOSS_WEIGHT, PADDING
from headrace.lightning import StreamingDataModule


class Model(LightningModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.embedding = folder, torch.nn.Embedding(256, 256)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        tokens, ids = batch['tokens'].long(), batch['id'][~batch[PADDING]].tolist()
        with (self.folder / f'rank{self.global_rank}.txt').open('a') as file:
            file.write(f'step {self.global_step} of {self.trainer.world_size} ranks ids {ids}\n')
        losses = torch.nn.functional.cross_entropy(self.embedding(tokens[:, :-1]).mT, tokens[:, 1:], reduction='none')
        return (losses.mean(1) * batch[LOSS_WEIGHT]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    ranks, here = int(os.environ['WORLD_SIZE']), int(os.environ['LOCAL_WORLD_SIZE'])
    data: dict[str, Any] = {'remote': str(folder / 'shards'), 'local': str(folder / 'cache'), 'shuffle': True}
    data |= {'global_batch_size': 32, 'uneven': 'pad', 'loss_weight': 'samples'}
    saving = ModelCheckpoint(folder / 'checkpoints', every_n_train_steps=5, save_last=True)
    trainer = Trainer(
        strategy='ddp', devices=here, num_nodes=ranks // here, max_steps=steps, callbacks=[saving], logger=False
    )
    trainer.fit(Model(folder), datamodule=StreamingDataModule(train=data, num_workers=1), ckpt_path='last')


if __name__ == '__main__':
    main()
