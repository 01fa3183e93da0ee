"""Training without a trainer: the loader's position goes into the checkpoint, and comes back out of it.

usage: python examples/plain_pytorch.py FOLDER [STEPS]

The first call writes shards to FOLDER. Each call trains so many STEPS (20), saves FOLDER/checkpoint.pt after every one,
and continues where the last call ended, also if that was killed.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset


def write_shards(folder: Path) -> None:
    data = np.frombuffer(''.join(topics.values()).encode(), np.uint8)
    columns = {'id': 'int', 'tokens': 'ndarray:uint8:65'}
    with MDSWriter(out=str(folder), columns=columns, compression='zstd', size_limit='64kb') as writer:
        for number, row in enumerate(data[: len(data) // 65 * 65].reshape(-1, 65)):
            writer.write({'id': number, 'tokens': row})


def main() -> None:
    folder = Path(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    shards, checkpoint = folder / 'shards', folder / 'checkpoint.pt'
    if not (shards / 'index.json').exists():
        write_shards(shards)

    dataset = StreamingDataset(remote=str(shards), local=str(folder / 'cache'), batch_size=32, shuffle=True)
    loader = StreamingDataLoader(dataset, num_workers=1)
    model = torch.nn.Embedding(256, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved['model'])
        optimizer.load_state_dict(saved['optimizer'])
        loader.load_state_dict(saved['data'])

    while steps > 0:  # a pass ends with its epoch
        for batch in islice(loader, steps):
            tokens = batch['tokens'].long()
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            data = loader.state_dict()
            print(f'epoch {data["epoch"]} sample {data["sample_in_epoch"]} loss {loss:.3f} ids {batch["id"].tolist()}')
            # Under another name first: a kill in mid-save must not cost the checkpoint before.
            torch.save(
                {'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'data': data}, f'{checkpoint}.new'
            )
            Path(f'{checkpoint}.new').replace(checkpoint)
            steps -= 1


if __name__ == '__main__':
    main()
