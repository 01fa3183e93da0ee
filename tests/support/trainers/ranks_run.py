"""Trains and evaluates on any number of ranks: `python ranks_run.py TRAINER DATA OUT HOW`.

HOW is JSON of `train` and `trainer`, arguments of the training dataset and of the trainer; and of `load` and `save`,
the checkpoints to begin from and to end with.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchmetrics import MeanMetric

from headrace import LOSS_WEIGHT, PADDING
from headrace.metrics import WithoutPadding
from headrace.storage.cache import peer_server
from tests.support.programs.processes import end_rank

Seen = dict[str, Any]


def datasets(folder: str, train: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    common: dict[str, Any] = {'local': folder, 'shuffle': True}
    if 'peers' in train:  # each rank is a node
        number = int(os.environ['RANK']) + 2
        common = {**common, 'remote': folder, 'local': f'node {number}'}
        train = {**train, 'peers': {**train['peers'], 'interface': f'127.0.0.{number}'}}
    evaluation = {**common, 'global_batch_size': 192, 'uneven': train['uneven']}
    return {**common, 'global_batch_size': 512, **train}, evaluation


def layer() -> torch.nn.Linear:
    made = torch.nn.Linear(1, 1).double()
    torch.nn.init.constant_(made.weight, 0.3)
    torch.nn.init.zeros_(made.bias)
    return made


def losses(model: Any, batch: Any) -> torch.Tensor:
    x = batch['id'].double()[:, None] / 1000
    return (model.layer(x) - torch.sin(x))[:, 0] ** 2


def weighted(model: Any, batch: Any) -> torch.Tensor:
    found = losses(model, batch)
    return (found * batch[LOSS_WEIGHT] if LOSS_WEIGHT in batch else found).mean()


def note(seen: Seen, batch: Any, loss: torch.Tensor) -> None:
    ids = batch['id']
    seen['ids'].append(ids[~batch[PADDING]].tolist() if PADDING in batch else ids.tolist())
    mean = loss.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    seen['losses'].append(float(mean))


def with_lightning(train: dict[str, Any], evaluation: dict[str, Any], how: dict[str, Any], seen: Seen) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from headrace.lightning import StreamingDataModule

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer()
            self.mean = WithoutPadding(MeanMetric())

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = weighted(self, batch)
            note(seen, batch, loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.mean.update(losses(self, batch), is_padding=batch[PADDING])

        def on_validation_epoch_end(self) -> None:
            seen['metric'] = float(self.mean.compute())
            seen['evaluated_at'].append(len(seen['ids']))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Model()
    limits: Any = {'max_epochs': 1, **how.get('trainer', {})}
    trainer = Trainer(
        accelerator='cpu',
        devices=int(os.environ['WORLD_SIZE']),
        strategy='ddp',
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **limits,
    )
    trainer.fit(model, datamodule=StreamingDataModule(train=train, val=evaluation), ckpt_path=how.get('load'))
    if 'save' in how:
        trainer.save_checkpoint(how['save'])
    seen['weight'] = float(model.layer.weight)


def with_composer(train: dict[str, Any], evaluation: dict[str, Any], how: dict[str, Any], seen: Seen) -> None:
    from composer import ComposerModel, Trainer
    from headrace.composer import StreamingPosition, streaming_data_spec

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer()
            self.mean = MeanMetric()

        def forward(self, batch: Any) -> torch.Tensor:
            return losses(self, batch)

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            return (outputs * batch[LOSS_WEIGHT] if LOSS_WEIGHT in batch else outputs).mean()

        def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
            return self.forward(batch)

        def get_metrics(self, is_train: bool) -> dict[str, Any]:
            return {} if is_train else {'mean': self.mean}

        def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
            metric.update(outputs)

    class Noted(StreamingPosition):
        def batch_start(self, state: Any, logger: Any) -> None:
            with torch.no_grad():
                note(seen, state.batch, weighted(model, state.batch))

    model = Model()
    trainer = Trainer(
        model=model,
        train_dataloader=streaming_data_spec(**train),
        eval_dataloader=streaming_data_spec(section='eval', **evaluation),
        callbacks=[Noted()],
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        device_train_microbatch_size=30,
        device='cpu',
        progress_bar=False,
        load_path=how.get('load'),
        max_duration=how.get('trainer', {}).get('max_duration', '1ep'),
    )
    trainer.fit()
    if 'save' in how:
        trainer.save_checkpoint(how['save'])
    seen['samples'], seen['epoch'] = int(trainer.state.timestamp.sample), int(trainer.state.timestamp.epoch)
    seen['metric'] = float(trainer.state.eval_metrics['eval']['mean'].compute())
    seen['weight'] = float(model.layer.weight)


def main() -> None:
    warnings.simplefilter('ignore')
    trainer, folder, out = sys.argv[1:4]
    how: dict[str, Any] = json.loads(sys.argv[4])
    seen: Seen = {'ids': [], 'losses': [], 'evaluated_at': []}
    (with_composer if trainer == 'composer' else with_lightning)(*datasets(folder, how['train']), how, seen)
    seen['servers'] = len(peer_server._state.serving)
    rank = dist.get_rank() if dist.is_initialized() else 0
    Path(f'{out}.{rank}.json').write_text(json.dumps(seen))


if __name__ == '__main__':
    main()
    end_rank()
