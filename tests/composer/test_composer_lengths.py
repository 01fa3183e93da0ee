"""Buckets and balanced shares under Composer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.dataset import StreamingDataLoader
from headrace.order import Topology
from headrace.testing.oracle import World
from tests.support.trainers.composer_legs import Leg, run, train_dataset
from tests.support.trainers.composer_runs import lines, make_data
from tests.support.trainers.resume_oracle import check_states

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]


def test_buckets_continue_from_any_step_on_other_ranks(tmp_path: Path) -> None:
    how: dict[str, Any] = {'cost': 'id', 'bucket': 2, 'balance': 1}
    leg = Leg(
        'run', make_data(tmp_path / 'data', 48), str(tmp_path), folder='saved', interval='1ba', dataset=how, plain=True
    )
    run(leg)
    ids = [frozenset(line['ids']) for line in lines(leg)]
    states: dict[int, dict[str, Any]] = {}
    for file in Path(leg.out, 'saved').glob('ep*-ba*-rank0.pt'):
        saved = torch.load(file, weights_only=False)['state']
        states[saved['timestamp']['Timestamp']['batch']] = saved['dataset_state']['train']

    def loader(topology: Topology, workers: int) -> StreamingDataLoader:
        dataset = train_dataset(leg, topology.world_size)
        dataset.bind(topology)
        return StreamingDataLoader(dataset)

    check_states(loader, ids, states, [World(ranks=2), World(ranks=4, nodes=2)], 6)
