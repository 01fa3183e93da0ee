"""Trained samples of runs, compared with the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.support.trainers.lightning_run import Run, dataset
from tests.support.trainers.resume_oracle import Batch, Trained, Verdict, judge_chain


def records(run: Run, key: str = 'batch') -> list[list[dict[str, Any]]]:
    """Each rank's records of a kind."""
    found = []
    for rank in range(run.devices):
        lines = Path(run.out, f'{run.name}.rank{rank}.jsonl').read_text().splitlines()
        found.append([record for record in map(json.loads, lines) if key in record])
    return found


def trained_before(run: Run, checkpoint: Path | None) -> list[Batch]:
    """The global batches of a run that are in a checkpoint's weights, those of its finished optimizer steps."""
    ranks = records(run)
    if checkpoint is not None:
        steps = torch.load(checkpoint, weights_only=True)['global_step']
        ranks = [[record for record in rank if record['step'] < steps] for rank in ranks]
    assert len({len(rank) for rank in ranks}) == 1, 'the ranks trained different numbers of batches'
    for first in range(0, run.devices, run.tensor_parallel):
        assert all(ranks[first] == rank for rank in ranks[first : first + run.tensor_parallel]), (
            'ranks that share a model trained different samples'
        )
    ranks = ranks[:: run.tensor_parallel]
    return [
        (sorted(i for record in batch for i in record['ids']), batch[0]['epoch'], batch[0]['batch'])
        for batch in zip(*ranks, strict=True)
    ]


def judge(
    legs: Sequence[tuple[Run, Path | None]], *, limit: int | None = None, fixed_epoch: int | None = None
) -> Verdict:
    """What `judge_chain` says of runs, each with the checkpoint that the next one continues from; None for the last."""
    trained = [
        Trained(
            trained_before(run, checkpoint),
            dataset(run),
            run.batch_size * run.replicas,
            run.replicas,
            'drop' if run.module.get('drop_last') else None,
        )
        for run, checkpoint in legs
    ]
    return judge_chain(trained, limit=limit, fixed_epoch=fixed_epoch)
