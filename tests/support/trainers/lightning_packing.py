"""A rank program: trains on packed text, and writes down every sequence.

As a program: `python lightning_packing.py OUT NAME CONFIG RANKS STEPS [CHECKPOINT]`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from headrace.lightning import StreamingDataModule
from tests.support.programs.processes import end_rank
from tests.support.trainers.packed_text import LENGTH, write_batch


class Model(LightningModule):
    def __init__(self, out: Path, name: str) -> None:
        super().__init__()
        self.out, self.run_name = out, name
        self.layer = torch.nn.Linear(LENGTH, 1)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        write_batch(self.out / f'{self.run_name}.rank{self.global_rank}', batch)
        return self.layer(batch['input_ids'].float()).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def train(
    out: str, name: str, config: str, ranks: int, steps: int, checkpoint: str | None = None, **options: Any
) -> None:
    data = StreamingDataModule(config)
    trainer = Trainer(
        accelerator='cpu',
        devices=ranks,
        strategy='ddp' if ranks > 1 else 'auto',
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    trainer.fit(Model(Path(out), name), data, ckpt_path=checkpoint)
    trainer.save_checkpoint(Path(out, f'{name}.ckpt'))


if __name__ == '__main__':
    torch.set_num_threads(1)
    out, name, config, ranks, steps, *checkpoint = sys.argv[1:]
    train(out, name, config, int(ranks), int(steps), *checkpoint)
    end_rank()
