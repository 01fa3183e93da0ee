"""Training with Ray Train: rank and world from its context, the loader's position in its checkpoints.

usage: python examples/ray_train.py FOLDER [STEPS] [WORKERS]

The first call writes shards to FOLDER. Each call trains up to so many STEPS (20) in all, saves every fifth, and
continues from the last checkpoint, on any number of WORKERS (2) that divides the global batch of 32 samples.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import ray.train
import torch
from plain_pytorch import write_shards
from ray.train.torch import TorchTrainer, prepare_model

from headrace import StreamingDataLoader, StreamingDataset, Topology


def train(config: dict[str, Any]) -> None:
    """The training loop of each worker."""
    context, folder = ray.train.get_context(), Path(config['folder'])
    rank, world_size = context.get_world_rank(), context.get_world_size()
    dataset = StreamingDataset(
        remote=str(folder / 'shards'),
        local=str(folder / 'cache'),
        batch_size=32 // world_size,
        shuffle=True,
        topology=Topology(rank=rank, world_size=world_size, num_nodes=world_size // context.get_local_world_size()),
    )
    loader = StreamingDataLoader(dataset, num_workers=1)
    bare = torch.nn.Embedding(256, 256)  # whose state has the same names on any number of workers
    model = prepare_model(bare)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as saved:
            state = torch.load(Path(saved, 'state.pt'))
        bare.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
        loader.load_state_dict(state['data'])
        step = state['step']

    while step < config['steps']:  # a pass ends with its epoch
        for batch in islice(loader, config['steps'] - step):
            tokens = batch['tokens'].to(ray.train.torch.get_device()).long()
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with (folder / f'rank{rank}.txt').open('a') as file:
                file.write(f'step {step} ids {batch["id"].tolist()}\n')
            step += 1
            if step % 5 == 0:
                state = {
                    'model': bare.state_dict(),
                    'optimizer': optimizer.state_dict(),
                    'data': loader.state_dict(),  # the same on every rank
                    'step': step,
                }
                report(state, loss=loss.item())


def report(state: dict[str, Any], *, loss: float) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        torch.save(state, Path(temporary, 'state.pt'))
        is_first = ray.train.get_context().get_world_rank() == 0
        ray.train.report(
            {'loss': loss}, checkpoint=ray.train.Checkpoint.from_directory(temporary) if is_first else None
        )


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    steps, workers = (int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((2, 20), (3, 2)))
    if not (folder / 'shards' / 'index.json').exists():
        write_shards(folder / 'shards')
    trainer = TorchTrainer(
        train,
        train_loop_config={'folder': str(folder), 'steps': steps},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        # A run of the same name continues from its last checkpoint.
        run_config=ray.train.RunConfig(name='run', storage_path=str(folder / 'ray')),
    )
    trainer.fit()


if __name__ == '__main__':
    main()
