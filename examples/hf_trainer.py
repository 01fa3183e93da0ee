"""Training with Hugging Face's Trainer: the loader's position lies in its checkpoint folders.

usage: torchrun --nproc-per-node 2 examples/hf_trainer.py FOLDER [STEPS]

The first call writes shards to FOLDER. Each call trains up to so many STEPS (20) in all, saves every fifth, and
continues from the last checkpoint, on any number of ranks that divides the global batch of 32 samples.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from plain_pytorch import write_shards
from transformers import TrainingArguments

from headrace import StreamingDataLoader, StreamingDataset
from headrace.transformers import StreamingTrainer


class LoggingTrainer(StreamingTrainer):
    """Writes down which samples each step had."""

    def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *args: object) -> torch.Tensor:
        ids = inputs.pop('id').tolist()
        with Path(self.args.output_dir, '..', f'rank{self.args.process_index}.txt').open('a') as file:
            file.write(f'step {self.state.global_step} ids {ids}\n')
        return super().training_step(model, inputs, *args)


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
    arguments.per_device_train_batch_size = 32 // arguments.world_size
    with arguments.main_process_first():
        if not (folder / 'shards' / 'index.json').exists():
            write_shards(folder / 'shards')
    dataset = StreamingDataset(remote=str(folder / 'shards'), local=str(folder / 'cache'), shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=arguments.per_device_train_batch_size, num_workers=1)
    trainer = LoggingTrainer(Model(), arguments, loader=loader)
    trainer.train(resume_from_checkpoint=(folder / 'run').exists())


if __name__ == '__main__':
    main()
