"""Runs legs of a training with Composer's Trainer and writes down what every rank trained on.

`python composer_legs.py LEGS.json` runs all legs of the file one after another, under any launcher.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from composer.utils import checkpoint, dist
from torch.utils.data import DataLoader, default_collate

from composer import Callback, ComposerModel, Evaluator, Trainer
from headrace.composer import StreamingPosition, streaming_data_spec
from headrace.dataset import StreamingDataLoader, StreamingDataset
from tests.support.programs.processes import end_rank

# Names of a leg's checkpoints, and when they are saved: after this batch, or at the end of this epoch.
CHECKPOINTS = {'mid': 5, 'eighth': 8, 'last': 12, 'thirteenth': 13, 'boundary': 'ep1', 'second': 17}


class Crash(Exception):
    """The crash of a leg that is told to crash."""


@dataclass
class Leg:
    name: str
    data: str
    out: str
    ranks: int = 1
    """On all nodes. Under a launcher it says how many there are."""
    nodes: int = 1
    workers: int = 0
    global_batch: int = 8
    duration: str = '2ep'
    load: str | None = None
    save: bool = False
    subset: int = -1
    follow: bool = True
    crash_after: int | None = None
    """Batch, counted from the beginning of the training, after which to die of an exception on every rank."""
    kill_after: int | None = None
    """Batch after which every rank dies of a SIGKILL."""
    folder: str | None = None
    """Where the trainer saves its own checkpoints, below `out`."""
    interval: str = '3ba'
    autoresume: bool = False
    evaluate: str | None = None
    remainder: str = 'repeat'
    fits: int = 1
    plain: bool = False
    microbatch: int | None = None
    skip: tuple[tuple[int | str, int | str], ...] = ()
    epoch_size: int | None = None
    on_mixture_change: str = 'refuse'
    replication: int = 1
    dataset: dict[str, Any] = field(default_factory=dict)
    """More arguments of the training dataset, of either library."""
    library: str = 'headrace'
    """Or `mosaicml-streaming`."""

    @property
    def replicas(self) -> int:
        """Ranks, those that share their samples as one."""
        return self.ranks // self.replication

    @property
    def is_to_die(self) -> bool:
        return self.crash_after is not None or self.kill_after is not None

    @property
    def latest(self) -> Path:
        """The last checkpoint that the trainer saved by itself."""
        assert self.folder is not None
        return Path(self.out, self.folder, 'latest-rank0.pt')


class Linear(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.dropout = torch.nn.Dropout(0.5)
        self.seen: list[int] = []

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.dropout(self.layer(batch['x'].float().reshape(-1, 1)))

    def loss(self, outputs: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return (outputs**2).mean()

    def eval_forward(self, batch: dict[str, Any], outputs: Any = None) -> torch.Tensor:
        assert batch['x'].shape == batch['id'].shape
        self.seen += batch['id'].tolist()
        return self.forward(batch)

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None: ...


def write_line(record: Path, line: dict[str, Any]) -> None:
    """Add a line, and leave no open file to a trainer that fails."""
    with record.open('a') as file:
        print(json.dumps(line), file=file)


class Recorder(Callback):
    """Writes one line for each trained batch; lines survive the process."""

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self.record = Path(leg.out) / f'{leg.name}.rank{dist.get_global_rank()}.jsonl'
        self.record.write_text('')
        self.line: dict[str, Any] = {}

    def after_dataloader(self, state: Any, logger: Any) -> None:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        time = state.timestamp
        self.line = {
            'epoch': int(time.epoch),
            'batch': int(time.batch),
            'batch_in_epoch': int(time.batch_in_epoch),
            'sample_in_epoch': int(time.sample_in_epoch),
            'token': int(time.token),
            'len': None if state.dataloader_len is None else int(state.dataloader_len),
            'ids': state.batch['id'].tolist(),
            'drawn': drawn + ([float(state.batch['noise'])] if 'noise' in state.batch else []),
        }

    def batch_end(self, state: Any, logger: Any) -> None:
        write_line(self.record, self.line)

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        batch = int(state.timestamp.batch)
        for name, when in CHECKPOINTS.items():
            if self.leg.save and when == batch:
                self._save(state, name)
        # The trainer's own checkpoint of this batch would come after this.
        if self.leg.crash_after == batch:
            raise Crash
        if self.leg.kill_after == batch:
            os.kill(os.getpid(), signal.SIGKILL)

    def epoch_checkpoint(self, state: Any, logger: Any) -> None:
        if self.leg.save and int(state.timestamp.epoch) == 1:
            self._save(state, 'boundary')

    def eval_end(self, state: Any, logger: Any) -> None:
        model = getattr(state.model, 'module', state.model)
        write_line(self.record, {'evaluated': model.seen})
        model.seen = []

    def _save(self, state: Any, name: str) -> None:
        checkpoint.save_checkpoint(state, str(Path(self.leg.out) / f'{self.leg.name}-{name}.pt'))


class WithNoise(StreamingDataset):
    """Draws a random number for each sample where it is read."""

    def __getitem__(self, at: Any) -> Any:
        return {**super().__getitem__(at), 'noise': torch.rand(())}


def _collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch = default_collate(samples)
    return {**batch, 'noise': batch['noise'].sum()}


def train_dataset(leg: Leg, replicas: int) -> StreamingDataset:
    """The leg's, for so many ranks that do not share their samples."""
    kind = StreamingDataset if leg.plain else WithNoise
    return kind(
        **_common(leg, replicas),
        remainder=leg.remainder,
        skip=leg.skip,
        epoch_size=leg.epoch_size,
        on_mixture_change=leg.on_mixture_change,
        **leg.dataset,
    )


