"""Training with Hugging Face's Trainer: the loader's position lies in its checkpoint folders.

usage: torchrun --nproc-per-node 2 examples/hf_trainer.py FOLDER [STEPS]

The first call writes shards to FOLDER. Each call trains up to so many STEPS (20) in all, saves every fifth, and
continues from the last checkpoint, on any number of ranks that divides the global batch of 32 samples.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from plain_pytorch import write_shards
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from headrace import StreamingDataLoader, StreamingDataset, Topology


class StreamingTrainer(Trainer):
    """A Trainer whose training data is a `StreamingDataLoader`, with a position in every checkpoint."""

    def __init__(self, *args: Any, loader: StreamingDataLoader, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Otherwise it would read what was trained once more, only to leave it out.
        self.args.ignore_data_skip = True
        self.loader = loader
        self.add_callback(SavePosition(loader))

    def get_train_dataloader(self) -> StreamingDataLoader:
        return self.loader  # as it is: Accelerate would deal its batches out once more

    def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *args: Any) -> torch.Tensor:
        ids = inputs.pop('id').tolist()
        with Path(self.args.output_dir, '..', f'rank{self.args.process_index}.txt').open('a') as file:
            file.write(f'step {self.state.global_step} ids {ids}\n')
        return super().training_step(model, inputs, *args)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            self.loader.load_state_dict(json.loads(Path(resume_from_checkpoint, 'data.json').read_text()))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)


class SavePosition(TrainerCallback):
    """Writes the loader's position into the checkpoint that was just saved."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        self.loader = loader

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if state.is_world_process_zero:
            path = Path(args.output_dir, f'checkpoint-{state.global_step}', 'data.json')
            path.write_text(json.dumps(self.loader.state_dict()))


class Model(torch.nn.Module):
    """Guesses each byte from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Embedding(256, 256)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        tokens = tokens.long()
        return {'loss': torch.nn.functional.cross_entropy(self.scores(tokens[:, :-1]).mT, tokens[:, 1:])}


def main() -> None:
    folder = Path(sys.argv[1])
    arguments = TrainingArguments(
        output_dir=str(folder / 'run'),
        max_steps=int(sys.argv[2]) if len(sys.argv) > 2 else 20,
        save_steps=5,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    ranks = arguments.world_size
    arguments.per_device_train_batch_size = 32 // ranks
    with arguments.main_process_first():
        if not (folder / 'shards' / 'index.json').exists():
            write_shards(folder / 'shards')
    dataset = StreamingDataset(
        remote=str(folder / 'shards'),
        local=str(folder / 'cache'),
        batch_size=arguments.per_device_train_batch_size,
        shuffle=True,
        topology=Topology(
            rank=arguments.process_index,
            world_size=ranks,
            num_nodes=ranks // int(os.environ.get('LOCAL_WORLD_SIZE', ranks)),
        ),
    )
    trainer = StreamingTrainer(Model(), arguments, loader=StreamingDataLoader(dataset, num_workers=1))
    trainer.train(resume_from_checkpoint=(folder / 'run').exists())


if __name__ == '__main__':
    main()
