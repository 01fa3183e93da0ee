"""What a chain of runs trained, held against what the plan of the data says they should have."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.order import Plan, Topology
from headrace.testing.oracle import World, walk

Batch = tuple[list[int], int, int]
"""A global batch: its ids, sorted, and the epoch and the number that the trainer gave it."""


@dataclass
class Trained:
    """What of a run counts: what is in the checkpoint that the next one continues from, and all of a chain's last."""

    batches: Sequence[Batch]
    data: StreamingDataset
    global_batch_size: int
    replicas: int
    """Ranks, those that share their samples as one."""
    remainder: str | None = None


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
    """Batches to which the trainer gave another epoch or number than the data has."""

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


def judge_chain(legs: Sequence[Trained], *, limit: int | None = None, fixed_epoch: int | None = None) -> Verdict:
    """Walk the plan beside the batches.

    Args:
        legs: the runs of a chain.
        limit: batches of an epoch that the trainer takes.
        fixed_epoch: whose batches all epochs have, as with Lightning's `overfit_batches`.
    """
    verdict = Verdict()
    epoch = start = 0
    promised: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for leg in legs:
        size, topology = leg.global_batch_size, Topology(world_size=leg.replicas)
        for batch, its_epoch, number in leg.batches:
            order = epoch if fixed_epoch is None else fixed_epoch
            plan = leg.data.plan(
                epoch=order, start=start, global_batch_size=size, remainder=leg.remainder, topology=topology
            )
            stop = plan.stop if limit is None else min(plan.stop, limit * size)
            expected = sorted(leg.data.order(order, size).at(plan.global_positions(0)).tolist())
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
    """What number a batch must have so that the trainer's count of the epoch ends with its last batch."""
    if limit is None:
        return plan.total_batches - plan.num_batches
    return start // plan.global_batch_size


def check_states(
    make_loader: Callable[[Topology, int], StreamingDataLoader],
    trained: Sequence[frozenset[int]],
    states: Mapping[int, dict[str, Any]],
    worlds: Sequence[World],
    epoch_batches: int,
) -> None:
    """Check that a trainer's states continue in other worlds, in turn, with the batches that it trained after them.

    Args:
        make_loader: makes one rank's loader, for these workers.
        trained: the ids of all global batches.
        states: by the number of batches before each.
        worlds: those that resume.
        epoch_batches: batches of an epoch.
    """
    assert len(states) >= len(trained) - 1
    for (number, state), world in zip(states.items(), itertools.cycle(worlds), strict=False):
        rest = list(trained[number:])
        epochs = -(-len(rest) // epoch_batches)
        walked = walk(make_loader, world, state=state, epochs=epochs) if epochs else ()
        assert [batch.ids for batch in walked] == rest, f'resumed after {number} batches on {world}'
