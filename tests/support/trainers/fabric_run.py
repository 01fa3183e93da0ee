"""Training loops on Lightning Fabric that write down what they train.

As a program: `python fabric_run.py LEGS.json`, where the file holds a list of the fields of `Leg`s with equal
`devices`. Fabric starts the other ranks by itself, where no launcher has.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from headrace.lightning import FabricLoader, FabricLoaders, setup
from tests.support.programs.processes import end_rank

EPOCHS = 2


@dataclasses.dataclass(kw_only=True)
class Leg:
    """Settings of a run: data, checkpoint to resume from, and folder to save to."""

    name: str
    out: str
    config: dict[str, Any]
    devices: int = 1
    workers: int = 0
    checkpoint: str | None = None
    save_at: list[int] = dataclasses.field(default_factory=list)
    """After how many batches of this leg to save."""

    def saved(self, batches: int) -> str:
        return str(Path(self.out, f'{self.name}.{batches}.ckpt'))


def train(leg: Leg, fabric: Fabric) -> FabricLoader:
    """A loop as a user writes it."""
    loaders = setup(fabric, leg.config, overrides=[f'train.loader.num_workers={leg.workers}'])
    assert isinstance(loaders, FabricLoaders)
    loader = loaders.train
    assert loader is not None
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    state = {'model': model, 'optimizer': optimizer, 'data': loader, 'step': 0}
    if leg.checkpoint:
        fabric.load(leg.checkpoint, state)
    trained = 0
    if trained in leg.save_at:
        fabric.save(leg.saved(trained), state)
    with Path(leg.out, f'{leg.name}.rank{fabric.global_rank}.jsonl').open('w') as file:
        while loader.epoch < EPOCHS:
            epoch = loader.epoch
            for batch in loader:
                assert batch['row'].device == fabric.device
                fabric.backward(model(batch['row']).mean())
                optimizer.step()
                optimizer.zero_grad()
                file.write(json.dumps({'step': state['step'], 'epoch': epoch, 'ids': batch['id'].tolist()}) + '\n')
                trained += 1
                state['step'] += 1
                if trained in leg.save_at:
                    fabric.save(leg.saved(trained), state)
    return loader


def global_batches(leg: Leg) -> list[tuple[int, int, list[int]]]:
    """The step, the epoch and the ids of each global batch that a leg trained."""
    ranks = [
        [json.loads(line) for line in Path(leg.out, f'{leg.name}.rank{rank}.jsonl').read_text().splitlines()]
        for rank in range(leg.devices)
    ]
    return [
        (batch[0]['step'], batch[0]['epoch'], sorted({i for record in batch for i in record['ids']}))
        for batch in zip(*ranks, strict=True)
    ]


def main() -> None:
    torch.set_num_threads(1)
    legs = [Leg(**fields) for fields in json.loads(Path(sys.argv[1]).read_text())]
    fabric = Fabric(accelerator='cpu', devices=legs[0].devices, strategy='ddp')
    fabric.launch()
    for leg in legs:
        train(leg, fabric)


if __name__ == '__main__':
    main()
    end_rank()
