"""Trained samples of legs, compared with the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.support.trainers.composer_legs import Leg, train_dataset
from tests.support.trainers.composer_runs import lines
from tests.support.trainers.resume_oracle import Batch, Trained, Verdict, judge_chain


def resumed_at(leg: Leg) -> int:
    """The number of batches behind a leg when it trained its first."""
    return lines(leg)[0]['batch']


def trained_before(leg: Leg, batch: int | None) -> list[Batch]:
    """The global batches that a leg trained, up to one."""
    ranks = [[line for line in lines(leg, rank) if batch is None or line['batch'] < batch] for rank in range(leg.ranks)]
    assert len({len(rank) for rank in ranks}) == 1, 'the ranks trained different numbers of batches'
    ids = [[line['ids'] for line in rank] for rank in ranks]
    for first in range(0, leg.ranks, leg.replication):
        assert all(ids[first] == other for other in ids[first : first + leg.replication]), (
            'ranks that share their samples trained different ones'
        )
    return [
        (sorted(i for line in batch for i in line['ids']), batch[0]['epoch'], batch[0]['batch_in_epoch'])
        for batch in zip(*ranks[:: leg.replication], strict=True)
    ]


def judge(legs: Sequence[Leg], *, limit: int | None = None) -> Verdict:
    """The verdict of `judge_chain` on legs; each leg continued from a checkpoint of the leg before."""
    ends = [*map(resumed_at, legs[1:]), None]
    trained = [
        Trained(
            trained_before(leg, end),
            train_dataset(replace(leg, replication=1), leg.replicas),
            leg.global_batch,
            leg.replicas,
        )
        for leg, end in zip(legs, ends, strict=True)
    ]
    return judge_chain(trained, limit=limit)


def random_fault(first: Leg, second: Leg) -> str:
    """Whether each rank drew the random numbers again for the batches that both legs trained, if it could."""
    if any(getattr(first, name) != getattr(second, name) for name in ('ranks', 'workers', 'global_batch')):
        return ''
    # Workers are seeded anew when they start, so a sample's own numbers are the run's only without workers.
    count = 3 if first.workers else 4
    for rank in range(first.ranks):
        wanted = {line['batch']: line['drawn'][:count] for line in lines(first, rank)}
        for line in lines(second, rank):
            if line['drawn'][:count] != wanted.get(line['batch'], line['drawn'][:count]):
                return f'other random numbers from batch {line["batch"]} on rank {rank}'
    return ''
