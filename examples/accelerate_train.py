"""Training with Hugging Face Accelerate: the loader's position goes through `save_state` and `load_state`.

usage: accelerate launch examples/accelerate_train.py FOLDER [STEPS]

The first call writes shards to FOLDER. Each call trains so many STEPS (20) and continues where the last call ended, on
any number of processes that divides the global batch of 32 samples.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from plain_pytorch import write_shards

from headrace import StreamingDataLoader, StreamingDataset
from headrace.accelerate import prepare


def main() -> None:
    folder = Path(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    with accelerator.main_process_first():
        if not (folder / 'shards' / 'index.json').exists():
            write_shards(folder / 'shards')

    dataset = StreamingDataset(remote=str(folder / 'shards'), local=str(folder / 'cache'), shuffle=True)
    batch_size = 32 // accelerator.num_processes
    loader = prepare(accelerator, StreamingDataLoader(dataset, batch_size=batch_size, num_workers=1))
    model = torch.nn.Embedding(256, 256)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    if (folder / 'checkpoint').exists():
        accelerator.load_state(str(folder / 'checkpoint'))

    while steps > 0:  # a pass ends with its epoch
        for batch in islice(loader, steps):
            tokens = batch['tokens'].long()
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps -= 1
            with (folder / f'rank{accelerator.process_index}.txt').open('a') as file:
                file.write(f'ids {batch["id"].tolist()}\n')
    accelerator.save_state(str(folder / 'checkpoint'))
    accelerator.wait_for_everyone()  # a rank that leaves gloo's group while others use it can make them hang
    accelerator.end_training()


if __name__ == '__main__':
    main()
