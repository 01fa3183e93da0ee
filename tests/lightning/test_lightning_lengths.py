"""Buckets and balanced shares under Lightning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import StreamingDataLoader
from headrace.order import Topology
from headrace.testing.oracle import World
from tests.support.trainers.lightning_oracle import records
from tests.support.trainers.lightning_run import Run, dataset, train
from tests.support.trainers.resume_oracle import check_states

logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)


@pytest.mark.filterwarnings('ignore')
def test_buckets_continue_from_any_step_on_other_ranks(mixes: dict[str, dict[str, str]], tmp_path: Path) -> None:
    how: dict[str, Any] = {'cost': 'id', 'bucket': 3, 'balance': 1}
    run = Run(
        name='run', out=str(tmp_path), streams=mixes['even'], every_steps=1, dataset=how, trainer={'max_epochs': 2}
    )
    train(run)
    trained = [frozenset(record['ids']) for record in records(run)[0]]
    states: dict[int, dict[str, Any]] = {}
    for file in run.checkpoints.glob('*.ckpt'):
        saved = torch.load(file, weights_only=True)
        states[saved['global_step']] = saved['StreamingDataModule']['position']

    def loader(topology: Topology, workers: int) -> StreamingDataLoader:
        return StreamingDataLoader(dataset(run, topology=topology, batch_size=8 // topology.world_size))

    check_states(loader, trained, states, [World(ranks=2), World(ranks=4, nodes=2)], 12)
