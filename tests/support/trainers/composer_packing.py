"""A rank program: trains on packed text, and writes down every sequence.

As a program: `composer -n 2 composer_packing.py OUT NAME CONFIG DURATION [CHECKPOINT]`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from composer.core import Callback
from composer.utils import checkpoint as checkpoints
from composer.utils import dist

from composer import ComposerModel, Trainer
from headrace.composer import StreamingPosition, streaming_data_spec
from tests.support.programs.processes import end_rank
from tests.support.trainers.packed_text import LENGTH, write_batch


class Model(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(LENGTH, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        # Microbatches are cut in all columns.
        assert len(batch['cu_seqlens']) == len(batch['input_ids']) == 1
        return self.layer(batch['input_ids'].float())

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return outputs.mean()


class Recorder(Callback):
    def __init__(self, out: Path, name: str) -> None:
        self.file = out / f'{name}.rank{dist.get_global_rank()}'

    def after_dataloader(self, state: Any, logger: Any) -> None:
        write_batch(self.file, state.batch)


def train(
    out: str, name: str, config: str, duration: str, checkpoint: str | None = None, subset: int | None = None
) -> Any:
    trainer = Trainer(
        model=Model(),
        train_dataloader=streaming_data_spec(config, count_padding=False),
        callbacks=[StreamingPosition(), Recorder(Path(out), name)],
        max_duration=duration,
        train_subset_num_batches=-1 if subset is None else subset,
        device_train_microbatch_size=1,
        optimizers=None,
        load_path=checkpoint,
        progress_bar=False,
        device='cpu',
    )
    trainer.fit()
    checkpoints.save_checkpoint(trainer.state, str(Path(out) / f'{name}.pt'))
    return trainer.state.timestamp


if __name__ == '__main__':
    warnings.simplefilter('ignore')
    train(*sys.argv[1:])
    end_rank()
