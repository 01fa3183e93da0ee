"""The cost of statistics and states in a training step, without workers and with them, in microseconds.

usage: python benchmarks/lightning_hooks.py [STEPS]

The loop calls what Lightning calls, with a real trainer that logs to a CSV file at every 50th step; each call is timed
by itself, so that it does not matter what else the step is made of. Streams are mixed at random, 8 of them, in batches
of 64 rows of 512 tokens with an attention mask.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.lightning import DataStatistics, StreamingDataModule

STREAMS, ROWS, LENGTH = 8, 64, 512


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch: Any, _batch_idx: int) -> torch.Tensor:
        return self.weight * batch['input_ids'][0, 0]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-9)


class Timed(DataStatistics):
    """`DataStatistics` that times its hook."""

    def __init__(self) -> None:
        super().__init__(50)
        self.seconds: list[float] = []

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        begin = time.thread_time()
        super().on_train_batch_end(*args, **kwargs)
        self.seconds.append(time.thread_time() - begin)


class States(Callback):
    """Times the states, as a checkpoint at every step would take them."""

    def __init__(self, data: StreamingDataModule) -> None:
        self.data = data
        self.seconds: dict[str, list[float]] = {'loader.state_dict()': [], 'datamodule.state_dict()': []}
        self.stats: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        loader = trainer.train_dataloader
        assert isinstance(loader, StreamingDataLoader)
        self.seconds['loader.state_dict()'].append(timed(loader.state_dict))
        self.seconds['datamodule.state_dict()'].append(timed(self.data.state_dict))
        self.stats.append(timed(loader.stats))


def timed(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def write(root: Path) -> list[Path]:
    columns = {'input_ids': f'ndarray:int32:{LENGTH}', 'attention_mask': f'ndarray:int8:{LENGTH}'}
    for number in range(STREAMS):
        with MDSWriter(out=str(root / str(number)), columns=columns, size_limit=1 << 22) as writer:
            for row in range(4000):
                tokens = np.full(LENGTH, row, np.int32)
                writer.write({'input_ids': tokens, 'attention_mask': np.ones(LENGTH, np.int8)})
    return [root / str(number) for number in range(STREAMS)]


def train(folders: list[Path], out: Path, workers: int, steps: int) -> None:
    streams = [Stream(local=str(folder), name=folder.name, proportion=1 + i) for i, folder in enumerate(folders)]
    dataset = StreamingDataset(streams=streams, shuffle=True, epoch_size=10_000_000, num_canonical_nodes=64)
    data = StreamingDataModule(train=dataset, batch_size=ROWS, num_workers=workers)
    timed_hook, states = Timed(), States(data)
    trainer = Trainer(
        accelerator='cpu',
        max_steps=steps,
        callbacks=[timed_hook, states],
        logger=CSVLogger(str(out), 'run'),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), datamodule=data)
    for name, seconds in states.seconds.items():
        print(f'{workers} workers: {name} median {statistics.median(seconds) * 1e6:.0f} us')
    print(f'{workers} workers: loader.stats() median {statistics.median(states.stats) * 1e6:.0f} us')
    hook = timed_hook.seconds
    print(
        f'{workers} workers: DataStatistics mean {statistics.mean(hook) * 1e6:.0f} us a step, logs included; '
        f'median {statistics.median(hook) * 1e6:.0f} us; a log, median '
        f'{statistics.median(hook[49::50]) * 1e6:.0f} us'
    )


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    warnings.filterwarnings('ignore')
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        folders = write(Path(folder, 'data'))
        for workers in (0, 1):
            train(folders, Path(folder, f'log{workers}'), workers, steps)


if __name__ == '__main__':
    main()
