"""Training runs, in this process or as a rank program, that write down what they train.

As a program: `python lightning_run.py RUNS.json`, where the file holds a list of the fields of `Run`s.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    Checkpoint,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    Timer,
)
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.tuner import Tuner
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

from headrace.dataset import Stream, StreamingDataLoader, StreamingDataset
from headrace.lightning import StreamingDataModule
from tests.support.programs.processes import end_rank

EPOCHS = 3


class Crash(Exception):
    """The crash of a run that is told to crash."""


@dataclasses.dataclass(kw_only=True)
class Run:
    """Settings of a run: data, trainer, and the file of its results."""

    name: str
    out: str
    streams: dict[str, str]
    batch_size: int = 8
    devices: int = 1
    """Ranks, on all nodes."""
    nodes: int = 1
    workers: int = 0
    strategy: str = 'auto'
    """Lightning's name; or `tensor_parallel`, a mesh of `data_parallel` x the rest of the ranks; or `ddp_forkserver`,
    which is ddp_spawn with ranks forked from a process that has imported torch already."""
    data_parallel: int = 1
    checkpoint: str | None = None
    """A file, or a folder, which means the newest one in it."""
    every_steps: int | None = None
    every_epoch: bool = False
    after_validation: bool = False
    on_exception: bool = False
    save_on_exception: bool = False
    at_end: bool = False
    """Save by `trainer.save_checkpoint` after the fit."""
    crash_at: int | None = None
    """Batch, counted from 0 in this run, in whose training step to die, on every rank, before it is recorded."""
    kill_at: int | None = None
    terminate_at: int | None = None
    """Batch, counted in this run, in whose training step every rank gets a SIGTERM."""
    time_out_at: int | None = None
    """Batch, counted in this run, in whose training step the time of `max_time` is over."""
    crash_in_validation: int | None = None
    """Validation batch, counted in this run, to die in."""
    crash_in: str | None = None
    """Hook to die in, as its name, a colon, and how many times it may go well."""
    signal_in: str | None = None
    """A hook, a colon, how often it goes without, a colon, and a signal that the process then sends to itself there."""
    skip_at: int | None = None
    """Batch, counted in this run, at which the module skips the rest of the epoch."""
    estimated: bool = False
    accumulate: dict[int, int] | None = None
    """Batches of an optimizer step by the epoch in which that begins: a `GradientAccumulationScheduler`."""
    manual: bool = False
    """Optimize in the training step."""
    unsized: bool = False
    """Hide the length of the training loader."""
    find_batch_size: bool = False
    fits: list[int] | None = None
    """`max_epochs` of several fits with one trainer."""
    trainer: dict[str, Any] = dataclasses.field(default_factory=dict)
    dataset: dict[str, Any] = dataclasses.field(default_factory=dict)
    module: dict[str, Any] = dataclasses.field(default_factory=dict)
    validate: bool = False
    by_hand: bool = False
    """Pass loaders to the trainer, and no data module."""
    yaml: str | None = None
    datamodule: str | None = None
    """What makes the data module of a run in place of headrace's, as `module:function`."""
    cache: str | None = None
    """Below which each node of torchrun keeps what it fetches; `streams` are then remote."""

    @property
    def checkpoints(self) -> Path:
        return Path(self.out, self.name)

    @property
    def tensor_parallel(self) -> int:
        """Consecutive ranks that share their samples."""
        return self.devices // self.data_parallel if self.strategy == 'tensor_parallel' else 1

    @property
    def replicas(self) -> int:
        return self.devices // self.tensor_parallel

    @property
    def is_to_die(self) -> bool:
        return any(
            told is not None
            for told in (self.crash_at, self.kill_at, self.terminate_at, self.crash_in_validation, self.crash_in)
        )


def newest(checkpoint: str | Path) -> Path:
    """A checkpoint, where a folder may stand for the newest one in it."""
    path = Path(checkpoint)
    return max(path.glob('*.ckpt'), key=lambda file: file.stat().st_mtime_ns) if path.is_dir() else path


class Model(LightningModule):
    """Trains one weight, and writes down the samples of every batch that it was trained on."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)
        self.run_spec = run
        self.automatic_optimization = not run.manual
        self.batches = 0
        self.validated = 0
        self.calls: Counter[str] = Counter()

    @property
    def record_file(self) -> Path:
        return Path(self.run_spec.out, f'{self.run_spec.name}.rank{self.trainer.global_rank}.jsonl')

    def write(self, **record: Any) -> None:
        with self.record_file.open('a') as file:
            file.write(json.dumps(record) + '\n')

    def forget(self) -> None:
        """What was trained until now was a trial."""
        self.record_file.unlink()
        self.batches = 0
        self.calls.clear()

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
        if self.run_spec.terminate_at == self.batches:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.run_spec.time_out_at == self.batches:
            next(found for found in self.trainer.callbacks if isinstance(found, Timer))._offset += 13 * 3600
        self.batches += 1
        self.called('training_step')
        self.write(
            batch=batch_idx, step=self.trainer.global_step, epoch=self.trainer.current_epoch, ids=batch['id'].tolist()
        )
        loss = self.layer(batch['row']).mean()
        if self.run_spec.manual:
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        if self.run_spec.crash_in_validation == self.validated:
            raise Crash
        self.validated += 1
        self.called('validation_step')
        self.write(
            validation=batch_idx,
            loader=dataloader_idx,
            epoch=self.trainer.current_epoch,
            is_sanity_check=self.trainer.sanity_checking,
            ids=batch['id'].tolist(),
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
        if self.run_spec.strategy == 'ddp_spawn' and multiprocessing.parent_process():
            # What Lightning spawns still has to report, and then ends as any program does.
            atexit.register(end_rank)

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


class Unsized:
    """A loader without its length, as a generator around one is."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader


