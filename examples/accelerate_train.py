"""Training with Hugging Face Accelerate: the loader's position goes through `save_state` and `load_state`.

usage: accelerate launch examples/accelerate_train.py FOLDER [STEPS]

The first call writes shards to FOLDER. Each call trains so many STEPS (20) and continues where the last call ended, on
any number of processes that divides the global batch of 32 samples.
"""

from __future__ import annotations

import os
import sys
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from plain_pytorch import write_shards

from headrace import StreamingDataLoader, StreamingDataset, Topology


def main() -> None:
    folder = Path(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    ranks = accelerator.num_processes
    with accelerator.main_process_first():
        if not (folder / 'shards' / 'index.json').exists():
            write_shards(folder / 'shards')

    dataset = StreamingDataset(
        remote=str(folder / 'shards'),
        local=str(folder / 'cache'),
        batch_size=32 // ranks,
        shuffle=True,
        topology=Topology(
            rank=accelerator.process_index,
            world_size=ranks,
            num_nodes=ranks // int(os.environ.get('LOCAL_WORLD_SIZE', ranks)),
        ),
    )
    loader = StreamingDataLoader(dataset, num_workers=1)
    model = torch.nn.Embedding(256, 256)
    # Not the loader: it knows its ranks, and `prepare` would deal its batches out once more.
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    accelerator.register_for_checkpointing(loader)
    if (folder / 'checkpoint').exists():
        accelerator.load_state(str(folder / 'checkpoint'))

    while steps > 0:  # a pass ends with its epoch
        for batch in islice(loader, steps):
            tokens = send_to_device(batch['tokens'], accelerator.device).long()
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps -= 1
            with (folder / f'rank{accelerator.process_index}.txt').open('a') as file:
                file.write(f'ids {batch["id"].tolist()}\n')
    accelerator.save_state(str(folder / 'checkpoint'))
    accelerator.end_training()


if __name__ == '__main__':
    main()
