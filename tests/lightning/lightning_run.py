"""Training runs, in this process or as a rank program, that write down what they train.

As a program: `python lightning_run.py RUNS.json`, where the file holds a list of the fields of `Run`s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

from headrace.dataset import Stream, StreamingDataLoader, StreamingDataset
from headrace.lightning import StreamingDataModule

EPOCHS = 3


class Crash(Exception):
    """What a run dies of that is told to."""


@dataclasses.dataclass(kw_only=True)
class Run:
    """What to train, how, and where to write it down."""

    name: str
    out: str
    streams: dict[str, str]
    batch_size: int = 8
    devices: int = 1
    workers: int = 0
    strategy: str = 'auto'
    """As Lightning's; `tensor_parallel` is a mesh of `data_parallel` x the rest of the ranks."""
    data_parallel: int = 1
    checkpoint: str | None = None
    every_steps: int | None = None
    every_epoch: bool = False
    after_validation: bool = False
    on_exception: bool = False
    crash_at: int | None = None
    """Batch, counted from 0 in this run, in whose training step to die, on every rank, before it is recorded."""
    kill_at: int | None = None
    crash_in_validation: int | None = None
    """Validation batch, counted in this run, to die in."""
    crash_in: str | None = None
    """Hook to die in, as its name, a colon, and how many times it may go well."""
    signal_in: str | None = None
    """A hook, a colon, how often it goes without, a colon, and a signal that the process then sends to itself there."""
    skip_at: int | None = None
    """Batch, counted in this run, at which the module skips the rest of the epoch."""
    estimated: bool = False
    fits: list[int] | None = None
    """`max_epochs` of several fits with one trainer."""
    trainer: dict[str, Any] = dataclasses.field(default_factory=dict)
    dataset: dict[str, Any] = dataclasses.field(default_factory=dict)
    module: dict[str, Any] = dataclasses.field(default_factory=dict)
    validate: bool = False
    by_hand: bool = False
    """Pass loaders to the trainer, and no data module."""
    yaml: str | None = None
    cache: str | None = None
    """Below which each node of torchrun keeps what it fetches; `streams` are then remote."""

    @property
    def checkpoints(self) -> Path:
        return Path(self.out, self.name)


