"""Training in the style of torchtitan: parts with a state, in sharded checkpoints that load on any number of ranks.

usage: torchrun --nproc-per-node RANKS examples/torchtitan_train.py FOLDER [STEPS]

Trains on the shards of examples/plain_pytorch.py up to STEPS (20), saves every fifth, and resumes on any RANKS. Under
`torchrun --nnodes 1:4 --max-restarts 100` nodes may come and go: all ranks restart from the last checkpoint.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import distributed, nn, optim
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from headrace import LOSS_WEIGHT, PositionTracker, StreamingDataLoader, StreamingDataset


class Training:  # a `torch.distributed.checkpoint.stateful.Stateful`, like the tracker
    def __init__(self, model: nn.Module) -> None:
        self.model, self.optimizer, self.step = model, optim.AdamW(model.parameters(), lr=0.01), 0

    def state_dict(self) -> dict[str, Any]:
        return {'weights': get_state_dict(self.model, self.optimizer), 'step': self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        (model, optimizer), self.step = state_dict['weights'], state_dict['step']
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    distributed.init_process_group()
    data: dict[str, Any] = {'remote': str(folder / 'shards'), 'local': str(folder / 'cache'), 'shuffle': True}
    dataset = StreamingDataset(**data, global_batch_size=32, uneven='pad', loss_weight='samples')
    loader = StreamingDataLoader(dataset, num_workers=1)
    training = Training(nn.parallel.DistributedDataParallel(nn.Embedding(256, 256)))
    states = {'training': training, 'data': (tracker := PositionTracker(loader))}
    for complete in sorted(folder.glob('step-*/.metadata'))[-1:]:  # a checkpoint's last file
        dcp.load(states, checkpoint_id=complete.parent)
    while training.step < steps:  # a pass ends with its epoch
        for batch in islice(tracker.follow(loader), steps - training.step):
            tokens = batch['tokens'].long()
            training.optimizer.zero_grad()
            losses = nn.functional.cross_entropy(training.model(tokens[:, :-1]).mT, tokens[:, 1:], reduction='none')
            (losses.mean(1) * batch[LOSS_WEIGHT]).mean().backward()
            training.optimizer.step()
            tracker.trained()
            ids = batch['id'][: loader.own_samples].tolist()
            with (folder / f'rank{distributed.get_rank()}.txt').open('a') as file:
                file.write(f'step {training.step} of {distributed.get_world_size()} ranks ids {ids}\n')
            training.step += 1
            if training.step % 5 == 0:
                dcp.save(states, checkpoint_id=folder / f'step-{training.step:06}')
    distributed.destroy_process_group()


if __name__ == '__main__':
    main()
