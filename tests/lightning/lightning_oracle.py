"""What runs trained, held against what the plan says they should have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_run import Run, dataset

from headrace.order import Plan, Topology


@dataclass
class Verdict:
    """The outcome of a chain of runs, each resumed from a checkpoint of the one before."""

    lost: int = 0
    repeated: int = 0
    wrong_batches: int = 0
    trained: int = 0
    epochs: int = 0
    """Epochs that were finished."""
    position: int = 0
    """Samples of the next epoch that were trained."""
    misnumbered: int = 0
    """Batches to which Lightning gave another epoch or number than the data has."""

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.repeated or self.wrong_batches or self.misnumbered)

    def __str__(self) -> str:
        verdict = (
            'exact' if self.is_exact else f'{self.lost} lost, {self.repeated} repeated, {self.wrong_batches} moved'
        )
        if self.misnumbered:
            verdict += f', {self.misnumbered} misnumbered'
        return f'{verdict} ({self.trained} batches, {self.epochs} epochs + {self.position})'


def records(run: Run, key: str = 'batch') -> list[list[dict[str, Any]]]:
    """Each rank's records of a kind."""
    found = []
    for rank in range(run.devices):
        lines = Path(run.out, f'{run.name}.rank{rank}.jsonl').read_text().splitlines()
        found.append([record for record in map(json.loads, lines) if key in record])
    return found


def trained_before(run: Run, checkpoint: Path | None) -> list[tuple[list[int], int, int]]:
    """The global batches of a run that are in a checkpoint's weights, those of its finished optimizer steps.

    Each as its ids, and the epoch and the number that Lightning gave it.
    """
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
    """Walk the plan beside the records.

    Args:
        legs: the runs, each with the checkpoint that the next one goes on from; None for the last.
        limit: batches of an epoch that the trainer takes.
        fixed_epoch: whose batches all epochs have, as with `overfit_batches`.
    """
    verdict = Verdict()
    epoch = start = 0
    promised: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for run, checkpoint in legs:
        data = dataset(run)
        size = run.batch_size * run.replicas
        remainder = 'drop' if run.module.get('drop_last') else None
        topology = Topology(world_size=run.replicas)
        for batch, its_epoch, number in trained_before(run, checkpoint):
            order = epoch if fixed_epoch is None else fixed_epoch
            plan = data.plan(epoch=order, start=start, global_batch_size=size, remainder=remainder, topology=topology)
            stop = plan.stop if limit is None else min(plan.stop, limit * size)
            expected = sorted(data.order(order).at(plan.global_positions(0)).tolist())
            verdict.wrong_batches += batch != expected
            promised.update(expected)
            seen.update(batch)
            verdict.misnumbered += (its_epoch, number) != (epoch, _number(plan, start, limit))
            verdict.trained += 1
            start = plan.end(0)
            if start >= stop:
                epoch, start = epoch + 1, 0
    verdict.lost = sum((promised - seen).values())
    verdict.repeated = sum((seen - promised).values())
    verdict.epochs, verdict.position = epoch, start
    return verdict


def _number(plan: Plan, start: int, limit: int | None) -> int:
    """What number a batch must have so that Lightning's count of the epoch ends with its last batch."""
    if limit is None:
        return plan.total_batches - plan.num_batches
    return start // plan.global_batch_size