class UnsizedDataModule(StreamingDataModule):
    """A user's, whose loader is wrapped."""

    def train_dataloader(self) -> Any:
        return Unsized(super().train_dataloader())


def strategy(run: Run) -> str | Strategy:
    if run.strategy == 'tensor_parallel':
        return ModelParallelStrategy(
            data_parallel_size=run.data_parallel,
            tensor_parallel_size=run.tensor_parallel,
            save_distributed_checkpoint=False,
        )
    return DDPStrategy(start_method='forkserver') if run.strategy == 'ddp_forkserver' else run.strategy


def callbacks(run: Run) -> list[Callback]:
    found: list[Callback] = []
    keep = {'dirpath': run.checkpoints, 'save_top_k': -1, 'auto_insert_metric_name': False}
    if run.accumulate:
        found.append(GradientAccumulationScheduler(run.accumulate))
    if run.every_steps:
        found.append(ModelCheckpoint(**keep, filename='step{step}', every_n_train_steps=run.every_steps))
    if run.every_epoch:
        found.append(ModelCheckpoint(**keep, filename='epoch{epoch}', save_on_train_epoch_end=True, mode='max'))
    if run.after_validation:
        found.append(ModelCheckpoint(**keep, filename='val{step}', save_on_train_epoch_end=False))
    if run.save_on_exception:
        found.append(ModelCheckpoint(**keep, filename='raised', save_on_exception=True, every_n_epochs=0))
    if run.on_exception:
        found.append(OnExceptionCheckpoint(run.checkpoints, 'exception'))
    return found


def train(run: Run, model_class: type[Model] = Model) -> tuple[Trainer, Model]:
    """Train as told; a `Crash` comes out."""
    # Lightning says of every loader of an IterableDataset with a length that its workers might disagree on it.
    warnings.filterwarnings('ignore', 'Your `IterableDataset` has `__len__` defined')
    model, found = model_class(run), callbacks(run)
    trainer = Trainer(
        devices=run.devices // run.nodes,
        strategy=strategy(run),
        callbacks=found,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in found),
        **{
            'accelerator': 'cpu',
            'max_epochs': EPOCHS,
            'num_nodes': run.nodes,
            'num_sanity_val_steps': 0,
            **run.trainer,
        },
    )
    if run.by_hand:
        loader = StreamingDataLoader(dataset(run, batch_size=run.batch_size), num_workers=run.workers)
        data: dict[str, Any] = {'train_dataloaders': loader}
        if run.validate:
            data['val_dataloaders'] = StreamingDataLoader(dataset(run, batch_size=run.batch_size))
    elif run.datamodule:
        data = {'datamodule': pkgutil.resolve_name(run.datamodule)(run)}
    elif run.yaml:
        data = {'datamodule': StreamingDataModule(run.yaml, **run.module)}
    else:
        val = {'val': dataset(run, shuffle_seed=1)} if run.validate else {}
        module = UnsizedDataModule if run.unsized else StreamingDataModule
        data = {
            'datamodule': module(
                train=dataset(run), **val, batch_size=run.batch_size, num_workers=run.workers, **run.module
            )
        }
    if run.find_batch_size:
        # It ends where it begins: 2, 4, and then the run's own size.
        found_size = Tuner(trainer).scale_batch_size(model, **data, init_val=2, steps_per_trial=2, max_trials=3)
        assert found_size == run.batch_size, found_size
        model.forget()
    for number, epochs in enumerate(run.fits or [None]):
        if epochs is not None:
            trainer.fit_loop.max_epochs = epochs
        trainer.fit(model, **data, ckpt_path=newest(run.checkpoint) if run.checkpoint and number == 0 else None)
    if run.at_end:
        trainer.save_checkpoint(run.checkpoints / 'end.ckpt')
    return trainer, model


def main() -> None:
    torch.set_num_threads(1)
    for fields in json.loads(Path(sys.argv[1]).read_text()):
        with contextlib.suppress(Crash):
            train(Run(**fields))


if __name__ == '__main__':
    main()
    end_rank()
