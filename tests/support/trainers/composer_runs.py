"""Starts legs in processes, and reads what their ranks wrote down."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.dataset import MDSWriter, StreamingDataset
from tests.support.programs.processes import run_program
from tests.support.trainers.composer_legs import Leg
from tests.support.trainers.composer_mix import MixLeg
from tests.support.trainers.ranks import run_ranks

TOKENS = 4
"""Of a sample."""


def make_data(folder: Path, samples: int) -> str:
    columns = {'id': 'int', 'x': 'float32', 'input_ids': f'ndarray:int32:{TOKENS}'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=350) as writer:
        for number in range(samples):
            writer.write({'id': number, 'x': number / samples, 'input_ids': np.full(TOKENS, number, np.int32)})
    return str(folder)


def run_legs(ranks: int, legs: Sequence[Leg | MixLeg], *, program: str = 'composer_legs.py') -> None:
    """Run legs on several ranks, without a launcher."""
    run_ranks('composer', ranks, Path(__file__).with_name(program), _written(legs), folder=Path(legs[0].out))


def launch(command: list[str], legs: Sequence[Leg], *, killed: bool = False) -> None:
    """Run legs in processes of their own: `composer -n 2`, `torchrun --nproc-per-node 2`, ..."""
    # The launchers lie beside the interpreter.
    command = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    script = str(Path(__file__).with_name('composer_legs.py'))
    done = run_program([*command, script, str(_written(legs))], timeout=500)
    if (done.returncode == 0) == killed:
        pytest.fail(f'{command} ended with exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}')


def _written(legs: Sequence[Leg | MixLeg]) -> Path:
    plan = Path(legs[0].out) / f'{legs[0].name}.legs.json'
    plan.write_text(json.dumps([asdict(leg) for leg in legs]))
    return plan


def lines(leg: Leg | MixLeg, rank: int = 0, key: str = 'ids') -> list[dict[str, Any]]:
    text = (Path(leg.out) / f'{leg.name}.rank{rank}.jsonl').read_text()
    return [line for line in map(json.loads, text.splitlines()) if key in line]


def trained(leg: Leg | MixLeg, ranks: int) -> dict[int, list[int]]:
    """The ids of each global batch, sorted, by the number of batches that the run trained before it."""
    batches: dict[int, list[int]] = {}
    for rank in range(ranks):
        for line in lines(leg, rank):
            batches.setdefault(line['batch'], []).extend(line['ids'])
    return {batch: sorted(ids) for batch, ids in batches.items()}


def sequence(folder: str, epoch: int, start: int = 0, size: int = 8) -> list[list[int]]:
    """The ids of each global batch of an epoch, from a position, as the plan says; no trainer is asked."""
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=size, shuffle_seed=7)
    plan = dataset.plan(epoch=epoch, start=start)
    return [sorted(plan.ids(k).tolist()) for k in range(plan.num_batches)]