class Model(LightningModule):
    """Trains one weight, and writes down the samples of every batch that it was trained on."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)
        self.run_spec = run
        self.batches = 0
        self.validated = 0
        self.calls: Counter[str] = Counter()

    def write(self, **record: Any) -> None:
        path = Path(self.run_spec.out, f'{self.run_spec.name}.rank{self.trainer.global_rank}.jsonl')
        with path.open('a') as file:
            file.write(json.dumps(record) + '\n')

    def called(self, hook: str) -> None:
        self.calls[hook] += 1
        if self.run_spec.crash_in == f'{hook}:{self.calls[hook] - 1}':
            raise Crash
        if self.run_spec.signal_in:
            where, number, name = self.run_spec.signal_in.split(':')
            if (where, int(number)) == (hook, self.calls[hook] - 1):
                signal.raise_signal(signal.Signals[name])

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        if self.run_spec.crash_at == self.batches:
            raise Crash
        if self.run_spec.kill_at == self.batches:
            os.kill(os.getpid(), signal.SIGKILL)
        self.batches += 1
        self.called('training_step')
        self.write(
            batch=batch_idx, step=self.trainer.global_step, epoch=self.trainer.current_epoch, ids=batch['id'].tolist()
        )
        return self.layer(batch['row']).mean()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        if self.run_spec.crash_in_validation == self.validated:
            raise Crash
        self.validated += 1
        self.called('validation_step')
        self.write(
            validation=batch_idx, loader=dataloader_idx, epoch=self.trainer.current_epoch, ids=batch['id'].tolist()
        )

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.called('optimizer_step')

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.called('on_before_batch_transfer')
        return batch

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        self.called('on_train_batch_start')
        return -1 if self.calls['on_train_batch_start'] - 1 == self.run_spec.skip_at else None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.called('on_train_batch_end')

    def on_train_epoch_start(self) -> None:
        self.called('on_train_epoch_start')
        self.write(hook='epoch_start', epoch=self.trainer.current_epoch)

    def on_train_epoch_end(self) -> None:
        self.called('on_train_epoch_end')
        self.write(hook='epoch_end', epoch=self.trainer.current_epoch)

    def on_fit_end(self) -> None:
        loop = self.trainer.fit_loop.epoch_loop
        whole = [
            parameter.full_tensor() if isinstance(parameter, DTensor) else parameter for parameter in self.parameters()
        ]
        weights = [value for parameter in whole for value in parameter.flatten().tolist()]
        self.write(hook='fit_end', step=self.trainer.global_step, logged=loop._batches_that_stepped, weights=weights)

    def configure_model(self) -> None:
        mesh = self.device_mesh
        if mesh is not None:
            parallelize_module(self.layer, mesh['tensor_parallel'], RowwiseParallel(input_layouts=Replicate()))
            if self.run_spec.data_parallel > 1:
                fully_shard(self.layer, mesh=mesh['data_parallel'])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.run_spec.estimated:
            self.write(hook='estimated', steps=self.trainer.estimated_stepping_batches)
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def dataset(run: Run, **options: Any) -> StreamingDataset:
    if run.cache is None:
        streams = [Stream(local=folder, name=name) for name, folder in run.streams.items()]
    else:
        node = Path(run.cache, f'node{os.environ["GROUP_RANK"]}')
        streams = [Stream(remote=folder, local=str(node / name), name=name) for name, folder in run.streams.items()]
    return StreamingDataset(streams=streams, shuffle=True, **{**run.dataset, **options})


def model_parallel(run: Run) -> ModelParallelStrategy:
    return ModelParallelStrategy(
        data_parallel_size=run.data_parallel,
        tensor_parallel_size=run.devices // run.data_parallel,
        save_distributed_checkpoint=False,
    )


def callbacks(run: Run) -> list[Callback]:
    found: list[Callback] = []
    keep = {'dirpath': run.checkpoints, 'save_top_k': -1, 'auto_insert_metric_name': False}
    if run.every_steps:
        found.append(ModelCheckpoint(**keep, filename='step{step}', every_n_train_steps=run.every_steps))
    if run.every_epoch:
        found.append(ModelCheckpoint(**keep, filename='epoch{epoch}', save_on_train_epoch_end=True, mode='max'))
    if run.after_validation:
        found.append(ModelCheckpoint(**keep, filename='val{step}', save_on_train_epoch_end=False))
    if run.on_exception:
        found.append(OnExceptionCheckpoint(run.checkpoints, 'exception'))
    return found


def train(run: Run, model_class: type[Model] = Model) -> tuple[Trainer, Model]:
    """Train as told; a `Crash` comes out."""
    # Lightning says of every loader of an IterableDataset with a length that its workers might disagree on it.
    warnings.filterwarnings('ignore', 'Your `IterableDataset` has `__len__` defined')
    model, found = model_class(run), callbacks(run)
    trainer = Trainer(
        accelerator='cpu',
        devices=run.devices,
        strategy=model_parallel(run) if run.strategy == 'tensor_parallel' else run.strategy,
        callbacks=found,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in found),
        **{'max_epochs': EPOCHS, 'num_sanity_val_steps': 0, **run.trainer},
    )
    if run.by_hand:
        loader = StreamingDataLoader(dataset(run, batch_size=run.batch_size), num_workers=run.workers)
        data: dict[str, Any] = {'train_dataloaders': loader}
        if run.validate:
            data['val_dataloaders'] = StreamingDataLoader(dataset(run, batch_size=run.batch_size))
    elif run.yaml:
        data = {'datamodule': StreamingDataModule(run.yaml, **run.module)}
    else:
        val = {'val': dataset(run, shuffle_seed=1)} if run.validate else {}
        data = {
            'datamodule': StreamingDataModule(
                train=dataset(run), **val, batch_size=run.batch_size, num_workers=run.workers, **run.module
            )
        }
    for number, epochs in enumerate(run.fits or [None]):
        if epochs is not None:
            trainer.fit_loop.max_epochs = epochs
        trainer.fit(model, **data, ckpt_path=run.checkpoint if number == 0 else None)
    return trainer, model


def main() -> None:
    torch.set_num_threads(1)
    for fields in json.loads(Path(sys.argv[1]).read_text()):
        with contextlib.suppress(Crash):
            train(Run(**fields))


if __name__ == '__main__':
    main()