def train_spec(leg: Leg) -> Any:
    replicas = dist.get_world_size() // leg.replication
    if leg.library == 'mosaicml-streaming':
        return _mosaicml_loader(leg, _common(leg, replicas))
    dataset = train_dataset(leg, replicas)
    if leg.plain:
        return DataLoader(dataset, batch_size=leg.global_batch // replicas, num_workers=leg.workers)
    return streaming_data_spec(StreamingDataLoader(dataset, num_workers=leg.workers, collate_fn=_collate))


def _common(leg: Leg, replicas: int) -> dict[str, Any]:
    """Arguments that have the same names in both libraries."""
    replication = {'replication': leg.replication} if leg.replication > 1 else {}
    return {
        'local': leg.data,
        'shuffle': True,
        'shuffle_seed': 7,
        'batch_size': leg.global_batch // replicas,
        **replication,
    }


def _mosaicml_loader(leg: Leg, options: dict[str, Any]) -> Any:
    """As Composer's documentation has it.

    Ranks join their process group first, as in LLM Foundry. Else the dataset joins and leaves one, and Composer joins
    another at the same port, where a rank may come too early.
    """
    import streaming

    if dist.get_world_size() > 1:
        dist.initialize_dist('cpu')
    dataset = streaming.StreamingDataset(**options, **leg.dataset)
    loader = DataLoader if leg.plain else streaming.StreamingDataLoader
    return loader(dataset, batch_size=options['batch_size'], num_workers=leg.workers)


def evaluators(leg: Leg) -> Any:
    if leg.evaluate is None:
        return None
    if leg.library == 'mosaicml-streaming':
        peer = replace(leg, data=leg.evaluate, dataset={}, replication=1)
        spec = _mosaicml_loader(peer, {'local': leg.evaluate, 'batch_size': 8 // dist.get_world_size()})
    else:
        spec = streaming_data_spec(
            section='eval', local=leg.evaluate, global_batch_size=8, shuffle=True, num_workers=leg.workers
        )
    return [Evaluator(label='held_out', dataloader=spec, eval_interval='6ba')]


def trainer_of(leg: Leg) -> Trainer:
    model = Linear()
    return Trainer(
        model=model,
        train_dataloader=train_spec(leg),
        eval_dataloader=evaluators(leg),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration=leg.duration,
        callbacks=[*([StreamingPosition()] if leg.follow and leg.library == 'headrace' else []), Recorder(leg)],
        load_path=leg.load,
        train_subset_num_batches=leg.subset,
        device='cpu',
        seed=3,
        progress_bar=False,
        auto_log_hparams=False,
        run_name=leg.folder,
        autoresume=leg.autoresume,
        save_folder=str(Path(leg.out, leg.folder)) if leg.folder else None,
        save_interval=leg.interval,
        device_train_microbatch_size=leg.microbatch,
    )


def run(leg: Leg) -> Trainer:
    trainer = trainer_of(leg)
    trainer.fit()
    for _ in range(leg.fits - 1):
        trainer.fit(duration=leg.duration)
    trainer.close()
    return trainer


if __name__ == '__main__':
    warnings.simplefilter('ignore')
    for options in json.loads(Path(sys.argv[1]).read_text()):
        run(Leg(**options))
    end_rank()
